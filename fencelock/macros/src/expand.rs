//! From a function to one that does its work in `Lock::with`.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, ItemFn, Result, ReturnType};

use crate::arguments::{Arguments, Mode};

pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let arguments: Arguments = syn::parse2(arguments)?;
    let ItemFn { attrs, vis, sig, block, .. } = syn::parse2(item)?;
    if sig.asyncness.is_none() {
        return Err(Error::new_spanned(
            sig.fn_token,
            "expected an async fn, which can wait for a lock",
        ));
    }
    let ReturnType::Type(_, output) = &sig.output else {
        return Err(Error::new_spanned(
            &sig.ident,
            "expected a function that returns a Result, for the errors of the lock",
        ));
    };
    let Arguments { by, name, mode, tries, guard, options } = arguments;
    let lock = match mode {
        Mode::Exclusive => quote!((#by).lock(#name)),
        Mode::Read => quote!((#by).rw_lock(#name).read()),
        Mode::Write => quote!((#by).rw_lock(#name).write()),
    };
    let guard = guard.map_or_else(|| quote!(_), |guard| quote!(#guard));
    // It owns the arguments, so that the body may return what it borrows by them.
    let work = quote!(async move |#guard: &::fencelock::Guard| -> #output #block);
    // At the return type, so that the compiler's error about the conversion names that.
    let failed = quote_spanned! {output.span()=> {
        // Often it is the same type.
        #[allow(clippy::useless_conversion)]
        let error = ::core::convert::From::<::fencelock::Error>::from(error);
        ::core::result::Result::Err(error)
    }};
    let body = match tries {
        false => quote! {
            match __fencelock.with(#work).await {
                ::core::result::Result::Ok(returned) => returned,
                ::core::result::Result::Err(error) => #failed,
            }
        },
        true => quote! {
            match __fencelock.try_with(#work).await {
                ::core::result::Result::Ok(::core::option::Option::Some(returned)) => returned,
                ::core::result::Result::Ok(::core::option::Option::None) => {
                    ::core::result::Result::Ok(::core::option::Option::None)
                }
                ::core::result::Result::Err(error) => #failed,
            }
        },
    };
    Ok(quote! {
        #(#attrs)*
        #vis #sig {
            let __fencelock = #lock #(#options)*;
            #body
        }
    })
}
