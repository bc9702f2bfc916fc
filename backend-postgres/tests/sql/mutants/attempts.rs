//! In `us`, `attempt` and `contend`: tokens, grants, and places in the queue.

use super::Mutant;

#[rustfmt::skip]
macro_rules! reads_row { () => { r"  LOOP
    IF p_patient THEN
      SELECT * INTO l FROM locks k WHERE k.key = p_key FOR NO KEY UPDATE;
    ELSE
      SELECT * INTO l FROM locks k WHERE k.key = p_key FOR NO KEY UPDATE SKIP LOCKED;
    END IF;
    EXIT WHEN FOUND;
    IF NOT p_patient AND EXISTS (SELECT FROM locks k WHERE k.key = p_key) THEN
      RETURN -2;
    END IF;
    INSERT INTO locks (key) VALUES (p_key) ON CONFLICT DO NOTHING;
  END LOOP;
"}}

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    ("the time stands in a transaction",
     "pg_catalog.clock_timestamp()",
     "pg_catalog.now()"),
    ("reserved tokens of the last grant are checked",
     "BETWEEN k.token - k.tokens + 1 AND k.token",
     "BETWEEN k.token - k.tokens AND k.token"),
    ("a fast grant without FOR UPDATE",
     "    FOR UPDATE SKIP LOCKED;\n    IF FOUND",
     "    FOR NO KEY UPDATE SKIP LOCKED;\n    IF FOUND"),
    ("a fast grant waits",
     "    FOR UPDATE SKIP LOCKED;\n    IF FOUND",
     "    FOR UPDATE;\n    IF FOUND"),
    ("a fast grant before the end",
     "(k.owner IS NULL OR k.owner = p_owner OR k.until <= us())",
     "(k.owner IS NULL OR k.owner = p_owner OR k.until <= us() + 1000)"),
    ("a fast attempt locks the row of a busy lock",
     "\n      AND (k.owner IS NULL OR k.owner = p_owner OR k.until <= us())\n    FOR UPDATE SKIP LOCKED;\n    IF FOUND THEN",
     "\n    FOR UPDATE SKIP LOCKED;\n    IF FOUND AND EXISTS (SELECT FROM locks k WHERE k.key = p_key\n      AND (k.owner IS NULL OR k.owner = p_owner OR k.until <= us())) THEN"),
    ("a fast grant that an old check passes over",
     " AND (k.owner = p_owner OR k.xmax = pg_current_xact_id()::xid)",
     ""),
    ("a new row waits for a renewal",
     "ELSIF NOT EXISTS (SELECT FROM locks k WHERE k.key = p_key) THEN",
     "ELSE"),
    ("a repetition reserves anew",
     "CASE k.owner WHEN p_owner THEN k.tokens ELSE",
     "CASE WHEN false THEN k.tokens ELSE"),
    ("a busy attempt locks the row",
     "IF l.owner <> p_owner AND l.until > us() OR l.grp <> p_mode",
     "IF l.grp <> p_mode"),
    ("a busy attempt locks the row of readers",
     "IF l.owner <> p_owner AND l.until > us() OR l.grp <> p_mode",
     "IF l.owner <> p_owner AND l.until > us() OR false"),
    ("a reader that ended keeps a try out",
     "x.state = 'h' AND x.until > us())\n       AND NOT EXISTS",
     "x.state = 'h')\n       AND NOT EXISTS"),
    ("a try finds its own hold busy",
     r"
       AND NOT EXISTS (SELECT FROM claims x WHERE x.owner = p_owner) THEN",
     " THEN"),
    ("a grant without FOR UPDATE",
     "IF fits AND may_grant(p_key) THEN",
     "IF fits THEN"),
    ("the time is read before the row",
     concat!(reads_row!(), "  now_us := us();\n"),
     concat!("  now_us := us();\n", reads_row!())),
    ("an impatient attempt waits",
     r"    IF p_patient THEN
      SELECT * INTO l FROM locks k WHERE k.key = p_key FOR NO KEY UPDATE;
    ELSE
      SELECT",
     r"    IF true THEN
      SELECT * INTO l FROM locks k WHERE k.key = p_key FOR NO KEY UPDATE;
    ELSE
      SELECT"),
    ("a patient attempt does not wait",
     r"    IF p_patient THEN
      SELECT * INTO l",
     r"    IF false THEN
      SELECT * INTO l"),
    ("a run of readers is not continued",
     r"    IF c.state = 'g' THEN PERFORM hand_off(l, now_us, NULL, false); END IF;
",
     ""),
    ("one permit too few",
     "p_n <= p_lim - l.sum",
     "p_n < p_lim - l.sum"),
    ("a grant in the reply keeps the short end",
     "SET until = ends, crowd = is_crowd(p_key) WHERE key = p_key;",
     "SET crowd = is_crowd(p_key) WHERE key = p_key;"),
    ("one that was handed the lock is taken for the next",
     "x.key = p_key AND x.state = 'w' AND x.owner IS DISTINCT FROM l.owner",
     "x.key = p_key AND x.state = 'w'"),
    ("the first waiter looks late",
     "CASE WHEN c.proc = p_proc THEN next_look(l, now_us) ELSE 1000 END",
     "1000"),
];
