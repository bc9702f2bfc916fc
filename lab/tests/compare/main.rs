//! `fencelock compare` as its users see it.

mod report;
mod run;
mod support;
