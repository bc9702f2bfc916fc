-- The look of one process, once a second, regardless of the number of its waiters: it is live for 3 s more;
-- locks that are free are handed off; and grants whose notifications may have been lost are reported.
--
-- p_keys    the locks that it waits for
-- p_sample  some of its waiters, or all
-- Reply     again 0: attempt now, since it was granted or was passed over
--           again -1: it is of the sample, and in no queue. Others are missing too, if a queue was lost
--           again > 0: the first in its queue looks again in so many ms
-- For each lock O(log n) in its waiters, except for dead ones; O(n) in readers or permits that hold; 64 grants.

CREATE OR REPLACE FUNCTION :"schema".look_1(p_proc text, p_keys bytea[], p_sample uuid[])
RETURNS TABLE (owner uuid, again int)
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = 200 AS $$
DECLARE
  the_key bytea;
  l locks;
  c claims;
  now_us bigint;
BEGIN
  PERFORM settle(false);
  INSERT INTO processes (proc, deadline) VALUES (p_proc, us() + 3000000)
  ON CONFLICT (proc) DO UPDATE SET deadline = excluded.deadline;
  FOREACH the_key IN ARRAY p_keys LOOP
    SELECT * INTO l FROM locks k WHERE k.key = the_key;
    CONTINUE WHEN NOT FOUND OR NOT l.crowd;
    now_us := us();
    IF l.owner IS NULL OR l.until <= now_us THEN
      -- SKIP LOCKED: another step is at it, and hands off.
      SELECT * INTO l FROM locks k WHERE k.key = the_key FOR NO KEY UPDATE SKIP LOCKED;
      IF FOUND THEN
        now_us := us();
        l := hand_off(l, now_us, NULL, false);
      ELSE
        SELECT * INTO l FROM locks k WHERE k.key = the_key;
      END IF;
    END IF;
    RETURN QUERY SELECT x.owner, 0 FROM claims x
      WHERE x.key = the_key AND x.state = 'g' AND x.proc = p_proc
      UNION ALL
      SELECT x.owner, 0 FROM claims x WHERE x.key = the_key AND x.state = 'l' AND x.proc = p_proc
      UNION ALL
      SELECT x.owner, 0 FROM claims x
      WHERE x.owner = l.owner AND (x.key, x.state) IS NOT DISTINCT FROM (the_key, 'w'::"char") AND x.proc = p_proc;
    SELECT * INTO c FROM claims x
    WHERE x.key = the_key AND x.state = 'w' AND x.owner IS DISTINCT FROM l.owner ORDER BY x.seq LIMIT 1;
    IF FOUND AND c.proc = p_proc THEN
      owner := c.owner;
      again := next_look(l, now_us);
      RETURN NEXT;
    END IF;
  END LOOP;
  -- OFFSET: each is looked up, and none is joined.
  RETURN QUERY SELECT s, -1 FROM unnest(p_sample) s
    WHERE NOT EXISTS (SELECT FROM claims x WHERE x.owner = s OFFSET 0);
END $$;
