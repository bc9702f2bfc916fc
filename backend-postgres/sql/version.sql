-- The version of the schema. A change of a function's body raises it, so that it reaches the databases that are
-- there; one of what a function takes or replies adds a function beside the present one, so that older clients keep
-- working.

CREATE OR REPLACE FUNCTION :"schema".version() RETURNS int LANGUAGE sql STABLE AS $$ SELECT 2 $$;
