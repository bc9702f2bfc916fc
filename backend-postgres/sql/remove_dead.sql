-- Removes the claims of a lock in one state, w or l, whose processes are dead: those that have not looked for 3 s. A
-- row that another transaction has locked stays.
--
-- asking  its claim stays; NULL for none
-- Reply   whether any was removed
-- O(n) in the claims in that state.

CREATE OR REPLACE FUNCTION :"schema".remove_dead(p_key bytea, p_state "char", now_us bigint, asking uuid)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  -- OFFSET: a join could read all processes.
  DELETE FROM claims d WHERE d.owner = ANY (ARRAY(
    SELECT x.owner FROM claims x
    WHERE x.key = p_key AND x.state = p_state AND x.until < now_us AND x.owner IS DISTINCT FROM asking
      AND NOT EXISTS (SELECT FROM processes p WHERE p.proc = x.proc AND p.deadline >= now_us OFFSET 0)
    FOR UPDATE SKIP LOCKED));
  RETURN FOUND;
END $$;
