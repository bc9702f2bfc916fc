//! The settings of a store, by URL or builder, and its connection.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::backend::{
    CellWatches, ClaimRegistry, current_runtime, invalid, program, start_clock,
};
use fencelock_core::url::{Params, StoreUrl, hosts_in};
use fencelock_core::{Locks, Result, Settings};
use fencelock_net::{Credentials, Login, Timeouts, Tls};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::batch::BatchingSession;
use crate::connection::{ConnectOptions, Histories, Host, without_nul};
use crate::notifications::Notifications;
use crate::schema;
use crate::server_info::ServerInfo;
use crate::statements::Statements;
use crate::store::Store;
use crate::tidying::tidy;

/// A Postgres store that is not yet connected.
///
/// ```no_run
/// # async fn f() -> fencelock_core::Result<()> {
/// use fencelock_core::Settings;
/// use fencelock_postgres::PostgresStore;
/// let store = PostgresStore::server("127.0.0.1", 5432, "app");
/// let locks = store.login("jobs", "password").locks(Settings::default()).await?;
/// let guard = locks.lock("report").acquire().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresStore {
    hosts: Vec<Host>,
    database: String,
    login: Login,
    schema: String,
    owner: String,
    creates: bool,
    tls: Option<Tls>,
    timeouts: Timeouts,
}

const PORT: u16 = 5432;

/// The prefix and a lock's name are in indexes, whose entries have at most 2,704 bytes
/// (`BTMaxItemSize`, with pages of 8 kB).
const MAX_PREFIX: usize = 1_488;

/// An answer may wait for the disk.
const TIMEOUTS: Timeouts =
    Timeouts { connect: Duration::from_secs(2), answer: Duration::from_secs(2) };

/// The parameters of the URLs besides those of all stores.
const PARAMETERS: [&str; 13] = [
    "schema",
    "owner",
    "create",
    "sslmode",
    "host",
    "port",
    "password_file",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_server_name",
    "connect_timeout",
    "answer_timeout",
];

/// What to write in place of parameters of libpq, which the URL of a program's other connections may have.
const ADVICE: [(&str, &str); 24] = [
    ("application_name", "use label=TEXT, which others see beside the lock"),
    ("channel_binding", "leave it out; sslmode=verify-full proves who the server is"),
    ("client_encoding", "leave it out; names are bytes"),
    ("dbname", "write it as the path: postgres://USER@HOST/DATABASE"),
    ("gssencmode", "leave it out; only TLS encrypts here"),
    ("hostaddr", "write it as the host, with tls_server_name=NAME if it is encrypted"),
    ("keepalives", "leave it out; answer_timeout=2s finds a dead connection"),
    ("keepalives_count", "leave it out; answer_timeout=2s finds a dead connection"),
    ("keepalives_idle", "leave it out; answer_timeout=2s finds a dead connection"),
    ("keepalives_interval", "leave it out; answer_timeout=2s finds a dead connection"),
    ("load_balance_hosts", "leave it out; the first host that can be written is used"),
    ("options", "leave it out, or set it for the role: ALTER ROLE USER SET NAME = VALUE"),
    ("passfile", "use password_file=PATH, a file with nothing but the password"),
    ("password", "write it before the host: postgres://USER:PASSWORD@HOST/DATABASE"),
    ("pgbouncer", "leave it out; a pooler is found out"),
    ("search_path", "use schema=NAME, the schema for the locks alone"),
    ("sslcert", "here it is tls_cert=FILE"),
    ("sslkey", "here it is tls_key=FILE"),
    ("sslnegotiation", "leave it out; TLS begins after PostgreSQL's own question for it"),
    ("sslrootcert", "here it is tls_ca=FILE; without it, the system's authorities are trusted"),
    ("statement_timeout", "leave it out; answer_timeout=2s is how long a reply may take"),
    ("target_session_attrs", "leave it out; the first host that can be written is used"),
    ("tcp_user_timeout", "leave it out; answer_timeout=2s finds a dead connection"),
    ("user", "write it before the host: postgres://USER:PASSWORD@HOST/DATABASE"),
];

