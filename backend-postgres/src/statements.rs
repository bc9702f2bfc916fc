//! The calls of the functions in the server, with the types of their arguments.

use tokio_postgres::types::Type;

/// One of the functions in `sql/`, and another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Attempt,
    Release,
    Downgrade,
    Renew,
    Batch,
    Look,
    Inspect,
    Holders,
    Evict,
    ReadCell,
    SwapCell,
    /// The server's own.
    Notify,
    Clear,
    Tidy,
}

const KEY: Type = Type::BYTEA;
const OWNER: Type = Type::UUID;

/// Each with its arguments; in the order of [`Function`].
const FUNCTIONS: [(&str, &[Type]); 14] = [
    (
        "attempt_1",
        &[
            KEY,
            OWNER,
            Type::CHAR,
            Type::INT8,
            Type::INT8,
            Type::INT8,
            Type::TEXT,
            Type::BYTEA,
            Type::BOOL,
            Type::INT4,
            Type::BOOL,
        ],
    ),
    ("release_1", &[KEY, OWNER]),
    ("downgrade_1", &[KEY, OWNER, Type::INT8]),
    ("renew_1", &[Type::BYTEA_ARRAY, Type::UUID_ARRAY, Type::INT8_ARRAY, Type::BOOL]),
    (
        "batch_1",
        &[
            Type::CHAR_ARRAY,
            Type::BYTEA_ARRAY,
            Type::UUID_ARRAY,
            Type::CHAR_ARRAY,
            Type::INT8_ARRAY,
            Type::INT8_ARRAY,
            Type::INT8_ARRAY,
            Type::BYTEA_ARRAY,
            Type::BOOL_ARRAY,
            Type::INT4_ARRAY,
            Type::TEXT,
        ],
    ),
    ("look_1", &[Type::TEXT, Type::BYTEA_ARRAY, Type::UUID_ARRAY]),
    ("inspect_1", &[KEY]),
    ("holders_1", &[KEY]),
    ("evict_1", &[KEY, Type::TEXT]),
    ("read_cell_1", &[KEY]),
    ("swap_cell_1", &[KEY, Type::UUID, Type::UUID, Type::BYTEA, Type::INT8]),
    ("pg_catalog.pg_notify", &[Type::TEXT, Type::TEXT]),
    ("clear_1", &[Type::BYTEA]),
    ("tidy_1", &[KEY, Type::TEXT]),
];

/// A notification is a hint, and must fail nothing: see `hand_off.sql`.
pub(crate) const UNLESS_FULL: &str = " WHERE pg_catalog.pg_notification_queue_usage() \
     OPERATOR(pg_catalog.<) 0.5::pg_catalog.float8";

impl Function {
    pub(crate) const ALL: [Function; 14] = [
        Function::Attempt,
        Function::Release,
        Function::Downgrade,
        Function::Renew,
        Function::Batch,
        Function::Look,
        Function::Inspect,
        Function::Holders,
        Function::Evict,
        Function::ReadCell,
        Function::SwapCell,
        Function::Notify,
        Function::Clear,
        Function::Tidy,
    ];

    pub(crate) fn name(self) -> &'static str {
        FUNCTIONS[self as usize].0
    }

    pub(crate) fn types(self) -> &'static [Type] {
        FUNCTIONS[self as usize].1
    }

    /// The others return a value, and cost less as an expression.
    fn returns_rows(self) -> bool {
        use Function::{Batch, Holders, Inspect, Look, ReadCell, Renew, Tidy};
        matches!(self, Batch | Holders | Inspect | Look | ReadCell | Renew | Tidy)
    }
}

/// The statements that call the functions of one schema.
#[derive(Debug)]
pub(crate) struct Statements([String; Function::ALL.len()]);

impl Statements {
    pub(crate) fn of(schema: &str) -> Statements {
        let schema = crate::schema::quoted(schema) + ".";
        Statements(Function::ALL.map(|function| {
            let count = function.types().len();
            let arguments = (1..=count).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ");
            let schema = if function == Function::Notify { "" } else { &*schema };
            let from = if function.returns_rows() { "* FROM " } else { "" };
            let hint = if function == Function::Notify { UNLESS_FULL } else { "" };
            format!("SELECT {from}{schema}{}({arguments}){hint}", function.name())
        }))
    }

    pub(crate) fn text(&self, function: Function) -> &str {
        &self.0[function as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_has_its_statement() {
        let statements = Statements::of("my \"locks\"");
        for (function, (name, types)) in Function::ALL.into_iter().zip(FUNCTIONS) {
            assert_eq!((function.name(), function.types().len()), (name, types.len()));
        }
        assert_eq!(
            statements.text(Function::Release),
            "SELECT \"my \"\"locks\"\"\".release_1($1, $2)"
        );
        assert_eq!(
            statements.text(Function::Tidy),
            "SELECT * FROM \"my \"\"locks\"\"\".tidy_1($1, $2)"
        );
    }
}
