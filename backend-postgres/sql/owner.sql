-- Refuses a schema in which another role has a hand: the functions run with the rights of their owner, and
-- would run that role's triggers, operators or functions with them. One of another program, whose table could have
-- the name of one of these. And one that a newer release has made, whose functions this script would take back.

SELECT pg_catalog.set_config('fencelock.schema', :'schema', false);
DO $$
DECLARE
  schema text := current_setting('fencelock.schema');
  found oid := (SELECT n.oid FROM pg_namespace n WHERE n.nspname = schema);
  mine oid := (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user);
  -- Its tables, and a column by which each is known.
  ours jsonb := '{"locks": "crowd", "claims": "seq", "processes": "deadline", "fences": "resource",
    "turns": "token", "cells": "stamp"}';
  is_new boolean := to_regprocedure(format('%I.version()', schema)) IS NULL;
  strange text;
  is_of_another boolean;
  version int;
BEGIN
  -- What follows must see what others have committed while this waited for them.
  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'this script needs the isolation level READ COMMITTED, and the transaction has %',
      upper(current_setting('transaction_isolation'))
      USING ERRCODE = 'object_not_in_prerequisite_state',
        HINT = 'Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED.';
  END IF;
  SELECT o.what, o.owner <> mine INTO strange, is_of_another FROM (
    SELECT 'it', n.nspowner, false FROM pg_namespace n WHERE n.oid = found
    UNION ALL
    SELECT 'the right to create in it', a.grantee, false FROM pg_namespace n, aclexplode(n.nspacl) a
    WHERE n.oid = found AND a.privilege_type = 'CREATE'
    UNION ALL
    SELECT format('its table, index or sequence %I', c.relname), c.relowner,
      -- A run without a transaction may have left tables of ours.
      c.relkind <> 'i' AND NOT EXISTS (
        SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = ours ->> c.relname)
    FROM pg_class c WHERE c.relnamespace = found
    UNION ALL
    SELECT format('its function %I', p.proname), p.proowner, true FROM pg_proc p WHERE p.pronamespace = found
    UNION ALL
    SELECT 'its operator ' || o.oprname, o.oprowner, true FROM pg_operator o WHERE o.oprnamespace = found
    UNION ALL
    SELECT format('its type %I', t.typname), t.typowner, t.typrelid = 0 AND t.typelem = 0
    FROM pg_type t WHERE t.typnamespace = found
    UNION ALL
    -- Any: its function has an owner, and it runs with the rights of ours.
    SELECT format('its trigger %I', t.tgname), 0, false FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = found AND NOT t.tgisinternal
  ) o (what, owner, is_inside)
  WHERE o.owner <> mine OR (o.is_inside AND is_new) ORDER BY o.owner <> mine DESC, o.what LIMIT 1;
  IF is_of_another THEN
    RAISE EXCEPTION 'the schema % cannot be used by %: % belongs to another role', quote_ident(schema),
      quote_ident(current_user), strange
      USING ERRCODE = 'insufficient_privilege', HINT = 'Use SET ROLE, or another schema.';
  END IF;
  IF strange IS NOT NULL THEN
    RAISE EXCEPTION 'the schema % is another program''s, and locks need one of their own: it has no version(), but %',
      quote_ident(schema), strange
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Use another schema.';
  END IF;
  IF NOT is_new THEN
    EXECUTE format('SELECT %I.version()', schema) INTO version;
    IF version > :version THEN
      RAISE EXCEPTION 'the schema % has version %, and this script makes version :version', quote_ident(schema), version
        USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'A newer release made it: leave it as it is.';
    END IF;
  END IF;
  PERFORM set_config('fencelock.tables', ours::text, false), set_config('fencelock.functions', (
    SELECT coalesce(string_agg(p.oid::text, ' '), '') FROM pg_proc p WHERE p.pronamespace = found), false);
END $$;
