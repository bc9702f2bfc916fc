//! Whose a node is that is there already.
//!
//! In a root that is open, as `/` is by default, anybody may make the node of a lock or a cell first, with rights
//! for everybody: to delete the node of a holder, or to plant a content. So with `acl=creator` a node is believed only
//! if nobody else may change it or what is below it. It is asked for with each claim and each reading, not once: a
//! lock's node goes with its last claim, and who makes the next one is open again.

use futures_util::future::join3;
use uuid::Uuid;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Error as ZkError, Permission};

/// The scheme of the id that a client's certificate is.
const CERTIFICATE: &str = "x509";

/// The ids of a session's login, as the servers write them into the ACL of what it creates.
pub(crate) struct Owners(Vec<AuthId>);

impl Owners {
    /// Asks the servers, which may map a login to another name: by a node that is made for it. None, if this login may
    /// make none here: a stranger may have made the root so, and then nothing in it is believed.
    ///
    /// An id with a password's hash in it, as that of digest, is what others cannot give to a node of theirs. Those of
    /// SASL and of certificates they can, if they know the name.
    pub(crate) async fn of_session(client: &Client, root: &str) -> Result<Owners, ZkError> {
        // No lock's name has a `~`, and no cell's begins with one.
        let path = format!("{}/~login-{}", root.trim_end_matches('/'), Uuid::new_v4().simple());
        let options = CreateMode::Ephemeral.with_acls(Acls::creator_all());
        let create = client.create(&path, b"", &options);
        // Without the right to delete it, it goes with the session.
        let (created, read, _) =
            join3(create, client.get_acl(&path), client.delete(&path, None)).await;
        match created {
            Ok(_) => Ok(Owners(read?.0.iter().map(|acl| acl.auth_id().clone()).collect())),
            Err(ZkError::NoAuth) => Ok(Owners(Vec::new())),
            Err(error) => Err(error),
        }
    }

    /// The first entry by which anybody else may do more than read.
    ///
    /// The certificates of other clients may stand beside this login, for each client of one login may have its own:
    /// servers that ask for them let nobody in whose certificate they do not trust.
    pub(crate) fn stranger<'a>(&self, acls: &'a [Acl]) -> Option<&'a AuthId> {
        const CHANGES: [Permission; 4] =
            [Permission::CREATE, Permission::DELETE, Permission::WRITE, Permission::ADMIN];
        let is_certificate = |id: &AuthId| id.scheme() == CERTIFICATE;
        let changes = acls.iter().filter(|acl| CHANGES.iter().any(|it| acl.permission().has(*it)));
        let mut changers = changes.map(Acl::auth_id);
        let is_login = |id: &AuthId| !is_certificate(id) && self.0.contains(id);
        let certificates_may = self.0.iter().any(is_certificate) && changers.clone().any(is_login);
        changers.find(|id| !(self.0.contains(id) || certificates_may && is_certificate(id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_else_may_change_a_node_is_a_stranger() {
        let id = |text: &str| {
            let (scheme, id) = text.split_once(':').expect("both");
            AuthId::new(scheme, id)
        };
        let (me, both) =
            (["digest:me:hash"].as_slice(), ["digest:me:hash", "x509:CN=a"].as_slice());
        let all = Permission::ALL;
        for (own, acls, stranger) in [
            (me, &[("digest:me:hash", all)][..], None),
            (me, &[("digest:me:hash", all), ("world:anyone", Permission::READ)], None),
            (me, &[("world:anyone", all)], Some("world:anyone")),
            (me, &[("digest:me:hash", all), ("sasl:you", Permission::CREATE)], Some("sasl:you")),
            (
                me,
                &[("digest:me:hash", all), ("ip:127.0.0.1", Permission::DELETE)],
                Some("ip:127.0.0.1"),
            ),
            (me, &[("digest:me:hash", all), ("sasl:you", Permission::WRITE)], Some("sasl:you")),
            (me, &[("digest:me:hash", all), ("sasl:you", Permission::ADMIN)], Some("sasl:you")),
            (me, &[("digest:me:other", all)], Some("digest:me:other")),
            (me, &[("digest:me:hash", all), ("x509:CN=b", all)], Some("x509:CN=b")),
            (both, &[("digest:me:hash", all), ("x509:CN=b", all)], None),
            (both, &[("x509:CN=b", all)], Some("x509:CN=b")),
            (both, &[("digest:me:hash", Permission::READ), ("x509:CN=b", all)], Some("x509:CN=b")),
            (both, &[("x509:CN=a", all), ("x509:CN=b", all)], Some("x509:CN=b")),
        ] {
            let owners = Owners(own.iter().map(|it| id(it)).collect());
            let acls: Vec<_> = acls.iter().map(|(it, may)| Acl::new(*may, id(it))).collect();
            assert_eq!(owners.stranger(&acls), stranger.map(id).as_ref(), "{own:?} {acls:?}");
        }
    }
}
