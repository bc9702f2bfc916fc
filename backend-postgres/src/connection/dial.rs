//! Opens a session: the socket, the login, the server's suitability, and whether a pooler is between.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fencelock_core::backend::{Credentials, io_message};
use fencelock_core::{Error, ErrorKind, Result};
use fencelock_net::{Secured, program, tcp};
use futures_util::future::try_join_all;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::config::SslMode;
use tokio_postgres::types::Type;
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls, Notification, SimpleQueryMessage,
};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::options::{ConnectOptions, Host};
use super::session::{Session, SessionState};
use super::supervised::PushHandler;
use crate::error::{
    MAKE_SCHEMA, Remedy, explain, meaning_of, no_login, read_setting, unreachable, words_of,
    words_of_server,
};
use crate::schema;
use crate::statements::Function;

/// How long the notification takes at most that shows that no pooler is between. Each connection by a pooler
/// costs this time.
pub(super) const USUAL_PROBE: Duration = Duration::from_millis(500);

/// After one that arrived too late: of a busy server.
pub(super) const PATIENT_PROBE: Duration = Duration::from_secs(5);

/// How long the server may take to end the session that this one replaces, in ms.
const END_WITHIN_MS: &str = "2000";

impl ConnectOptions {
    /// A session with the first host that can be written.
    pub(super) async fn open(
        &self,
        handler: &Arc<dyn PushHandler>,
        probe: Duration,
    ) -> Result<Session> {
        let mut last_error = None;
        for host in &self.hosts {
            match self.open_at(host, handler, probe).await {
                Ok(session) => return Ok(session),
                // Another host may be suitable.
                Err(error) => {
                    program::call(|| tracing::debug!(%host, %error, "no session"));
                    last_error = Some(match last_error {
                        // What a retry may help, since the others may.
                        Some(last) if !Error::is_retryable(&error) => last,
                        _ => error,
                    });
                }
            }
        }
        Err(last_error.unwrap_or_else(|| unreachable("there is no host")))
    }

    async fn open_at(
        &self,
        host: &Host,
        handler: &Arc<dyn PushHandler>,
        probe: Duration,
    ) -> Result<Session> {
        let limit = self.timeouts.connect;
        let end = Instant::now() + limit;
        // A channel for this alone: behind a pooler the session that listens to it becomes another program's,
        // to which the notifications of the process's channel would show owner tokens.
        let (channel, probed) = (format!("fl_{}", Uuid::new_v4().simple()), oneshot::channel());
        let pushes = Pushes { handler: handler.clone(), probe: Some((channel.clone(), probed.0)) };
        let dialled = timeout_at(end, self.log_in(host, Some(pushes))).await;
        let late = || {
            unreachable(format!(
                "no login at {host} within {limit:?}; is a PostgreSQL server listening there?"
            ))
        };
        let (client, state, task) = dialled.map_err(|_| late())??;
        let mut session = Session { client, host: host.clone(), prepared: None, state, task };
        let prepared = timeout_at(end + probe + limit, async {
            self.require(&session).await?;
            self.require_schema(&session).await?;
            let backend = self.listen(&session, &channel).await?;
            let is_direct = self.probe(host, &channel, backend, (probed.1, probe)).await?;
            let unlisten = format!("UNLISTEN {}", schema::quoted(&channel));
            self.execute(&session, &unlisten).await?;
            match is_direct {
                true => self.get_ready(&session).await,
                false => {
                    program::call(|| {
                        tracing::warn!(
                            %host,
                            "a pooler is between: it passes no notifications, so waiters ask ten times a \
                             second; session mode, or a direct connection, is better"
                        );
                    });
                    Ok(None)
                }
            }
        });
        session.prepared = prepared.await.map_err(|_| late())??;
        Ok(session)
    }