impl PostgresStore {
    fn of(hosts: Vec<Host>, database: &str) -> PostgresStore {
        PostgresStore {
            hosts,
            database: database.to_owned(),
            login: Login::default(),
            schema: schema::DEFAULT.to_owned(),
            owner: String::new(),
            creates: true,
            tls: None,
            timeouts: TIMEOUTS,
        }
    }

    /// A store in `database` of the server at this address.
    #[must_use]
    pub fn server(host: &str, port: u16, database: &str) -> PostgresStore {
        PostgresStore::of(vec![Host::Tcp(host.to_owned(), port)], database)
    }

    /// A store in `database` of the first of these servers that can be written.
    #[must_use]
    pub fn servers<'a>(
        hosts: impl IntoIterator<Item = (&'a str, u16)>,
        database: &str,
    ) -> PostgresStore {
        let hosts = hosts.into_iter().map(|(name, port)| Host::Tcp(name.to_owned(), port));
        PostgresStore::of(hosts.collect(), database)
    }

    /// Logs in with this user and password.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> PostgresStore {
        self.login = Login::new(user, password);
        self
    }

    /// Logs in with the credentials that `ask` returns. It is called for each connection, on a thread
    /// that may block.
    #[must_use]
    pub fn credentials(
        mut self,
        ask: impl Fn() -> Result<Credentials> + Send + Sync + 'static,
    ) -> PostgresStore {
        self.login = Login::Asked(Arc::new(ask));
        self
    }

    /// The schema with the tables and functions. Default: `fencelock`.
    #[must_use]
    pub fn schema(mut self, name: &str) -> PostgresStore {
        self.schema = name.to_owned();
        self
    }

    /// A role that may own the schema and what is in it, besides those that are always trusted: the user itself,
    /// superusers and, unless the user is one, the database's owner. What another role owns is refused: it would run
    /// with the user's rights.
    #[must_use]
    pub fn owner(mut self, role: &str) -> PostgresStore {
        role.clone_into(&mut self.owner);
        self
    }

    /// Whether to create the schema if it is missing and the user may. Default: yes.
    #[must_use]
    pub fn create(mut self, yes: bool) -> PostgresStore {
        self.creates = yes;
        self
    }

    /// Connects by TLS. Default: without, unless a URL says otherwise.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> PostgresStore {
        self.tls = Some(tls);
        self
    }

    /// How long connecting may take, with its handshakes: 10 ms to a minute. Default: 2 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> PostgresStore {
        self.timeouts.connect = timeout;
        self
    }

    /// How long an answer may take, which may wait for the disk: 10 ms to a minute. Default: 2 s.
    #[must_use]
    pub fn answer_timeout(mut self, timeout: Duration) -> PostgresStore {
        self.timeouts.answer = timeout;
        self
    }

    pub(crate) fn from_url(url: &StoreUrl) -> Result<(PostgresStore, Settings)> {
        let params = url.params_or_advice(&PARAMETERS, &ADVICE)?;
        let settings = params.settings()?;
        let hosts = hosts_of(url, params)?;
        // As with libpq, another slash is a part of its name.
        let database = url.path().strip_prefix('/').unwrap_or_default();
        if database.is_empty() {
            return Err(invalid("no database is named; expected postgres://USER@HOST/DATABASE"));
        }
        without_nul("database's name", database)?;
        without_nul("user", url.user().unwrap_or_default())?;
        without_nul("password", url.password().unwrap_or_default())?;
        let mut store = PostgresStore::of(hosts, database);
        let file = params.text("password_file");
        store.login = match Login::of_parts(url.user(), url.password(), file, "password_file")? {
            Some(login) => login,
            // The server may trust the user, or know it by its certificate.
            None => {
                Login::Fixed(Credentials { user: url.user().map(str::to_owned), password: None })
            }
        };
        if let Some(schema) = params.text("schema") {
            schema::check_name(schema)?;
            store.schema = schema.to_owned();
        }
        if let Some(owner) = params.text("owner") {
            without_nul("owner", owner)?;
            owner.clone_into(&mut store.owner);
        }
        store.creates = match params.text("create") {
            None | Some("auto") => true,
            Some("never") => false,
            Some(_) => return Err(invalid("parameter create: expected auto or never")),
        };
        store.timeouts = store.timeouts.or_of_url(params)?;
        store.tls = store.tls_of(params)?;
        Ok((store, settings))
    }

    /// Encryption, unless the URL says otherwise or nothing leaves this machine.
    fn tls_of(&self, params: Params<'_>) -> Result<Option<Tls>> {
        let given = ["tls_ca", "tls_cert", "tls_key", "tls_server_name"];
        let given = given.iter().any(|name| params.text(name).is_some());
        match params.text("sslmode") {
            Some("disable") if given => {
                Err(invalid("sslmode=disable goes without tls_ca and its like"))
            }
            Some("disable") => Ok(None),
            None if !given && self.hosts.iter().all(Host::is_local) => Ok(None),
            _ if self.hosts.iter().any(|host| matches!(host, Host::Socket(..))) => Err(invalid(
                "a Unix socket goes without sslmode, tls_ca and their like: nothing leaves this machine",
            )),
            None | Some("verify-full") => Tls::from_params(params).map(Some),
            Some(_) => Err(invalid(
                "parameter sslmode: expected verify-full or disable; the other modes accept a server \
                 that proves nothing, or silently go without encryption",
            )),
        }
    }

    /// Connects, on the current runtime.
    ///
    /// # Errors
    /// - [`Unreachable`](fencelock_core::ErrorKind::Unreachable): no server answers, or none can be
    ///   written.
    /// - [`Refused`](fencelock_core::ErrorKind::Refused): the server refuses the login, is not
    ///   PostgreSQL 14 or newer, or lacks the schema, which the user may not create.
    /// - [`InvalidArgument`](fencelock_core::ErrorKind::InvalidArgument): a setting is out of its bounds,
    ///   or this is called outside a tokio runtime.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn locks(self, settings: Settings) -> Result<Locks> {
        schema::check_name(&self.schema)?;
        self.timeouts.check()?;
        if settings.key_prefix().len() > MAX_PREFIX {
            return Err(invalid(format!(
                "the prefix is too long: expected at most {MAX_PREFIX} bytes"
            )));
        }
        let shown = self.redacted_url();
        // Before the first connection, which would panic on a runtime without I/O.
        let (options, clock) = (self.connect_options()?, start_clock()?);
        let cells_channel = options.cells_channel.clone();
        let (claims, cells) = (ClaimRegistry::default(), CellWatches::default());
        let notifications = Arc::new(Notifications { cells_channel, claims, cells });
        let server = BatchingSession::start(options, notifications.clone());
        let session = server.session.first().await?;
        let server_info = ServerInfo::of(&session, &server.options).await?;
        program::call(|| server_info.warn(&shown));
        let profile = server_info.profile();
        let _tidying = AbortOnDropHandle::new(server.options.runtime.spawn(tidy(server.clone())));
        let store = Store { server, clock, notifications, profile, _tidying };
        Locks::new(Arc::new(store), &shown, settings)
    }

    /// On the current runtime.
    pub(crate) fn connect_options(self) -> Result<Arc<ConnectOptions>> {
        let runtime = current_runtime()?;
        self.login.warn();
        Ok(Arc::new(ConnectOptions {
            statements: Statements::of(&self.schema),
            hosts: self.hosts,
            database: self.database,
            login: self.login,
            cells_channel: channel_of_cells(&self.schema),
            schema: self.schema,
            owner: self.owner,
            creates: self.creates,
            tls: self.tls.map(Tls::load).transpose()?,
            channel: format!("fl_{:016x}", rand::random::<u64>()),
            session_name: format!("fencelock_{:016x}", rand::random::<u64>()),
            timeouts: self.timeouts,
            runtime,
            history: Histories::default(),
        }))
    }

    /// The store's name in errors and logs.
    fn redacted_url(&self) -> String {
        let hosts = self.hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",");
        format!("postgres://{hosts}/{}", self.database)
    }
}

