//! The log on standard error, which `--log` or `RUST_LOG` turns on.

use std::fmt;
use std::io;

use fencelock_cli::has_colours;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

use crate::run::Reports;

/// The option for the log.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Log to standard error: error, warn, info, debug or trace, also by target, such as
    /// warn,fencelock_redis=debug [env: RUST_LOG]
    #[arg(long, global = true, value_name = "LEVEL", value_parser = strict_filter, display_order = 900)]
    log: Option<Targets>,
}

/// Starts the log that `--log` or `RUST_LOG` asks for. Without them, only the `warnings` of the stores
/// are shown, such as those about settings of a server, if they are wanted. With `reports` they write it.
pub(crate) fn start(options: Options, warnings: bool, reports: Option<&Reports>) {
    let variable = || Some(lenient_filter(&std::env::var_os("RUST_LOG")?.to_string_lossy()));
    let writer = match reports.cloned() {
        Some(reports) => BoxMakeWriter::new(move || reports.clone()),
        None => BoxMakeWriter::new(io::stderr),
    };
    if let Some(filter) = options.log.or_else(variable) {
        let log = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(has_colours());
        tracing_subscriber::registry().with(log).with(filter).init();
    } else if warnings {
        let messages = tracing_subscriber::fmt::layer()
            .with_writer(writer)
            .with_ansi(false)
            .event_format(AsMessages);
        tracing_subscriber::registry().with(messages).with(warnings_of_stores()).init();
    }
}

/// The core's other warnings are left out: the command reports what they say.
fn warnings_of_stores() -> Targets {
    let stores = [
        "fencelock_core::login",
        "fencelock_file",
        "fencelock_net",
        "fencelock_postgres",
        "fencelock_redis",
        "fencelock_zk",
    ];
    Targets::new().with_targets(stores.map(|store| (store, LevelFilter::WARN)))
}

/// Events in the form of the program's other messages: `fencelock: warning: TEXT store=…`.
struct AsMessages;

impl<S, N> FormatEvent<S, N> for AsMessages
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let kind = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        write!(writer, "fencelock: {kind}: ")?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

const EXPECTED: &str = "expected LEVEL or TARGET=LEVEL, with error, warn, info, debug, trace or off \
                        for LEVEL";

/// Each directive of `directives`, between commas.
fn each(directives: &str) -> impl Iterator<Item = &str> {
    directives.split(',').map(str::trim).filter(|it| !it.is_empty())
}

/// The filter of an option, which is refused if a part of it is invalid.
fn strict_filter(directives: &str) -> Result<Targets, String> {
    let is_valid = |one: &str| {
        let level = one.rsplit_once('=').map_or(one, |(_, level)| level);
        level.parse::<LevelFilter>().is_ok()
    };
    if each(directives).next().is_none() || !each(directives).all(is_valid) {
        return Err(EXPECTED.to_owned());
    }
    directives.parse().map_err(|_| EXPECTED.to_owned())
}

/// The filter of a variable that other programs read too: errors only, without a valid directive.
/// Invalid directives are reported and ignored.
fn lenient_filter(directives: &str) -> Targets {
    let (valid, invalid): (Vec<_>, Vec<_>) =
        each(directives).partition(|directive| directive.parse::<Targets>().is_ok());
    for directive in invalid {
        eprintln!("fencelock: ignoring {directive:?} in RUST_LOG: {EXPECTED}");
    }
    let valid = if valid.is_empty() { "error".to_owned() } else { valid.join(",") };
    // Each directive was parsed above.
    valid.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_has_the_level_that_is_asked_for() {
        let text = "warn, fencelock_redis=debug,fencelock_redis=loud,,";
        let filter = lenient_filter(text);
        assert!(filter.would_enable("fencelock", &Level::WARN));
        assert!(!filter.would_enable("fencelock", &Level::INFO));
        assert!(filter.would_enable("fencelock_redis::link", &Level::DEBUG));
        assert!(strict_filter(text).is_err());
        let filter = strict_filter("warn,fencelock_redis=debug").expect("valid");
        assert!(filter.would_enable("fencelock_redis::link", &Level::DEBUG));
    }

    #[test]
    fn errors_are_logged_where_nothing_valid_is_asked_for() {
        for nothing in ["", "fencelock=loud"] {
            let filter = lenient_filter(nothing);
            assert!(filter.would_enable("fencelock", &Level::ERROR));
            assert!(!filter.would_enable("fencelock_core", &Level::WARN));
        }
    }

    #[test]
    fn an_option_that_is_not_a_level_is_refused() {
        for wrong in ["", "loud", "fencelock=loud", "warn,loud"] {
            assert!(strict_filter(wrong).is_err(), "{wrong:?}");
        }
        assert!(strict_filter("debug").expect("valid").would_enable("any", &Level::DEBUG));
    }

    #[test]
    fn warnings_are_those_of_the_stores() {
        let filter = warnings_of_stores();
        assert!(filter.would_enable("fencelock_redis::server::server_info", &Level::WARN));
        assert!(filter.would_enable("fencelock_postgres::server_info", &Level::WARN));
        assert!(!filter.would_enable("fencelock_redis::server::server_info", &Level::INFO));
        assert!(!filter.would_enable("fencelock", &Level::WARN));
    }
}
