-- Checks, in the caller's own transaction, that a lock is held with a token. From here to the end of that
-- transaction no other claim is granted the lock, even if the lease ends, the client falls silent, or the
-- server's clock jumps; a renewal and a release are not blocked. A lease that is over already passes as long as
-- nobody waits: otherwise a holder whose transactions overlap would never let the next one in. The check of a reader
-- or a permit holder keeps out those whom its hold keeps out, and not the others of its group. What the statement
-- reads that calls it is from before it, and may lack what an earlier local turn has written: it is called alone.
--
-- p_token    of the grant, or any of those that it reserved
-- p_idle_ms  how long the client may be silent in the transaction, which would block the lock for ever: the
--            server then ends the connection. A shorter limit of the session stays
-- Error      FL001: held by no claim with this token, or the transaction reads by a snapshot from before the grant
--            40001: the transaction reads by a snapshot, in which the lease is over; it may have been renewed since.
--            Not where it was over 10 s before the transaction began: then no renewal can be under way
-- O(log n) in the locks, and n in the members of a group.

CREATE OR REPLACE FUNCTION :"schema".check_token(p_key bytea, p_token bigint, p_idle_ms int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  idle text := 'idle_in_transaction_session_timeout';
  limit_ms bigint := extract(epoch FROM current_setting(idle)::interval) * 1000;
  reserved int;
  began bigint;
BEGIN
  -- KEY SHARE conflicts with the FOR UPDATE of a grant alone.
  SELECT k.tokens INTO reserved FROM locks k
  WHERE k.key = p_key AND k.owner IS NOT NULL AND p_token BETWEEN k.token - k.tokens + 1 AND k.token
    AND (k.until > us() OR NOT k.crowd)
  FOR KEY SHARE;
  IF NOT FOUND THEN
    PERFORM FROM claims x
    WHERE x.key = p_key AND x.state = 'h' AND x.until <> 0
      AND p_token BETWEEN x.token - x.tokens + 1 AND x.token
      AND (x.until > us() OR NOT EXISTS (SELECT FROM claims w WHERE w.key = p_key AND w.state = 'w'))
    FOR KEY SHARE;
  END IF;
  IF NOT FOUND AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
    -- Not transaction_timestamp() itself: a test has a clock of its own in us().
    began := us() - (extract(epoch FROM clock_timestamp() - transaction_timestamp()) * 1000000)::bigint;
    IF EXISTS (SELECT FROM locks k
        WHERE k.key = p_key AND k.owner IS NOT NULL AND p_token BETWEEN k.token - k.tokens + 1 AND k.token
          AND k.until > began - 10000000)
      OR EXISTS (SELECT FROM claims x
        WHERE x.key = p_key AND x.state = 'h' AND p_token BETWEEN x.token - x.tokens + 1 AND x.token
          AND x.until > began - 10000000)
    THEN
      RAISE EXCEPTION 'the lease of the lock % is over in the snapshot of this transaction', encode(p_key, 'escape')
        USING ERRCODE = 'serialization_failure', HINT = 'Repeat the transaction, and check first.';
    END IF;
  END IF;
  IF reserved > 1 THEN
    -- The exclusive holders of one grant follow each other without asking the server. So do their transactions: each
    -- waits for the end of an earlier one's, and none comes after a later one's.
    INSERT INTO turns AS t (key, token) VALUES (p_key, p_token)
    ON CONFLICT (key) DO UPDATE SET token = excluded.token WHERE t.token <= excluded.token;
  END IF;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the lock % is no longer held with token %', encode(p_key, 'escape'), p_token
      USING ERRCODE = 'FL001',
        HINT = 'The key is the prefix and the name of the lock, and the token that of the grant, without an epoch.';
  END IF;
  IF p_idle_ms IS NULL THEN
    RAISE EXCEPTION 'p_idle_ms is NULL: expected how long the client may be silent in this transaction, in ms'
      USING ERRCODE = 'null_value_not_allowed';
  END IF;
  IF limit_ms = 0 OR limit_ms > p_idle_ms THEN
    -- 0 would be no limit.
    PERFORM set_config(idle, greatest(1, p_idle_ms)::text, true);
  END IF;
END $$;
