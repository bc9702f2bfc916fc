//! Where the store's URL comes from, and what is required of the store.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use fencelock_testkit::servers::{RedisOptions, TestRedis};

use crate::support::{Scratch, said};

/// `fencelock run` as cron calls it: no variable of this command is set, and the user's files are in
/// the scratch directory.
fn as_from_cron(here: &Scratch, arguments: &[&str]) -> Command {
    let mut run = here.run(arguments);
    for variable in ["FENCELOCK_URL", "FENCELOCK_CONFIG", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"] {
        run.env_remove(variable);
    }
    run.env("HOME", here.path("home")).env("XDG_STATE_HOME", here.path("home/state"));
    std::fs::create_dir_all(here.path("home/.config")).expect("created");
    std::fs::create_dir_all(here.path("home/state")).expect("created");
    run
}

fn output(mut command: Command) -> (i32, String, String) {
    said(&command.output().expect("it runs"))
}

#[test]
fn without_a_url_the_reach_of_the_default_is_told_but_not_to_cron() {
    // The test would read it.
    if Path::new("/etc/fencelock.toml").exists() {
        eprintln!("NOT TESTED: this machine has an /etc/fencelock.toml");
        return;
    }
    let here = Scratch::new();
    let (code, stdout, said) = output(as_from_cron(&here, &["-v", "job", "--", "echo", "ran"]));
    assert_eq!((code, &*stdout), (0, "ran\n"), "{said}");
    assert!(said.contains("excludes only this user's jobs on this machine (file://)"), "{said}");
    assert!(said.contains("FENCELOCK_URL"), "{said}");
    for options in [&[][..], &["-q"], &["--reach", "machine"]] {
        let (code, _, said) =
            output(as_from_cron(&here, &[options, &["job", "--", "true"]].concat()));
        assert_eq!((code, &*said), (0, ""), "{options:?}");
    }
}

#[test]
fn a_store_that_excludes_too_little_is_refused() {
    let here = Scratch::new();
    let refused = |command: &mut Command, code: i32, says: &[&str]| {
        let (exit, _, said) = said(&command.output().expect("it runs"));
        assert_eq!(exit, code, "{said}");
        assert!(says.iter().all(|says| said.contains(says)), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!here.path("ran").exists(), "{said}");
    };
    let job = ["job", "--", "touch", "ran"];
    let run = |options: &[&str]| here.run(&[options, &job].concat());
    let memory =
        ["excludes only the tasks of one process", "use file://, postgres://, redis:// or zk://"];
    refused(&mut run(&["--url", "mem://"]), 78, &memory);
    refused(&mut run(&["--url", "mem://", "--reach", "machine"]), 78, &memory);
    refused(&mut run(&["--url", "mem://", "--flock-compat"]), 65, &memory);
    let file = ["excludes only the processes of one machine", "redis://HOST", "\"network\""];
    refused(&mut run(&["--reach", "network"]), 78, &[&file[..], &["--reach requires"]].concat());
    refused(
        run(&[]).env("FENCELOCK_REACH", "network"),
        78,
        &[&file[..], &["FENCELOCK_REACH requires"]].concat(),
    );
    let config = here.path("config.toml");
    std::fs::write(&config, "reach = \"network\"\n").expect("written");
    let text = config.display().to_string();
    refused(&mut run(&["--config", &text]), 78, &[&file[..], &[&text, "requires"]].concat());
    let accepted = run(&["--config", &text, "--reach", "machine"]).status().expect("it runs");
    assert_eq!(accepted.code(), Some(0), "the option precedes the file");
    assert!(here.path("ran").exists());
}

