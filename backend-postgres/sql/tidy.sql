-- Removes what no client will use again: rows of locks a day after their last grant, cells whose time has
-- ended, processes that died a day ago. The clock carries the tokens of the removed locks over. A step at one
-- of them is not waited for.
--
-- Reply how many rows were removed; 1,000 or more: call again
-- O(n) in all locks, cells and processes.

CREATE OR REPLACE FUNCTION :"schema".tidy_1() RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  l locks;
  n int;
  removed int := 0;
  now_us bigint := us();
  day_ago bigint := now_us - 86400000000;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  FOR l IN
    SELECT k.* FROM locks k
    WHERE k.token < day_ago AND (k.owner IS NULL OR k.until <= now_us)
      AND NOT EXISTS (SELECT FROM claims x WHERE x.key = k.key AND (x.until >= now_us
        OR EXISTS (SELECT FROM processes p WHERE p.proc = x.proc AND p.deadline >= now_us)))
    LIMIT 1000 FOR UPDATE SKIP LOCKED
  LOOP
    -- Ended holds, and waiters of dead processes. A reader whose guarded transaction is open stays.
    IF l.crowd THEN l := hand_off(l, now_us, NULL, false); END IF;
    IF NOT l.crowd THEN
      DELETE FROM turns t WHERE t.key = l.key;
      DELETE FROM locks k WHERE k.key = l.key;
      removed := removed + 1;
    END IF;
  END LOOP;
  DELETE FROM cells c WHERE c.key = ANY (ARRAY(
    SELECT x.key FROM cells x WHERE x.until <= now_us LIMIT 1000 FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS n = ROW_COUNT;
  removed := removed + n;
  DELETE FROM processes p WHERE p.proc = ANY (ARRAY(
    SELECT x.proc FROM processes x WHERE x.deadline < day_ago LIMIT 1000 FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN removed + n;
END $$;
