//! `fencelock postgres`: what the owner of a database needs for the locks of `postgres://`.
//!
//! docs/postgres.md explains the schema and the rights.

use std::process::ExitCode;

use fencelock::Result;
use fencelock::postgres::schema;

use crate::output;

const EXAMPLES: &str = "\
Examples:
  fencelock postgres schema | psql -1 -v ON_ERROR_STOP=1 -d app
  fencelock postgres schema --schema billing_locks > migrations/0042_locks.sql

The program that runs it must do so in one transaction, as psql -1 and migration tools do. It creates \
what is missing and replaces functions; the locks that are held stay. Its first lines are comments with the \
GRANT statements for the roles of programs and operators.";

/// Print what the owner of a PostgreSQL database needs
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Options {
    /// Print the SQL script that creates the schema of the locks, for your own migrations
    #[command(after_help = EXAMPLES)]
    Schema {
        /// The schema's name, as in the parameter schema= of the URL
        #[arg(long, value_name = "NAME", default_value = schema::DEFAULT, value_parser = name)]
        schema: String,
    },
}

fn name(text: &str) -> Result<String> {
    schema::check_name(text).map(|()| text.to_owned())
}

impl Options {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Options::Schema { schema } => output::print(&schema::script(&schema))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
