//! The values of arguments, checked as far as the macro can: what is not a literal is the compiler's.

use std::ops::RangeInclusive;
use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Lit, LitStr, Result};

/// The place of the user's `tokens`, for code that lints see as generated.
pub(crate) fn at(tokens: &impl Spanned) -> Span {
    Span::call_site().located_at(tokens.span())
}

/// What `Lock` accepts: from, to, and how that is written. fencelock's tests of the attribute try the ends.
#[derive(Clone, Copy)]
pub(crate) struct Range(Duration, Duration, &'static str);

const DAY: u64 = 86_400;
pub(crate) const WAIT: Range = Range(Duration::ZERO, Duration::MAX, "any duration");
pub(crate) const TTL: Range =
    Range(Duration::from_millis(100), Duration::from_secs(DAY), "\"100ms\" to \"24h\"");
pub(crate) const HOLD: Range =
    Range(Duration::from_millis(1), Duration::from_secs(365 * DAY), "\"1ms\" to \"365days\"");
const HANDOFFS: RangeInclusive<u32> = 1..=1_024;

/// The name of the lock.
pub(crate) enum Name {
    /// A format string over the function's arguments.
    Format(LitStr),
    Expression(Box<Expr>),
}

impl Name {
    pub(crate) fn new(name: Expr) -> Result<Name> {
        match name {
            Expr::Lit(ExprLit { lit: Lit::Str(format), .. }) => {
                require_names(&format)?;
                Ok(Name::Format(format))
            }
            Expr::Lit(literal) => {
                let expected =
                    "expected a name in quotes, such as \"stock/{item}\", or an expression";
                Err(Error::new_spanned(literal, expected))
            }
            name => Ok(Name::Expression(Box::new(name))),
        }
    }
}

impl ToTokens for Name {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        tokens.extend(match self {
            Name::Format(format) => quote!(::std::format!(#format)),
            Name::Expression(name) => quote!(#name),
        });
    }
}

/// Refuses `{}`, `{0}` and `{self.id}`. The compiler would suggest further arguments of `format!`, which
/// have no place here. It reports braces that do not match.
fn require_names(format: &LitStr) -> Result<()> {
    let text = format.value().replace("{{", "").replace("}}", "");
    for placeholder in text.split('{').skip(1).filter_map(|rest| rest.split_once('}')) {
        let name = placeholder.0.split(':').next().unwrap_or_default().trim();
        if Ident::parse_any.parse_str(name).is_err() {
            return Err(Error::new_spanned(
                format,
                format!(
                    "expected an argument of the function in {{{name}}}, such as \"stock/{{item}}\"; for \
                     another expression write name = format!(\"stock/{{}}\", …)"
                ),
            ));
        }
    }
    Ok(())
}

/// The call of `method` with a duration in the grammar of store URLs.
pub(crate) fn duration(method: &str, value: &Expr, range: Range) -> Result<TokenStream> {
    let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = value else {
        return Err(Error::new_spanned(value, "expected a duration in quotes, such as \"3s\""));
    };
    let duration = humantime::parse_duration(&text.value()).map_err(|error| {
        let expected = "a number with a unit, such as \"500ms\", \"2s\" or \"1m30s\"";
        Error::new(text.span(), format!("expected {expected}: {error}"))
    })?;
    let Range(least, most, written) = range;
    if !(least..=most).contains(&duration) {
        return Err(Error::new(text.span(), format!("expected {written}")));
    }
    let (method, seconds) = (Ident::new(method, text.span()), duration.as_secs());
    let nanoseconds = duration.subsec_nanos();
    Ok(quote!(.#method(::core::time::Duration::new(#seconds, #nanoseconds))))
}

/// The call of `local_handoffs`.
pub(crate) fn local_handoffs(most: &Expr) -> Result<TokenStream> {
    if let Expr::Lit(ExprLit { lit, .. }) = most {
        let number = match lit {
            Lit::Int(number) => number.base10_parse().ok(),
            _ => None,
        };
        if !number.is_some_and(|number| HANDOFFS.contains(&number)) {
            return Err(Error::new_spanned(lit, "expected a number from 1 to 1024, such as 16"));
        }
    }
    Ok(quote!(.local_handoffs(#most)))
}
