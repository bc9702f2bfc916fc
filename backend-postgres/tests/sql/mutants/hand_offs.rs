//! In `hand_off`; and what waits for the disk.

use super::Mutant;

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    ("a grant may be lost",
     "WHEN current_setting('synchronous_commit') IN ('off', 'local')",
     "WHEN false"),
    ("a grant waits for no standby",
     "WHEN current_setting('synchronous_commit') IN ('off', 'local')",
     "WHEN current_setting('synchronous_commit') = 'off'"),
    ("a waiter waits for the disk",
     "IF NOT settle(reply > 0)",
     "IF NOT settle(true)"),
    ("a release waits for the disk",
     "boolean := settle(false);",
     "boolean := true;"),
    ("a renewal may be lost",
     "boolean := settle(true);\nBEGIN\n  -- Sorted",
     "boolean := true;\nBEGIN\n  -- Sorted"),
    ("a swap may be lost",
     "boolean := settle(true);\nBEGIN\n  LOOP",
     "boolean := true;\nBEGIN\n  LOOP"),
    ("a downgrade may be lost",
     "WHEN settle(true) THEN 1",
     "WHEN true THEN 1"),
    ("NOTIFY waits for the disk",
     "WHEN current_setting('fencelock.notified', true) = pg_current_xact_id_if_assigned()::text",
     "WHEN false"),
    ("a grant is relied on that did not wait for the disk",
     "THEN set_config('synchronous_commit', 'off', true) <> 'off'",
     "THEN set_config('synchronous_commit', 'off', true) = 'off'"),
    ("a batch forgets that it granted",
     "has_granted := has_granted OR reply > 0;",
     "has_granted := reply > 0;"),
    ("a batch keeps its last step's durability",
     "IF NOT settle(has_granted) THEN",
     "IF false THEN"),
    ("a grant that an old check passes over",
     "FOUND AND EXISTS (SELECT FROM locks k WHERE k.key = p_key AND k.xmax = pg_current_xact_id()::xid)",
     "FOUND"),
    ("a hand-off that ended is at the head of the queue again",
     r#"y.owner = l.owner AND (y.key, y.state) IS NOT DISTINCT FROM (l.key, 'w'::"char")"#,
     "false"),
    ("a hold that ended takes its owner's place in another queue",
     r#"y.owner = l.owner AND (y.key, y.state) IS NOT DISTINCT FROM (l.key, 'w'::"char")"#,
     r#"y.owner = l.owner AND y.state IS NOT DISTINCT FROM 'w'::"char""#),
    ("a hand-off that ended is looked for in the queue",
     r#"y.owner = l.owner AND (y.key, y.state) IS NOT DISTINCT FROM (l.key, 'w'::"char")"#,
     "y.owner = l.owner AND y.key = l.key AND y.state = 'w'"),
    ("a dead waiter is granted the lock",
     "IF c.until < now_us AND c.owner IS DISTINCT FROM asking",
     "IF false AND c.owner IS DISTINCT FROM asking"),
    ("the dead are removed one by one",
     "EXIT WHEN NOT remove_dead(l.key, 'w', now_us, asking);",
     "DELETE FROM claims x WHERE x.owner = c.owner;"),
    ("the waiters of live processes are removed with the dead",
     r"AND p.deadline >= now_us OFFSET 0)
    FOR UPDATE SKIP LOCKED));
  RETURN FOUND;",
     r"AND false OFFSET 0)
    FOR UPDATE SKIP LOCKED));
  RETURN FOUND;"),
    ("a dead late one stays",
     "  IF late > 0 THEN",
     "  IF false THEN"),
    ("a live late one is removed",
     r"PERFORM remove_dead(l.key, 'l', now_us, NULL);
  END IF;",
     r"DELETE FROM claims x WHERE x.key = l.key AND x.state = 'l' AND x.until < now_us
      AND EXISTS (SELECT FROM processes p WHERE p.proc = x.proc AND p.deadline >= now_us);
  END IF;"),
    ("a live late one is removed from an empty queue",
     r"PERFORM remove_dead(l.key, 'l', now_us, NULL);
      EXIT;",
     r"DELETE FROM claims x WHERE x.key = l.key AND x.state = 'l' AND x.until < now_us
      AND EXISTS (SELECT FROM processes p WHERE p.proc = x.proc AND p.deadline >= now_us);
      EXIT;"),
    ("a dead late one stays in an empty queue",
     r"PERFORM remove_dead(l.key, 'l', now_us, NULL);
      EXIT;",
     "EXIT;"),
    ("crowd is taken back by an old snapshot",
     "    OR current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')",
     ""),
    ("permits overflow",
     "c.n <= c.lim - l.sum",
     "l.sum + c.n <= c.lim"),
    ("several readers in one",
     "AND (n = 1 OR mode = 'p')",
     ""),
];
