//! The log on standard error, which `RUST_LOG` turns on.

use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Starts the log that `RUST_LOG` asks for, such as `info` or `warn,fencelock_redis=debug`. Without it
/// nothing is logged.
pub(crate) fn start() {
    if let Some(directives) = std::env::var_os("RUST_LOG") {
        let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        tracing_subscriber::registry().with(log).with(filter(&directives.to_string_lossy())).init();
    }
}

/// Errors only, without a valid directive. Invalid directives are reported and ignored.
fn filter(directives: &str) -> Targets {
    let (mut valid, mut invalid) = (Vec::new(), Vec::new());
    for directive in directives.split(',').map(str::trim).filter(|it| !it.is_empty()) {
        match directive.parse::<Targets>() {
            Ok(_) => valid.push(directive),
            Err(_) => invalid.push(directive),
        }
    }
    for directive in invalid {
        eprintln!("fencelock: ignoring {directive:?} in RUST_LOG: expected LEVEL or TARGET=LEVEL");
    }
    if valid.is_empty() {
        valid.push("error");
    }
    // Each directive was parsed above.
    valid.join(",").parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn each_target_has_the_level_that_is_asked_for() {
        let filter = filter("warn, fencelock_redis=debug,fencelock_redis=loud,,");
        assert!(filter.would_enable("fencelock", &Level::WARN));
        assert!(!filter.would_enable("fencelock", &Level::INFO));
        assert!(filter.would_enable("fencelock_redis::link", &Level::DEBUG));
    }

    #[test]
    fn errors_are_logged_where_nothing_valid_is_asked_for() {
        for nothing in ["", "fencelock=loud"] {
            let filter = filter(nothing);
            assert!(filter.would_enable("fencelock", &Level::ERROR));
            assert!(!filter.would_enable("fencelock", &Level::WARN));
        }
    }
}
