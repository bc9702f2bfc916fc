//! The command as its users see it: real processes, on real stores. One program, since each costs a link of
//! all stores.

mod jobs;
mod lab;
mod manual;
mod operator;
mod postgres;
mod redlock;
mod run;
mod support;
