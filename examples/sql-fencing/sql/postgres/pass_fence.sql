-- The first statement of a transaction. No row changed: a later holder has been here, so roll back.
-- Until the transaction ends, no other one changes this row, so none overtakes it.
INSERT INTO fences (lock, token) VALUES ($1, $2)
ON CONFLICT (lock) DO UPDATE SET token = excluded.token
WHERE fences.token <= excluded.token
