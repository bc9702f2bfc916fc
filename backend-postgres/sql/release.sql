-- Releases the lock, or leaves the queue, and hands off. Removes the claim in either form: a writer, or the
-- reader that it became. A repeated call changes nothing and replies 0.
--
-- Reply 1 (removed) | 0 (absent)
-- O(log n) in the waiters, except for dead ones; O(n) in the readers or permits that hold; 64 grants.

CREATE OR REPLACE FUNCTION :"schema".release_1(p_key bytea, p_owner uuid) RETURNS int
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = 200 AS $$
DECLARE
  _ boolean := settle(false);
BEGIN
  UPDATE locks SET owner = NULL WHERE key = p_key AND owner = p_owner AND NOT crowd;
  IF FOUND THEN RETURN 1; END IF;
  RETURN remove_claim(p_key, p_owner, true);
END $$;
