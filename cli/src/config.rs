//! Which store a command uses, and what it requires of it: from options, the environment and
//! configuration files.
//!
//! cron starts jobs with an empty environment, and a URL on a command line shows its password in the
//! process list. So the settings also come from files. The first place that has a setting decides:
//!
//! 1. the options `--url` and `--reach`
//! 2. the file of `--config`
//! 3. `FENCELOCK_URL` and `FENCELOCK_REACH`
//! 4. the file that `FENCELOCK_URL_FILE` names, which contains a URL
//! 5. the file that `FENCELOCK_CONFIG` names
//! 6. the user's file and then the machine's, unless a file is named by `--config` or
//!    `FENCELOCK_CONFIG`

mod file;
mod reach;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fencelock::backend::url::StoreUrl;
use fencelock::{Error, Profile, Reach, Ttl, URL_VARIABLE};

use file::Content;
pub(crate) use reach::RequiredReach;

use crate::stores;

const REACH_VARIABLE: &str = "FENCELOCK_REACH";
const URL_FILE_VARIABLE: &str = "FENCELOCK_URL_FILE";
const CONFIG_VARIABLE: &str = "FENCELOCK_CONFIG";

/// The machine's configuration file.
const MACHINE_FILE: &str = "/etc/fencelock.toml";
/// The user's configuration file, in the directory of configuration files.
const USER_FILE: &str = "fencelock.toml";

/// The store where nothing names one.
const DEFAULT_URL: &str = "file://";

/// The options that choose the store.
#[derive(clap::Args, Debug)]
pub(crate) struct StoreOptions {
    /// Store URL, such as redis://HOST, postgres://USER@HOST/DATABASE, zk://HOST or file:///DIR [env:
    /// FENCELOCK_URL]; the default, file://, is a per-user directory on this machine
    #[arg(long, value_name = "URL")]
    url: Option<GivenUrl>,
    /// Read the settings url, reach, ttl and label from FILE, and not from ~/.config/fencelock.toml
    /// and /etc/fencelock.toml [env: FENCELOCK_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Refuse a store whose locks exclude less than this [env: FENCELOCK_REACH]
    #[arg(long, value_enum)]
    reach: Option<RequiredReach>,
}

/// A URL of the command line. `Debug` does not show it, since it may contain a password.
#[derive(Clone)]
struct GivenUrl(String);

impl FromStr for GivenUrl {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<GivenUrl, Self::Err> {
        Ok(GivenUrl(text.to_owned()))
    }
}

impl fmt::Debug for GivenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GivenUrl(***)")
    }
}

/// A setting and the place that it comes from, for messages: `--url`, `FENCELOCK_URL`, a file's path.
struct Setting<T> {
    value: T,
    from: String,
}

/// The settings after all places were read. Without `Debug`, since the URL may contain a password.
pub(crate) struct Config {
    /// `None` where nothing names a store.
    url: Option<Setting<String>>,
    reach: Option<Setting<RequiredReach>>,
    /// The TTL of a URL without `ttl=`.
    pub(crate) ttl: Option<Ttl>,
    pub(crate) label: Option<String>,
    /// Files that all users of the machine can change, or read a password in.
    pub(crate) warnings: Vec<String>,
    /// Changes to a command's environment, by which a nested command finds the same store: `None`
    /// for a variable to remove.
    pub(crate) environment: Vec<(&'static str, Option<OsString>)>,
}

impl Config {
    /// Reads all places. The error is a message that names the place.
    pub(crate) fn read(options: StoreOptions) -> Result<Config, String> {
        let variable = |name: &str| std::env::var_os(name);
        let directory = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
        let directory = directory
            .filter(|directory| directory.is_absolute())
            .or_else(|| Some(std::env::home_dir()?.join(".config")));
        let user_file = directory.map(|directory| directory.join(USER_FILE));
        Places { variable: &variable, user_file, machine_file: MACHINE_FILE.into() }.read(options)
    }

    pub(crate) fn url(&self) -> &str {
        self.url.as_ref().map_or(DEFAULT_URL, |url| &url.value)
    }

    /// The URL in its parts. The error names the place that it comes from.
    pub(crate) fn parsed_url(&self) -> Result<StoreUrl, String> {
        if let Some(lacking) = stores::lacking(self.url()) {
            return Err(self.at_url(&lacking));
        }
        StoreUrl::parse(self.url()).map_err(|error| self.about_url(&error))
    }

    /// An error about the URL, with the place that it comes from.
    pub(crate) fn about_url(&self, error: &Error) -> String {
        self.at_url(error.message())
    }

    fn at_url(&self, message: &str) -> String {
        let place = self.url.as_ref().map_or("the default URL", |url| &url.from);
        format!("{place}: {message}")
    }

