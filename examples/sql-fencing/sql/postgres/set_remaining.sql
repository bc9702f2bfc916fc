-- One statement checks the token and writes. No row changed: a later holder has written already.
-- Equal tokens pass, so that one holder may write several times.
UPDATE stock SET remaining = $2, token = $3
WHERE item = $1 AND token <= $3