    /// Connects and logs in.
    async fn log_in(
        &self,
        host: &Host,
        pushes: Option<Pushes>,
    ) -> Result<(Client, Arc<SessionState>, AbortOnDropHandle<()>)> {
        let Credentials { user, password } = self.login.credentials(&self.runtime).await?;
        let mut config = Config::new();
        // A stream is encrypted before it comes here.
        config.ssl_mode(SslMode::Disable);
        config.dbname(&self.database).application_name(&self.session_name);
        // Without one it is this process's user, as with libpq.
        if let Some(user) = user {
            config.user(user);
        }
        if let Some(password) = password {
            config.password(password);
        }
        match host {
            Host::Tcp(name, port) => {
                let stream = tcp(name, *port, self.timeouts.answer).await;
                let stream = stream.map_err(|error| not_connected(host, &error))?;
                match &self.tls {
                    Some(tls) => {
                        let stream = encrypt(tls, name, host, stream).await?;
                        self.start(&config, host, stream, pushes).await
                    }
                    None => self.start(&config, host, stream, pushes).await,
                }
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
    ) -> Result<(Client, Arc<SessionState>, AbortOnDropHandle<()>)>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let login = config.connect_raw(stream, NoTls).await;
        let (client, connection) = login.map_err(|error| no_login(&error, host))?;
        let state = Arc::new(SessionState::default());
        let driver = Driver { connection, pushes, state: state.clone() };
        let task = AbortOnDropHandle::new(self.runtime.spawn(driver));
        Ok((client, state, task))
    }

    /// Refuses a server that cannot carry locks.
    async fn require(&self, session: &Session) -> Result<()> {
        let sql = "SELECT pg_catalog.pg_is_in_recovery(), \
                   pg_catalog.current_setting('transaction_read_only') = 'on', \
                   pg_catalog.current_setting('server_version_num')::int, pg_catalog.version()";
        let row = session.client.query_typed(sql, &[]).await;
        let row = session.state.observe(Some(row), &session.host)?;
        let row = row.first().ok_or_else(|| unreachable("no answer about the server"))?;
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
        Ok(())
    }

    /// Creates or completes the schema, if that is allowed.
    async fn require_schema(&self, session: &Session) -> Result<()> {
        let schema = schema::quoted(&self.schema);
        let asked = session.client.query_typed(&format!("SELECT {schema}.version()"), &[]).await;
        let missing = match asked {
            Ok(rows) => {
                let version = rows.first().map_or(Ok(0), |row| row.try_get::<_, i32>(0));
                let version = version.map_err(|cause| {
                    let message = format!(
                        "{schema}.version() does not answer with a number ({cause}), so the schema {schema} is \
                         another program's: name another one in the URL (schema=NAME)"
                    );
                    Error::new(ErrorKind::Refused, message)
                })?;
                if version >= schema::VERSION {
                    return Ok(());
                }
                Error::new(
                    ErrorKind::Refused,
                    format!("{MAKE_SCHEMA} (schema {schema} has version {version})"),
                )
            }
            Err(error) => {
                let state = error.as_db_error().map(|error| error.code().code().to_owned());
                let is_missing = matches!(state.as_deref(), Some("3F000" | "42883"));
                if !is_missing {
                    return session.state.observe(Some(Err(error)), &session.host);
                }
                explain(&error)
            }
        };
        if !self.creates {
            return Err(missing);
        }
        // Two clients at once would meet in the catalogue.
        let script = format!(
            "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('fencelock schema ' || {}, 0)); \
             {}; COMMIT",
            schema::literal(&self.schema),
            schema::script(&self.schema),
        );
        let created = session.client.batch_execute(&script).await;
        let Err(error) = created else { return Ok(()) };
        // The statement that failed has left its transaction open.
        session.state.health.fail();
        match error.as_db_error().filter(|_| meaning_of(&error).kind == ErrorKind::Refused) {
            // Its owner can help.
            Some(refusal) => {
                let (missing, why) = (missing.message(), words_of_server(refusal));
                let message = format!("{missing}; this user cannot create it: {why}");
                Err(Error::new(ErrorKind::Refused, message))
            }
            None => session.state.observe(Some(Err(error)), &session.host),
        }
    }

    /// Listens to the channel of the probe; the backend that does, as one statement has it.
    async fn listen(&self, session: &Session, channel: &str) -> Result<Option<String>> {
        let listen = format!("LISTEN {}; SELECT pg_backend_pid()", schema::quoted(channel));
        let asked = session.client.simple_query(&listen).await;
        let messages = session.state.observe(Some(asked), &session.host)?;
        Ok(messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }))
    }

    /// Whether a notification from another session arrives at the one of `backend`. That one must not be used
    /// meanwhile: a pooler would pass the notification on with an answer.
    async fn probe(
        &self,
        host: &Host,
        channel: &str,
        backend: Option<String>,
        (arrived, limit): (oneshot::Receiver<()>, Duration),
    ) -> Result<bool> {
        let (client, state, _task) = self.log_in(host, None).await?;
        let notify = "SELECT pg_catalog.pg_backend_pid()::text, pg_catalog.pg_notify($1, '')";
        let sent = client.query_typed(notify, &[(&channel, Type::TEXT)]).await;
        let rows = state.observe(Some(sent), host)?;
        // Two connections at one backend, which only a pooler makes, and which a notification would take as
        // long as it may to show.
        let other = rows.first().map(|row| read_setting(row, 0)).transpose()?;
        if other == backend {
            return Ok(false);
        }
        Ok(timeout(limit, arrived).await.is_ok())
    }

    /// Settings of a session of one's own, and its statements; none when their names are taken.
    async fn get_ready(&self, session: &Session) -> Result<Option<Vec<tokio_postgres::Statement>>> {
        // Not every system can check a connection. And a request of the session that this one replaces must
        // not arrive behind a later one of this.
        let settings = format!(
            "SET default_transaction_isolation = 'read committed'; \
             SET statement_timeout = 0; SET idle_session_timeout = 0; \
             DO $$ BEGIN SET client_connection_check_interval = '1s'; \
             EXCEPTION WHEN invalid_parameter_value THEN NULL; END $$; LISTEN {}; \
             SELECT pg_terminate_backend(pid, {END_WITHIN_MS}) FROM pg_stat_activity \
             WHERE application_name = {} AND usename = current_user AND pid <> pg_backend_pid()",
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
        let prepared = session.state.observe(Some(prepared), &session.host)?;
        // Not in the text above, which tokio-postgres logs.
        let listen = format!("LISTEN {}", schema::quoted(&self.channel));
        let listening = session.client.query_typed(&listen, &[]).await;
        session.state.observe(Some(listening), &session.host).map(|_| Some(prepared))
    }

    async fn execute(&self, session: &Session, sql: &str) -> Result<()> {
        let done = session.client.batch_execute(sql).await;
        session.state.observe(Some(done), &session.host)
    }
}