    /// How far the default store reaches, if neither a store nor a reach was chosen.
    pub(crate) fn notice_of_default(&self) -> Option<String> {
        (self.url.is_none() && self.reach.is_none()).then(|| {
            format!(
                "no store URL is set: the lock excludes only this user's jobs on this machine \
                 ({DEFAULT_URL}); for several machines set --url, {URL_VARIABLE} or url in \
                 {MACHINE_FILE}, and if one machine is enough, --reach machine"
            )
        })
    }

    /// Checks that a store with this `profile` excludes what is required, and more than one process,
    /// which would be this one.
    pub(crate) fn require_reach(&self, profile: &Profile, shown_url: &str) -> Result<(), String> {
        let excludes = profile.reach;
        match &self.reach {
            Some(Setting { value, from }) if !value.is_met_by(excludes) => Err(format!(
                "{shown_url} excludes only the {excludes}, but {from} requires the reach {:?}; \
                 {}",
                value.as_str(),
                match value {
                    RequiredReach::Network => format!(
                        "set a URL such as redis://HOST or postgres://USER@HOST/DATABASE by --url, {URL_VARIABLE} or \
                         url in {MACHINE_FILE}"
                    ),
                    RequiredReach::Machine =>
                        "use file://, postgres://, redis:// or zk://".to_owned(),
                }
            )),
            _ if excludes == Reach::Process => Err(format!(
                "{shown_url} excludes only the {excludes}, and each command is a process of its \
                 own; use file://, postgres://, redis:// or zk://"
            )),
            _ => Ok(()),
        }
    }
}

/// The places outside of the command line.
struct Places<'a> {
    variable: &'a dyn Fn(&str) -> Option<OsString>,
    user_file: Option<PathBuf>,
    machine_file: PathBuf,
}

impl Places<'_> {
    fn read(&self, options: StoreOptions) -> Result<Config, String> {
        let mut config = Config {
            url: options.url.map(|url| Setting { value: url.0, from: "--url".to_owned() }),
            reach: options.reach.map(|value| Setting { value, from: "--reach".to_owned() }),
            ttl: None,
            label: None,
            warnings: Vec::new(),
            environment: Vec::new(),
        };
        let named_by_option = options.config.is_some();
        if let Some(path) = options.config {
            let path = absolute(&path)?;
            let (had_url, had_reach) = (config.url.is_some(), config.reach.is_some());
            config.add_file(&path)?;
            // A nested command would prefer these variables to the file.
            if !had_url && config.url.is_some() {
                config.environment.push((URL_VARIABLE, None));
                config.environment.push((URL_FILE_VARIABLE, None));
            }
            if !had_reach && config.reach.is_some() {
                config.environment.push((REACH_VARIABLE, None));
            }
            config.environment.push((CONFIG_VARIABLE, Some(path.into())));
        }
        self.add_variables(&mut config)?;
        if named_by_option {
            return Ok(config);
        }
        match self.variable(CONFIG_VARIABLE)? {
            Some(path) => {
                let path = absolute(Path::new(&path))?;
                config.add_file(&path).map_err(|why| format!("{CONFIG_VARIABLE}: {why}"))?;
                config.environment.push((CONFIG_VARIABLE, Some(path.into())));
            }
            None => self.add_default_files(&mut config)?,
        }
        Ok(config)
    }

    fn add_variables(&self, config: &mut Config) -> Result<(), String> {
        if config.url.is_none()
            && let Some(value) = self.variable(URL_VARIABLE)?
        {
            config.url = Some(Setting { value, from: URL_VARIABLE.to_owned() });
        }
        if config.url.is_none()
            && let Some(path) = self.variable(URL_FILE_VARIABLE)?
        {
            let path = absolute(Path::new(&path))?;
            let value = file::url_in(&path).map_err(|why| format!("{URL_FILE_VARIABLE}: {why}"))?;
            config.warn_of_writers(&path);
            config.warn_of_readers(&path, &value);
            config.url = Some(Setting { value, from: path.display().to_string() });
            config.environment.push((URL_FILE_VARIABLE, Some(path.into())));
        }
        if config.reach.is_none()
            && let Some(text) = self.variable(REACH_VARIABLE)?
        {
            let value = RequiredReach::parse(&text).ok_or_else(|| {
                format!("invalid {REACH_VARIABLE} {text:?}: expected machine or network")
            })?;
            config.reach = Some(Setting { value, from: REACH_VARIABLE.to_owned() });
        }
        Ok(())
    }

    /// Adds the user's file and the machine's. One that this user may not read is only an error if
    /// the URL could be in it.
    fn add_default_files(&self, config: &mut Config) -> Result<(), String> {
        let mut forbidden = None;
        for path in self.user_file.iter().chain([&self.machine_file]) {
            match std::fs::File::open(path).map_err(|error| error.kind()) {
                Err(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(io::ErrorKind::PermissionDenied) => {
                    forbidden.get_or_insert_with(|| path.display());
                }
                // Another error is reported by the second attempt.
                Ok(_) | Err(_) => config.add_file(path)?,
            }
        }
        match forbidden {
            Some(path) if config.url.is_none() => Err(format!(
                "this user may not read {path}, which may name the store; permit it, for example \
                 by a group, or set --url or {URL_VARIABLE}"
            )),
            _ => Ok(()),
        }
    }

    /// A variable that is set, but neither empty nor anything but text.
    fn variable(&self, name: &str) -> Result<Option<String>, String> {
        let Some(value) = (self.variable)(name) else { return Ok(None) };
        // The text is not repeated: it may contain a password.
        let text = value.into_string().map_err(|_| format!("{name} is not UTF-8"))?;
        if text.trim().is_empty() {
            return Err(format!(
                "{name} is set but empty; unset it, or set it to {}",
                match name {
                    URL_VARIABLE => "a store URL such as redis://HOST",
                    REACH_VARIABLE => "machine or network",
                    _ => "the path of a file",
                }
            ));
        }
        Ok(Some(text))
    }
}

