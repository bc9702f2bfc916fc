//! Buyers and the stock of a shop, with the lock and without.

use maud::{Markup, html};

use crate::compare::data::{FlashSale, Sale};
use crate::compare::report::figure::missing;
use crate::compare::report::numbers::count;
use crate::compare::report::stores::{Named, without};
use crate::compare::report::table::{Cell, number, store, table, text};

pub(crate) fn section(stores: &[Named<'_>]) -> Markup {
    let columns = [
        text("store"),
        text("sale"),
        text("stock guarded by"),
        number("sold", "pieces"),
        number("left", "pieces"),
        number("oversold", "pieces"),
        number("took", ""),
        number("errors", "buyers"),
    ];
    let rows = stores.iter().flat_map(|named| {
        named.store.flash_sales.iter().flat_map(|sale| {
            [("the lock", &sale.with_lock), ("nothing", &sale.without_lock)]
                .map(|(guard, result)| row(*named, sale, guard, result))
        })
    });
    html! {
        p { "Each buyer takes one piece of a product, if there is one left: the stock is read, and "
            "written one less. With a lock per product no more pieces may be sold than there are; without "
            "it, for contrast, more are sold." }
        (table("Flash sale", &columns, rows.collect()))
        (missing(&without(stores, |store| !store.flash_sales.is_empty())))
    }
}

fn row(named: Named<'_>, sale: &FlashSale, guard: &str, result: &Sale) -> Vec<Cell> {
    let what = format!(
        "{} buyers, {} products of {} pieces, {} served together",
        count(sale.buyers.into()),
        count(sale.products.into()),
        count(sale.pieces.into()),
        count(sale.served_together.into())
    );
    vec![
        store(named),
        Cell::text(&what),
        Cell::text(guard),
        Cell::count(result.sold.into()),
        Cell::count(result.left.into()),
        Cell::count(result.oversold.into()).alarm_if(result.oversold > 0),
        Cell::time_s(Some(result.took_s)),
        Cell::count(result.errors.into()),
    ]
}
