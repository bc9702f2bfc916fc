-- The version of the schema. A change adds functions beside the present ones and raises it, so that older
-- clients keep working.

CREATE OR REPLACE FUNCTION :"schema".version() RETURNS int LANGUAGE sql STABLE AS $$ SELECT 1 $$;
