//! `fencelock-lab compare` as its users see it.

mod long;
mod report;
mod run;
mod support;
