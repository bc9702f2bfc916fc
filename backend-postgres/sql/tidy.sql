-- Removes what no client will use again: rows of locks a day after their last grant, cells whose time has
-- ended, processes that died a day ago. The clock carries the tokens of the removed locks over. A step at one
-- of them is not waited for. A call reads up to a thousand rows of each table: the caller's other requests wait
-- behind it.
--
-- p_key, p_proc  where the previous call ended; empty for the first
-- Reply          the same for the next call, NULL at the end; and how many rows were removed
-- O(1), except for waiters of dead processes

CREATE OR REPLACE FUNCTION :"schema".tidy_1(INOUT p_key bytea, INOUT p_proc text, OUT removed int)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = 200 AS $$
DECLARE
  l locks;
  n int;
  last_key bytea;
  last_proc text;
  next_key bytea;
  next_proc text;
  now_us bigint := us();
  day_ago bigint := now_us - 86400000000;
BEGIN
  PERFORM settle(false);
  removed := 0;

  -- Locks and cells up to one key, the thousandth of either.
  last_key := least(
    (SELECT k.key FROM locks k WHERE k.key >= p_key ORDER BY k.key LIMIT 1 OFFSET 999),
    (SELECT c.key FROM cells c WHERE c.key >= p_key ORDER BY c.key LIMIT 1 OFFSET 999));
  -- The next key that can be.
  next_key := last_key || decode('00', 'hex');
  IF last_key IS NULL THEN
    last_key := greatest(
      (SELECT k.key FROM locks k WHERE k.key >= p_key ORDER BY k.key DESC LIMIT 1),
      (SELECT c.key FROM cells c WHERE c.key >= p_key ORDER BY c.key DESC LIMIT 1));
  END IF;
  -- OFFSET: the claims of each lock are looked up, whatever is known of the tables; a join could read all.
  FOR l IN
    SELECT k.* FROM locks k
    WHERE k.key BETWEEN p_key AND last_key
      AND k.token < day_ago AND (k.owner IS NULL OR k.until <= now_us)
      AND NOT EXISTS (SELECT FROM claims x WHERE x.key = k.key AND (x.until >= now_us
        OR EXISTS (SELECT FROM processes p WHERE p.proc = x.proc AND p.deadline >= now_us OFFSET 0))
        OFFSET 0)
    ORDER BY k.key FOR UPDATE SKIP LOCKED
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
    SELECT x.key FROM cells x WHERE x.key BETWEEN p_key AND last_key AND x.until <= now_us
    FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS n = ROW_COUNT;
  removed := removed + n;

  last_proc := (SELECT p.proc FROM processes p WHERE p.proc > p_proc ORDER BY p.proc LIMIT 1 OFFSET 999);
  next_proc := last_proc;
  IF last_proc IS NULL THEN
    last_proc := (SELECT p.proc FROM processes p WHERE p.proc > p_proc ORDER BY p.proc DESC LIMIT 1);
  END IF;
  DELETE FROM processes p WHERE p.proc = ANY (ARRAY(
    SELECT x.proc FROM processes x WHERE x.proc > p_proc AND x.proc <= last_proc AND x.deadline < day_ago
    FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS n = ROW_COUNT;
  removed := removed + n;

  p_key := next_key;
  p_proc := next_proc;
END $$;