/// The hosts of the authority, or the directory of a socket.
fn hosts_of(url: &StoreUrl, params: Params<'_>) -> Result<Vec<Host>> {
    let port = params.number("port")?;
    match (url.authority(), params.text("host")) {
        ("", Some(directory)) if directory.starts_with('/') => {
            without_nul("directory of the socket", directory)?;
            Ok(vec![Host::Socket(directory.into(), port.unwrap_or(PORT))])
        }
        _ if port.is_some() => Err(invalid(
            "parameter port: only for a Unix socket (postgres:///DATABASE?host=/run/postgresql&port=5433); \
             expected postgres://USER@HOST:PORT/DATABASE",
        )),
        ("", _) => Err(invalid(
            "no host is named; expected postgres://USER@HOST/DATABASE, or \
             postgres:///DATABASE?host=/run/postgresql for a Unix socket",
        )),
        (directory, _) if directory.to_ascii_lowercase().starts_with("%2f") => Err(invalid(
            "the directory of a Unix socket is a parameter: postgres://USER@/DATABASE?host=/run/postgresql",
        )),
        (_, Some(_)) => Err(invalid("the host is given twice, in the URL and by host")),
        (hosts, None) => {
            // The zone of an IPv6 address: [fe80::1%25eth0].
            let hosts = hosts_in(&hosts.replace("%25", "%"), PORT)?;
            Ok(hosts.into_iter().map(|(name, port)| Host::Tcp(name, port)).collect())
        }
    }
}

