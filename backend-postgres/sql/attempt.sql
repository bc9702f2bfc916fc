-- Acquires, queues, or confirms a grant, whichever is next for one claim. A repeated call has the same reply,
-- including the token, and extends the lease.
--
-- p_mode     x exclusive, s shared, p permits: p_n of p_lim
-- p_ttl      of the lease, in us
-- p_proc     the channel of the client's process
-- p_queue    false: leaves nothing behind
-- p_tokens   how many tokens the grant reserves
-- p_patient  false: does not wait for another step of the same lock
-- Reply      > 0 granted, the first of the tokens that are reserved | 0 busy, only if not p_queue | -2 repeat it
--            | -20 and less: waits, and looks in so many ms
-- O(log n) in the waiters, except for dead ones; O(n) in the readers or permits that hold; 64 grants.

CREATE OR REPLACE FUNCTION :"schema".attempt_1(
  p_key bytea, p_owner uuid, p_mode "char", p_n bigint, p_lim bigint, p_ttl bigint, p_proc text, p_label bytea,
  p_queue boolean, p_tokens int, p_patient boolean) RETURNS bigint
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = 200 AS $$
DECLARE
  -- By an assignment, which costs less than a statement.
  reply bigint := acquire(p_key, p_owner, p_mode, p_n, p_lim, p_ttl, p_proc, p_label, p_queue, p_tokens, p_patient);
BEGIN
  IF NOT settle(reply > 0) THEN RETURN -2; END IF;
  RETURN reply;
END $$;
