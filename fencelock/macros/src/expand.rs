//! From a function to one that does its work in `Lock::with`.

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::{AttrStyle, Error, ItemFn, Result, parse_quote};

use crate::arguments::{Arguments, Mode};
use crate::output;
use crate::values::at;

pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let arguments: Arguments = syn::parse2(arguments)?;
    let ItemFn { attrs, vis, sig, mut block, .. } = function(item)
        .map_err(|error| Error::new(error.span(), "expected an async fn with a body"))?;
    if sig.asyncness.is_none() {
        let expected = "expected an async fn, which can wait for a lock";
        let instead = match output::is_pin(&sig) {
            true => {
                "; this one returns a future, as under #[async_trait], but can call an async fn"
            }
            false => "",
        };
        return Err(Error::new_spanned(sig.fn_token, format!("{expected}{instead}")));
    }
    let Arguments { by, name, mode, tries, guard, options } = arguments;
    if sig.receiver().is_none() {
        let expressions = [by.to_token_stream(), name.to_token_stream()];
        if let Some(this) = expressions.into_iter().find_map(value_of_self) {
            let expected =
                "expected a method with &self, or an argument of the function instead of self";
            return Err(Error::new(this.span(), expected));
        }
    }
    let output = output::of_closure(output::result(&sig, tries)?.clone());
    // At the expression, so that the compiler's error about another type names that.
    let locks = quote_spanned! {at(&by)=> let __fencelock: &::fencelock::Locks = &(#by); };
    let lock = match mode {
        Mode::Exclusive => quote!(__fencelock.lock(#name)),
        Mode::Read => quote!(__fencelock.rw_lock(#name).read()),
        Mode::Write => quote!(__fencelock.rw_lock(#name).write()),
    };
    let guard = guard.map_or_else(|| quote!(_), |guard| quote!(#guard));
    // It owns the arguments, so that the body may return what it borrows by them. An async closure's
    // return type does not reach its body, but that of a `return` does: so what the body returns is
    // converted to it, as in an async fn.
    let typed = Ident::new("__fencelock", at(&output));
    // Not before the body in a block around it, which makes the compiler warn of the body's own braces.
    // The semicolon lets an empty body be reported as one.
    block.stmts.insert(
        0,
        parse_quote! {
            if let ::core::option::Option::Some(#typed) = ::core::option::Option::None::<#output> {
                return #typed;
            };
        },
    );
    let work = quote!(async move |#guard: &::fencelock::Guard| -> #output #block);
    // The type's own tokens, so that the compiler's error about it names it.
    let body = match tries {
        false => quote! {
            <#output as ::fencelock::__locked::Returned>::of(__fencelock.with(#work).await)
        },
        true => quote! {
            <#output as ::fencelock::__locked::Tried>::of(__fencelock.try_with(#work).await)
        },
    };
    Ok(quote! {
        #(#attrs)*
        #vis #sig {
            let __fencelock = {
                #locks
                #lock #(#options)*
            };
            #body
        }
    })
}

/// The function, with the attributes that its body begins with before it, where they mean the same.
fn function(item: TokenStream) -> Result<ItemFn> {
    let mut function: ItemFn = syn::parse2(item)?;
    for attribute in &mut function.attrs {
        attribute.style = AttrStyle::Outer;
    }
    Ok(function)
}

/// The first use of `self` as a value, rather than in a path such as `self::LOCKS`.
fn value_of_self(tokens: TokenStream) -> Option<Ident> {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let is_in_path =
            matches!(tokens.peek(), Some(TokenTree::Punct(next)) if next.as_char() == ':');
        match token {
            TokenTree::Ident(this) if this == "self" && !is_in_path => return Some(this),
            TokenTree::Group(group) => {
                if let Some(this) = value_of_self(group.stream()) {
                    return Some(this);
                }
            }
            _ => {}
        }
    }
    None
}

/// The function without the attribute, for an error: it stays, so that the compiler reports what else is
/// wrong in it, but not what follows from the error.
pub(crate) fn without_lock(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let Ok(ItemFn { attrs, vis, mut sig, block, .. }) = function(item.clone()) else {
        return item;
    };
    if !output::is_pin(&sig) {
        sig.asyncness.get_or_insert_default();
    }
    let guard = name_of_guard(arguments)
        .map(|guard| quote!(let #guard: &::fencelock::Guard = ::core::unreachable!();));
    quote! {
        #(#attrs)*
        #[allow(unreachable_code, unused)]
        #vis #sig {
            #guard
            #block
        }
    }
}

/// The name after `as =`, among arguments that may be wrong.
fn name_of_guard(arguments: TokenStream) -> Option<Ident> {
    let tokens: Vec<TokenTree> = arguments.into_iter().collect();
    tokens.windows(3).find_map(|three| match three {
        [TokenTree::Ident(argument), TokenTree::Punct(_), TokenTree::Ident(guard)]
            if argument == "as" =>
        {
            Some(guard.clone())
        }
        _ => None,
    })
}
