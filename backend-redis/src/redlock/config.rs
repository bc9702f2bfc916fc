//! The nodes and settings of a store, and how it connects.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::backend::{invalid, start_clock};
use fencelock_core::url::{Connecting, Scheme, StoreUrl};
use fencelock_core::{
    ErrorKind, Liveness, Locks, Modes, Order, Profile, Reach, RenewalPlan, Result, Settings,
    TokenOrder, Ttl,
};
use tokio::time::{Instant, timeout_at};

use super::backend::QuorumStore;
use super::node::member::Member;
use super::node::quorum::Quorum;
use super::node::view::QuorumView;
use super::node_set::NodeSet;
use super::rules::clocks::micros;
use super::rules::incarnation::Deployment;
use super::rules::token::{MAX_NODES, STRIDE};
use crate::connection::Tls;
use crate::connection::access::{self, Access, PORT, database_in, hosts, hosts_of};
use crate::connection::{ConnectOptions, HostPort};
use crate::connection::{Credentials, Login};
use crate::protocol::identity::ClientId;

/// Upper bound of every configured duration (one week); keeps arithmetic from overflowing.
const MAX_DURATION: Duration = Duration::from_secs(7 * 86_400);
/// `restart_delay` exceeds the longest TTL by twice the clock tolerance, a hundredth of the TTL, and
/// this, as in [`lease_end`](fencelock_core::lease_end).
const GRANULARITY: Duration = Duration::from_millis(2);
/// How long connecting waits for a majority at least, and for the last nodes after one.
const CONNECT_WITHIN: Duration = Duration::from_secs(4);
const STRAGGLERS_WITHIN: Duration = Duration::from_millis(200);

/// `redlock://`.
pub const SCHEME: Scheme = Scheme {
    names: &["redlock", "rediss+redlock"],
    example: "redlock://H1:6379,H2:6379,H3:6379",
    connect,
    unanswered: None,
};

fn connect(url: StoreUrl) -> Connecting {
    Box::pin(async move {
        let (store, settings) = RedlockStore::from_url(&url)?;
        store.locks(settings).await
    })
}

// Each node is a bit of a `NodeSet`.
const _: () = assert!(MAX_NODES <= NodeSet::CAPACITY);

/// The parameters of these URLs in addition to those of [`access`].
const PARAMETERS: [&str; 4] = ["restart_delay", "clock_tolerance", "node_timeout", "set_epoch"];

/// A store on a majority of independent Redis servers that is not yet connected.
///
/// ```no_run
/// # async fn f() -> fencelock_core::Result<()> {
/// use fencelock_core::Settings;
/// use fencelock_redis::RedlockStore;
/// let nodes = [("10.0.0.1", 6379), ("10.0.0.2", 6379), ("10.0.0.3", 6379)];
/// let locks = RedlockStore::nodes(nodes).locks(Settings::default()).await?;
/// let guard = locks.lock("report").acquire().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RedlockStore {
    nodes: Vec<HostPort>,
    access: Access,
    restart_delay: Duration,
    clock_tolerance: Duration,
    node_timeout: Duration,
    set_epoch: u32,
}

