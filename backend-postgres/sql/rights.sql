-- Nobody but the owner has a right to a table: who reads one knows the owners of locks, and who has the right to
-- a trigger runs it with the rights of the schema's owner. Nor to a function that is new, before it is granted.
-- Default privileges of the owner (ALTER DEFAULT PRIVILEGES) give such rights, and PostgreSQL itself gives PUBLIC
-- those to functions.

DO $$
DECLARE
  schema text := current_setting('fencelock.schema');
  known text[] := string_to_array(current_setting('fencelock.functions'), ' ');
  r record;
BEGIN
  FOR r IN
    SELECT o.what, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role
    FROM (
      SELECT format('TABLE %s', c.oid::regclass), c.relowner, own.acl FROM pg_class c
      CROSS JOIN LATERAL (
        SELECT c.relacl UNION ALL SELECT a.attacl FROM pg_attribute a WHERE a.attrelid = c.oid) own (acl)
      WHERE c.relnamespace = (quote_ident(schema))::regnamespace
        AND current_setting('fencelock.tables')::jsonb ->> c.relname IS NOT NULL
      UNION ALL
      SELECT format('FUNCTION %s', p.oid::regprocedure), p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
      FROM pg_proc p
      WHERE p.pronamespace = (quote_ident(schema))::regnamespace AND p.oid::text <> ALL (known)
    ) o (what, owner, acl) CROSS JOIN aclexplode(o.acl) a
    WHERE a.grantee <> o.owner
  LOOP
    EXECUTE format('REVOKE ALL ON %s FROM %s CASCADE', r.what, r.role);
  END LOOP;
END $$;
RESET fencelock.tables;
RESET fencelock.functions;
RESET fencelock.schema;
