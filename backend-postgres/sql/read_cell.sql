-- The stamp and content of a cell; no row if there is none, or its time has ended.
--
-- O(n) in the length of the content.

CREATE OR REPLACE FUNCTION :"schema".read_cell_1(p_key bytea) RETURNS TABLE (stamp uuid, content bytea)
LANGUAGE plpgsql STABLE STRICT SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  RETURN QUERY SELECT c.stamp, c.content FROM cells c
    WHERE c.key = p_key AND (c.until IS NULL OR c.until > us());
END $$;
