//! Elections: one leader at a time, whom others can find.
//!
//! A leader is the holder of a lock, and its fencing token is its term. What others read of it is in a cell,
//! which only a larger term overwrites; whether it still leads, the lock says.

pub(crate) mod observing;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::cells::{Handle, Step, View, not_ours, require_token};
use crate::client::connection::Connection;
use crate::guard::Guard;
use crate::lock::Lock;
use crate::store::distributed_lock::Participant;
use crate::time::backoff::Backoff;
use crate::types::error::{Error, ErrorKind, LostReason, Operation, Result, invalid};
use crate::types::mode::Mode;
use crate::types::token::FencingToken;

/// The longest words of a leader, in bytes.
const MOST: usize = 4 * 1024;

/// A term that lasted so long is not one of a quick succession.
const LASTING: Duration = Duration::from_secs(10);

/// One leader at a time, whom others can find.
///
/// A candidate waits in line; the leader leads for as long as it holds the lock of the same name, as every
/// guard says exactly, and its term, a fencing token, is larger than that of every leader before. Whatever the
/// leader writes should check the term, since a leader that was paused may write late.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let election = locks.election("scheduler").with_words("10.0.0.7:9000");
/// let term = election.campaign().await?; // waits for its turn
/// let leader = election.leader().await?.expect("there is one");
/// assert_eq!((leader.words(), leader.term()), (&b"10.0.0.7:9000"[..], term.fencing_token()));
/// term.run(async { println!("leading") }).await?; // ends when the term is lost
/// term.resign().await?;
/// assert!(election.leader().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    connection: Connection,
    name: String,
    handle: Handle,
    lock: Lock,
    words: Vec<u8>,
}

/// The time in which one candidate leads. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Term {
    guard: Guard,
    handle: Handle,
}

/// Who leads.
#[derive(Clone, PartialEq, Eq)]
pub struct Leader {
    words: Vec<u8>,
    term: FencingToken,
}

impl Leader {
    /// What it says of itself, such as its address. Of a leader that has said nothing yet, the label of its
    /// client.
    #[must_use]
    pub fn words(&self) -> &[u8] {
        &self.words
    }

    /// Its term.
    #[must_use]
    pub fn term(&self) -> FencingToken {
        self.term
    }
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leader")
            .field("words", &String::from_utf8_lossy(&self.words))
            .field("term", &self.term)
            .finish()
    }
}

impl Election {
    pub(crate) fn new(connection: &Connection, name: &str, handle: Handle, lock: Lock) -> Election {
        let (connection, name) = (connection.clone(), name.to_owned());
        Election { connection, name, handle, lock, words: Vec::new() }
    }

    /// What others read of this candidate when it leads, such as its address: at most 4 KiB.
    #[must_use]
    pub fn with_words(self, words: impl AsRef<[u8]>) -> Election {
        let words = words.as_ref().to_vec();
        Election { handle: self.handle.checked(check(&words)), words, ..self }
    }

    /// A human-readable label shown by `inspect`.
    #[must_use]
    pub fn label(self, text: &str) -> Election {
        Election { lock: self.lock.label(text), ..self }
    }

    /// How long a lease store keeps the lock of a leader that is silent; see [`Lock::ttl`].
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Election {
        Election { lock: self.lock.ttl(ttl), ..self }
    }

    /// Waits until this candidate leads.
    ///
    /// # Errors
    /// Those of [`Lock::acquire`]; [`ErrorKind::Lost`] when the lock was lost before the others could be told;
    /// [`ErrorKind::Stale`] when a leader with a larger [`token_epoch`](crate::Settings::token_epoch) has led before;
    /// [`ErrorKind::Unsupported`] on a store without cells; [`ErrorKind::InvalidArgument`] when the words are
    /// too long.
    ///
    /// # Cancel safety
    /// Dropped at any await, it leaves neither a place in the queue nor a lock.
    pub async fn campaign(&self) -> Result<Term> {
        // Not after a long wait in the queue.
        self.handle.client(Operation::Acquire).await?;
        let guard = self.lock.acquire().await?;
        let term = Term { guard, handle: self.handle.clone() };
        match term.write(self.words.clone()).await {
            // Not for a smaller epoch, by which it would be told so each time.
            Err(error)
                if error.kind() == ErrorKind::Stale && !self.is_of_later_epoch(&term).await? =>
            {
                let message = "a leader of a later term has written already; this lock was lost";
                let lost = Error::new(ErrorKind::Lost, message).retryable(true).caused_by(error);
                Err(self.handle.explain(lost, Operation::Acquire))
            }
            written => written.map(|()| term),
        }
    }

    /// Whether a leader with a larger epoch than that of `term` has written.
    async fn is_of_later_epoch(&self, term: &Term) -> Result<bool> {
        let own = term.fencing_token().epoch();
        let is_later = |view: View<'_>| FencingToken::stored(view.fence).epoch() > own;
        self.handle.read(Operation::Read, |there| Ok(there.is_some_and(is_later))).await
    }

