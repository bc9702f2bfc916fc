-- Removes a claim in any form and hands off.
--
-- p_patient  false: does not wait for another step of the same lock
-- Reply      1 removed | 0 absent | -2 not tried, only if not p_patient
-- O(log n) in the waiters, except for dead ones; O(n) in the readers or permits that hold; 64 grants.

CREATE OR REPLACE FUNCTION :"schema".remove_claim(p_key bytea, p_owner uuid, p_patient boolean) RETURNS int
LANGUAGE plpgsql STRICT AS $$
DECLARE
  l locks;
  c claims;
  was_there boolean;
BEGIN
  IF p_patient THEN
    SELECT * INTO l FROM locks k WHERE k.key = p_key FOR NO KEY UPDATE;
  ELSE
    SELECT * INTO l FROM locks k WHERE k.key = p_key FOR NO KEY UPDATE SKIP LOCKED;
  END IF;
  IF NOT FOUND THEN
    RETURN CASE WHEN NOT p_patient AND EXISTS (SELECT FROM locks k WHERE k.key = p_key) THEN -2 ELSE 0 END;
  END IF;
  IF NOT l.crowd THEN
    IF l.owner IS DISTINCT FROM p_owner THEN RETURN 0; END IF;
    UPDATE locks SET owner = NULL WHERE key = p_key;
    RETURN 1;
  END IF;

  was_there := l.owner IS NOT DISTINCT FROM p_owner;
  SELECT * INTO c FROM claims x
  WHERE x.owner = p_owner AND x.key IS NOT DISTINCT FROM p_key FOR UPDATE SKIP LOCKED;
  IF FOUND THEN
    DELETE FROM claims x WHERE x.owner = p_owner;
    was_there := was_there OR c.until <> 0;
    IF c.mode <> 'x' AND c.state IN ('g', 'h') THEN
      l.sum := l.sum - c.n;
      IF l.sum = 0 THEN l.grp := NULL; END IF;
    END IF;
  ELSIF NOT was_there THEN
    IF NOT p_patient THEN
      PERFORM FROM claims x
      WHERE x.owner = p_owner AND x.key IS NOT DISTINCT FROM p_key FOR NO KEY UPDATE SKIP LOCKED;
      IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (
          SELECT FROM claims x WHERE x.owner = p_owner AND x.key IS NOT DISTINCT FROM p_key) THEN -2 ELSE 0 END;
      END IF;
    END IF;
    -- A guarded transaction of this reader is open: it counts until that ends, and neither waits for the
    -- other. Or its renewal is under way, which ends at once.
    UPDATE claims SET until = 0 WHERE owner = p_owner AND key IS NOT DISTINCT FROM p_key AND until <> 0;
    IF NOT FOUND THEN RETURN 0; END IF;
    was_there := true;
  END IF;
  IF l.owner = p_owner THEN l.owner := NULL; END IF;
  PERFORM hand_off(l, us(), NULL, true);
  RETURN was_there::int;
END $$;
