//! In `us`, `attempt` and `contend`: tokens, grants, and places in the queue.

use super::Mutant;

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    ("the time stands in a transaction",
     "pg_catalog.clock_timestamp()",
     "pg_catalog.now()"),
    ("a token is a counter of the row",
     "greatest(k.token + p_tokens, now_us + p_tokens - 1)",
     "k.token + p_tokens"),
    ("a token is the time alone",
     "greatest(k.token + p_tokens, now_us + p_tokens - 1)",
     "now_us + p_tokens - 1"),
    ("a token of a contended lock is a counter of the row",
     "greatest(l.token + p_tokens, now_us + p_tokens - 1)",
     "l.token + p_tokens"),
    ("a token of a contended lock is the time alone",
     "greatest(l.token + p_tokens, now_us + p_tokens - 1)",
     "now_us + p_tokens - 1"),
    ("tokens are not reserved at a contended lock",
     "greatest(l.token + p_tokens, now_us + p_tokens - 1)",
     "greatest(l.token + 1, now_us)"),
    ("a token handed off is a counter",
     "greatest(l.token + c.tokens, now_us + c.tokens - 1)",
     "l.token + c.tokens"),
    ("a token handed off is the time alone",
     "greatest(l.token + c.tokens, now_us + c.tokens - 1)",
     "now_us + c.tokens - 1"),
    ("a token of a new row is from a sequence",
     "VALUES (p_key, now_us + p_tokens - 1, p_tokens, p_owner,",
     "VALUES (p_key, nextval('clock'), p_tokens, p_owner,"),
    ("tokens are not reserved",
     "greatest(k.token + p_tokens, now_us + p_tokens - 1)",
     "greatest(k.token + 1, now_us)"),
    ("tokens are not reserved in a hand-off",
     "greatest(l.token + c.tokens, now_us + c.tokens - 1)",
     "greatest(l.token + 1, now_us)"),
    ("the last token is answered",
     "RETURNING k.token - k.tokens + 1 INTO",
     "RETURNING k.token INTO"),
    ("the last token is answered to a repetition",
     "RETURN l.token - l.tokens + 1;",
     "RETURN l.token;"),
    ("a reader's last token is answered",
     "RETURN c.token - c.tokens + 1;",
     "RETURN c.token;"),
    ("reserved tokens of the last grant are checked",
     "BETWEEN k.token - k.tokens + 1 AND k.token",
     "BETWEEN k.token - k.tokens AND k.token"),
    ("only the last token is checked",
     "p_token BETWEEN k.token - k.tokens + 1 AND k.token",
     "p_token = k.token"),
    ("only the last token of a reader is checked",
     "p_token BETWEEN x.token - x.tokens + 1 AND x.token",
     "p_token = x.token"),
    ("a fast grant without FOR UPDATE",
     "    FOR UPDATE SKIP LOCKED;\n    IF FOUND",
     "    FOR NO KEY UPDATE SKIP LOCKED;\n    IF FOUND"),
    ("a fast grant waits",
     "    FOR UPDATE SKIP LOCKED;\n    IF FOUND",
     "    FOR UPDATE;\n    IF FOUND"),
    ("a fast grant overtakes the queue",
     "k.key = p_key AND NOT k.crowd AND k.grp IS NULL",
     "k.key = p_key AND k.grp IS NULL"),
    ("a fast grant beside a group",
     "k.key = p_key AND NOT k.crowd AND k.grp IS NULL",
     "k.key = p_key AND NOT (k.crowd AND k.grp IS NULL)"),
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
    ("a repetition is a new grant",
     "CASE k.owner WHEN p_owner THEN k.token ELSE",
     "CASE WHEN false THEN k.token ELSE"),
    ("a repetition reserves anew",
     "CASE k.owner WHEN p_owner THEN k.tokens ELSE",
     "CASE WHEN false THEN k.tokens ELSE"),
    ("a repetition does not extend",
     "owner = p_owner, until = now_us + p_ttl, proc",
     "owner = p_owner, until = greatest(k.until, now_us + 1), proc"),
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
    ("a busy attempt waits in the queue",
     r"    IF NOT p_queue THEN
      RETURN 0;
    END IF;
    --",
     "    --"),
    ("a waiter is told that it is busy",
     r"IF NOT p_queue THEN
    -- A busy",
     r"IF true THEN
    -- A busy"),
    ("a grant without FOR UPDATE",
     "IF fits AND may_grant(p_key) THEN",
     "IF fits THEN"),
    ("the time is read before the row",
     r"  LOOP
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
  now_us := us();
",
     r"  now_us := us();
  LOOP
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
"),
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
    ("a confirmation leaves the claim",
     r"    IF c.owner IS NOT NULL THEN DELETE FROM claims x WHERE x.owner = p_owner; END IF;
",
     ""),
    ("a confirmation forgets the waiters",
     "crowd = l.crowd AND is_crowd(p_key)",
     "crowd = false"),
    ("a confirmed reader keeps the short end",
     r"UPDATE claims SET state = 'h', until = ends WHERE owner = p_owner;
    -- Cont",
     r"UPDATE claims SET state = 'h' WHERE owner = p_owner;
    -- Cont"),
    ("a run of readers is not continued",
     r"    IF c.state = 'g' THEN PERFORM hand_off(l, now_us, NULL, false); END IF;
",
     ""),
    ("permits are granted without a count",
     "(p_mode = 's' OR p_n <= p_lim - l.sum)))",
     "true))"),
    ("one permit too many",
     "p_n <= p_lim - l.sum",
     "p_n <= p_lim - l.sum + 1"),
    ("one permit too few",
     "p_n <= p_lim - l.sum",
     "p_n < p_lim - l.sum"),
    ("one permit too many in a hand-off",
     "c.n <= c.lim - l.sum",
     "c.n <= c.lim - l.sum + 1"),
    ("permits are counted as one",
     "grp = p_mode, sum = l.sum + p_n",
     "grp = p_mode, sum = l.sum + 1"),
    ("permits are counted as one in a hand-off",
     "l.sum := l.sum + c.n;",
     "l.sum := l.sum + 1;"),
    ("permits join readers",
     "p_mode = l.grp AND ",
     ""),
    ("waiting permits join readers",
     "c.mode = l.grp AND ",
     ""),
    ("a newcomer overtakes waiting claims",
     "AND NOT (l.crowd AND EXISTS (SELECT FROM claims x WHERE x.key = p_key AND x.state = 'w'))",
     ""),
    ("the place is the time alone",
     r"greatest(now_us,
        1 +",
     r"coalesce(now_us,
        1 +"),
    ("a late waiter loses its place",
     "UPDATE claims SET state = 'w', until = now_us + 3000000 WHERE owner",
     "UPDATE claims SET state = 'w', seq = now_us + 1000000000, until = now_us + 3000000 WHERE owner"),
    ("an attempt does not show life",
     "ELSIF c.state = 'l' OR c.until < now_us THEN",
     "ELSIF c.state = 'l' THEN"),
    ("a late waiter is not queued again",
     "ELSIF c.state = 'l' OR c.until < now_us THEN",
     "ELSIF c.until < now_us THEN"),
    ("a grant in the reply keeps the short end",
     "SET until = ends, crowd = is_crowd(p_key) WHERE key = p_key;",
     "SET crowd = is_crowd(p_key) WHERE key = p_key;"),
    ("one that was handed the lock is taken for the next",
     "x.key = p_key AND x.state = 'w' AND x.owner IS DISTINCT FROM l.owner",
     "x.key = p_key AND x.state = 'w'"),
    ("the first waiter looks late",
     "CASE WHEN c.proc = p_proc THEN next_look(l, now_us) ELSE 1000 END",
     "1000"),
    ("another's waiter looks often",
     "CASE WHEN c.proc = p_proc THEN next_look(l, now_us) ELSE 1000 END",
     "next_look(l, now_us)"),
];