    /// Leads whenever it can: campaigns, runs `work` until the term is lost, and campaigns again, after a pause of
    /// up to 1 s if terms are lost in quick succession. Ends
    /// when `work` does; then it resigns, unless `work` has given the term away.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let election = locks.election("scheduler");
    /// let leading = tokio::spawn(async move {
    ///     election.lead(|term| async move { Ok(term.fencing_token()) }).await
    /// });
    /// println!("it has led in term {}", leading.await.expect("no panic")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The one that `work` returns, also if it is [`ErrorKind::Lost`] or [`ErrorKind::Stale`]: a work whose
    /// write is rejected waits for [`lost`](Term::lost) instead, to campaign again. Those of
    /// [`campaign`](Election::campaign) that no retry can help.
    ///
    /// # Cancel safety
    /// Dropped at any await, it drops `work` and resigns.
    pub async fn lead<T, W>(&self, mut work: impl FnMut(Arc<Term>) -> W) -> Result<T>
    where
        // Not an async closure of a borrowed term: the future of that could not be spawned.
        W: Future<Output = Result<T>>,
    {
        let mut backoff = Backoff::start();
        loop {
            let term = match self.campaign().await {
                Ok(term) => Arc::new(term),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(target: "fencelock", %error, "campaigning again");
                    tokio::time::sleep(backoff.next(&self.name)).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let began = Instant::now();
            match term.guard.start(async || work(term.clone()).await).await {
                Ok(done) => {
                    if let Some(term) = Arc::into_inner(term)
                        && let Err(error) = term.resign().await
                    {
                        tracing::warn!(target: "fencelock", %error, "the work is done, its term not resigned");
                    }
                    return done;
                }
                Err(error) if error.kind() == ErrorKind::Lost => {
                    tracing::warn!(target: "fencelock", %error, "the term was lost; campaigning again");
                    // One that is taken away again and again must not campaign as fast as it can.
                    if began.elapsed() >= LASTING {
                        backoff = Backoff::start();
                    }
                    drop(term);
                    tokio::time::sleep(backoff.next(&self.name)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Who leads now: who holds the lock exclusively, which readers and permit holders of its name do not.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let said = self.handle.read(Operation::Read, said).await?;
        // Asked after the cell: a leader writes while it holds the lock.
        let seen = self.connection.inspect_holders(&self.name).await?;
        let leads = |holder: &&Participant| holder.mode == Mode::Exclusive;
        let Some(holder) = seen.holders.iter().find(leads) else { return Ok(None) };
        match (said, holder.token) {
            (Some(leader), Some(token)) if leader.term == token => Ok(Some(leader)),
            // It has not said anything yet.
            (_, Some(term)) => {
                let label = holder.label.as_ref().map(|label| label.as_str().as_bytes().to_vec());
                Ok(Some(Leader { words: label.unwrap_or_default(), term }))
            }
            // A client of another library.
            (_, None) => Ok(None),
        }
    }
}

fn check(words: &[u8]) -> Result<()> {
    match words.len() {
        0..=MOST => Ok(()),
        length => {
            Err(invalid(format!("{length} bytes of words are too many: expected at most {MOST}")))
        }
    }
}

/// What the last leader has said.
fn said(there: Option<View<'_>>) -> Result<Option<Leader>> {
    let Some(view) = there else { return Ok(None) };
    let (term, words) = view.body.split_first_chunk().ok_or_else(not_ours)?;
    let term = FencingToken::stored(u64::from_be_bytes(*term));
    Ok(Some(Leader { words: words.to_vec(), term }))
}

impl Term {
    /// The term: larger than that of every leader before.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Whether it provably leads at this moment; see [`Guard::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// Completes when the term is lost; see [`Guard::lost`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        self.guard.lost().await
    }

    /// Runs `work` while it leads, and drops it when the term is lost; see [`Guard::run`].
    ///
    /// # Errors
    /// [`ErrorKind::Lost`].
    ///
    /// # Cancel safety
    /// As cancel safe as `work`.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        self.guard.run(work).await
    }

    /// The guard, for what takes one, such as [`Cell::write`](crate::Cell::write).
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Changes what others read of this leader: at most 4 KiB.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`] or [`ErrorKind::Lost`] when it leads no longer. Otherwise the store's.
    ///
    /// # Cancel safety
    /// If the future is dropped, they may or may not be changed.
    pub async fn proclaim(&self, words: impl AsRef<[u8]>) -> Result<()> {
        let words = words.as_ref().to_vec();
        let valid = check(&words);
        valid.map_err(|error| self.handle.explain(error, Operation::Write))?;
        if !self.is_held() {
            let error = Error::new(ErrorKind::Lost, "the term was lost");
            return Err(self.handle.explain(error, Operation::Write));
        }
        self.write(words).await
    }

    async fn write(&self, words: Vec<u8>) -> Result<()> {
        let term = self.fencing_token();
        let mut body = term.get().to_be_bytes().to_vec();
        body.extend(words);
        let write = move |there: Option<View<'_>>| {
            require_token(there, term)?;
            Ok((Step::Write { body: body.clone(), fence: term.get() }, ()))
        };
        self.handle.change(Operation::Write, write).await
    }

    /// Ends the term; the next candidate in line leads.
    ///
    /// # Errors
    /// Those of [`Guard::release`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the release continues in the background.
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }
}
