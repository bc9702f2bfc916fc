//! In `release`, `remove_claim`, `renew`, `downgrade` and `batch`.

use super::Mutant;

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    ("a release of any owner",
     "WHERE key = p_key AND owner = p_owner AND NOT crowd",
     "WHERE key = p_key AND owner IS NOT NULL AND NOT crowd"),
    ("a release of any owner with waiters",
     "was_there := l.owner IS NOT DISTINCT FROM p_owner;",
     "l.owner := p_owner; was_there := true;"),
    ("a release forgets the waiters",
     "WHERE key = p_key AND owner = p_owner AND NOT crowd",
     "WHERE key = p_key AND owner = p_owner"),
    ("a release at another lock",
     "WHERE x.owner = p_owner AND x.key IS NOT DISTINCT FROM p_key FOR UPDATE SKIP LOCKED;",
     "WHERE x.owner = p_owner FOR UPDATE SKIP LOCKED;"),
    ("a release waits for a guarded transaction",
     "WHERE x.owner = p_owner AND x.key IS NOT DISTINCT FROM p_key FOR UPDATE SKIP LOCKED;",
     "WHERE x.owner = p_owner AND x.key IS NOT DISTINCT FROM p_key FOR UPDATE;"),
    ("a writer's release waits for a guarded transaction",
     "  UPDATE locks SET owner = NULL WHERE key = p_key AND owner = p_owner AND NOT crowd;",
     r"  PERFORM FROM locks WHERE key = p_key FOR UPDATE;
  UPDATE locks SET owner = NULL WHERE key = p_key AND owner = p_owner AND NOT crowd;"),
    ("a release does not end a guarded reader",
     "UPDATE claims SET until = 0 WHERE owner = p_owner AND key IS NOT DISTINCT FROM p_key AND until <> 0;",
     "PERFORM FROM claims WHERE owner = p_owner AND key = p_key;"),
    ("a released reader is found again",
     "WHERE owner = p_owner AND key IS NOT DISTINCT FROM p_key AND until <> 0;",
     "WHERE owner = p_owner AND key IS NOT DISTINCT FROM p_key;"),
    ("a release does not count down",
     r"      l.sum := l.sum - c.n;
      IF l.sum = 0 THEN l.grp := NULL; END IF;
    END IF;
  ELSIF",
     r"    END IF;
  ELSIF"),
    ("a waiter's release counts down",
     r"IF c.mode <> 'x' AND c.state IN ('g', 'h') THEN
      l.sum",
     r"IF c.mode <> 'x' THEN
      l.sum"),
    ("a release does not hand off",
     r"PERFORM hand_off(l, us(), NULL, true);
  RETURN was_there",
     r"UPDATE locks SET owner = l.owner, grp = l.grp, sum = l.sum, crowd = EXISTS (SELECT FROM claims x WHERE x.key = l.key) WHERE key = l.key;
  RETURN was_there"),
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
    ("a renewal revives a reader",
     r#"(r.key, 'h'::"char") AND x.until > us();
      END IF;"#,
     r#"(r.key, 'h'::"char");
      END IF;"#),
    ("a renewal's time is read before the row",
     "UPDATE locks k SET until = us() + r.ttl WHERE k.key = r.key AND k.owner = r.owner AND k.until > us();",
     "UPDATE locks k SET until = us() + r.ttl WHERE k.key = r.key AND k.owner = r.owner AND k.until > (SELECT us());"),
    ("a fixed lease is extended",
     r"    IF r.ttl = 0 THEN
",
     r"    IF false THEN
"),
    ("readers are not renewed",
     r"      IF NOT FOUND THEN
        UPDATE claims x SET until = us() + r.ttl",
     r"      IF false THEN
        UPDATE claims x SET until = us() + r.ttl"),
    ("a renewal is not sorted",
     "AS u (key, owner, ttl) ORDER BY key, owner",
     "AS u (key, owner, ttl)"),
    ("a downgrade of what has ended",
     r"IF l.owner = p_owner AND l.until > now_us
",
     r"IF l.owner = p_owner
"),
    ("a downgrade of an unconfirmed hand-off",
     r"
     AND NOT (l.crowd AND EXISTS (SELECT FROM claims x WHERE x.owner = p_owner)) THEN",
     " THEN"),
    ("a downgrade with a new token",
     "l.tokens, l.token, ends);",
     "l.tokens, l.token + 1, ends);"),
    ("a downgrade lets no readers in",
     r"    PERFORM hand_off(l, now_us, NULL, true);
  ELSE",
     r"    UPDATE locks SET owner = NULL, grp = 's', sum = 1, crowd = true WHERE key = p_key;
  ELSE"),
    ("a downgrade keeps the writer",
     r"    l.owner := NULL;
    l.grp := 's';",
     "    l.grp := 's';"),
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
    ("a batch mixes up its steps",
     "at := s.place;",
     "at := coalesce(at, 0) + 1;"),
];