impl RedlockStore {
    /// A store on these servers, each an independent master: an odd number from 3, and all of them.
    #[must_use]
    pub fn nodes<'a>(nodes: impl IntoIterator<Item = (&'a str, u16)>) -> RedlockStore {
        RedlockStore::of(hosts(nodes))
    }

    fn of(nodes: Vec<HostPort>) -> RedlockStore {
        RedlockStore {
            nodes,
            access: Access::default(),
            restart_delay: Duration::from_secs(60),
            clock_tolerance: Duration::from_secs(10),
            node_timeout: Duration::from_millis(250),
            set_epoch: 1,
        }
    }

    /// Logs in with this user and password at every node; an empty user is the servers' default one.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> RedlockStore {
        self.access.login = Login::new(user, password);
        self
    }

    /// Logs in with the credentials that `ask` returns for each connection, like
    /// [`RedisStore::credentials`](crate::RedisStore::credentials).
    #[must_use]
    pub fn credentials(
        mut self,
        ask: impl Fn() -> Result<Credentials> + Send + Sync + 'static,
    ) -> RedlockStore {
        self.access.login = Login::Asked(Arc::new(ask));
        self
    }

    /// How long a connection may take, with its handshakes: 10 ms to a minute. Default: 2 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> RedlockStore {
        self.access.timeouts.connect = timeout;
        self
    }

    /// How long a reply may take before its connection is suspected: 10 ms to a minute. A vote is
    /// waited for no longer than [`node_timeout`](Self::node_timeout). Default: 1 s.
    #[must_use]
    pub fn answer_timeout(mut self, timeout: Duration) -> RedlockStore {
        self.access.timeouts.answer = timeout;
        self
    }

    /// The database. Default: 0.
    #[must_use]
    pub fn database(mut self, number: u16) -> RedlockStore {
        self.access.database = number;
        self
    }

    /// Encrypts the connections.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> RedlockStore {
        self.access.tls = Some(tls);
        self
    }

    /// How long a node that lost its data is excluded: longer than the longest TTL by twice the
    /// clock tolerance and the drift margin. All clients must configure the same. Default: 60 s.
    #[must_use]
    pub fn restart_delay(mut self, delay: Duration) -> RedlockStore {
        self.restart_delay = delay;
        self
    }

    /// How far the nodes' clocks may be apart; nodes beyond it are excluded. Default: 10 s.
    #[must_use]
    pub fn clock_tolerance(mut self, tolerance: Duration) -> RedlockStore {
        self.clock_tolerance = tolerance;
        self
    }

    /// How long a node's reply is waited for while the others leave open which client has the lock.
    /// Default: 250 ms.
    #[must_use]
    pub fn node_timeout(mut self, timeout: Duration) -> RedlockStore {
        self.node_timeout = timeout;
        self
    }

    /// The number of this set of nodes, raised by one with each change of the set. Default: 1.
    #[must_use]
    pub fn set_epoch(mut self, epoch: u32) -> RedlockStore {
        self.set_epoch = epoch;
        self
    }

    /// Lets nodes that lost their data take part at once: two clients can then hold one lock, which
    /// tests show.
    #[doc(hidden)]
    #[must_use]
    pub fn without_restart_delay(self) -> RedlockStore {
        self.restart_delay(Duration::ZERO)
    }

    pub(crate) fn from_url(url: &StoreUrl) -> Result<(RedlockStore, Settings)> {
        let params = url.params(&[&access::PARAMETERS[..], &PARAMETERS].concat())?;
        let settings = params.settings()?;
        let mut store = RedlockStore::of(hosts_of(url, PORT)?);
        let path = database_in(url.path().trim_matches('/'))?;
        store.access = Access::from_url(url, params, path)?;
        let positive = |name: &str, default| match params.duration(name)? {
            Some(Duration::ZERO) => Err(invalid(format!("{name} must be longer than 0"))),
            given => Ok(given.unwrap_or(default)),
        };
        store.restart_delay = positive("restart_delay", store.restart_delay)?;
        store.clock_tolerance = positive("clock_tolerance", store.clock_tolerance)?;
        store.node_timeout = positive("node_timeout", store.node_timeout)?;
        store.set_epoch = params.number("set_epoch")?.unwrap_or(store.set_epoch);
        store.check()?;
        store.profile().require_ttl(settings.default_ttl())?;
        Ok((store, settings))
    }

    fn check(&self) -> Result<()> {
        let count = self.nodes.len();
        if count < 3 || count.is_multiple_of(2) || count > MAX_NODES {
            return Err(invalid(format!(
                "{count} nodes; expected an odd number from 3 to {MAX_NODES}, such as \
                 redlock://H1,H2,H3"
            )));
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if self.nodes[..index].contains(node) {
                return Err(invalid(format!("{node} is named twice: it has one vote")));
            }
        }
        for (name, given) in [
            ("restart_delay", self.restart_delay),
            ("clock_tolerance", self.clock_tolerance),
            ("node_timeout", self.node_timeout),
        ] {
            if given > MAX_DURATION {
                return Err(invalid(format!("{name} must be no longer than 7 days")));
            }
        }
        if !self.restart_delay.is_zero() && self.longest_ttl().is_zero() {
            return Err(invalid(format!(
                "restart_delay={:?} must be more than twice clock_tolerance={:?}",
                self.restart_delay, self.clock_tolerance
            )));
        }
        Ok(())
    }

    /// The longest TTL that the restart delay covers.
    fn longest_ttl(&self) -> Duration {
        if self.restart_delay.is_zero() {
            return Ttl::MAX;
        }
        let rest = self.restart_delay.saturating_sub(self.clock_tolerance * 2 + GRANULARITY);
        let millis = u64::try_from(rest.as_millis()).unwrap_or(u64::MAX) / 101 * 100;
        Duration::from_millis(millis).min(Ttl::MAX)
    }

    fn profile(&self) -> Profile {
        Profile {
            store: "redlock",
            reach: Reach::Network,
            liveness: Liveness::Lease,
            renewal: RenewalPlan::ThirdOfTtl,
            longest_ttl: self.longest_ttl(),
            order: Order::Any,
            modes: Modes { shared: true, permits: false },
            // Nodes that know it as a writer and nodes that know it as a reader would have to be
            // renewed, repaired and released by either identity; see docs/guarantees.md.
            downgrade: false,
            tokens: TokenOrder::BeyondData,
            max_local_handoffs: STRIDE as u32,
            cells: None,
            exclusion_fails_when: Cow::Borrowed(&[
                "the clock of a node jumps forward while a lock or a restart_delay runs",
                "a node's maxmemory-policy evicts locks",
            ]),
        }
    }

    pub(crate) fn deployment(&self) -> Deployment {
        Deployment { nodes: self.nodes.len(), epoch: self.set_epoch, delay: self.restart_delay }
    }

    /// How far two clocks may be apart, in microseconds.
    pub(crate) fn tolerance_us(&self) -> u64 {
        micros(self.clock_tolerance)
    }

    pub(crate) fn hosts(&self) -> &[HostPort] {
        &self.nodes
    }

    /// How to connect to the nodes.
    pub(crate) fn options(&self) -> Result<Arc<ConnectOptions>> {
        ConnectOptions::new(self.access.clone())
    }

    /// Connects, on the current runtime. Unreachable and quarantined nodes do not matter as long as
    /// a majority replies.
    ///
    /// # Errors
    /// - [`ErrorKind::Unreachable`]: no majority replies.
    /// - [`ErrorKind::Refused`]: a node belongs to another set of nodes, two names lead to one server, or the
    ///   clocks of a majority do not agree.
    /// - [`ErrorKind::InvalidArgument`]: not an odd number of nodes from 3, a TTL that the restart
    ///   delay does not cover, outside a tokio runtime.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn locks(self, settings: Settings) -> Result<Locks> {
        self.check()?;
        let profile = self.profile();
        profile.require_ttl(settings.default_ttl())?;
        let client = ClientId::fresh(settings.key_prefix());
        let (quorum, within) = self.quorum(&client)?;
        await_quorum(&quorum, within).await?;
        let store = QuorumStore { quorum: Arc::new(quorum), client, profile };
        Locks::new(Arc::new(store), &self.redacted_url(), settings)
    }

    /// Begins to connect to the nodes; how long that may take.
    fn quorum(&self, client: &ClientId) -> Result<(Quorum, Duration)> {
        let options = self.options()?;
        let clock = Arc::new(start_clock()?);
        let view = Arc::new(QuorumView::new(self.deployment(), self.clock_tolerance, clock));
        let members = self.nodes.iter().enumerate().map(|(index, host)| {
            let (host, client) = (host.clone(), client.clone());
            Arc::new(Member::start(index, host, &options, client, view.clone()))
        });
        let quorum = Quorum {
            members: members.collect(),
            node_timeout: self.node_timeout,
            runtime: options.runtime.clone(),
            view,
        };
        Ok((quorum, CONNECT_WITHIN.max(options.timeouts.connect + options.timeouts.answer)))
    }

    /// The store's name in errors and logs.
    pub(crate) fn redacted_url(&self) -> String {
        let secure = if self.access.tls.is_some() { "rediss+" } else { "" };
        let nodes: Vec<String> = self.nodes.iter().map(HostPort::to_string).collect();
        format!("{secure}redlock://{}/{}", nodes.join(","), self.access.database)
    }
}

