-- The token of the last write is a column of the row that a lock protects. BIGINT holds every token.
CREATE TABLE stock (
    item TEXT PRIMARY KEY,
    remaining BIGINT NOT NULL CHECK (remaining >= 0),
    token BIGINT NOT NULL DEFAULT 0
);

-- Where a lock protects rows of several tables, its last token has a row of its own.
CREATE TABLE fences (
    lock TEXT PRIMARY KEY,
    token BIGINT NOT NULL
);

CREATE TABLE orders (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    item TEXT NOT NULL REFERENCES stock (item),
    buyer TEXT NOT NULL
);

INSERT INTO stock (item, remaining) VALUES ('lamp', 10);