impl Config {
    /// Adds the settings of a configuration file that no stronger place has.
    fn add_file(&mut self, path: &Path) -> Result<(), String> {
        let Content { url, reach, ttl, label } = Content::read(path)?;
        self.warn_of_writers(path);
        let from = || path.display().to_string();
        if let (None, Some(value)) = (&self.url, url) {
            self.warn_of_readers(path, &value);
            self.url = Some(Setting { value, from: from() });
        }
        if let (None, Some(value)) = (&self.reach, reach) {
            self.reach = Some(Setting { value, from: from() });
        }
        self.ttl = self.ttl.or(ttl);
        self.label = self.label.take().or(label);
        Ok(())
    }

    /// Another user could name a store in which this user's locks exclude nothing.
    fn warn_of_writers(&mut self, path: &Path) {
        if file::others_can_write(path) {
            let path = path.display();
            self.warnings.push(format!(
                "all users of this machine can change the store in {path}; chmod o-w {path}"
            ));
        }
    }

    fn warn_of_readers(&mut self, path: &Path, url: &str) {
        // An invalid URL is reported later, and may contain one too.
        let has_secret = StoreUrl::parse(url).map_or(true, |url| url.has_secret());
        if has_secret && file::others_can_read(path) {
            let path = path.display();
            self.warnings.push(format!(
                "all users of this machine can read the password in {path}; chmod o-r {path}"
            ));
        }
    }
}

