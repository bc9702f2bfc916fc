//! The `fencelock` command.

fn main() {}
