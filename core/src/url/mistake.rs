//! Errors about a URL, with the nearest known spelling.

/// A suggestion for `given`: the nearest of `known`, or nothing if none is near.
pub(super) fn did_you_mean<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(given, known).map(|near| format!(" (did you mean {near}?)")).unwrap_or_default()
}

fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.map(|known| (strsim::damerau_levenshtein(given, known), known)).min();
    near.filter(|(distance, known)| *distance <= 3 && *distance < known.len())
        .map(|(_, known)| known)
}

/// The scheme of `known` that the unknown `given` was most likely to be: one of which it is a part (`unix`
/// of `redis+unix`), or the one with the nearest spelling. For the error of a program that knows schemes
/// for which it was not built.
pub fn nearest_scheme<'a>(
    given: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Option<&'a str> {
    let whole = known.clone().find(|name| name.split(['+', '-']).any(|part| part == given));
    whole.or_else(|| nearest(given, known))
}
