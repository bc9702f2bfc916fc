-- attempt_1 without what a call of its own needs, with the same arguments and reply; batches call it.

CREATE OR REPLACE FUNCTION :"schema".acquire(
  p_key bytea, p_owner uuid, p_mode "char", p_n bigint, p_lim bigint, p_ttl bigint, p_proc text, p_label bytea,
  p_queue boolean, p_tokens int, p_patient boolean) RETURNS bigint
LANGUAGE plpgsql STRICT AS $$
DECLARE
  l locks;
  now_us bigint;
  reply bigint;
BEGIN
  -- Not by constraints, which each UPDATE of a lock's row would prepare anew.
  IF p_ttl < 1 OR p_tokens < 1 OR octet_length(p_proc) NOT BETWEEN 1 AND 63 THEN
    RAISE EXCEPTION 'expected a TTL and tokens from 1 on, and a channel of 1 to 63 bytes'
      USING ERRCODE = 'check_violation';
  END IF;
  IF NOT p_queue THEN
    -- A busy lock costs these reads: to lock a row writes it, even if nothing follows.
    SELECT * INTO l FROM locks k WHERE k.key = p_key;
    IF l.owner <> p_owner AND l.until > us() OR l.grp <> p_mode
       AND EXISTS (SELECT FROM claims x WHERE x.key = p_key AND x.state = 'h' AND x.until > us())
       AND NOT EXISTS (SELECT FROM claims x WHERE x.owner = p_owner) THEN
      RETURN 0;
    END IF;
  END IF;
  IF p_mode = 'x' THEN
    -- FOR UPDATE is refused while a guarded transaction of the last holder is open. SKIP LOCKED: then this
    -- claim queues. Of a busy lock the row stays free, for its holder's checks and its release.
    PERFORM FROM locks k
    WHERE k.key = p_key AND NOT k.crowd AND k.grp IS NULL
      AND (k.owner IS NULL OR k.owner = p_owner OR k.until <= us())
    FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      now_us := us();
      -- The clock carries the token over a loss of the row; one more than the last, over a clock that fell. A
      -- sequence does neither. The last condition as in may_grant: an earlier step of this batch may have locked
      -- the row.
      UPDATE locks k SET
        token = CASE k.owner WHEN p_owner THEN k.token ELSE greatest(k.token + p_tokens, now_us + p_tokens - 1) END,
        tokens = CASE k.owner WHEN p_owner THEN k.tokens ELSE p_tokens END,
        owner = p_owner, until = now_us + p_ttl, proc = p_proc, label = p_label
      WHERE k.key = p_key AND (k.owner = p_owner OR k.xmax = pg_current_xact_id()::xid)
      RETURNING k.token - k.tokens + 1 INTO reply;
    ELSIF NOT EXISTS (SELECT FROM locks k WHERE k.key = p_key) THEN
      now_us := us();
      INSERT INTO locks (key, token, tokens, owner, until, proc, label)
      VALUES (p_key, now_us + p_tokens - 1, p_tokens, p_owner, now_us + p_ttl, p_proc, p_label)
      ON CONFLICT DO NOTHING;
      IF FOUND THEN reply := now_us; END IF;
    END IF;
  END IF;
  IF reply > 0 THEN RETURN reply; END IF;
  RETURN contend(p_key, p_owner, p_mode, p_n, p_lim, p_ttl, p_proc, p_label, p_queue, p_tokens, p_patient);
END $$;
