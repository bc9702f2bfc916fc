-- Removes everything whose key begins with a prefix, fencing tokens and what is held included. For names that
-- only tests use.
--
-- Reply how many rows were removed
-- O(n) in the keys from the prefix on.

CREATE OR REPLACE FUNCTION :"schema".clear_1(p_prefix bytea) RETURNS bigint
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  the_key bytea;
  n bigint;
  removed bigint := 0;
BEGIN
  -- Each lock's row before its claims, in the order of the keys, as in every step: no deadlock.
  FOR the_key IN
    SELECT k.key FROM locks k WHERE k.key >= p_prefix AND substring(k.key FOR length(p_prefix)) = p_prefix
    ORDER BY k.key
  LOOP
    PERFORM FROM locks k WHERE k.key = the_key FOR UPDATE;
    PERFORM FROM claims x WHERE x.key = the_key ORDER BY x.owner FOR UPDATE;
    DELETE FROM claims x WHERE x.key = the_key;
    GET DIAGNOSTICS n = ROW_COUNT;
    removed := removed + n;
    DELETE FROM turns t WHERE t.key = the_key;
    DELETE FROM locks k WHERE k.key = the_key;
    GET DIAGNOSTICS n = ROW_COUNT;
    removed := removed + n;
  END LOOP;
  DELETE FROM fences f WHERE f.resource >= p_prefix AND substring(f.resource FOR length(p_prefix)) = p_prefix;
  GET DIAGNOSTICS n = ROW_COUNT;
  removed := removed + n;
  DELETE FROM cells c WHERE c.key >= p_prefix AND substring(c.key FOR length(p_prefix)) = p_prefix;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN removed + n;
END $$;
