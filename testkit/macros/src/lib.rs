//! The attribute of [fencelock-testkit](https://docs.rs/fencelock-testkit), which re-exports and
//! documents it.

use proc_macro::TokenStream;

mod arguments;
mod expand;

/// Runs an async test once for each store it names. See `fencelock_testkit::test`.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    // The function stays, also with an error, so that the compiler reports what else is wrong in it.
    let function = item.clone();
    match expand::expand(arguments.into(), item.into()) {
        Ok(tests) => tests.into(),
        Err(error) => {
            let mut tokens = TokenStream::from(error.to_compile_error());
            tokens.extend(function);
            tokens
        }
    }
}
