-- Makes an exclusive hold a shared one, with no moment in between, and extends it. Its token stays. Readers
-- that are next in the queue are let in. A repeated call finds the shared hold and extends that.
--
-- p_ttl  of the lease, in us; 0 to keep the end
-- Reply  1 (held, shared now) | 0 (not held) | -2 repeat it
-- O(log n) in the waiters, except for dead ones; O(n) in the readers or permits that hold; 64 grants.

CREATE OR REPLACE FUNCTION :"schema".downgrade_1(p_key bytea, p_owner uuid, p_ttl bigint) RETURNS bigint
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = 200 AS $$
DECLARE
  l locks;
  now_us bigint;
  ends bigint;
BEGIN
  SELECT * INTO l FROM locks k WHERE k.key = p_key FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN 0; END IF;
  now_us := us();
  -- A hand-off that is not confirmed is not a hold.
  IF l.owner = p_owner AND l.until > now_us
     AND NOT (l.crowd AND EXISTS (SELECT FROM claims x WHERE x.owner = p_owner)) THEN
    ends := CASE p_ttl WHEN 0 THEN l.until ELSE now_us + p_ttl END;
    INSERT INTO claims (owner, key, state, seq, mode, n, lim, ttl, proc, label, tokens, token, until)
    VALUES (p_owner, p_key, 'h', now_us, 's', 1, 1, ends - now_us, l.proc, l.label, l.tokens, l.token, ends);
    l.owner := NULL;
    l.grp := 's';
    l.sum := 1;
    PERFORM hand_off(l, now_us, NULL, true);
  ELSE
    UPDATE claims SET until = CASE p_ttl WHEN 0 THEN until ELSE now_us + p_ttl END
    WHERE owner = p_owner AND (key, state, mode) IS NOT DISTINCT FROM (p_key, 'h'::"char", 's'::"char")
      AND until > now_us;
    IF NOT FOUND THEN RETURN 0; END IF;
  END IF;
  RETURN CASE WHEN settle(true) THEN 1 ELSE -2 END;
END $$;
