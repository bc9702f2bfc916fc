//! The arguments of the attribute: stores, and options for all of them.

use proc_macro2::{Ident, Span};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, LitBool, LitStr, Result, Token};

/// The stores by their names in the attribute, which are also the names of the tests.
const STORES: [(&str, &str); 5] = [
    ("mem", "Memory"),
    ("file", "File"),
    ("postgres", "Postgres"),
    ("redis", "Redis"),
    ("zk", "ZooKeeper"),
];

const EXPECTED: &str = "a store (mem, file, postgres, redis or zk) or an option (own_server, \
                        ttl = \"2s\", start_paused = true, flavor = \"multi_thread\")";

/// What the attribute says.
pub(crate) struct Arguments {
    pub(crate) stores: Vec<Store>,
    pub(crate) own_server: bool,
    pub(crate) start_paused: bool,
    pub(crate) multi_thread: bool,
    pub(crate) ttl: Option<LitStr>,
}

/// A store by its name.
pub(crate) struct Store {
    pub(crate) name: Ident,
    /// The variant of `StoreKind`.
    pub(crate) kind: Ident,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Arguments> {
        let mut arguments = Arguments {
            stores: Vec::new(),
            own_server: false,
            start_paused: false,
            multi_thread: false,
            ttl: None,
        };
        let all = Punctuated::<Argument, Token![,]>::parse_terminated(input)?;
        let (mut own_server, mut paused) = (None, None);
        for argument in all {
            match argument {
                Argument::Store(store) => {
                    if arguments.stores.iter().any(|other| other.name == store.name) {
                        let message = format!("the store {} is named twice", store.name);
                        return Err(Error::new(store.name.span(), message));
                    }
                    arguments.stores.push(store);
                }
                Argument::OwnServer(span) => own_server = Some(span),
                Argument::StartPaused(value) => paused = value.value.then(|| value.span()),
                Argument::Flavor(multi_thread) => arguments.multi_thread = multi_thread,
                Argument::Ttl(ttl) => arguments.ttl = Some(ttl),
            }
        }
        if arguments.stores.is_empty() {
            return Err(Error::new(
                Span::call_site(),
                "expected at least one store: #[fencelock_testkit::test(mem, file, postgres, redis, zk)]",
            ));
        }
        let names = |name: &str| arguments.stores.iter().any(|store| store.name == name);
        if let Some(span) = own_server
            && !["postgres", "redis", "zk"].into_iter().any(names)
        {
            return Err(Error::new(
                span,
                "own_server needs a store with a server: postgres, redis or zk",
            ));
        }
        if let Some(span) = paused
            && (arguments.multi_thread || arguments.stores.iter().any(|store| store.name != "mem"))
        {
            return Err(Error::new(
                span,
                "start_paused is for mem alone, on one thread: other stores need real time, and \
                 with a paused clock every timeout ends at once; write a second test for them",
            ));
        }
        arguments.own_server = own_server.is_some();
        arguments.start_paused = paused.is_some();
        Ok(arguments)
    }
}

enum Argument {
    Store(Store),
    OwnServer(Span),
    StartPaused(LitBool),
    Flavor(bool),
    Ttl(LitStr),
}

impl Parse for Argument {
    fn parse(input: ParseStream<'_>) -> Result<Argument> {
        let Ok(name) = input.parse::<Ident>() else {
            return Err(input.error(format!("expected {EXPECTED}")));
        };
        let text = name.to_string();
        if let Some((_, kind)) = STORES.iter().find(|(store, _)| *store == text) {
            let kind = Ident::new(kind, name.span());
            return Ok(Argument::Store(Store { name, kind }));
        }
        match text.as_str() {
            "own_server" => Ok(Argument::OwnServer(name.span())),
            "start_paused" => {
                input.parse::<Token![=]>()?;
                input.parse().map(Argument::StartPaused)
            }
            "ttl" => {
                input.parse::<Token![=]>()?;
                input.parse().map(Argument::Ttl)
            }
            "flavor" => {
                input.parse::<Token![=]>()?;
                let flavor: LitStr = input.parse()?;
                match flavor.value().as_str() {
                    "current_thread" => Ok(Argument::Flavor(false)),
                    "multi_thread" => Ok(Argument::Flavor(true)),
                    _ => Err(Error::new(
                        flavor.span(),
                        "expected \"current_thread\" or \"multi_thread\"",
                    )),
                }
            }
            _ => {
                let message = format!("unknown store or option {text:?}: expected {EXPECTED}");
                Err(Error::new(name.span(), message))
            }
        }
    }
}
