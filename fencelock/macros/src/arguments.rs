//! The arguments of the attribute: which lock, in which mode, within which bounds.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, ExprLit, Lit, LitStr, Result, Token};

const EXPECTED: &str = "by = LOCKS, name = \"…\", read, write, try, as = GUARD, wait = \"3s\", ttl = \"10s\", \
                        at_most = \"1m\" or owner = OWNER";

/// What the attribute says.
pub(crate) struct Arguments {
    pub(crate) by: Expr,
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    pub(crate) tries: bool,
    pub(crate) guard: Option<Ident>,
    /// Calls of the methods of `Lock`.
    pub(crate) options: Vec<TokenStream>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Read,
    Write,
}

/// The name of the lock.
pub(crate) enum Name {
    /// A format string over the function's arguments.
    Format(LitStr),
    Expression(Box<Expr>),
}

impl ToTokens for Name {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        tokens.extend(match self {
            Name::Format(format) => quote!(::std::format!(#format)),
            Name::Expression(name) => quote!(#name),
        });
    }
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Arguments> {
        let (mut by, mut name, mut guard) = (None, None, None);
        let (mut mode, mut tries, mut options) = (Mode::Exclusive, false, Vec::new());
        let mut seen: Vec<String> = Vec::new();
        while !input.is_empty() {
            // Among them are keywords.
            let Ok(argument) = Ident::parse_any(input) else {
                return Err(input.error(format!("expected {EXPECTED}")));
            };
            let text = argument.to_string();
            if seen.contains(&text) {
                return Err(Error::new(argument.span(), format!("{text} is given twice")));
            }
            match text.as_str() {
                "by" => by = Some(value::<Expr>(input)?),
                "name" => name = Some(name_of(value(input)?)),
                "as" => guard = Some(value(input)?),
                "try" => tries = true,
                "read" | "write" if mode != Mode::Exclusive => {
                    return Err(Error::new(argument.span(), "expected either read or write"));
                }
                "read" => mode = Mode::Read,
                "write" => mode = Mode::Write,
                "wait" => options.push(duration("wait_at_most", &value(input)?)?),
                "ttl" => options.push(duration("ttl", &value(input)?)?),
                "at_most" => options.push(duration("hold_at_most", &value(input)?)?),
                "owner" => {
                    let owner: Expr = value(input)?;
                    options.push(quote!(.owned_by(&(#owner))));
                }
                _ => {
                    let message = format!("unknown argument {text:?}: expected {EXPECTED}");
                    return Err(Error::new(argument.span(), message));
                }
            }
            seen.push(text);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        let by = by.ok_or_else(|| missing("by = LOCKS, such as by = self.locks"))?;
        let name = name.ok_or_else(|| missing("name = \"…\", such as name = \"stock/{item}\""))?;
        Ok(Arguments { by, name, mode, tries, guard, options })
    }
}

fn missing(what: &str) -> Error {
    Error::new(Span::call_site(), format!("expected {what}"))
}

fn value<T: Parse>(input: ParseStream<'_>) -> Result<T> {
    input.parse::<Token![=]>()?;
    input.parse()
}

fn name_of(name: Expr) -> Name {
    match name {
        Expr::Lit(ExprLit { lit: Lit::Str(format), .. }) => Name::Format(format),
        name => Name::Expression(Box::new(name)),
    }
}

/// The call of `method` with a duration in the grammar of store URLs.
fn duration(method: &str, text: &LitStr) -> Result<TokenStream> {
    let duration: Duration = humantime::parse_duration(&text.value()).map_err(|error| {
        let expected = "a number with a unit, such as \"500ms\", \"2s\" or \"1m30s\"";
        Error::new(text.span(), format!("expected {expected}: {error}"))
    })?;
    let (method, seconds) = (Ident::new(method, text.span()), duration.as_secs());
    let nanoseconds = duration.subsec_nanos();
    Ok(quote!(.#method(::core::time::Duration::new(#seconds, #nanoseconds))))
}
