//! Opens a session: the socket, the login, the server's suitability, and whether a pooler is between.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencelock_core::backend::{invalid, io_message, program};
use fencelock_core::{Error, ErrorKind, Result};
use fencelock_net::{Bounded, Credentials, Secured, tcp, tcp_to, words_of_server};
use futures_util::future::try_join_all;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};
use tokio::try_join;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::Type;
use tokio_postgres::{Config, NoTls, SimpleQueryMessage};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::creation::{Found, OF_SCHEMA};
use super::driver::{AwaitedProbe, Driver, Pushes};
use super::history::History;
use super::messages::{LoginState, Messages};
use super::options::{ConnectOptions, Host, Known, PATIENT_PROBE, without_nul};
use super::session::{PushHandler, Session, SessionState, patient};
use crate::error::{Remedy, meaning_of, no_login, read_setting, unreachable, words_of};
use crate::schema;
use crate::statements::{Function, UNLESS_FULL};

/// How long the server may take to end the session that this one replaces, in ms.
const END_WITHIN_MS: &str = "2000";

impl ConnectOptions {
    /// A session with the first host that can be written.
    pub(super) async fn open(
        &self,
        handler: &Arc<dyn PushHandler>,
        known: &Known,
    ) -> Result<Session> {
        let mut failure: Option<Error> = None;
        for host in &self.hosts {
            let error = match self.reach(host, handler, known).await {
                Ok(reached) => match Box::pin(self.prepare(reached)).await {
                    Ok(session) => return Ok(session),
                    // Of the server that can be written: no other host helps.
                    Err(error) if !error.is_retryable() => return Err(error),
                    Err(error) => error,
                },
                // Another host may be suitable.
                Err(error) => error,
            };
            program::call(|| tracing::debug!(%host, %error, "no session"));
            failure = Some(match failure {
                // Final, if no retry helps any of them. Each may be the true reason.
                Some(other) => {
                    let both = format!("{}; {}", other.message(), error.message());
                    match other.is_retryable() || error.is_retryable() {
                        true => unreachable(both),
                        false => Error::new(error.kind(), both),
                    }
                }
                None => error,
            });
        }
        Err(failure.unwrap_or_else(|| unreachable("there is no host")))
    }

    /// A session with a server that can be written.
    async fn reach(
        &self,
        host: &Host,
        handler: &Arc<dyn PushHandler>,
        known: &Known,
    ) -> Result<Reached> {
        let (limit, probe) = (self.timeouts.connect, known.probe);
        let end = Instant::now() + limit;
        // A channel for this alone: behind a pooler the session that listens to it becomes another program's,
        // to which the notifications of the process's channel would show owner tokens.
        let channel = format!("fl_{}", Uuid::new_v4().simple());
        let (arrived, probed) = oneshot::channel();
        let is_patient = probe >= PATIENT_PROBE;
        let awaited = AwaitedProbe { channel: channel.clone(), arrived, is_patient };
        let pushes = Pushes { handler: handler.clone(), probe: Some(awaited) };
        let login = timeout_at(end, self.log_in(host, None, Some(pushes))).await;
        let session = login.unwrap_or_else(|_| {
            Err(unreachable(format!(
                "no login at {host} within {limit:?}; is a PostgreSQL server listening there?"
            )))
        })?;
        let end = end + probe + limit;
        // In one round trip.
        let history = async { Ok(History::of(&session.client).await) };
        let asking = async { try_join!(self.require(&session), history) };
        let ((found, backend), history) = self.in_time(host, end, asking).await?;
        match found.is_trusted() {
            // No request lies between: if one failed, the next host, which this one has replaced, would be used.
            true => self.history.keep(host, history)?,
            false => self.history.require(host, history)?,
        }
        // Where a probe has shown it, and the login names the backend. So it needs no second slot of a server that may
        // have no other.
        let is_direct = known.direct.as_ref() == Some(host) && session.backend == backend;
        let probe = (!is_direct).then_some(Probe { channel, probed, limit: probe });
        Ok(Reached { session, found, history, end, probe })
    }

    /// Makes the session ready for requests.
    async fn prepare(&self, reached: Reached) -> Result<Session> {
        let Reached { mut session, found, history, end, probe } = reached;
        let preparing = async {
            self.require_schema(&session, found).await?;
            // It was made just now.
            self.history.keep(&session.host, history)?;
            self.warn_of_missing_rights(&session).await?;
            if self.is_direct(&session, probe).await? {
                return self.get_ready(&session).await;
            }
            program::call(|| {
                tracing::warn!(
                    host = %session.host,
                    "a pooler is between: it passes no notifications, so waiters ask ten times a second, and after \
                     four seconds each second; session mode, or a direct connection, is better"
                );
            });
            // The name of the session is of no use there, and pgbouncer sets it for each transaction of a client that
            // has another one than the last, in a transaction of its own.
            self.execute(&session, "SET application_name = 'fencelock'").await?;
            Ok(None)
        };
        session.prepared = self.in_time(&session.host, end, Box::pin(preparing)).await?;
        Ok(session)
    }