/// For a command in another directory, and for messages.
fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|why| format!("the path {}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Files and variables of a test.
    struct Here {
        directory: tempfile::TempDir,
        variables: HashMap<&'static str, OsString>,
    }

    impl Here {
        fn new() -> Here {
            let directory = tempfile::tempdir().unwrap();
            Here { directory, variables: HashMap::new() }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.path(name);
            std::fs::write(&path, text).unwrap();
            path
        }

        fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
            self.variables.insert(name, value.into());
        }

        fn read(&self, options: StoreOptions) -> Result<Config, String> {
            let variable = |name: &str| self.variables.get(name).cloned();
            let (user_file, machine_file) = (Some(self.path("user")), self.path("machine"));
            Places { variable: &variable, user_file, machine_file }.read(options)
        }

        fn url(&self, options: StoreOptions) -> String {
            self.read(options).unwrap_or_else(|why| panic!("{why}")).url().to_owned()
        }
    }

    const NONE: StoreOptions = StoreOptions { url: None, config: None, reach: None };

    #[test]
    fn the_strongest_place_that_has_a_setting_decides() {
        let mut here = Here::new();
        assert_eq!(here.url(NONE), "file://");
        here.write("machine", "url = 'redis://machine'\nreach = 'network'\nttl = '7s'\n");
        assert_eq!(here.url(NONE), "redis://machine");
        here.write("user", "url = 'redis://user'\nlabel = 'mine'\n");
        assert_eq!(here.url(NONE), "redis://user");
        let config = here.read(NONE).unwrap();
        assert_eq!(config.label.as_deref(), Some("mine"));
        assert_eq!(config.ttl.unwrap().get().as_secs(), 7, "each setting by itself");
        assert_eq!(config.reach.unwrap().value, RequiredReach::Network);

        here.set(CONFIG_VARIABLE, here.write("named", "url = 'redis://named'"));
        assert_eq!(here.url(NONE), "redis://named");
        assert!(here.read(NONE).unwrap().reach.is_none(), "in place of the default files");
        here.set(URL_FILE_VARIABLE, here.write("url-file", "redis://from-file\n"));
        assert_eq!(here.url(NONE), "redis://from-file");
        here.set(URL_VARIABLE, "redis://environment");
        assert_eq!(here.url(NONE), "redis://environment");
        let option = here.write("option", "url = 'redis://option'\nreach = 'machine'");
        let with_config = || StoreOptions { config: Some(option.clone()), ..NONE };
        here.set(REACH_VARIABLE, "network");
        assert_eq!(here.url(with_config()), "redis://option");
        let reach = here.read(with_config()).unwrap().reach.unwrap();
        assert_eq!(
            (reach.value, reach.from),
            (RequiredReach::Machine, option.display().to_string())
        );
        let url = Some(GivenUrl("redis://typed".to_owned()));
        assert_eq!(here.url(StoreOptions { url, ..with_config() }), "redis://typed");
    }

    #[test]
    fn a_nested_command_finds_the_same_store() {
        let mut here = Here::new();
        here.set(URL_VARIABLE, "redis://environment");
        here.set(REACH_VARIABLE, "machine");
        let option = here.write("option", "url = 'redis://option'\nreach = 'network'");
        let config = here
            .read(StoreOptions { config: Some(option.clone()), ..NONE })
            .unwrap_or_else(|why| panic!("{why}"));
        for (name, value) in config.environment {
            match value {
                Some(value) => here.variables.insert(name, value),
                None => here.variables.remove(name),
            };
        }
        assert_eq!(here.url(NONE), "redis://option");
        let reach = here.read(NONE).unwrap_or_else(|why| panic!("{why}")).reach;
        assert_eq!(reach.map(|it| it.value), Some(RequiredReach::Network), "with the same reach");
    }

    #[test]
    fn an_empty_variable_is_an_error_that_says_so() {
        for name in [URL_VARIABLE, URL_FILE_VARIABLE, REACH_VARIABLE, CONFIG_VARIABLE] {
            let mut here = Here::new();
            here.set(name, " ");
            let why = here.read(NONE).err().expect(name);
            assert!(why.starts_with(&format!("{name} is set but empty; unset it")), "{why}");
        }
    }

    #[test]
    fn only_the_default_files_may_be_missing() {
        let mut here = Here::new();
        let missing = here.path("missing");
        let why = here.read(StoreOptions { config: Some(missing.clone()), ..NONE }).err().unwrap();
        assert!(why.contains(&missing.display().to_string()), "{why}");
        for name in [CONFIG_VARIABLE, URL_FILE_VARIABLE] {
            here.variables.clear();
            here.set(name, &missing);
            let why = here.read(NONE).err().expect(name);
            assert!(why.contains(name) && why.contains("missing"), "{why}");
        }
    }

    #[test]
    fn a_password_that_all_users_can_read_is_warned_of() {
        let here = Here::new();
        for (text, mode, warns) in [
            ("url = 'redis://:secret@host'", 0o644, true),
            ("url = 'redis://:secret@host'", 0o640, false),
            ("url = 'redis://host'", 0o644, false),
            ("url = 'redis://host?password_file=/p'", 0o644, false),
            ("url = 'zk://host?auth=digest:me:secret'", 0o644, true),
            ("url = 'redis+sentinel://host/s?sentinel_password=secret'", 0o644, true),
        ] {
            let file = here.write("user", text);
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            let warnings = here.read(NONE).unwrap_or_else(|why| panic!("{why}")).warnings;
            assert_eq!(!warnings.is_empty(), warns, "{text} {mode:o}: {warnings:?}");
            assert!(!warnings.concat().contains("secret"), "{warnings:?}");
        }
    }

    #[test]
    fn a_file_that_all_users_can_change_is_warned_of() {
        let mut here = Here::new();
        for (name, text) in [("user", "reach = 'machine'"), ("url-file", "file:///locks")] {
            let file = here.write(name, text);
            here.set(URL_FILE_VARIABLE, here.path("url-file"));
            here.write("url-file", "file:///locks");
            for (mode, warns) in [(0o644, 0), (0o646, 1)] {
                std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
                let warnings = here.read(NONE).unwrap_or_else(|why| panic!("{why}")).warnings;
                assert_eq!(warnings.len(), warns, "{name} {mode:o}: {warnings:?}");
            }
            std::fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn options_show_no_password() {
        let url = Some("redis://:secret@host".parse().unwrap());
        assert!(!format!("{:?}", StoreOptions { url, ..NONE }).contains("secret"));
    }
}
