-- attempt_1 for locks that are contended or not exclusive, with the same arguments and reply.

CREATE OR REPLACE FUNCTION :"schema".contend(
  p_key bytea, p_owner uuid, p_mode "char", p_n bigint, p_lim bigint, p_ttl bigint, p_proc text, p_label bytea,
  p_queue boolean, p_tokens int, p_patient boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  l locks;
  c claims;
  now_us bigint;
  ends bigint;
  fits boolean;
BEGIN
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
  now_us := us();
  ends := now_us + p_ttl;
  IF l.crowd THEN
    SELECT * INTO c FROM claims x WHERE x.owner = p_owner AND x.key IS NOT DISTINCT FROM p_key;
  END IF;

  IF l.owner = p_owner THEN
    -- A repetition; or the confirmation of a hand-off, also a late one, if no other claim was granted since.
    IF c.owner IS NOT NULL THEN DELETE FROM claims x WHERE x.owner = p_owner; END IF;
    UPDATE locks SET until = ends, crowd = l.crowd AND is_crowd(p_key)
    WHERE key = p_key;
    RETURN l.token - l.tokens + 1;
  END IF;
  IF c.state IN ('g', 'h') THEN
    UPDATE claims SET state = 'h', until = ends WHERE owner = p_owner;
    -- Continues a run of readers that one hand-off could not finish.
    IF c.state = 'g' THEN PERFORM hand_off(l, now_us, NULL, false); END IF;
    RETURN c.token - c.tokens + 1;
  END IF;

  IF c.owner IS NULL THEN
    l := hand_off(l, now_us, NULL, false);
    fits := (l.owner IS NULL OR l.until <= now_us)
      AND (l.grp IS NULL OR (p_mode = l.grp AND (p_mode = 's' OR p_n <= p_lim - l.sum)))
      AND NOT (l.crowd AND EXISTS (SELECT FROM claims x WHERE x.key = p_key AND x.state = 'w'));
    IF fits AND may_grant(p_key) THEN
      l.token := greatest(l.token + p_tokens, now_us + p_tokens - 1);
      IF p_mode = 'x' THEN
        UPDATE locks SET token = l.token, tokens = p_tokens, owner = p_owner, until = ends, proc = p_proc,
          label = p_label
        WHERE key = p_key;
      ELSE
        INSERT INTO claims (owner, key, state, seq, mode, n, lim, ttl, proc, label, tokens, token, until)
        VALUES (p_owner, p_key, 'h', now_us, p_mode, p_n, p_lim, p_ttl, p_proc, p_label, p_tokens, l.token,
          ends);
        UPDATE locks SET token = l.token, owner = NULL, grp = p_mode, sum = l.sum + p_n, crowd = true
        WHERE key = p_key;
      END IF;
      RETURN l.token - p_tokens + 1;
    END IF;
    IF NOT p_queue THEN
      RETURN 0;
    END IF;
    -- One query for each state: the index gives the last of each at once, and max() would read them all.
    INSERT INTO claims (owner, key, state, seq, mode, n, lim, ttl, proc, label, tokens, until)
    VALUES (p_owner, p_key, 'w', greatest(now_us,
        1 + (SELECT x.seq FROM claims x WHERE x.key = p_key AND x.state = 'w' ORDER BY x.seq DESC LIMIT 1),
        1 + (SELECT x.seq FROM claims x WHERE x.key = p_key AND x.state = 'g' ORDER BY x.seq DESC LIMIT 1),
        1 + (SELECT x.seq FROM claims x WHERE x.key = p_key AND x.state = 'l' ORDER BY x.seq DESC LIMIT 1)),
      p_mode, p_n, p_lim, p_ttl, p_proc, p_label, p_tokens, now_us + 3000000);
    IF NOT l.crowd THEN
      UPDATE locks SET crowd = true WHERE key = p_key;
      l.crowd := true;
    END IF;
  ELSIF c.state = 'l' OR c.until < now_us THEN
    -- Granted, but confirmed too late: back to the old place. This call shows that it lives.
    UPDATE claims SET state = 'w', until = now_us + 3000000 WHERE owner = p_owner;
  END IF;

  l := hand_off(l, now_us, p_owner, false);
  IF l.owner = p_owner THEN
    DELETE FROM claims x WHERE x.owner = p_owner;
    UPDATE locks SET until = ends, crowd = is_crowd(p_key) WHERE key = p_key;
    RETURN l.token - l.tokens + 1;
  END IF;
  IF p_mode <> 'x' THEN
    UPDATE claims SET state = 'h', until = ends WHERE owner = p_owner AND state IS NOT DISTINCT FROM 'g'
    RETURNING * INTO c;
    IF FOUND THEN RETURN c.token - c.tokens + 1; END IF;
  END IF;
  SELECT * INTO c FROM claims x
  WHERE x.key = p_key AND x.state = 'w' AND x.owner IS DISTINCT FROM l.owner ORDER BY x.seq LIMIT 1;
  RETURN -CASE WHEN c.proc = p_proc THEN next_look(l, now_us) ELSE 1000 END;
END $$;
