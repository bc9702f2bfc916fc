//! The commands of `fencelock-lab`, asked of `fencelock`.
//!
//! A shell under that name stands in for it: it runs the file that has the command's name.

use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const COMMANDS: [&str; 4] = ["bench", "compare", "conformance", "torture"];

/// `fencelock` in a directory where nothing else is, so that the repository's own `fencelock-lab`
/// is not next to it; and one for PATH.
struct Installed {
    directory: TempDir,
    path: TempDir,
}

impl Installed {
    fn new() -> Installed {
        let [directory, path] = [(), ()]
            .map(|()| tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory"));
        let program = directory.path().join("fencelock");
        std::fs::hard_link(env!("CARGO_BIN_EXE_fencelock"), program).expect("a link");
        Installed { directory, path }
    }

    fn lab_in(&self, directory: &Path, script: &str) {
        symlink("/bin/sh", directory.join("fencelock-lab")).expect("a link");
        for command in COMMANDS {
            std::fs::write(self.directory.path().join(command), script).expect("a script");
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let directory: &Path = self.directory.path();
        let mut command = Command::new(directory.join("fencelock"));
        command.args(arguments).current_dir(directory).env("PATH", self.path.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("it runs")
    }
}

const ARGUMENTS: &str = "printf '%s|' \"$0\" \"$@\"; exit 7";

#[test]
fn the_lab_next_to_it_or_on_path_is_given_all_arguments_and_its_exit_code_is_kept() {
    for place in [
        |it: &Installed| it.directory.path().to_owned(),
        |it: &Installed| it.path.path().to_owned(),
    ] {
        let installed = Installed::new();
        installed.lab_in(&place(&installed), ARGUMENTS);
        for command in COMMANDS {
            let output = installed.output(&[command, "--help", "--", "a b", ""]);
            assert_eq!(output.status.code(), Some(7), "{output:?}");
            let given = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(given, format!("{command}|--help|--|a b||"));
        }
    }
}

#[test]
fn the_lab_is_the_same_process_and_ends_by_its_own_signal() {
    let installed = Installed::new();
    installed.lab_in(installed.directory.path(), "printf %s $$; kill -TERM $$");
    let child = installed.command(&["torture"]).spawn().unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(15), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), id.to_string());
}

#[test]
fn a_lab_that_is_not_installed_is_a_usage_error_that_says_how_to_get_it() {
    let installed = Installed::new();
    let help = String::from_utf8(installed.output(&["--help"]).stdout).expect("text");
    for command in COMMANDS {
        assert!(help.contains(command), "{command} is missing in {help}");
        let output = installed.output(&[command, "mem://"]);
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        for part in [
            &*format!("fencelock: {command} is a command of fencelock-lab"),
            &format!("`cargo run -p fencelock-lab -- {command} ...`"),
            "`cargo install --locked --profile measure --path lab`",
        ] {
            assert!(said.contains(part), "{part} is missing in {said}");
        }
    }
}
