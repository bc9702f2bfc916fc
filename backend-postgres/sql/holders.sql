-- inspect_1 without the waiters: each of these may ask who holds, once a second.
--
-- O(n) in the length of the reply.

CREATE OR REPLACE FUNCTION :"schema".holders_1(p_key bytea)
RETURNS TABLE (id text, holds boolean, mode "char", n bigint, lim bigint, label bytea, token bigint, since bigint)
LANGUAGE plpgsql STABLE STRICT SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  now_us bigint := us();
BEGIN
  RETURN QUERY
    SELECT 'h' || h.token, true, h.mode, h.n, h.lim, h.label, h.token, greatest(0, now_us - h.token)
    FROM (
      SELECT 'x'::"char" AS mode, 1::bigint AS n, 1::bigint AS lim, k.label, k.token - k.tokens + 1 AS token FROM locks k
      WHERE k.key = p_key AND k.owner IS NOT NULL AND k.until > now_us
      UNION ALL
      SELECT x.mode, x.n, x.lim, x.label, x.token - x.tokens + 1 FROM claims x
      WHERE x.key = p_key AND x.state BETWEEN 'g' AND 'h' AND x.mode <> 'x' AND x.until > now_us
    ) h
    ORDER BY h.token;
END $$;
