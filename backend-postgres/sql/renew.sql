-- Renews held locks, in either form of the hold, never one that has ended.
--
-- p_ttls  of the leases, in us; 0 only to check whether it is held
-- Reply   the owners that hold still
-- O(log n) for each, in the holders.

CREATE OR REPLACE FUNCTION :"schema".renew_1(p_keys bytea[], p_owners uuid[], p_ttls bigint[])
RETURNS SETOF uuid
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  r record;
  is_held boolean;
BEGIN
  -- Sorted: two calls that lock the same rows in different orders would be a deadlock.
  FOR r IN
    SELECT key, owner, ttl FROM unnest(p_keys, p_owners, p_ttls) AS u (key, owner, ttl) ORDER BY key, owner
  LOOP
    IF r.ttl = 0 THEN
      is_held := EXISTS (SELECT FROM locks k WHERE k.key = r.key AND k.owner = r.owner AND k.until > us())
        OR EXISTS (SELECT FROM claims x
          WHERE x.owner = r.owner AND x.key = r.key AND x.state = 'h' AND x.until > us());
    ELSE
      -- The time is read in the statement, which does so again if it had to wait for the row.
      UPDATE locks k SET until = us() + r.ttl WHERE k.key = r.key AND k.owner = r.owner AND k.until > us();
      IF NOT FOUND THEN
        UPDATE claims x SET until = us() + r.ttl
        WHERE x.owner = r.owner AND x.key = r.key AND x.state = 'h' AND x.until > us();
      END IF;
      is_held := FOUND;
    END IF;
    IF is_held THEN RETURN NEXT r.owner; END IF;
  END LOOP;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END $$;
