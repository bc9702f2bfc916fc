-- When the first waiter of a lock should look again, in ms: as soon as a holder can expire, or soon, if it
-- waits for the end of a guarded transaction, which notifies no waiter.

CREATE OR REPLACE FUNCTION :"schema".next_look(l :"schema".locks, now_us bigint) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE ends bigint := l.until;
BEGIN
  IF l.owner IS NULL THEN
    SELECT min(x.until) INTO ends FROM claims x WHERE x.key = l.key AND x.state BETWEEN 'g' AND 'h';
  END IF;
  RETURN greatest(20, least(1000, (coalesce(ends, now_us) - now_us) / 1000 + 1));
END $$;
