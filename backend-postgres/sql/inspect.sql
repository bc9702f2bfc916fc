-- The holders of a lock in the order of their grants, then its waiters in the order of the queue.
--
-- Reply id: h and the first token of a holder, w and the place of a waiter; token: the first, 0 of a waiter;
--       since: us ago. Never the owner, which is all that a release needs
-- O(n) in the length of the reply.

CREATE OR REPLACE FUNCTION :"schema".inspect_1(p_key bytea)
RETURNS TABLE (id text, holds boolean, mode "char", n bigint, lim bigint, label bytea, token bigint, since bigint)
LANGUAGE plpgsql STABLE STRICT SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  now_us bigint := us();
  handed_to uuid := (SELECT k.owner FROM locks k WHERE k.key = p_key AND k.until > now_us);
BEGIN
  RETURN QUERY SELECT * FROM holders_1(p_key);
  RETURN QUERY
    SELECT 'w' || x.seq, false, x.mode, x.n, x.lim, x.label, 0::bigint, greatest(0, now_us - x.seq) FROM claims x
    WHERE x.key = p_key AND (x.state = 'l' OR x.state = 'w' AND x.owner IS DISTINCT FROM handed_to)
      -- One of a dead process is removed by the next hand-off.
      AND (x.until >= now_us
        OR EXISTS (SELECT FROM processes p WHERE p.proc = x.proc AND p.deadline >= now_us))
    ORDER BY x.seq;
END $$;
