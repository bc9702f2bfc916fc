//! The map of slots to nodes, as the nodes report it.
//!
//! They do not always agree: a node that is cut off from the others keeps reporting its last map.
//! So several are asked, and the map that most of them report wins.

use crc::{CRC_16_XMODEM, Crc};
use redis::{RedisError, Value};

use crate::connection::HostPort;
use crate::connection::access::AddressMap;

const SLOTS: u16 = 16384;
const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The slot of a key: of the text between its first braces, if there is any.
pub(super) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let tag = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty());
    CRC.checksum(tag.unwrap_or(key).as_bytes()) % SLOTS
}

/// The nodes of some slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) master: HostPort,
    pub(super) replicas: Vec<HostPort>,
}

/// The node that a redirection names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Redirection {
    Moved(HostPort),
    Ask(HostPort),
}

/// What `error` of the node `asked` redirects to.
pub(crate) fn redirection(
    error: &RedisError,
    asked: &HostPort,
    addresses: &AddressMap,
) -> Option<Redirection> {
    let (address, _slot) = error.redirect_node()?;
    let (name, port) = address.rsplit_once(':')?;
    let host = named(name, port.parse().ok()?, asked, addresses);
    match error.code() {
        Some("ASK") => Some(Redirection::Ask(host)),
        _ => Some(Redirection::Moved(host)),
    }
}

/// The answer of the node `asked` to `CLUSTER SLOTS`: first, last, master, replicas... for each
/// range.
pub(crate) fn read_map(
    answer: &Value,
    asked: &HostPort,
    addresses: &AddressMap,
) -> Option<Vec<Range>> {
    let Value::Array(rows) = answer else { return None };
    let mut ranges = Vec::with_capacity(rows.len());
    for row in rows {
        let Value::Array(row) = row else { return None };
        let [Value::Int(first), Value::Int(last), master, replicas @ ..] = row.as_slice() else {
            return None;
        };
        let node = |value: &Value| read_node(value, asked, addresses);
        ranges.push(Range {
            first: u16::try_from(*first).ok()?,
            last: u16::try_from(*last).ok()?,
            master: node(master)?,
            replicas: replicas.iter().filter_map(node).collect(),
        });
    }
    ranges.sort_by_key(|range| range.first);
    Some(ranges)
}

fn read_node(node: &Value, asked: &HostPort, addresses: &AddressMap) -> Option<HostPort> {
    let Value::Array(node) = node else { return None };
    let name = match node.first()? {
        Value::BulkString(name) => std::str::from_utf8(name).ok()?,
        Value::Nil => "",
        _ => return None,
    };
    let Value::Int(port) = node.get(1)? else { return None };
    Some(named(name, u16::try_from(*port).ok()?, asked, addresses))
}

/// The node that `asked` names so. A node that does not know its address, or is configured to hide
/// it, means the address at which it was asked.
fn named(name: &str, port: u16, asked: &HostPort, addresses: &AddressMap) -> HostPort {
    match name {
        "" | "?" => HostPort { name: asked.name.clone(), port },
        name => addresses.translate(HostPort { name: name.to_owned(), port }),
    }
}

/// The map that most of `maps` agree on; on a tie, one other than `present`, since requests by
/// `present` failed.
pub(super) fn prevailing(maps: &[Vec<Range>], present: &[Range]) -> Option<Vec<Range>> {
    let votes = |map: &Vec<Range>| maps.iter().filter(|other| agree(map, other)).count();
    let rank = |map: &Vec<Range>| (votes(map), !agree(map, present));
    let best = maps.iter().max_by_key(|map| rank(map))?;
    Some(best.clone())
}

/// Whether the masters are the same. One node may miss a replica that another one sees.
pub(super) fn agree(one: &[Range], other: &[Range]) -> bool {
    let master = |range: &Range| (range.first, range.last, range.master.clone());
    one.len() == other.len() && one.iter().map(master).eq(other.iter().map(master))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, port: u16) -> HostPort {
        HostPort { name: name.to_owned(), port }
    }

    fn range(first: u16, last: u16, port: u16) -> Range {
        Range { first, last, master: host("h", port), replicas: Vec::new() }
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot("123456789"), 0x31C3 % SLOTS);
        assert_eq!(slot("foo"), 12182);
        for tagged in ["{foo}:c", "a{foo}b{c}", "{foo}}"] {
            assert_eq!(slot(tagged), 12182, "{tagged}");
        }
        for untagged in ["{}foo", "{foo", "foo}{"] {
            assert_eq!(slot(untagged), CRC.checksum(untagged.as_bytes()) % SLOTS, "{untagged}");
        }
    }

    #[test]
    fn a_node_without_a_name_is_the_one_that_was_asked() {
        let asked = host("seed", 1);
        let addresses = AddressMap::by(|name, port| (format!("{name}.outside"), port + 1));
        let at = |name: Value| {
            let node = Value::Array(vec![name, Value::Int(7000), Value::Nil]);
            let row = Value::Array(vec![Value::Int(0), Value::Int(16383), node]);
            read_map(&Value::Array(vec![row]), &asked, &addresses).map(|map| map[0].master.clone())
        };
        let bulk = |name: &str| Value::BulkString(name.as_bytes().to_vec());
        assert_eq!(at(bulk("")), Some(host("seed", 7000)));
        assert_eq!(at(bulk("?")), Some(host("seed", 7000)));
        assert_eq!(at(Value::Nil), Some(host("seed", 7000)));
        assert_eq!(at(bulk("a")), Some(host("a.outside", 7001)));
        assert_eq!(at(Value::Int(1)), None);
    }

    #[test]
    fn a_redirection_without_a_name_leads_to_the_same_host() {
        let asked = host("seed", 1);
        let error = |text: &str| {
            redis::parse_redis_value(text.as_bytes()).and_then(Value::extract_error).unwrap_err()
        };
        let to = |text| redirection(&error(text), &asked, &AddressMap::default());
        assert_eq!(to("-MOVED 1 :7001\r\n"), Some(Redirection::Moved(host("seed", 7001))));
        assert_eq!(to("-ASK 1 ?:7001\r\n"), Some(Redirection::Ask(host("seed", 7001))));
        assert_eq!(to("-MOVED 1 ::1:7001\r\n"), Some(Redirection::Moved(host("::1", 7001))));
        assert_eq!(to("-ERR x\r\n"), None);
    }

    #[test]
    fn the_map_of_most_nodes_prevails() {
        let (old, new) = (vec![range(0, 16383, 1)], vec![range(0, 16383, 2)]);
        let all = |maps: &[&Vec<Range>]| maps.iter().map(|map| (*map).clone()).collect::<Vec<_>>();
        assert_eq!(prevailing(&all(&[&old, &new, &new]), &old), Some(new.clone()));
        assert_eq!(prevailing(&all(&[&old, &old, &new]), &old), Some(old.clone()));
        assert_eq!(prevailing(&all(&[&old, &new]), &old), Some(new.clone()), "the one not tried");
        assert_eq!(prevailing(&all(&[&new, &old]), &old), Some(new));
        assert_eq!(prevailing(&[], &old), None);
    }
}
