-- Whether this step may grant the lock, whose row it has locked, to another claim. Not while a guarded transaction
-- of the last holder is open, whatever became of its lease. An UPDATE alone would not wait for it, and this must
-- not.
--
-- Nor if one was open since the step began: PostgreSQL then notes FOR UPDATE and the later change as two members
-- of a multixact, and a check that begins with an older version of the row passes over the FOR UPDATE (in
-- heap_lock_updated_tuple_rec, src/backend/access/heap/heapam.c). Such a row is not plainly ours, and the claim is
-- granted by a later step. In a savepoint no row is.

CREATE OR REPLACE FUNCTION :"schema".may_grant(p_key bytea) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM locks k WHERE k.key = p_key FOR UPDATE SKIP LOCKED;
  RETURN FOUND AND EXISTS (SELECT FROM locks k WHERE k.key = p_key AND k.xmax = pg_current_xact_id()::xid);
END $$;