#[test]
fn what_is_wrong_with_the_settings_is_told() {
    let here = Scratch::new();
    let config = here.path("config.toml");
    std::fs::write(&config, "ulr = \"redis://:hunter2@host\"\n").expect("written");
    for (variable, value, says) in [
        ("FENCELOCK_URL", "", "FENCELOCK_URL is set but empty; unset it, or set it to a store URL"),
        (
            "FENCELOCK_CONFIG",
            config.to_str().expect("text"),
            "the keys are url, reach, ttl and label",
        ),
        ("FENCELOCK_CONFIG", "no/such/file", "no/such/file"),
        ("FENCELOCK_REACH", "galaxy", "expected machine or network"),
    ] {
        let mut run = here.run(&["job", "--", "true"]);
        let (code, _, said) = output({
            run.env(variable, value);
            run
        });
        assert_eq!(code, 78, "{variable}: {said}");
        assert!(said.contains(says), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}

async fn with_password() -> TestRedis {
    RedisOptions::new().password("correcthorse").start().await.expect("a redis-server starts")
}

/// Shows what a command and the other users of the machine see, and tries the same lock from another
/// directory.
const LOOKS: &str = r#"
env
ps=$PPID
while [ $ps -gt 1 ]; do
  tr '\0' ' ' < /proc/$ps/cmdline; echo
  read -r _ _ _ ps _ < /proc/$ps/stat
done
unset FENCELOCK_HELD
cd /
"$0" run -n job -- true
echo nested: $?
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_password_in_a_file_is_not_seen_and_a_nested_run_finds_the_store() {
    let here = Scratch::new();
    let server = with_password().await;
    let (url, bin) = (server.url(), env!("CARGO_BIN_EXE_fencelock"));
    let job = ["job", "--", "bash", "-c", LOOKS, bin];
    let user_file = here.path("home/.config/fencelock.toml");
    let lines = format!("url = {url:?}\nlabel = \"the nightly report\"\n");
    let write = |path: &Path, text: &str| {
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("created");
        std::fs::write(path, text).expect("written");
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("it is ours");
    };
    let check = |way: &str, command: Command| {
        let (code, stdout, said) = output(command);
        assert_eq!(code, 0, "{way}: {said}");
        assert!(!stdout.contains("correcthorse"), "{way}: {stdout}");
        assert!(stdout.contains("FENCELOCK_STORE=redis://:***@127.0.0.1:"), "{way}: {stdout}");
        assert!(stdout.ends_with("nested: 75\n"), "{way}: {stdout} {said}");
        assert!(said.contains(": busy: held for ") && !said.contains("correcthorse"), "{said}");
        said
    };

    write(&here.path("url"), &format!("{url}\n"));
    let mut by_url_file = as_from_cron(&here, &job);
    by_url_file.env("FENCELOCK_URL_FILE", "url");
    let said = check("FENCELOCK_URL_FILE", by_url_file);
    assert!(said.contains("by \"bash\" (pid "), "{said}");

    write(&here.path("config.toml"), &lines);
    let by_option = [&["--config", "config.toml"][..], &job].concat();
    let mut by_option = as_from_cron(&here, &by_option);
    by_option.env("FENCELOCK_URL", "redis://:correcthorse@another.invalid");
    let said = check("--config", by_option);
    assert!(said.contains("by \"the nightly report\" (pid "), "{said}");

    let mut by_variable = as_from_cron(&here, &job);
    by_variable.env("FENCELOCK_CONFIG", "config.toml");
    check("FENCELOCK_CONFIG", by_variable);

    write(&user_file, &lines);
    check("the user's file", as_from_cron(&here, &job));
    let mut elsewhere = as_from_cron(&here, &job);
    let moved = here.path("xdg/fencelock.toml");
    write(&moved, &lines);
    std::fs::remove_file(&user_file).expect("removed");
    elsewhere.env("XDG_CONFIG_HOME", here.path("xdg"));
    check("XDG_CONFIG_HOME", elsewhere);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_others_can_read_is_warned_of() {
    let here = Scratch::new();
    let server = with_password().await;
    let config = here.path("config.toml");
    std::fs::write(&config, format!("url = {:?}\n", server.url())).expect("written");
    std::fs::set_permissions(&config, PermissionsExt::from_mode(0o644)).expect("it is ours");
    let run = |options: &[&str]| {
        let all = [options, &["--config", "config.toml", "job", "--", "true"]].concat();
        output(here.run(&all))
    };
    let (code, _, said) = run(&[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.starts_with("fencelock: warning: all users of this machine can read"), "{said}");
    assert!(said.contains("chmod o-r ") && !said.contains("correcthorse"), "{said}");
    assert_eq!(run(&["--quiet"]), (0, String::new(), String::new()));
    // The library's own file, and a server that cannot be checked.
    server.command(&["ACL", "SETUSER", "default", "-info"]).await.expect("denied");
    let file = here.path("password");
    std::fs::write(&file, "correcthorse").expect("written");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o646)).expect("it is ours");
    let url = format!("redis://{}?password_file={}", server.addr(), file.display());
    let (code, _, said) = output(here.run(&["-v", "--url", &url, "job", "--", "true"]));
    let once = ["read and change the secret in", "cannot check this server"];
    assert_eq!((code, once.map(|what| said.matches(what).count())), (0, [1, 1]), "{said}");
    assert!(!said.contains("correcthorse"), "{said}");
}
