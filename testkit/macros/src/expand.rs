//! From the async function to the tests that call it.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::{Attribute, Error, ItemFn, Result};

use crate::arguments::{Arguments, Store};

/// A module of the function's name, with a test for each store. The function stays as it is.
pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let arguments: Arguments = syn::parse2(arguments)?;
    let mut function: ItemFn = syn::parse2(item)?;
    check(&function)?;
    let name = function.sig.ident.clone();
    let (of_tests, of_both, others) = sort(std::mem::take(&mut function.attrs));
    function.attrs = others;
    let tests = arguments.stores.iter().map(|store| test(store, &arguments, &name, &of_tests));
    Ok(quote! {
        #[cfg(test)]
        #(#of_both)*
        #function

        #[cfg(test)]
        #(#of_both)*
        mod #name {
            #(#tests)*
        }
    })
}

fn test(
    store: &Store,
    arguments: &Arguments,
    function: &Ident,
    attributes: &[Attribute],
) -> TokenStream {
    let Store { name, kind } = store;
    let test = format_ident!("{name}");
    let Arguments { own_server, start_paused, multi_thread, ttl, .. } = arguments;
    let ttl = match ttl {
        Some(ttl) => quote!(::core::option::Option::Some(#ttl)),
        None => quote!(::core::option::Option::None),
    };
    let shown = name.to_string();
    quote! {
        #[::core::prelude::v1::test]
        #(#attributes)*
        fn #test() {
            ::fencelock_testkit::attribute::run(
                ::fencelock_testkit::attribute::Case {
                    name: ::core::concat!(::core::module_path!(), "::", #shown),
                    kind: ::fencelock_testkit::StoreKind::#kind,
                    own_server: #own_server,
                    start_paused: #start_paused,
                    multi_thread: #multi_thread,
                    ttl: #ttl,
                    // Of the user's `fencelock`, which has the stores that the service has.
                    connect: |url| {
                        let url = ::std::string::String::from(url);
                        ::std::boxed::Box::pin(async move { ::fencelock::connect(&url).await })
                    },
                },
                super::#function,
            );
        }
    }
}

fn check(function: &ItemFn) -> Result<()> {
    let signature = &function.sig;
    if signature.asyncness.is_none() {
        return Err(Error::new_spanned(signature.fn_token, "expected an async fn"));
    }
    if !signature.generics.params.is_empty() {
        return Err(Error::new_spanned(&signature.generics, "a test cannot be generic"));
    }
    if !(1..=2).contains(&signature.inputs.len()) {
        return Err(Error::new_spanned(
            &signature.ident,
            "expected the parameters (locks: Locks), (store: TestStore) or \
             (locks: Locks, store: TestStore)",
        ));
    }
    Ok(())
}

/// The attributes for the tests, those for the function and the tests, and those for the function.
fn sort(attributes: Vec<Attribute>) -> (Vec<Attribute>, Vec<Attribute>, Vec<Attribute>) {
    let (mut of_tests, mut of_both, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for attribute in attributes {
        let path = attribute.path();
        if path.is_ident("ignore") || path.is_ident("should_panic") {
            of_tests.push(attribute);
        } else if path.is_ident("cfg") {
            of_both.push(attribute);
        } else {
            others.push(attribute);
        }
    }
    (of_tests, of_both, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(arguments: TokenStream, item: TokenStream) -> String {
        expand(arguments, item).expect("a valid attribute").to_string()
    }

    fn error(arguments: TokenStream, item: TokenStream) -> String {
        expand(arguments, item).expect_err("an invalid attribute").to_string()
    }

    fn item(text: &str) -> TokenStream {
        text.parse().expect("Rust")
    }

    fn function() -> TokenStream {
        item("async fn buys_once(locks: Locks) {}")
    }

    #[test]
    fn each_store_becomes_a_test_of_its_name() {
        let tests = expanded(quote!(mem, redis, ttl = "2s", own_server), function());
        for part in [
            "async fn buys_once (locks : Locks)",
            "mod buys_once {",
            "fn mem ()",
            "StoreKind :: Memory",
            "fn redis ()",
            "StoreKind :: Redis",
            "Some (\"2s\")",
            "own_server : true",
        ] {
            assert!(tests.contains(part), "{part} is missing: {tests}");
        }
        assert!(!tests.contains("fn zk"), "{tests}");
    }

    #[test]
    fn attributes_go_where_they_belong() {
        let item = quote! {
            #[ignore = "slow"] #[cfg(unix)] #[allow(dead_code)]
            async fn buys_once(locks: Locks) {}
        };
        let tests = expanded(quote!(mem), item);
        let (function, module) = tests.split_once("mod buys_once").unwrap();
        assert!(!function.contains("ignore") && module.contains("ignore"), "{tests}");
        assert!(function.contains("allow") && !module.contains("allow"), "{tests}");
        assert_eq!(tests.matches("cfg (unix)").count(), 2, "{tests}");
    }

    #[test]
    fn an_error_says_what_was_expected() {
        for (arguments, says) in [
            (quote!(), "at least one store"),
            (quote!(redsi), "unknown store or option \"redsi\": expected a store (mem, file"),
            (quote!("redis"), "expected a store"),
            (quote!(redis, redis), "redis is named twice"),
            (quote!(mem, own_server), "needs a store with a server"),
            (quote!(mem, redis, start_paused = true), "start_paused is for mem alone"),
            (quote!(mem, start_paused = true, flavor = "multi_thread"), "on one thread"),
            (quote!(mem, flavor = "many"), "\"current_thread\" or \"multi_thread\""),
        ] {
            let error = error(arguments, function());
            assert!(error.contains(says), "{error}");
        }
        for (text, says) in [
            ("fn buys_once(locks: Locks) {}", "expected an async fn"),
            ("async fn buys_once() {}", "(store: TestStore)"),
            ("async fn buys_once<T>(locks: Locks) {}", "cannot be generic"),
        ] {
            let error = error(quote!(mem), item(text));
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn paused_time_is_for_memory() {
        let tests = expanded(quote!(mem, start_paused = true), function());
        assert!(tests.contains("start_paused : true"), "{tests}");
        let tests = expanded(quote!(mem, redis, start_paused = false), function());
        assert!(tests.contains("start_paused : false"), "{tests}");
    }
}