/// The channel of the changed cells of a schema. A name has at most 63 bytes.
fn channel_of_cells(schema: &str) -> String {
    format!("flc_{}", Uuid::new_v5(&Uuid::NAMESPACE_OID, schema.as_bytes()).simple())
}

#[cfg(test)]
mod tests {
    use fencelock_core::ErrorKind;

    use super::*;

    fn store(url: &str) -> Result<PostgresStore> {
        PostgresStore::from_url(&StoreUrl::parse(url)?).map(|(store, _)| store)
    }

    #[test]
    fn urls_are_parsed() {
        for (url, shown) in [
            ("postgres://127.0.0.1/app", "postgres://127.0.0.1:5432/app"),
            ("postgresql://me:secret@[::1]:7/app", "postgres://[::1]:7/app"),
            ("postgres://a,b:7/app?sslmode=disable", "postgres://a:5432,b:7/app"),
            (
                "postgres:///app?host=/run/postgresql",
                "postgres:///run/postgresql/.s.PGSQL.5432/app",
            ),
            ("postgres:///app?host=/run&port=5433", "postgres:///run/.s.PGSQL.5433/app"),
            ("postgres://[fe80::1%25eth0]/app", "postgres://[fe80::1%eth0]:5432/app"),
            ("postgres://localhost/a%2Fb", "postgres://localhost:5432/a/b"),
            ("postgres://localhost/%2Fb", "postgres://localhost:5432//b"),
        ] {
            let store = store(url).unwrap();
            assert_eq!(store.redacted_url(), shown);
            assert!(!format!("{store:?}").contains("secret"));
        }
        for (url, is_encrypted) in [
            ("postgres://localhost/app", false),
            ("postgres://db.example/app", true),
            ("postgres://localhost,db.example/app", true),
            ("postgres://localhost/app?sslmode=verify-full", true),
            ("postgres://localhost/app?tls_ca=x", true),
            ("postgres://db.example/app?sslmode=disable", false),
        ] {
            assert_eq!(store(url).unwrap().tls.is_some(), is_encrypted, "{url}");
        }
        let store = store("postgres://localhost/app?schema=s&create=never").unwrap();
        assert_eq!((&*store.schema, store.creates), ("s", false));
    }

