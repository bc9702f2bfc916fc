-- Times are us since 1970 on the server's clock; keys are bytes, since text refuses NUL and depends on
-- the database's encoding. Nothing that an uncontended step changes is indexed, and half of a page is
-- left free, so that its updates stay in the page. They do not while any query runs for some ms: the row moves on to a
-- new page, and the old one, with a few dead versions, is only used again after a vacuum. Hence so early a one.
--
-- Functions run without sequential and bitmap scans: their plans are kept, and one that was made when a table
-- was small, and read it whole, would read the ten thousand waiters that came afterwards for every step.
-- Without JIT, which takes the cost of what is disabled for work.
--
-- For the same reason a claim is looked up by `owner =` alone, and its key and state are compared by IS NOT DISTINCT
-- FROM, for which no index is used: by `=` the plan could be to read the queue of the lock. And for two states, g and
-- h, by BETWEEN: before version 17, IN could be planned to read all states of the key.

-- USING heap, whatever default_table_access_method is: may_grant reads its xmax.

-- One row for each lock, and its exclusive holder. Locked first by every step.
CREATE TABLE IF NOT EXISTS :"schema".locks (
  key    bytea PRIMARY KEY,
  token  bigint  NOT NULL DEFAULT 0,      -- the last one that was granted or reserved
  tokens int     NOT NULL DEFAULT 1,      -- how many the exclusive holder's grant reserved
  owner  uuid,                            -- the exclusive holder, or the claim it was handed off to
  until  bigint  NOT NULL DEFAULT 0,      -- the end of its lease
  crowd  boolean NOT NULL DEFAULT false,  -- whether it has rows in claims
  grp    "char",                          -- the mode of the group that holds: s or p
  sum    bigint  NOT NULL DEFAULT 0,      -- the readers or permits of that group
  proc   text    NOT NULL DEFAULT '-',    -- of the exclusive holder
  label  bytea   NOT NULL DEFAULT ''
) USING heap WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 200);

-- Waiters, readers and permit holders. Its pages are filled: what was deleted is taken out when less than a tenth of
-- the page is free (heap_page_prune_opt, src/backend/access/heap/pruneheap.c), and with a smaller fillfactor the inserts
-- may have gone on to the next page by then. A wait leaves 76 bytes for the next vacuum this way, whatever the length
-- of its row; with 92 % 51 to 950, and with 70 % 260 to 1,220.
CREATE TABLE IF NOT EXISTS :"schema".claims (
  owner  uuid PRIMARY KEY,
  key    bytea  NOT NULL,
  -- w waits; or was handed off, of x: then the lock's row names it, and this one is written no more, since each
  -- version costs a place in both indexes. g handed off, of s and p, and not confirmed yet; l handed off, of any
  -- mode, and its time has ended; h holds, s and p only
  state  "char" NOT NULL,
  seq    bigint NOT NULL,                 -- the place in the queue: the arrival
  mode   "char" NOT NULL CHECK (mode IN ('x', 's', 'p')),
  n      bigint NOT NULL,
  lim    bigint NOT NULL CHECK (n BETWEEN 1 AND lim AND (n = 1 OR mode = 'p')),
  ttl    bigint NOT NULL CHECK (ttl > 0),
  -- the channel of its process. One that NOTIFY refuses would make another client's release fail
  proc   text   NOT NULL CHECK (octet_length(proc) BETWEEN 1 AND 63),
  label  bytea  NOT NULL,
  tokens int    NOT NULL CHECK (tokens > 0),
  token  bigint,                          -- the last of those that its grant reserved
  -- g, h: the end of the grant, 0 once it was released during its guarded transaction. w, l: until then it
  -- lives, whether or not its process looks
  until  bigint NOT NULL
) USING heap WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
-- Not by IF NOT EXISTS, which locks out all changes of the table before it looks.
DO $$
DECLARE
  schema text := current_setting('fencelock.schema');
BEGIN
  IF to_regclass(format('%I.claims_by_place', schema)) IS NULL THEN
    EXECUTE format('CREATE INDEX claims_by_place ON %I.claims (key, state, seq)', schema);
  END IF;
END $$;

-- The processes that wait: each is live for 3 s after its last look.
CREATE TABLE IF NOT EXISTS :"schema".processes (
  proc     text PRIMARY KEY,
  deadline bigint NOT NULL
) USING heap WITH (fillfactor = 30);

-- The largest token that a resource has seen, for locks of another store.
CREATE TABLE IF NOT EXISTS :"schema".fences (
  resource bytea PRIMARY KEY,
  token    bigint NOT NULL
) USING heap WITH (fillfactor = 50);

-- The largest token of a lock whose holder has checked it, where a grant reserves several.
CREATE TABLE IF NOT EXISTS :"schema".turns (
  key   bytea PRIMARY KEY,
  token bigint NOT NULL
) USING heap WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS :"schema".cells (
  key     bytea PRIMARY KEY,
  stamp   uuid  NOT NULL,
  content bytea NOT NULL,
  until   bigint                          -- NULL: kept for ever
) USING heap WITH (fillfactor = 50);
