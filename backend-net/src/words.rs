//! What a server says, as people read it.

/// What a server says, as a part of a message, which people read on a terminal: one line without control
/// characters, of at most 400 characters and a `…`.
#[must_use]
pub fn words_of_server(text: &str) -> String {
    const MOST: usize = 400;
    let mut words: String = text
        .chars()
        .take(MOST)
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    if text.chars().nth(MOST).is_some() {
        words.push('…');
    }
    words
}