    /// What is asked of a session at `host` before it is used.
    async fn in_time<T>(
        &self,
        host: &Host,
        end: Instant,
        asking: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        timeout_at(end, asking).await.unwrap_or_else(|_| {
            Err(unreachable(format!(
                "the login at {host} succeeded, but its session was not ready in time \
                 (connect_timeout={:?}); is the server overloaded, or has a pooler no session left?",
                self.timeouts.connect
            )))
        })
    }

    /// Connects and logs in, at this address of the host if there is one.
    async fn log_in(
        &self,
        host: &Host,
        address: Option<SocketAddr>,
        pushes: Option<Pushes>,
    ) -> Result<Session> {
        let Credentials { user, password } = self.login.credentials(&self.runtime).await?;
        let mut config = Config::new();
        // A stream is encrypted before it comes here.
        config.ssl_mode(SslMode::Disable);
        without_nul("database's name", &self.database)?;
        // Another name for the second one of a probe, which is not to be ended with what the first one replaces: the
        // server would log that.
        let name = if pushes.is_some() { &self.session_name } else { "fencelock" };
        config.dbname(&self.database).application_name(name);
        let user = user_or(user, whoami::username)?;
        without_nul("user", &user)?;
        config.user(user);
        if let Some(password) = password {
            without_nul("password", &password)?;
            config.password(password);
        }
        match host {
            Host::Tcp(name, port) => {
                let answer = self.timeouts.answer;
                let stream = match address {
                    Some(address) => tcp_to(address, answer).await,
                    None => tcp(name, *port, answer).await,
                };
                let stream = stream.map_err(|error| not_connected(host, &error))?;
                let address = stream.peer_addr().ok();
                let session = match &self.tls {
                    Some(tls) => {
                        let stream = encrypt(tls, name, host, stream).await?;
                        self.start(&config, host, stream, pushes).await?
                    }
                    None => self.start(&config, host, stream, pushes).await?,
                };
                Ok(Session { address, ..session })
            }
            Host::Socket(directory, port) => {
                let path = directory.join(format!(".s.PGSQL.{port}"));
                let stream = UnixStream::connect(Path::new(&path)).await;
                let stream = stream.map_err(|error| not_connected(host, &error))?;
                self.start(&config, host, stream, pushes).await
            }
        }
    }

