//! In `hand_off`; and what waits for the disk.

use super::Mutant;

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    ("a grant may be lost",
     r"  ELSIF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
",
     ""),
    ("a waiter waits for the disk",
     r"IF token <= 0 THEN
    PERFORM set_config('synchronous_commit', 'off', true);",
     r"IF token <= 0 THEN
    NULL;"),
    ("a release waits for the disk",
     r"PERFORM set_config('synchronous_commit', 'off', true);
  UPDATE",
     "UPDATE"),
    ("a renewal may be lost",
     r"    IF is_held THEN RETURN NEXT r.owner; END IF;
  END LOOP;
  IF current_setting('synchronous_commit') = 'off' THEN",
     r"    IF is_held THEN RETURN NEXT r.owner; END IF;
  END LOOP;
  IF false THEN"),
    ("a downgrade may be lost",
     r"-- The client relies on the extension.
  IF current",
     r"-- The client relies on the extension.
  IF false AND current"),
    ("a batch forgets that it granted",
     "has_granted := has_granted OR token > 0;",
     "has_granted := token > 0;"),
    ("a batch keeps its last step's durability",
     "CASE WHEN NOT has_granted THEN 'off' WHEN sync = 'off' THEN 'on' ELSE sync END",
     "current_setting('synchronous_commit')"),
    ("a hand-off with the whole TTL",
     "now_us + least(2000000, c.ttl)",
     "now_us + c.ttl"),
    ("a hand-off that outlasts its TTL",
     "now_us + least(2000000, c.ttl)",
     "now_us + 2000000"),
    ("a hand-off without FOR UPDATE",
     r"      PERFORM FROM locks k WHERE k.key = l.key FOR UPDATE SKIP LOCKED;
      EXIT WHEN NOT FOUND;
",
     ""),
    ("a hand-off waits for a guarded transaction",
     "PERFORM FROM locks k WHERE k.key = l.key FOR UPDATE SKIP LOCKED;",
     "PERFORM FROM locks k WHERE k.key = l.key FOR UPDATE;"),
    ("a hand-off that ended is lost",
     "    UPDATE claims SET state = 'l', until = now_us + 3000000 WHERE key = l.key AND state = 'g';",
     "    DELETE FROM claims WHERE key = l.key AND state = 'g';"),
    ("a reader's hand-off that ended is lost",
     r"UPDATE claims x SET state = 'l', until = now_us + 3000000 FROM ended e
      WHERE x.owner = e.owner AND x.state = 'g' RETURNING x.n",
     "DELETE FROM claims x USING ended e WHERE x.owner = e.owner AND x.state = 'g' RETURNING x.n"),
    ("an ended reader is waited for",
     r"      FOR UPDATE SKIP LOCKED
    ), unconfirmed",
     r"      FOR UPDATE
    ), unconfirmed"),
    ("an ended reader in a transaction is removed",
     r"      FOR UPDATE SKIP LOCKED
    ), unconfirmed",
     "    ), unconfirmed"),
    ("ended readers are counted on",
     r"    l.sum := l.sum - gone;
",
     ""),
    ("a group without members stays",
     r"    l.sum := l.sum - gone;
    IF l.sum = 0 THEN l.grp := NULL; END IF;",
     "    l.sum := l.sum - gone;"),
    ("a dead waiter is granted the lock",
     "IF c.until < now_us AND c.owner IS DISTINCT FROM asking",
     "IF false AND c.owner IS DISTINCT FROM asking"),
    ("a silent process dies at once",
     r"IF c.until < now_us AND c.owner IS DISTINCT FROM asking
       AND NOT EXISTS (SELECT FROM processes p WHERE p.proc = c.proc AND p.deadline >= now_us) THEN",
     "IF c.until < now_us AND c.owner IS DISTINCT FROM asking THEN"),
    ("the dead are removed one by one",
     r"AND x.state = 'w' AND x.proc = c.proc AND x.until < now_us
        AND x.owner IS DISTINCT FROM asking",
     "AND x.owner = c.owner"),
    ("the last in the queue is first",
     r"x.state = 'w' ORDER BY x.seq LIMIT 1;
    IF NOT FOUND",
     r"x.state = 'w' ORDER BY x.seq DESC LIMIT 1;
    IF NOT FOUND"),
    ("a dead late one stays",
     "  IF late > 0 THEN",
     "  IF false THEN"),
    ("a live late one is removed",
     r"AND x.state = 'l' AND x.until < now_us
      AND NOT EXISTS",
     r"AND x.state = 'l' AND x.until < now_us
      AND EXISTS"),
    ("a live late one is removed from an empty queue",
     r"AND x.state = 'l' AND x.until < now_us
        AND NOT EXISTS",
     r"AND x.state = 'l' AND x.until < now_us
        AND EXISTS"),
    ("a dead late one stays in an empty queue",
     r"AND x.state = 'l' AND x.until < now_us
        AND NOT EXISTS",
     r"AND x.state = 'z' AND x.until < now_us
        AND NOT EXISTS"),
    ("no notification",
     "IF c.owner IS DISTINCT FROM asking THEN PERFORM pg_notify(c.proc, c.owner::text); END IF;",
     ""),
    ("an asking waiter is notified",
     "IF c.owner IS DISTINCT FROM asking THEN PERFORM pg_notify(c.proc, c.owner::text); END IF;",
     "PERFORM pg_notify(c.proc, c.owner::text);"),
    ("the lock's row is not written",
     "IF must_write OR l IS DISTINCT FROM was THEN",
     "IF must_write THEN"),
    ("crowd is never taken back",
     "l.crowd := is_locked OR EXISTS (SELECT FROM claims x WHERE x.key = l.key);",
     ""),
    ("permits overflow",
     "c.n <= c.lim - l.sum",
     "l.sum + c.n <= c.lim"),
    ("several readers in one",
     "AND (n = 1 OR mode = 'p')",
     ""),
    ("a plan for a small table is kept",
     "SET enable_seqscan = off",
     ""),
    ("an eviction waits for the disk",
     r"  PERFORM set_config('synchronous_commit', 'off', true);
  IF p_id",
     "  IF p_id"),
    ("a holder is overtaken",
     "EXIT WHEN l.owner IS NOT NULL AND l.until > now_us;",
     ""),
];