/// Waits until every node has reported whether it takes part, or a majority has and the others are
/// slow.
async fn await_quorum(quorum: &Quorum, within: Duration) -> Result<()> {
    let started = Instant::now();
    let mut updates = quorum.view.updates.subscribe();
    loop {
        if let Some(error) = quorum.view.superseded() {
            return Err(error);
        }
        quorum.require_servers()?;
        let is_enough = quorum.electorate(quorum.now(), |_| None).is_ok();
        let deadline = started + if is_enough { STRAGGLERS_WITHIN } else { within };
        let is_complete = !quorum.members.iter().any(|member| member.is_undecided());
        if is_complete || Instant::now() >= deadline {
            break;
        }
        // The sender lives as long as `quorum`: this ends with an update or at the deadline.
        let _ = timeout_at(deadline, updates.changed()).await;
    }
    let connected =
        quorum.members.iter().filter(|member| member.connection().state().is_ok()).count();
    match quorum.electorate(quorum.now(), |_| None) {
        // A quarantine ends by itself; until then each acquisition reports it.
        Err(error) if connected < quorum.majority() || error.kind() != ErrorKind::Unreachable => {
            Err(error)
        }
        // Of those that were counted, each has said which server it is.
        _ => quorum.require_servers(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::server::batch::Ticket;

    fn store(url: &str) -> Result<RedlockStore> {
        RedlockStore::from_url(&StoreUrl::parse(url)?).map(|(store, _)| store)
    }

    #[test]
    fn urls_mean_what_they_say() {
        let url =
            "redlock://:secret@a,b:2,c/1?restart_delay=10s&clock_tolerance=1s&set_epoch=3&ttl=5s";
        let parsed = store(url).unwrap();
        assert_eq!(parsed.redacted_url(), "redlock://a:6379,b:2,c:6379/1");
        assert_eq!(parsed.deployment().epoch, 3);
        assert_eq!(parsed.deployment().delay, Duration::from_secs(10));
        assert!(!format!("{parsed:?}").contains("secret"));
        let longest = store("redlock://a,b,c").unwrap().longest_ttl();
        assert!(longest > Duration::from_secs(39) && longest < Duration::from_secs(40));
    }

    #[test]
    fn an_invalid_url_is_rejected_with_what_was_expected() {
        for (url, says) in [
            ("redlock://a", "odd number from 3"),
            ("redlock://a,b,c,d", "odd number from 3"),
            ("redlock://a,b,a", "named twice"),
            ("redlock://a,b,c?restart_delay=0s", "longer than 0"),
            ("redlock://a,b,c?restart_delay=20s", "twice clock_tolerance"),
            ("redlock://a,b,c?clock_tolerance=18446744073709551615s", "no longer than 7 days"),
            ("redlock://a,b,c?node_timeout=500years", "no longer than 7 days"),
            (
                "redlock://a,b,c?ttl=1m",
                "longer than this redlock store allows; expected at most 39s",
            ),
            ("redlock://a,b,c?restart_dely=60s", "did you mean restart_delay?"),
            ("redlock://me@a,b,c", "a user without a password"),
            ("redlock://a,b,c?tls_ca=x", "only"),
        ] {
            let error = store(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(error.to_string().contains(says), "{url}: {error}");
        }
    }

    /// Else two nodes could give two grants one token.
    #[tokio::test]
    async fn a_node_has_one_number_in_whatever_order_the_nodes_are_listed() {
        let numbers = |url| {
            let (quorum, _) = store(url).unwrap().quorum(&ClientId::fresh("")).unwrap();
            let mut numbers: Vec<_> = (0..3)
                .map(|node| (quorum.members[node].host.to_string(), quorum.number(node)))
                .collect();
            numbers.sort();
            numbers
        };
        assert_eq!(numbers("redlock://a,b,c:2"), numbers("redlock://c:2,a,b"));
    }

    /// A silent node costs one `node_timeout` where the others decide, and more only where it does.
    #[tokio::test(start_paused = true)]
    async fn a_late_answer_is_awaited_only_while_it_can_decide() {
        let store = store("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3").unwrap();
        let (quorum, _) = store.quorum(&ClientId::fresh("")).unwrap();
        let limit = quorum.node_timeout;
        for (patience, second, replies, within) in [
            (3, limit * 2, Some(2), limit * 2),
            (3, limit / 2, Some(2), limit),
            (3, limit * 4, None, limit * 3),
            (1, limit * 2, None, limit),
        ] {
            let (asked, after) = (Instant::now(), [Duration::ZERO, second, limit * 9]);
            let answer = async |member: &Member, ticket: Arc<dyn Ticket>| {
                ticket.redeem();
                sleep(after[usize::from(member.host.port) - 1]).await;
                Ok(())
            };
            let seen = quorum.ask(quorum.unanswered(), patience, answer).await;
            assert_eq!(seen.ok().map(|seen| seen.len()), replies);
            assert_eq!(asked.elapsed().as_millis(), within.as_millis(), "{patience} {second:?}");
        }
    }
}
