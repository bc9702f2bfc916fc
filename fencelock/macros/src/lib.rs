//! The attribute of [fencelock](https://docs.rs/fencelock), which re-exports and documents it.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as TokenStream2;

mod arguments;
mod expand;
mod known;
mod output;
mod values;

/// Runs an async function under a lock. See `fencelock::locked`.
#[proc_macro_attribute]
pub fn locked(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let (arguments, item): (TokenStream2, TokenStream2) = (arguments.into(), item.into());
    match expand::expand(arguments.clone(), item.clone()) {
        Ok(locked) => locked.into(),
        Err(error) => {
            let mut tokens = error.to_compile_error();
            tokens.extend(expand::without_lock(arguments, item));
            tokens.into()
        }
    }
}
