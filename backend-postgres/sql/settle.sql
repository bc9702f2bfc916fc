-- Decides, at the end of a step, whether its commit waits for the disk and for synchronous standbys. A grant and an
-- extension must survive the server, whatever the role's default is; all else need not: a release that is lost
-- ends with its lease, and the next look reports a lost place in the queue. Not by a SET of the function, which
-- would end before the commit.
--
-- A step that has notified never waits: NOTIFY locks out the notifications of the whole server until the commit
-- has ended. If the client relies on it, it repeats the step, which then waits. The mark is the transaction's own
-- number: any other value is a setting of the role or of the database, which stays however often it is repeated.
--
-- One expression, which becomes a part of its caller's: PL/pgSQL prepares each expression that it meets anew in every
-- transaction, which is most of what a step costs.
--
-- p_relied  whether the client relies on what was done
-- Reply     whether it may

CREATE OR REPLACE FUNCTION :"schema".settle(p_relied boolean) RETURNS boolean LANGUAGE sql AS $$
  SELECT CASE
    WHEN NOT p_relied THEN set_config('synchronous_commit', 'off', true) = 'off'
    WHEN current_setting('fencelock.notified', true) = pg_current_xact_id_if_assigned()::text
      THEN set_config('synchronous_commit', 'off', true) <> 'off'
    WHEN current_setting('synchronous_commit') IN ('off', 'local')
      THEN set_config('synchronous_commit', 'on', true) = 'on'
    ELSE true
  END
$$;
