-- Hands a lock, whose row `l` the caller has locked, to the first live waiters for which it is free, in the
-- order of their arrival, and writes the row. They stay in the queue until they confirm, so that a late one
-- keeps its place. It does not wait: a claim's row that another transaction has locked stays as it is.
--
-- asking      reads its grant from the reply of this step, and is not notified
-- must_write  the caller has changed `l`
-- Reply       the row afterwards
-- O(log n) in the waiters, O(n) if the first is dead; O(n) in the readers or permits that hold; 64 grants.

CREATE OR REPLACE FUNCTION :"schema".hand_off(l :"schema".locks, now_us bigint, asking uuid, must_write boolean)
RETURNS :"schema".locks LANGUAGE plpgsql AS $$
DECLARE
  was locks := l;
  c claims;
  late int := 0;
  gone bigint;
  grants boolean := false;
BEGIN
  IF l.owner IS NOT NULL AND l.until <= now_us THEN
    UPDATE claims x SET state = 'l', until = now_us + 3000000
    WHERE x.owner = (
      SELECT y.owner FROM claims y
      WHERE y.owner = l.owner AND (y.key, y.state) IS NOT DISTINCT FROM (l.key, 'w'::"char") FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS late = ROW_COUNT;
  END IF;
  IF l.grp IS NOT NULL THEN
    -- SKIP LOCKED: a member whose guarded transaction is open counts until that ends.
    WITH ended AS (
      SELECT x.owner FROM claims x
      WHERE x.key = l.key AND x.state BETWEEN 'g' AND 'h' AND x.mode <> 'x' AND x.until <= now_us
      FOR UPDATE SKIP LOCKED
    ), unconfirmed AS (
      UPDATE claims x SET state = 'l', until = now_us + 3000000
      WHERE x.owner = ANY (ARRAY(SELECT e.owner FROM ended e)) AND x.state IS NOT DISTINCT FROM 'g' RETURNING x.n
    ), removed AS (
      DELETE FROM claims x
      WHERE x.owner = ANY (ARRAY(SELECT e.owner FROM ended e)) AND x.state IS NOT DISTINCT FROM 'h' RETURNING x.n
    )
    SELECT count(*) FILTER (WHERE was_late), coalesce(sum(n), 0) INTO late, gone
    FROM (SELECT n, true FROM unconfirmed UNION ALL SELECT n, false FROM removed) every (n, was_late);
    l.sum := l.sum - gone;
    IF l.sum = 0 THEN l.grp := NULL; END IF;
  END IF;
  IF late > 0 THEN
    -- Those that were late before, and whose process has died since.
    PERFORM remove_dead(l.key, 'l', now_us, NULL);
  END IF;
  FOR i IN 1 .. 64 LOOP
    EXIT WHEN l.owner IS NOT NULL AND l.until > now_us;
    SELECT * INTO c FROM claims x WHERE x.key = l.key AND x.state = 'w' ORDER BY x.seq LIMIT 1;
    IF NOT FOUND THEN
      PERFORM remove_dead(l.key, 'l', now_us, NULL);
      EXIT;
    END IF;
    IF c.until < now_us AND c.owner IS DISTINCT FROM asking
       AND NOT EXISTS (SELECT FROM processes p WHERE p.proc = c.proc AND p.deadline >= now_us) THEN
      -- All of dead processes at once: there can be thousands, and the live ones wait behind them.
      EXIT WHEN NOT remove_dead(l.key, 'w', now_us, asking);
      CONTINUE;
    END IF;
    EXIT WHEN NOT (l.grp IS NULL OR (c.mode = l.grp AND (c.mode = 's' OR c.n <= c.lim - l.sum)));
    IF c.mode <> 'x' THEN
      PERFORM FROM claims x WHERE x.owner = c.owner FOR UPDATE SKIP LOCKED;
      EXIT WHEN NOT FOUND;
    END IF;
    grants := grants OR may_grant(l.key);
    EXIT WHEN NOT grants;
    l.token := greatest(l.token + c.tokens, now_us + c.tokens - 1);
    c.until := now_us + least(2000000, c.ttl);
    IF c.mode = 'x' THEN
      l.owner := c.owner;
      l.until := c.until;
      l.tokens := c.tokens;
      l.proc := c.proc;
      l.label := c.label;
    ELSE
      UPDATE claims SET state = 'g', token = l.token, until = c.until WHERE owner = c.owner;
      l.owner := NULL;
      l.grp := c.mode;
      l.sum := l.sum + c.n;
    END IF;
    IF c.owner IS DISTINCT FROM asking THEN
      -- A hint: the look of its process finds the grant too. A NOTIFY whose queue is full fails at the commit, and
      -- with it the whole step; and only this question, or a NOTIFY that succeeds, frees what was read of the queue.
      PERFORM pg_notify(c.proc, c.owner::text),
        set_config('fencelock.notified', pg_current_xact_id()::text, true)
      WHERE pg_notification_queue_usage() < 0.5;
    END IF;
  END LOOP;
  l.crowd := grants OR is_crowd(l.key);
  IF must_write OR l IS DISTINCT FROM was THEN
    UPDATE locks SET token = l.token, tokens = l.tokens, owner = l.owner, until = l.until, crowd = l.crowd,
      grp = l.grp, sum = l.sum, proc = l.proc, label = l.label
    WHERE key = l.key;
  END IF;
  RETURN l;
END $$;
