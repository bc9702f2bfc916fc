//! The arguments of the attribute: which lock, in which mode, within which bounds.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote_spanned;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, Result, Token};

use crate::known;
use crate::values::{HOLD, Name, TTL, WAIT, at, duration, local_handoffs};

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

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Arguments> {
        let (mut by, mut name, mut guard, mut handoffs) = (None, None, None, None);
        let (mut mode, mut tries, mut options) = (Mode::Exclusive, false, Vec::new());
        let mut seen: Vec<String> = Vec::new();
        while !input.is_empty() {
            // Among them are keywords.
            let Ok(argument) = Ident::parse_any(input) else {
                return Err(input.error(format!("expected {}", known::all())));
            };
            let text = argument.to_string();
            if seen.contains(&text) {
                return Err(Error::new(argument.span(), format!("{text} is given twice")));
            }
            match text.as_str() {
                "by" => by = Some(value::<Expr>(input, &argument)?),
                "name" => name = Some(Name::new(value(input, &argument)?)?),
                "as" => guard = Some(value(input, &argument)?),
                "try" => tries = true,
                "read" | "write" if mode != Mode::Exclusive => {
                    return Err(Error::new(argument.span(), "expected either read or write"));
                }
                "read" => mode = Mode::Read,
                "write" => mode = Mode::Write,
                "wait" => {
                    options.push(duration("wait_at_most", &value(input, &argument)?, WAIT)?);
                }
                "ttl" => options.push(duration("ttl", &value(input, &argument)?, TTL)?),
                "at_most" => {
                    options.push(duration("hold_at_most", &value(input, &argument)?, HOLD)?);
                }
                "local_handoffs" => {
                    options.push(local_handoffs(&value(input, &argument)?)?);
                    handoffs = Some(argument.span());
                }
                "owner" => {
                    let owner: Expr = value(input, &argument)?;
                    options.push(quote_spanned!(at(&owner)=> .owned_by(&(#owner))));
                }
                _ => return Err(Error::new(argument.span(), known::unknown(&text))),
            }
            seen.push(text);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        if let (Some(span), Mode::Read | Mode::Write) = (handoffs, mode) {
            let expected = "expected local_handoffs without read and write: only an exclusive lock is handed on";
            return Err(Error::new(span, expected));
        }
        let by = by.ok_or_else(|| missing("by = LOCKS, such as by = self.locks"))?;
        let name = name.ok_or_else(|| missing("name = \"…\", such as name = \"stock/{item}\""))?;
        Ok(Arguments { by, name, mode, tries, guard, options })
    }
}

fn missing(what: &str) -> Error {
    Error::new(Span::call_site(), format!("expected {what}"))
}

/// The value of `argument`.
fn value<T: Parse>(input: ParseStream<'_>, argument: &Ident) -> Result<T> {
    let is_given =
        input.parse::<Token![=]>().is_ok() && !input.is_empty() && !input.peek(Token![,]);
    match is_given {
        true => input.parse(),
        false => {
            let expected = format!("expected {}", known::written(&argument.to_string()));
            Err(Error::new(argument.span(), expected))
        }
    }
}
