-- Attempts and releases of several claims in one transaction, which waits for the disk once, and only if a
-- lock was granted. None of them waits for another step: that one replies -2, and is repeated alone.
--
-- p_steps  a attempt, r release; for each step its arguments, as for attempt_1. A release uses its key and
--          owner
-- Reply    for each step its place in p_steps, from 1; and the reply as of attempt_1, or 1 and 0 of a release. A
--          place 0 after them: all attempts with a token are to be repeated
-- For each what its step costs alone.

CREATE OR REPLACE FUNCTION :"schema".batch_1(
  p_steps "char"[], p_keys bytea[], p_owners uuid[], p_modes "char"[], p_ns bigint[], p_lims bigint[],
  p_ttls bigint[], p_labels bytea[], p_queues boolean[], p_tokens int[], p_proc text)
RETURNS TABLE (at int, reply bigint)
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = 200 AS $$
#variable_conflict use_column
DECLARE
  s record;
  made_at int[];
  made bigint[];
  others bigint[];
  has_granted boolean;
BEGIN
  -- First the steps of locks without a crowd, all in one statement: most of what a step costs alone is its
  -- statements, and its expressions, which PL/pgSQL prepares for each transaction anew. These take no row that
  -- another step has, and wait for none, so their order is nobody's business. Not a lock with several steps here,
  -- whose order counts.
  WITH steps AS MATERIALIZED (
    SELECT u.*, count(*) OVER (PARTITION BY u.key) AS of_key
    FROM unnest(p_steps, p_keys, p_owners, p_modes, p_ns, p_lims, p_ttls, p_labels, p_queues, p_tokens)
      WITH ORDINALITY AS u (step, key, owner, mode, n, lim, ttl, label, queue, tokens, place)
  ), granted AS (
    -- As in acquire. An UPDATE that joined the steps could be planned to read the whole table; this way each
    -- row is found by its key, and the INSERT always meets the row that was locked.
    INSERT INTO locks AS l (key, token, tokens, owner, until, proc, label)
    SELECT s.key, us() + s.tokens - 1, s.tokens, s.owner, us() + s.ttl, p_proc, s.label
    FROM steps s CROSS JOIN LATERAL (
      SELECT FROM locks k
      WHERE k.key = s.key AND NOT k.crowd AND k.grp IS NULL
        AND (k.owner IS NULL OR (k.owner <> s.owner AND k.until <= us()))
      FOR UPDATE SKIP LOCKED) free
    WHERE s.step = 'a' AND s.mode = 'x' AND s.of_key = 1 AND s.ttl > 0 AND s.tokens > 0
      AND (s.owner, s.n, s.lim, s.label, s.queue) IS NOT NULL AND octet_length(p_proc) BETWEEN 1 AND 63
    ON CONFLICT (key) DO UPDATE SET token = greatest(l.token + excluded.tokens, excluded.token),
      tokens = excluded.tokens, owner = excluded.owner, until = excluded.until, proc = excluded.proc,
      label = excluded.label
    WHERE l.xmax = pg_current_xact_id()::xid
    RETURNING l.key, l.token - l.tokens + 1 AS reply
  ), released AS (
    INSERT INTO locks AS l (key)
    SELECT s.key
    FROM steps s CROSS JOIN LATERAL (
      SELECT FROM locks k WHERE k.key = s.key AND k.owner = s.owner AND NOT k.crowd
      FOR NO KEY UPDATE SKIP LOCKED) held
    WHERE s.step = 'r' AND s.of_key = 1
    ON CONFLICT (key) DO UPDATE SET owner = NULL
    RETURNING l.key, 1::bigint AS reply
  )
  SELECT array_agg(s.place::int) FILTER (WHERE d.reply IS NOT NULL),
    array_agg(d.reply) FILTER (WHERE d.reply IS NOT NULL),
    array_agg(s.place) FILTER (WHERE d.reply IS NULL),
    coalesce(bool_or(s.step = 'a') FILTER (WHERE d.reply IS NOT NULL), false)
  INTO made_at, made, others, has_granted
  FROM steps s LEFT JOIN (SELECT * FROM granted UNION ALL SELECT * FROM released) d USING (key);
  IF made_at IS NOT NULL THEN
    RETURN QUERY SELECT u.at, u.reply FROM unnest(made_at, made) u (at, reply);
  END IF;
  IF others IS NOT NULL THEN
    FOR s IN
      SELECT u.*
      FROM unnest(p_steps, p_keys, p_owners, p_modes, p_ns, p_lims, p_ttls, p_labels, p_queues, p_tokens)
        WITH ORDINALITY AS u (step, key, owner, mode, n, lim, ttl, label, queue, tokens, place)
      WHERE u.place = ANY (others)
      -- Sorted: two batches that insert the same rows in different orders would be a deadlock. That of a row which
      -- appeared after the first statement is left to the server, and repeated.
      ORDER BY u.key, u.place
    LOOP
      at := s.place;
      -- An unknown step is an error, such as that of an array which is shorter than the others.
      CASE s.step
      WHEN 'a' THEN
        reply := acquire(
          s.key, s.owner, s.mode, s.n, s.lim, s.ttl, p_proc, s.label, s.queue, s.tokens, false);
        has_granted := has_granted OR reply > 0;
      WHEN 'r' THEN
        reply := remove_claim(s.key, s.owner, false);
      END CASE;
      RETURN NEXT;
    END LOOP;
  END IF;
  IF NOT settle(has_granted) THEN
    at := 0;
    RETURN NEXT;
  END IF;
END $$;