/// Refuses what is not Postgres, or too old.
fn suitable(number: i32, version: &str) -> Result<()> {
    let other = ["CockroachDB", "-YB-"].into_iter().any(|name| version.contains(name));
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

/// Where the notifications of a connection go.
struct Pushes {
    handler: Arc<dyn PushHandler>,
    /// The channel on which one shows that notifications arrive.
    probe: Option<(String, oneshot::Sender<()>)>,
}

impl Pushes {
    fn receive(&mut self, notification: &Notification, state: &SessionState) {
        let is_probe = |(channel, _): &mut (String, _)| *channel == notification.channel();
        match self.probe.take_if(is_probe) {
            Some((_, arrived)) => {
                if arrived.send(()).is_err() {
                    // No pooler is between after all.
                    state.is_late.store(true, Ordering::Relaxed);
                    state.health.fail();
                }
            }
            None => self.handler.on_notification(notification.channel(), notification.payload()),
        }
    }
}

/// The task of a connection.
struct Driver<S> {
    connection: Connection<S, tokio_postgres::tls::NoTlsStream>,
    pushes: Option<Pushes>,
    state: Arc<SessionState>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Driver<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            match ready!(this.connection.poll_message(cx)) {
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    if let Some(pushes) = &mut this.pushes {
                        pushes.receive(&notification, &this.state);
                    }
                }
                Some(Ok(_)) => {}
                ended => {
                    if let Some(Err(error)) = ended {
                        let error = words_of(&error);
                        program::call(|| tracing::debug!(error, "a connection ended"));
                    }
                    return Poll::Ready(());
                }
            }
        }
    }
}

/// Also after a panic: tokio-postgres logs too.
impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        self.state.health.fail();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_postgres_or_too_old_is_refused() {
        suitable(140_000, "PostgreSQL 14.0").unwrap();
        for (number, version, says) in [
            (130_014, "PostgreSQL 13.14", "14 or newer"),
            (150_000, "CockroachDB CCL v24", "not PostgreSQL"),
            (150_002, "PostgreSQL 15.2-YB-2.25", "not PostgreSQL"),
        ] {
            let error = suitable(number, version).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
