//! The subcommands of `fencelock-lab`, as their users see them.
//!
//! What is in a module `long` takes minutes of the processor, or a browser: `./test --long` runs it.

mod bench;
mod compare;
mod conformance;
mod soak;
mod support;
mod torture;