    /// Owner tokens arrive on the channel.
    #[tokio::test]
    async fn what_is_secret_is_not_shown() {
        let options = store("postgres://me:hunter2@h/app?sslmode=disable").unwrap();
        let options = options.connect_options().unwrap();
        let shown = format!("{options:?}");
        assert!(!shown.contains(&options.channel) && !shown.contains("hunter2"), "{shown}");
    }

    #[tokio::test]
    async fn the_timeouts_of_the_builder_are_checked() {
        let store = || PostgresStore::server("127.0.0.1", 1, "app");
        for store in
            [store().connect_timeout(Duration::MAX), store().answer_timeout(Duration::ZERO)]
        {
            let error = store.locks(Settings::default()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("_timeout must be 10ms to 1m"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_prefix_that_no_index_takes_is_refused() {
        let settings = Settings::default().prefix(&"p".repeat(MAX_PREFIX + 1));
        let error = PostgresStore::server("127.0.0.1", 1, "app").locks(settings).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("at most 1488 bytes"), "{error}");
    }

    #[test]
    fn an_error_says_what_was_expected() {
        for (url, says) in [
            ("postgres:///app", "no host is named"),
            ("postgres://localhost", "no database is named"),
            ("postgres://localhost/", "no database is named"),
            ("postgres://localhost/a%00b", "database's name contains NUL"),
            ("postgres://m%00e@localhost/app", "user contains NUL"),
            ("postgres://me:hunter%002@localhost/app", "password contains NUL"),
            ("postgres:///app?host=/run%00", "directory of the socket contains NUL"),
            ("postgres://%2Frun%2Fpostgresql/app", "?host=/run/postgresql"),
            ("postgres://me@%2frun/app", "?host=/run/postgresql"),
            ("postgres://localhost/app?schema=$user", "name of the current user"),
            ("postgres://localhost/app?host=/run", "given twice"),
            ("postgres://localhost/app?port=5433", "only for a Unix socket"),
            ("postgres:///app?host=/run&port=x", "port"),
            ("postgres://localhost/app?schema=pg_locks", "PostgreSQL's own"),
            ("postgres://localhost/app?create=yes", "auto or never"),
            ("postgres://localhost/app?sslmode=prefer", "verify-full or disable"),
            ("postgres://db.example/app?tls_cert=x", "together"),
            ("postgres://localhost/app?sslmode=disable&tls_ca=x", "goes without"),
            ("postgres:///app?host=/run&sslmode=verify-full", "a Unix socket goes without"),
            ("postgres:///app?host=/run&tls_ca=x", "a Unix socket goes without"),
            ("postgres://localhost/app?shema=x", "did you mean schema?"),
            ("postgres://localhost/app?sslrootcert=x", "\"sslrootcert\": here it is tls_ca=FILE"),
            ("postgres://h/app?user=me&password=hunter2", "\"user\": write it before the host"),
            ("postgres://:p@localhost/app?password_file=x", "given twice"),
            ("postgres://h/app?connect_timeout=300000000000years", "connect_timeout must be 10ms"),
            ("postgres://h/app?connect_timeout=0s", "connect_timeout must be 10ms to 1m"),
            ("postgres://h/app?answer_timeout=5years", "answer_timeout must be 10ms to 1m"),
            ("postgres://h/app?answer_timeout=9ms", "answer_timeout must be 10ms to 1m"),
        ] {
            let error = store(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(error.to_string().contains(says), "{url}: {error}");
            assert!(!error.to_string().contains("hunter"), "{error}");
        }
    }
}
