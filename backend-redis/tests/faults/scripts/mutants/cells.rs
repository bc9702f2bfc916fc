//! The changes of the scripts of cells.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    // swap.lua
    ("any stamp is expected", "if stamp ~= FROM then", "if false then"),
    (
        "a repeated swap is refused",
        "return stamp ~= '' and stamp == string.sub(TO, 1, 16) and 1 or 0",
        "return 0",
    ),
    (
        "a swap is repeated by its content",
        "stamp == string.sub(TO, 1, 16) and 1 or 0",
        "string.sub(redis.call('GET', C), 17) == string.sub(TO, 17) and 1 or 0",
    ),
    (
        "the removal of what is gone is made again",
        "return stamp ~= '' and stamp ==",
        "return stamp ==",
    ),
    (
        "a swap is made again whose stamp is there",
        "if stamp ~= FROM then",
        "if stamp ~= FROM and stamp ~= string.sub(TO, 1, 16) then",
    ),
    ("a short text is overwritten", "if #stamp < 16 and (stamp ~= ''", "if false and (stamp ~= ''"),
    ("an empty text is overwritten", " or redis.call('EXISTS', C) == 1) then", ") then"),
    ("nothing is removed", "if TO == '' then", "if false then"),
    ("a cell has no end", "redis.call('SET', C, TO, 'PX', KEEP)", "redis.call('SET', C, TO)"),
    ("a cell keeps its old end", "redis.call('SET', C, TO)", "redis.call('SET', C, TO, 'KEEPTTL')"),
    // rewrite.lua
    (
        "a rewritten cell has no end",
        "redis.call('SET', C, there, 'PX', math.max(ttl, 1))",
        "redis.call('SET', C, there)",
    ),
    ("a missing cell is not written", "  redis.call('SET', C, '', 'PX', 1)\n", ""),
    ("a missing cell is made", "'PX', 1)\n  redis.call('DEL', C)", "'PX', 1)"),
    ("a rewrite is refused out of memory", "redis.call('DEL', C)\nif not there", "if not there"),
    (
        "a rewrite writes nothing",
        "elseif ttl < 0 then\n  redis.call('SET', C, there)",
        "elseif ttl < 0 then",
    ),
];
