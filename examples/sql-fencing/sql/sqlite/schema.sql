-- The token of the last write is a column of the row that a lock protects.
CREATE TABLE stock (
    item TEXT PRIMARY KEY,
    remaining INTEGER NOT NULL CHECK (remaining >= 0),
    token INTEGER NOT NULL DEFAULT 0
);

-- Where a lock protects rows of several tables, its last token has a row of its own.
CREATE TABLE fences (
    lock TEXT PRIMARY KEY,
    token INTEGER NOT NULL
);

CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    item TEXT NOT NULL REFERENCES stock (item),
    buyer TEXT NOT NULL
);

INSERT INTO stock (item, remaining) VALUES ('lamp', 10);
