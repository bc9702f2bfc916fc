//! Errors about a URL, with the nearest known spelling.

/// A suggestion for `given`: the nearest of `known`, or nothing if none is near.
pub(super) fn did_you_mean<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known.map(|known| (strsim::damerau_levenshtein(given, known), known)).min();
    match near {
        Some((distance, known)) if distance <= 3 && distance < known.len() => {
            format!(" (did you mean {known}?)")
        }
        _ => String::new(),
    }
}
