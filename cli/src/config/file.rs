//! The configuration file, and the file that contains only a URL.
//!
//! No message repeats a line of a file: it may contain a password, also where a quote was forgotten.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use fencelock::{Ttl, parse_duration};
use toml::{Table, Value};

use super::reach::RequiredReach;

const KEYS: &str = "url, reach, ttl and label";

/// The settings of one file. Without `Debug`, since the URL may contain a password.
#[derive(Default)]
pub(super) struct Content {
    pub(super) url: Option<String>,
    pub(super) reach: Option<RequiredReach>,
    pub(super) ttl: Option<Ttl>,
    pub(super) label: Option<String>,
}

impl Content {
    /// The settings in the file at `path`. The error is a message that names it.
    pub(super) fn read(path: &Path) -> Result<Content, String> {
        let text = read(path)?;
        Content::parse(&text).map_err(|why| format!("{}: {why}", path.display()))
    }

    fn parse(text: &str) -> Result<Content, String> {
        let table: Table = text.parse().map_err(|error| syntax_error(text, &error))?;
        let mut content = Content::default();
        for (key, value) in table {
            match key.as_str() {
                "url" => content.url = Some(string(value, "url = \"redis://HOST\"")?),
                "label" => content.label = Some(string(value, "label = \"web-1\"")?),
                "reach" => {
                    let reach = RequiredReach::parse(&string(value, "reach = \"network\"")?);
                    let reach = reach.ok_or("reach: expected \"machine\" or \"network\"")?;
                    content.reach = Some(reach);
                }
                "ttl" => {
                    let ttl = parse_duration(&string(value, "ttl = \"30s\"")?).and_then(Ttl::new);
                    content.ttl = Some(ttl.map_err(|why| format!("ttl: {}", why.message()))?);
                }
                unknown => {
                    return Err(format!("unknown key {unknown:?}; the keys are {KEYS}"));
                }
            }
        }
        Ok(content)
    }
}

fn string(value: Value, example: &str) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(format!("expected a value in quotes, such as {example}")),
    }
}

/// Where the syntax is wrong, without the text there.
fn syntax_error(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    format!(
        "line {line} is not valid TOML; expected KEY = \"VALUE\" with a value in quotes; the keys \
         are {KEYS}"
    )
}

/// The URL in the file at `path`. The error is a message that names it.
pub(super) fn url_in(path: &Path) -> Result<String, String> {
    let text = read(path)?;
    let url = text.trim();
    if url.is_empty() || url.lines().count() != 1 {
        let path = path.display();
        return Err(format!("expected one line with a store URL in {path}"));
    }
    Ok(url.to_owned())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|why| format!("cannot read {}: {why}", path.display()))
}

pub(super) fn others_can_read(path: &Path) -> bool {
    permits_others(path, 0o004)
}

pub(super) fn others_can_write(path: &Path) -> bool {
    permits_others(path, 0o002)
}

/// A device such as `/dev/null` is open to all users, and contains nothing.
fn permits_others(path: &Path, mode: u32) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & mode != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_are_read() {
        let text = "# jobs\nurl = \"zk://a,b\"\nreach = 'network'\nttl = '1m30s'\nlabel = 'web'\n";
        let content = Content::parse(text).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(content.url.as_deref(), Some("zk://a,b"));
        assert_eq!(content.reach, Some(RequiredReach::Network));
        assert_eq!(content.ttl.unwrap().get().as_secs(), 90);
        assert_eq!(content.label.as_deref(), Some("web"));
    }

    #[test]
    fn mistakes_are_explained_and_show_no_password() {
        for (text, says) in [
            (
                "ulr = 'redis://:secret@h'",
                "unknown key \"ulr\"; the keys are url, reach, ttl and label",
            ),
            ("reach = 'x'\nurl = redis://:secret@h\n", "line 2 is not valid TOML"),
            ("url = 'redis://:secret@h", "line 1 is not valid TOML"),
            ("url = 'redis://:secret@h'\nurl = 'redis://h'", "line 2 is not valid TOML"),
            ("redis://:secret@h", "line 1 is not valid TOML"),
            ("[secret]\nurl = 'redis://:secret@h'", "unknown key"),
            ("url = ['redis://:secret@h']", "in quotes, such as url"),
            ("ttl = 30", "in quotes, such as ttl = \"30s\""),
            ("ttl = '30'", "ttl: "),
            ("ttl = '1ms'", "out of range"),
            ("reach = 'redis://:secret@h'", "expected \"machine\" or \"network\""),
        ] {
            let why = Content::parse(text).err().expect(text);
            assert!(why.contains(says), "{text}: {why}");
            assert!(!why.contains(":secret"), "{why}");
        }
    }
}
