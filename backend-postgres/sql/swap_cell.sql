-- Compare-and-swap of a cell, by the stamp of the write that made it. A repeated write changes nothing and
-- replies true; a repeated removal finds no cell and replies false. Clients notify those that watch it in a
-- transaction of their own: NOTIFY locks out the notifications of the whole server until its commit has ended,
-- and this one waits for the disk.
--
-- p_from  the expected stamp; NULL for no cell
-- p_to    the new stamp, with p_content; NULL to remove the cell
-- p_keep  how long to keep it, in us; 0 without an end
-- Reply   whether it was swapped, by this call or an earlier one
-- O(n) in the length of the content.

CREATE OR REPLACE FUNCTION :"schema".swap_cell_1(
  p_key bytea, p_from uuid, p_to uuid, p_content bytea, p_keep bigint)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = :"schema", pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = 200 AS $$
DECLARE
  c cells;
  ends bigint;
  now_us bigint;
  -- Also of a repetition, which relies on the earlier call's write.
  _ boolean := settle(true);
BEGIN
  LOOP
    SELECT * INTO c FROM cells x WHERE x.key = p_key FOR UPDATE;
    now_us := us();
    IF c.until <= now_us THEN c.stamp := NULL; END IF;
    -- Never by content: a content can come back after others, a stamp cannot.
    IF c.stamp = p_to THEN RETURN true; END IF;
    IF c.stamp IS DISTINCT FROM p_from THEN RETURN false; END IF;
    ends := CASE WHEN p_keep > 0 THEN now_us + p_keep END;
    IF p_to IS NULL THEN
      -- Nothing is locked where there is none: another client may make one now.
      IF c.key IS NULL THEN RETURN true; END IF;
      DELETE FROM cells x WHERE x.key = p_key;
      EXIT;
    ELSIF c.key IS NOT NULL THEN
      UPDATE cells SET stamp = p_to, content = p_content, until = ends WHERE key = p_key;
      EXIT;
    ELSE
      INSERT INTO cells (key, stamp, content, until) VALUES (p_key, p_to, p_content, ends)
      ON CONFLICT DO NOTHING;
      -- Another client made it meanwhile.
      EXIT WHEN FOUND;
    END IF;
  END LOOP;
  RETURN true;
END $$;
