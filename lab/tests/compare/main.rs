//! `fencelock compare` as an engineer meets it.

mod report;
mod run;
mod support;
