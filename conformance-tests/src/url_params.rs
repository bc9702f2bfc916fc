//! Parameters on a store's URL, which may have others already.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b':');

/// The URL with these parameters in place of those of their names.
#[must_use]
pub fn with_params(url: &str, params: &[(&str, &str)]) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let kept = query.split('&').filter(|pair| {
        let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
        !pair.is_empty() && !params.iter().any(|(ours, _)| *ours == name)
    });
    let ours = params
        .iter()
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, ENCODED)));
    let pairs: Vec<String> = kept.map(str::to_owned).chain(ours).collect();
    if pairs.is_empty() { base.to_owned() } else { format!("{base}?{}", pairs.join("&")) }
}
