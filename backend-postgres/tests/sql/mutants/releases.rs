//! In `release`, `remove_claim`, `renew`, `downgrade` and `batch`.

use super::Mutant;

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    ("a release at another lock",
     "WHERE x.owner = p_owner AND x.key IS NOT DISTINCT FROM p_key FOR UPDATE SKIP LOCKED;",
     "WHERE x.owner = p_owner FOR UPDATE SKIP LOCKED;"),
    ("an impatient release waits for a renewal",
     r"    IF NOT p_patient THEN
      PERFORM FROM claims",
     r"    IF false THEN
      PERFORM FROM claims"),
    ("a renewal revives",
     r"k.owner = r.owner AND k.until > us();
      IF",
     r"k.owner = r.owner;
      IF"),
    ("a renewal's time is read before the row",
     "UPDATE locks k SET until = us() + r.ttl WHERE k.key = r.key AND k.owner = r.owner AND k.until > us();",
     "UPDATE locks k SET until = us() + r.ttl WHERE k.key = r.key AND k.owner = r.owner AND k.until > (SELECT us());"),
    ("a renewal is not sorted",
     "AS u (key, owner, ttl) ORDER BY key, owner",
     "AS u (key, owner, ttl)"),
    ("a downgrade of an unconfirmed hand-off",
     r"
     AND NOT (l.crowd AND EXISTS (SELECT FROM claims x WHERE x.owner = p_owner)) THEN",
     " THEN"),
    ("a downgrade lets no readers in",
     r"    PERFORM hand_off(l, now_us, NULL, true);
  ELSE",
     r"    UPDATE locks SET owner = NULL, grp = 's', sum = 1, crowd = true WHERE key = p_key;
  ELSE"),
    ("a downgrade of a permit",
     r#"(key, state, mode) IS NOT DISTINCT FROM (p_key, 'h'::"char", 's'::"char")"#,
     r#"(key, state) IS NOT DISTINCT FROM (p_key, 'h'::"char")"#),
    ("a batch is not sorted",
     "ORDER BY u.key, u.place",
     "ORDER BY u.place"),
    ("a batch is patient",
     "s.queue, s.tokens, false);",
     "s.queue, s.tokens, true);"),
    ("a batch's release is patient",
     "remove_claim(s.key, s.owner, false)",
     "remove_claim(s.key, s.owner, true)"),
    ("an unknown step is a release",
     "    WHEN 'r' THEN",
     "    ELSE"),
    ("a release of no owner",
     r"RETURNS int
LANGUAGE plpgsql STRICT AS $$",
     r"RETURNS int
LANGUAGE plpgsql AS $$"),
];
