-- Checks, in the caller's own transaction, that no larger token has been used for a resource, and remembers
-- this one: for locks of any other store. Transactions of one resource come one after the other.
--
-- Error FL001: a larger token has been used
-- O(log n) in the resources.

CREATE OR REPLACE FUNCTION :"schema".fence(p_resource bytea, p_token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  INSERT INTO fences AS f (resource, token) VALUES (p_resource, p_token)
  ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE f.token <= excluded.token;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'token % of % is stale', p_token, encode(p_resource, 'escape') USING ERRCODE = 'FL001';
  END IF;
END $$;
