-- Renews held locks, in either form of the hold, and none that has ended. (But for one whose row another step had
-- locked until then, and has not changed: the lock was not granted meanwhile.)
--
-- p_ttls     of the leases, in us; 0 only to check whether it is held
-- p_patient  false: does not wait for another step of the same lock
-- Reply      the owners that hold still; and, only if not p_patient, those that were not tried, which are to be
--            repeated alone
-- O(log n) for each, in the holders.

CREATE OR REPLACE FUNCTION :"schema".renew_1(p_keys bytea[], p_owners uuid[], p_ttls bigint[], p_patient boolean)
RETURNS TABLE (owner uuid, is_held boolean)
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = 200 AS $$
#variable_conflict use_column
DECLARE
  r record;
  _ boolean := settle(true);
BEGIN
  -- Sorted: two calls that lock the same rows in different orders would be a deadlock.
  FOR r IN
    SELECT key, owner, ttl FROM unnest(p_keys, p_owners, p_ttls) AS u (key, owner, ttl) ORDER BY key, owner
  LOOP
    owner := r.owner;
    is_held := true;
    IF r.ttl = 0 THEN
      is_held := EXISTS (SELECT FROM locks k WHERE k.key = r.key AND k.owner = r.owner AND k.until > us())
        OR EXISTS (SELECT FROM claims x
          WHERE x.owner = r.owner AND (x.key, x.state) IS NOT DISTINCT FROM (r.key, 'h'::"char") AND x.until > us());
      IF is_held THEN RETURN NEXT; END IF;
      CONTINUE;
    END IF;
    IF NOT p_patient THEN
      PERFORM FROM locks k WHERE k.key = r.key AND k.owner = r.owner FOR NO KEY UPDATE SKIP LOCKED;
      IF NOT FOUND THEN
        PERFORM FROM claims x
        WHERE x.owner = r.owner AND x.key IS NOT DISTINCT FROM r.key FOR NO KEY UPDATE SKIP LOCKED;
      END IF;
      is_held := FOUND;
    END IF;
    -- The time is read in the statement, which does so again if the row has changed while it waited.
    IF is_held THEN
      UPDATE locks k SET until = us() + r.ttl WHERE k.key = r.key AND k.owner = r.owner AND k.until > us();
      IF NOT FOUND THEN
        UPDATE claims x SET until = us() + r.ttl
        WHERE x.owner = r.owner AND (x.key, x.state) IS NOT DISTINCT FROM (r.key, 'h'::"char") AND x.until > us();
      END IF;
      IF FOUND THEN RETURN NEXT; END IF;
    ELSIF EXISTS (SELECT FROM locks k WHERE k.key = r.key AND k.owner = r.owner)
       OR EXISTS (SELECT FROM claims x WHERE x.owner = r.owner AND x.key IS NOT DISTINCT FROM r.key) THEN
      RETURN NEXT;
    END IF;
  END LOOP;
END $$;