    async fn start<S>(
        &self,
        config: &Config,
        host: &Host,
        stream: S,
        pushes: Option<Pushes>,
    ) -> Result<Session>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let of_login = Arc::new(LoginState::default());
        let stream = Bounded::new(stream, Messages::new(of_login.clone()));
        let login = config.connect_raw(stream, NoTls).await;
        let (client, connection) = login.map_err(|error| no_login(&error, host))?;
        of_login.is_done.store(true, Ordering::Relaxed);
        let state = Arc::new(SessionState::default());
        let (backend, host) = (of_login.backend.load(Ordering::Relaxed), host.clone());
        let driver = Driver { connection, pushes, state: state.clone() };
        let task = AbortOnDropHandle::new(self.runtime.spawn(driver));
        Ok(Session { client, host, address: None, backend, prepared: None, state, task })
    }

    /// Refuses a server that cannot carry locks. Returns what it says of their schema, and its backend's process ID.
    async fn require(&self, session: &Session) -> Result<(Found, u32)> {
        let sql = format!(
            "SELECT pg_catalog.pg_is_in_recovery(), \
             pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.=) 'on', \
             pg_catalog.current_setting('server_version_num')::pg_catalog.int4, pg_catalog.version(), \
             pg_catalog.pg_backend_pid(), {OF_SCHEMA}"
        );
        let row = &self.ask_of_schema(session, &sql).await?;
        let (standby, read_only): (bool, bool) = (read_setting(row, 0)?, read_setting(row, 1)?);
        suitable(read_setting(row, 2)?, read_setting(row, 3)?)?;
        if standby || read_only {
            let host = &session.host;
            return Err(unreachable(match standby {
                true => format!("{host} is a standby; name the primary in the URL too"),
                false => format!(
                    "{host} is read-only for this user (default_transaction_read_only is on); name \
                     the primary in the URL too, or have that setting changed"
                ),
            }));
        }
        let backend: i32 = read_setting(row, 4)?;
        Ok((Found::read(row, 5)?, backend.cast_unsigned()))
    }

    /// Whether a notification from another session arrives at this one. It must not be used meanwhile: a pooler
    /// would pass the notification on with an answer.
    async fn is_direct(&self, session: &Session, probe: Option<Probe>) -> Result<bool> {
        let Some(probe) = probe else { return Ok(true) };
        let channel = schema::quoted(&probe.channel);
        // The backend that listens, as one statement has it.
        let listen = format!("LISTEN {channel}; SELECT pg_catalog.pg_backend_pid()");
        let asked = session.client.simple_query(&listen).await;
        let messages = session.state.observe(asked, &session.host)?;
        let backend: Option<String> = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        // At another address of the host there may be another server.
        let other = self.log_in(&session.host, session.address, None).await?;
        let notify = format!(
            "SELECT pg_catalog.pg_backend_pid()::pg_catalog.text, pg_catalog.pg_notify($1, ''){UNLESS_FULL}"
        );
        let sent = other.client.query_typed(&notify, &[(&probe.channel, Type::TEXT)]).await;
        let is_direct = match other.state.observe(sent, &other.host)?.first() {
            // Two connections at one backend, which only a pooler makes, and which a notification would take as
            // long as it may to show.
            Some(row) if read_setting::<Option<String>>(row, 0)? == backend => false,
            Some(_) => matches!(timeout(probe.limit, probe.probed).await, Ok(Ok(()))),
            // No notification is sent now. The login of a pooler names another backend.
            None => backend == Some(session.backend.to_string()),
        };
        // Behind a pooler another session may get this, and the first keeps a channel that is not used again.
        self.execute(session, &format!("UNLISTEN {channel}")).await?;
        Ok(is_direct)
    }

    /// Settings of a session of one's own, and its statements; none when their names are taken.
    async fn get_ready(&self, session: &Session) -> Result<Option<Vec<tokio_postgres::Statement>>> {
        // A schema that an earlier build made takes any value of fencelock.notified for its mark.
        // A request of the session that this one replaces must not arrive behind a later one of this; the user that
        // logged in may end it, a role of its settings may not.
        let settings = format!(
            "SET default_transaction_isolation = 'read committed'; \
             SET client_min_messages = warning; \
             SET idle_session_timeout = 0; SET fencelock.notified = ''; {} LISTEN {}; \
             SET ROLE NONE; \
             SELECT pg_catalog.pg_terminate_backend(pid, {END_WITHIN_MS}) FROM pg_catalog.pg_stat_activity \
             WHERE application_name OPERATOR(pg_catalog.=) {} AND usename OPERATOR(pg_catalog.=) session_user \
             AND pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid(); \
             RESET ROLE",
            patient("SET"),
            schema::quoted(&self.cells_channel),
            schema::literal(&self.session_name),
        );
        self.execute(session, &settings).await?;
        let prepare = |function: Function| {
            session.client.prepare_typed(self.statements.text(function), function.types())
        };
        let prepared = try_join_all(Function::ALL.map(prepare)).await;
        if let Err(error) = &prepared
            && meaning_of(error).remedy == Remedy::Unnamed
        {
            program::call(|| {
                tracing::warn!(
                    host = %session.host,
                    error = words_of(error),
                    "a pooler is between, and its sessions keep the statements of other programs: waiters ask \
                     ten times a second; have it reset a session for each client (server_reset_query)"
                );
            });
            return Ok(None);
        }
        let prepared = session.state.observe(prepared, &session.host)?;
        // Not in the text above, which tokio-postgres logs.
        let listen = format!("LISTEN {}", schema::quoted(&self.channel));
        let listening = session.client.query_typed(&listen, &[]).await;
        session.state.observe(listening, &session.host).map(|_| Some(prepared))
    }

    async fn execute(&self, session: &Session, sql: &str) -> Result<()> {
        let done = session.client.batch_execute(sql).await;
        session.state.observe(done, &session.host)
    }
}

/// Without one it is the user of this process, as with libpq.
fn user_or<E: std::fmt::Display>(
    user: Option<String>,
    of_process: impl FnOnce() -> Result<String, E>,
) -> Result<String> {
    let nameless = |cause| {
        invalid(format!(
            "no user is named, and the user of this process has no name ({cause}), as in some containers: \
             name one, as in postgres://USER@HOST/DATABASE"
        ))
    };
    user.map_or_else(|| of_process().map_err(nameless), Ok)
}

