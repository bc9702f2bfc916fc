-- Attempts and releases of several claims in one transaction, which waits for the disk once, and only if a
-- lock was granted. None of them waits for another step: that one replies -2 and is asked for alone.
--
-- p_steps  a attempt, r release; for each step its arguments, as for attempt_1. A release uses its key and
--          owner
-- Reply    for each step its place in p_steps, from 1; the token, or 1 and 0 of a release; ms until the look
--          of a waiter
-- For each what its step costs alone.

CREATE OR REPLACE FUNCTION :"schema".batch_1(
  p_steps "char"[], p_keys bytea[], p_owners uuid[], p_modes "char"[], p_ns bigint[], p_lims bigint[],
  p_ttls bigint[], p_labels bytea[], p_queues boolean[], p_tokens int[], p_proc text)
RETURNS TABLE (at int, token bigint, again int)
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  s record;
  sync text := current_setting('synchronous_commit');
  has_granted boolean := false;
BEGIN
  -- Sorted: two batches that lock the same rows in different orders would be a deadlock.
  FOR s IN
    SELECT u.* FROM unnest(p_steps, p_keys, p_owners, p_modes, p_ns, p_lims, p_ttls, p_labels, p_queues,
        p_tokens)
      WITH ORDINALITY AS u (step, key, owner, mode, n, lim, ttl, label, queue, tokens, place)
    ORDER BY u.key, u.place
  LOOP
    at := s.place;
    again := 0;
    -- An unknown step is an error, such as that of an array which is shorter than the others.
    CASE s.step
    WHEN 'a' THEN
      SELECT a.token, a.again INTO token, again
      FROM acquire(s.key, s.owner, s.mode, s.n, s.lim, s.ttl, p_proc, s.label, s.queue, s.tokens, false) a;
      has_granted := has_granted OR token > 0;
    WHEN 'r' THEN
      -- One statement where there is no crowd: most of what a step costs is its statements.
      UPDATE locks l SET owner = NULL
      WHERE l.key = (SELECT k.key FROM locks k
        WHERE k.key = s.key AND k.owner = s.owner AND NOT k.crowd FOR NO KEY UPDATE SKIP LOCKED);
      token := CASE WHEN FOUND THEN 1 ELSE remove_claim(s.key, s.owner, false) END;
    END CASE;
    RETURN NEXT;
  END LOOP;
  PERFORM set_config('synchronous_commit',
    CASE WHEN NOT has_granted THEN 'off' WHEN sync = 'off' THEN 'on' ELSE sync END, true);
END $$;
