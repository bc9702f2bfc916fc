//! The arguments by name, and what is said about other names.

/// Each argument, as it is written.
const ARGUMENTS: [(&str, &str); 11] = [
    ("by", "by = LOCKS"),
    ("name", "name = \"…\""),
    ("read", "read"),
    ("write", "write"),
    ("try", "try"),
    ("as", "as = GUARD"),
    ("wait", "wait = \"3s\""),
    ("ttl", "ttl = \"10s\""),
    ("at_most", "at_most = \"1m\""),
    ("local_handoffs", "local_handoffs = 16"),
    ("owner", "owner = OWNER"),
];

/// Methods of `Lock` that an argument stands for.
const METHODS: [(&str, &str); 3] =
    [("wait_at_most", "wait"), ("hold_at_most", "at_most"), ("owned_by", "owner")];

/// Options of `Lock` without an argument: a function that needs one calls `Lock::with`.
const OTHERS: [&str; 5] = ["fixed_lease", "label", "permits", "unreachable_after", "waiting_since"];

/// All arguments, as they are written.
pub(crate) fn all() -> String {
    let [most @ .., last] = ARGUMENTS.map(|(_, written)| written);
    format!("{} or {last}", most.join(", "))
}

/// The argument `name`, as it is written.
pub(crate) fn written(name: &str) -> &'static str {
    ARGUMENTS.iter().find(|(known, _)| *known == name).map_or("an argument", |(_, it)| it)
}

/// What is wrong with an argument `given` that does not exist.
pub(crate) fn unknown(given: &str) -> String {
    if OTHERS.contains(&given) {
        return format!("{given} is not an argument of #[locked]: call Lock::with in the function");
    }
    match meant(given) {
        Some(meant) => format!("unknown argument {given:?} (did you mean {meant}?)"),
        None => format!("unknown argument {given:?}: expected {}", all()),
    }
}

fn meant(given: &str) -> Option<&'static str> {
    if let Some((_, argument)) = METHODS.iter().find(|(method, _)| *method == given) {
        return Some(argument);
    }
    let distances = ARGUMENTS.map(|(known, _)| (strsim::damerau_levenshtein(given, known), known));
    // One letter in a short word, since most of these are short.
    distances
        .into_iter()
        .filter(|(distance, known)| *distance <= (known.len() / 3).max(1))
        .min()
        .map(|(_, known)| known)
}
