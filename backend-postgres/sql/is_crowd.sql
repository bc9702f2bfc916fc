-- Whether a lock, whose row the caller has locked, has rows in claims. In a transaction that reads by an old
-- snapshot some may not be seen: REPEATABLE READ, which a pooler's sessions can have.

CREATE OR REPLACE FUNCTION :"schema".is_crowd(p_key bytea) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN EXISTS (SELECT FROM claims x WHERE x.key = p_key)
    OR current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted');
END $$;
