//! The Redis store of [fencelock](https://docs.rs/fencelock).

mod script;

pub use script::scripts;
