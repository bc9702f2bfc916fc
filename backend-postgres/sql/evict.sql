-- Takes the hold, or the place in the queue, from a claim that inspect_1 has listed, hands off, and notifies
-- the claim's process of its owner.
--
-- p_id   as from inspect_1
-- Reply  1 (removed) | 0 (absent)
-- O(n) in the holders or waiters.

CREATE OR REPLACE FUNCTION :"schema".evict_1(p_key bytea, p_id text) RETURNS int
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = 200 AS $$
DECLARE
  number bigint;
  handed_to uuid;
  victim record;
  removed int;
BEGIN
  -- As of a release: a notification waits for no disk. A holder that was evicted and comes back with the
  -- server is not renewed.
  PERFORM settle(false);
  IF p_id !~ '^[hw][0-9]{1,18}$' THEN RETURN 0; END IF;
  number := substr(p_id, 2)::bigint;
  SELECT CASE WHEN k.until > us() THEN k.owner END INTO handed_to FROM locks k WHERE k.key = p_key FOR NO KEY UPDATE;
  IF left(p_id, 1) = 'h' THEN
    SELECT k.owner, k.proc INTO victim FROM locks k
    WHERE k.key = p_key AND k.owner IS NOT NULL AND k.token - k.tokens + 1 = number
    UNION ALL
    SELECT x.owner, x.proc FROM claims x
    WHERE x.key = p_key AND x.state BETWEEN 'g' AND 'h' AND x.mode <> 'x' AND x.token - x.tokens + 1 = number;
  ELSE
    SELECT x.owner, x.proc INTO victim FROM claims x
    WHERE x.key = p_key AND x.seq = number
      AND (x.state = 'l' OR x.state = 'w' AND x.owner IS DISTINCT FROM handed_to);
  END IF;
  IF NOT FOUND THEN RETURN 0; END IF;
  removed := remove_claim(p_key, victim.owner, true);
  -- As in hand_off.
  PERFORM pg_notify(victim.proc, victim.owner::text) WHERE removed = 1 AND pg_notification_queue_usage() < 0.5;
  RETURN removed;
END $$;
