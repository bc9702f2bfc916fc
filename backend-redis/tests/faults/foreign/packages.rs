//! The other libraries, from their package registries, cached for the next run.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const REQUIREMENTS: &str = include_str!("requirements.txt");
const PACKAGE: &str = include_str!("package.json");

/// The interpreter that has redis-py.
pub(crate) fn python() -> PathBuf {
    static PLACE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let install = |place: &Path| {
        let (venv, list) = (place.join("venv"), place.join("requirements.txt"));
        run("python3-venv", Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        fs::write(&list, REQUIREMENTS).map_err(|error| error.to_string())?;
        let mut pip = Command::new(venv.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&list);
        run("python3-venv", &mut pip)
    };
    let installed = PLACE.get_or_init(|| installed("python", REQUIREMENTS, install));
    place(installed).join("venv/bin/python")
}

/// The directory that has node-redlock and ioredis.
pub(crate) fn node_modules() -> PathBuf {
    static PLACE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let install = |place: &Path| {
        fs::write(place.join("package.json"), PACKAGE).map_err(|error| error.to_string())?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--loglevel", "error"]);
        run("npm", npm.current_dir(place))
    };
    place(PLACE.get_or_init(|| installed("node", PACKAGE, install))).join("node_modules")
}

fn place(installed: &Result<PathBuf, String>) -> &Path {
    match installed {
        Ok(place) => place,
        Err(why) => panic!("{why}"),
    }
}

/// Installs once for each `list`, also if several test runs begin together.
fn installed(
    what: &str,
    list: &str,
    install: impl Fn(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("foreign").join(what);
    let step = |result: std::io::Result<()>| {
        result.map_err(|error| format!("cannot install into {}: {error}", place.display()))
    };
    step(fs::create_dir_all(&place))?;
    let turn = File::create(place.with_extension("lock")).and_then(|file| {
        file.lock()?;
        Ok(file)
    });
    let turn = turn.map_err(|error| format!("cannot lock {}: {error}", place.display()))?;
    let stamp = place.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == list) {
        return Ok(place);
    }
    step(fs::remove_dir_all(&place))?;
    step(fs::create_dir_all(&place))?;
    install(&place)?;
    step(fs::write(&stamp, list))?;
    drop(turn);
    Ok(place)
}

fn run(package: &str, command: &mut Command) -> Result<(), String> {
    let advice = format!("on Debian and Ubuntu: apt-get install {package}");
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            Err(format!("{command:?}: {}; {advice}\n{text}", output.status))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(format!("{:?} is not installed; {advice}", command.get_program()))
        }
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
