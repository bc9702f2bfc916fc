//! `fencelock completions` and `fencelock man`: what a shell and man(1) need to know about this command,
//! generated from its own definition.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use fencelock::backend::invalid;
use fencelock::{Error, ErrorKind, Result};

use crate::output;

const PROGRAM: &str = "fencelock";

const COMPLETIONS_EXAMPLES: &str = "\
Where shells look for them:
  fencelock completions bash > /usr/share/bash-completion/completions/fencelock
  fencelock completions zsh  > /usr/local/share/zsh/site-functions/_fencelock
  fencelock completions fish > /usr/share/fish/vendor_completions.d/fencelock.fish

For one user, in ~/.bashrc:
  source <(fencelock completions bash)";

const MAN_EXAMPLES: &str = "\
Examples:
  fencelock man run | man -l -
  fencelock man --out /usr/local/share/man/man1";

/// Print the completions of a shell
#[derive(clap::Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsOptions {
    /// The shell
    shell: Shell,
}

/// Print a man page, or write all of them into a directory
#[derive(clap::Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManOptions {
    /// The command to print the page of, such as run or redlock init; without it fencelock's own
    #[arg(conflicts_with = "out")]
    command: Vec<String>,
    /// Write the pages of all commands into DIR, which is created if it is missing
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Its exit code.
pub(crate) fn run(done: Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fencelock_cli::failed(&error),
    }
}

impl CompletionsOptions {
    /// Prints the completions of `program`.
    pub(crate) fn run(self, program: &Command) -> Result<()> {
        // The generators do not leave out what is hidden.
        let mut visible = Command::new(PROGRAM)
            .version(env!("CARGO_PKG_VERSION"))
            .args(program.get_arguments())
            .subcommands(shown(program));
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut visible, PROGRAM, &mut text);
        output::print(&String::from_utf8_lossy(&text))
    }
}

impl ManOptions {
    /// Prints or writes pages of `program`.
    pub(crate) fn run(self, program: Command) -> Result<()> {
        let mut program = program.disable_help_subcommand(true);
        program.build();
        match self.out {
            Some(directory) => write_pages(&program, &directory).map_err(|cause| {
                let message = format!("cannot write man pages to {}", directory.display());
                Error::new(ErrorKind::Refused, message).caused_by(cause)
            }),
            None => {
                let (_, text) = page(subcommand(&program, &self.command)?).map_err(|cause| {
                    Error::new(ErrorKind::Refused, "cannot render the man page").caused_by(cause)
                })?;
                output::print(&text)
            }
        }
    }
}

/// The command that is called by `path`, such as `redlock init`.
fn subcommand<'a>(program: &'a Command, path: &[String]) -> Result<&'a Command> {
    path.iter().try_fold(program, |command, name| {
        command.get_subcommands().find(|it| it.get_name() == name).ok_or_else(|| {
            let known: Vec<_> = shown(command).map(Command::get_name).collect();
            let known = match known.is_empty() {
                true => format!("{:?} has no commands", command.get_name()),
                false => format!("expected one of: {}", known.join(", ")),
            };
            invalid(format!("no man page for the command {name:?}; {known}"))
        })
    })
}

/// The commands below `command` that are not hidden.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set())
}

/// Writes the page of `command` and of each command below it.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let (name, text) = page(command)?;
    fs::write(directory.join(name), text)?;
    shown(command).try_for_each(|below| write_pages(below, directory))
}

/// The page's file name and text.
fn page(command: &Command) -> io::Result<(String, String)> {
    let page = Man::new(command.clone());
    let file = page.get_filename();
    let title = file.trim_end_matches(".1").to_uppercase();
    let mut text = Vec::new();
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if shown(command).next().is_some() {
        page.render_subcommands_section(&mut text)?;
    }
    let notes = command.get_after_long_help().or_else(|| command.get_after_help());
    text.extend(sections(&notes.map(ToString::to_string).unwrap_or_default()).bytes());
    // Each section begins with the definition of the apostrophe, which is needed once.
    let definition = Roff::new().render();
    let text = String::from_utf8_lossy(&text).replace(&definition, "");
    // No date, so that equal programs have equal pages.
    let version = env!("CARGO_PKG_VERSION");
    let head = format!(".TH {title} 1 \"\" \"fencelock {version}\" \"User Commands\"\n");
    Ok((file, definition + &head + &text))
}

/// The text behind a command's options, as sections of a man page: a heading with lines below it is a
/// section whose lines stay as they are, and the rest is filled.
fn sections(notes: &str) -> String {
    let (mut lists, mut prose) = (Roff::new(), Roff::new());
    for paragraph in notes.split("\n\n").filter(|it| !it.trim().is_empty()) {
        match paragraph.split_once(":\n").filter(|(_, list)| list.starts_with("  ")) {
            Some((heading, list)) => {
                lists.control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
                for line in list.lines() {
                    lists.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
                }
                lists.control("fi", []);
            }
            None => {
                match prose == Roff::new() {
                    true => prose.control("SH", ["NOTES"]),
                    false => prose.control("PP", []),
                };
                for line in paragraph.lines() {
                    prose.text([roman(line)]);
                }
            }
        }
    }
    lists.render() + &prose.render()
}
