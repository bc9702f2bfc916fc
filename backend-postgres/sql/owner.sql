-- Creates the schema. Refuses one in which another role has a hand: the functions run with the rights of their
-- owner, and would run that role's triggers, operators or functions with them. One of another program, whose table
-- could have the name of one of these. And one that a newer release has made, whose functions this script would take
-- back.

SELECT pg_catalog.set_config('fencelock.schema', :'schema', false);
DO $$
DECLARE
  schema text := current_setting('fencelock.schema');
  found oid;
  mine oid;
  -- The tables, and their columns: one of another program may have the name of one of these.
  ours jsonb := '{
    "locks": "key token tokens owner until crowd grp sum proc label",
    "claims": "owner key state seq mode n lim ttl proc label tokens token until",
    "processes": "proc deadline", "fences": "resource token", "turns": "key token",
    "cells": "key stamp content until"}';
  is_new boolean;
  grantee text;
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
  IF current_setting('search_path') <> 'pg_catalog, pg_temp' THEN
    RAISE EXCEPTION 'this script needs one transaction, from its first statement on'
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'With psql: -1 -v ON_ERROR_STOP=1.';
  END IF;
  -- Not by IF NOT EXISTS, which needs the right to create schemas also where it exists.
  IF to_regnamespace(quote_ident(schema)) IS NULL THEN
    EXECUTE format('CREATE SCHEMA %I', schema);
    -- By default privileges of the owner.
    FOR grantee IN
      SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
      FROM pg_namespace n, aclexplode(n.nspacl) a
      WHERE n.nspname = schema AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
    LOOP
      EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM %s CASCADE', schema, grantee);
    END LOOP;
  END IF;
  found := (SELECT n.oid FROM pg_namespace n WHERE n.nspname = schema);
  mine := (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user);
  is_new := to_regprocedure(format(
    '%I.attempt_1(bytea, uuid, "char", bigint, bigint, bigint, text, bytea, boolean, int, boolean)', schema)) IS NULL;
  SELECT o.what, o.owner <> mine INTO strange, is_of_another FROM (
    SELECT 'it', n.nspowner, false FROM pg_namespace n WHERE n.oid = found
    UNION ALL
    SELECT 'the right to create in it', a.grantee, false FROM pg_namespace n, aclexplode(n.nspacl) a
    WHERE n.oid = found AND a.privilege_type = 'CREATE'
    UNION ALL
    SELECT format(CASE c.relkind WHEN 'r' THEN 'its table %I' WHEN 'v' THEN 'its view %I' WHEN 'S' THEN 'its sequence %I'
        WHEN 'i' THEN 'its index %I' ELSE 'its relation %I' END, c.relname), c.relowner,
      -- Tables of ours can be there already, such as of a restore without functions.
      c.relkind <> 'i' AND (c.relkind <> 'r' OR ours ->> c.relname IS DISTINCT FROM (
        SELECT string_agg(a.attname, ' ' ORDER BY a.attnum) FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))
    FROM pg_class c WHERE c.relnamespace = found
    UNION ALL
    SELECT format('its function %I', p.proname), p.proowner, true FROM pg_proc p WHERE p.pronamespace = found
    UNION ALL
    SELECT 'its operator ' || o.oprname, o.oprowner, true FROM pg_operator o WHERE o.oprnamespace = found
    UNION ALL
    SELECT format('its type %I', t.typname), t.typowner, t.typrelid = 0 AND t.typelem = 0
    FROM pg_type t WHERE t.typnamespace = found
  ) o (what, owner, is_inside)
  WHERE o.owner <> mine OR (o.is_inside AND is_new) ORDER BY o.owner <> mine DESC, o.what LIMIT 1;
  IF is_of_another THEN
    RAISE EXCEPTION 'the schema % cannot be used by %: % belongs to another role', quote_ident(schema),
      quote_ident(current_user), strange
      USING ERRCODE = 'insufficient_privilege', HINT = 'Use SET ROLE, or another schema.';
  END IF;
  IF strange IS NOT NULL THEN
    RAISE EXCEPTION 'the schema % is another program''s (see %), and locks need one of their own', quote_ident(schema),
      strange
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Use another schema.';
  END IF;
  -- It has an owner, and it runs with the rights of ours.
  SELECT format('%I of its table %I', t.tgname, c.relname) INTO strange
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
  WHERE c.relnamespace = found AND ours ->> c.relname IS NOT NULL AND NOT t.tgisinternal LIMIT 1;
  IF strange IS NOT NULL THEN
    RAISE EXCEPTION 'the schema % cannot be used: the trigger % is not of this script', quote_ident(schema), strange
      USING ERRCODE = 'insufficient_privilege', HINT = 'Drop the trigger.';
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
