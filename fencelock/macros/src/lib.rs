//! The attribute of [fencelock](https://docs.rs/fencelock), which re-exports and documents it.

use proc_macro::TokenStream;

mod arguments;
mod expand;

/// Runs an async function under a lock. See `fencelock::locked`.
#[proc_macro_attribute]
pub fn locked(arguments: TokenStream, item: TokenStream) -> TokenStream {
    // The function stays, also with an error, so that the compiler reports what else is wrong in it.
    let function = item.clone();
    match expand::expand(arguments.into(), item.into()) {
        Ok(locked) => locked.into(),
        Err(error) => {
            let mut tokens = TokenStream::from(error.to_compile_error());
            tokens.extend(function);
            tokens
        }
    }
}
