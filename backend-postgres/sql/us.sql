-- The time. Never now(), which stands still in a transaction: that of check_token's caller may be old, and
-- a step may have waited for a row. Steps read it after they have locked the lock's row.

CREATE OR REPLACE FUNCTION :"schema".us() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint
$$;
