//! What is wrong with an attribute is said at its place, with what was expected.

#[test]
fn what_is_wrong_is_said_at_its_place() {
    trybuild::TestCases::new().compile_fail("tests/messages/*.rs");
}
