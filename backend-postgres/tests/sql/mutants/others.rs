//! In `look`, in what operators call, in cells, and in the checks of users' transactions.

use super::Mutant;

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    ("a look does not show life",
     "ON CONFLICT (proc) DO UPDATE SET deadline = excluded.deadline",
     "ON CONFLICT (proc) DO NOTHING"),
    ("a look hands nothing off",
     r"l := hand_off(l, now_us, NULL, false);
      ELSE",
     r"NULL;
      ELSE"),
    ("a look waits",
     "WHERE k.key = the_key FOR NO KEY UPDATE SKIP LOCKED;",
     "WHERE k.key = the_key FOR NO KEY UPDATE;"),
    ("a look forgets those that were passed over",
     "x.state IN ('g', 'l') AND x.proc = p_proc",
     "x.state = 'g' AND x.proc = p_proc"),
    ("a look reports others' grants",
     "x.state IN ('g', 'l') AND x.proc = p_proc",
     "x.state IN ('g', 'l')"),
    ("a look reports no missing ones",
     "    WHERE NOT EXISTS (SELECT FROM claims x WHERE x.owner = s AND",
     "    WHERE false AND NOT EXISTS (SELECT FROM claims x WHERE x.owner = s AND"),
    ("an ended holder is shown",
     "k.owner IS NOT NULL AND k.until > now_us",
     "k.owner IS NOT NULL"),
    ("an eviction in silence",
     "IF removed = 1 THEN PERFORM pg_notify(victim.proc, victim.owner::text); END IF;",
     ""),
    ("an eviction by the last token",
     "k.owner IS NOT NULL AND k.token - k.tokens + 1 = number",
     "k.owner IS NOT NULL AND k.token = number"),
    ("a cell is swapped whatever its stamp",
     r"    IF c.stamp IS DISTINCT FROM p_from THEN RETURN false; END IF;
",
     ""),
    ("a repeated swap fails",
     r"    IF c.stamp = p_to THEN RETURN true; END IF;
",
     ""),
    ("a cell lasts for ever",
     "IF c.until <= now_us THEN c.stamp := NULL; END IF;",
     ""),
    ("an ended cell is read",
     "AND (c.until IS NULL OR c.until > us())",
     ""),
    ("a cell keeps its old end",
     "UPDATE cells SET stamp = p_to, content = p_content, until = ends WHERE",
     "UPDATE cells SET stamp = p_to, content = p_content WHERE"),
    ("a swap notifies while it waits for the disk",
     r"    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  RETURN true;",
     r"    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  PERFORM pg_notify('cells', '');
  RETURN true;"),
    ("a young lock is tidied",
     "k.token < day_ago AND",
     "true AND"),
    ("a held lock is tidied",
     r"(k.owner IS NULL OR k.until <= now_us)
",
     r"true
"),
    ("a waiter is tidied",
     r"    IF NOT l.crowd THEN
      DELETE",
     r"    IF true THEN
      DELETE"),
    ("a reader in a transaction is tidied",
     r"    IF l.crowd THEN l := hand_off(l, now_us, NULL, false); END IF;
    IF NOT l.crowd THEN",
     r"    DELETE FROM claims x WHERE x.key = l.key;
    IF true THEN"),
    ("tidying waits",
     r"LIMIT 1000 FOR UPDATE SKIP LOCKED
  LOOP",
     r"LIMIT 1000 FOR UPDATE
  LOOP"),
    ("clearing is too greedy",
     r"substring(k.key FOR length(p_prefix)) = p_prefix
",
     r"true
"),
    ("a check of a released lock",
     "k.owner IS NOT NULL AND p_token",
     "p_token"),
    ("a check of a released reader",
     r"AND x.until <> 0
      AND p_token",
     "AND p_token"),
    ("a check locks nothing",
     r"AND p_token BETWEEN k.token - k.tokens + 1 AND k.token
  FOR KEY SHARE;",
     "AND p_token BETWEEN k.token - k.tokens + 1 AND k.token;"),
    ("a reader's check locks nothing",
     r"AND p_token BETWEEN x.token - x.tokens + 1 AND x.token
    FOR KEY SHARE;",
     "AND p_token BETWEEN x.token - x.tokens + 1 AND x.token;"),
    ("a check blocks renewals",
     r"AND k.token
  FOR KEY SHARE;",
     r"AND k.token
  FOR SHARE;"),
    ("a silent client blocks for ever",
     "IF limit_ms = 0 OR limit_ms > p_idle_ms THEN",
     "IF limit_ms > p_idle_ms THEN"),
    ("a shorter limit is made longer",
     "IF limit_ms = 0 OR limit_ms > p_idle_ms THEN",
     "IF true THEN"),
    ("no limit by a limit of 0",
     "greatest(1, p_idle_ms)",
     "greatest(0, p_idle_ms)"),
    ("a local successor overtakes a transaction",
     "IF reserved > 1 THEN",
     "IF reserved > 9 THEN"),
    ("a local predecessor comes back",
     "WHERE t.token <= excluded.token",
     ""),
    ("a fence refuses the same token",
     "WHERE f.token <= excluded.token",
     "WHERE f.token < excluded.token"),
    ("a fence falls",
     "WHERE f.token <= excluded.token",
     ""),
];