/// Refuses what is not Postgres, or too old.
fn suitable(number: i32, version: &str) -> Result<()> {
    let other = ["CockroachDB", "-YB-"].into_iter().any(|name| version.contains(name));
    let version = words_of_server(version);
    if other {
        let message = format!("the server is not PostgreSQL ({version})");
        return Err(Error::new(ErrorKind::Refused, message));
    }
    if number < 140_000 {
        let message = format!("PostgreSQL 14 or newer is needed; the server is {version}");
        return Err(Error::new(ErrorKind::Refused, message));
    }
    Ok(())
}

/// Encrypts a connection, and checks the server's certificate.
async fn encrypt(
    tls: &Secured,
    name: &str,
    host: &Host,
    mut stream: TcpStream,
) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static> {
    /// <https://www.postgresql.org/docs/current/protocol-message-formats.html>
    const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
    let asking = async {
        stream.write_all(&SSL_REQUEST).await?;
        stream.read_u8().await
    };
    let answer = asking.await.map_err(|error| not_connected(host, &error))?;
    if ![b'S', b'N'].contains(&answer) {
        return Err(unreachable(format!("{host} is not a PostgreSQL server")));
    }
    if answer == b'N' {
        let message = format!("{host} offers no encryption; sslmode=disable connects without");
        return Err(Error::new(ErrorKind::Refused, message));
    }
    tls.handshake(name, host, stream, "sslmode=disable connects without").await
}

fn not_connected(host: &Host, error: &std::io::Error) -> Error {
    let words = io_message(error);
    let advice = match error.kind() {
        std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound => {
            "; is the server running, and listening there?"
        }
        _ if words.contains("lookup") => "; check the spelling of the host",
        _ => "",
    };
    unreachable(format!("no connection to {host} ({words}){advice}"))
}

/// A session with a server that can be written.
struct Reached {
    session: Session,
    /// What its catalogue says of the schema.
    found: Found,
    history: Option<History>,
    /// When it must be ready.
    end: Instant,
    /// None if it is known that no pooler is between.
    probe: Option<Probe>,
}

/// What shows whether a pooler is between.
struct Probe {
    channel: String,
    /// Its notification has arrived.
    probed: oneshot::Receiver<()>,
    /// How long that may take.
    limit: Duration,
}

#[cfg(test)]
mod tests {
    use fencelock_core::url::StoreUrl;
    use fencelock_testkit::servers::TestPostgres;

    use super::*;
    use crate::config::PostgresStore;

    #[derive(Debug)]
    struct Nowhere;

    impl PushHandler for Nowhere {
        fn on_notification(&self, _: &str, _: &str) {}
        fn on_gap(&self) {}
    }

    /// Behind a name or a balancer another server may answer, whose notifications do not arrive.
    #[tokio::test]
    async fn the_probe_connects_to_the_address_of_the_first_connection() {
        let server = TestPostgres::start().await.unwrap();
        let (store, _) = PostgresStore::from_url(&StoreUrl::parse(&server.url()).unwrap()).unwrap();
        let options = store.clone().connect_options().unwrap();
        let handler: Arc<dyn PushHandler> = Arc::new(Nowhere);
        let known = Known { probe: PATIENT_PROBE, direct: None };
        let mut reached = options.reach(&options.hosts[0], &handler, &known).await.unwrap();
        assert_eq!(reached.session.address, Some(server.addr()));
        assert!(
            reached.history.is_some()
                && options.history.require(&reached.session.host, None).is_ok()
        );
        // The name leads nowhere by now.
        reached.session.host = Host::Tcp("nowhere.invalid".to_owned(), 5432);
        let session = options.prepare(reached).await.unwrap();
        assert!(session.is_direct());
        // Only now.
        assert!(options.history.require(&session.host, None).is_err());
        // Of a schema that is there, at once: whatever fails from here on, this server has replaced others.
        let options = store.connect_options().unwrap();
        options.reach(&options.hosts[0], &handler, &known).await.unwrap();
        assert!(options.history.require(&session.host, None).is_err());
    }

    /// As in a container whose user is a number.
    #[test]
    fn a_process_without_a_user_has_to_name_one() {
        assert_eq!(user_or(Some("me".to_owned()), || Err("no entry")).unwrap(), "me");
        assert_eq!(user_or(None, || Ok::<_, &str>("us".to_owned())).unwrap(), "us");
        let error = user_or(None, || Err("no entry")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("postgres://USER@HOST"), "{error}");
    }
}
