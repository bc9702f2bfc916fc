//! One lock's directory, and the latch under which its queue is read and changed.
//!
//! The latch is an flock on the file `L`, held for microseconds, and free as soon as its holder
//! dies. Inside a process an asynchronous mutex stands before it, since an flock does not exclude
//! those who share a descriptor. Only a latch that is not free at once, which means that another
//! process was interrupted while it held it, occupies a thread; one for each lock at most.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fencelock_core::{Claim, Error, ErrorKind, Label, Moment, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, openat};
use rustix::io::{self, Errno};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::directory::{Directory, refuse_network};
use crate::door::{self, Caller};
use crate::error::{corrupt, failed, foreign, runtime_ended};
use crate::path;
use crate::pipe::{self, PipeName};
use crate::platform::{Identity, identity, identity_of, open_quietly, since_boot};
use crate::queue::{
    BootId, Corrupt, LABEL, LABELS_AT, NAME_AT, NAME_MOST, PAGE, Queue, Slot, area_at,
};

/// The state of a lock, in its directory.
const STATE: &str = "L";
/// How many locks' files a store keeps open between uses.
const KEPT_OPEN: usize = 128;
/// For how long a lock's file is taken to be where it was.
const STAYS: Duration = Duration::from_millis(100);
/// How often a file may be replaced while it is opened before that is an error.
const REPLACED_AT_MOST: usize = 16;

/// What all locks of a connected store have in common.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) directory: Directory,
    pub(crate) boot: BootId,
    pub(crate) runtime: Handle,
    kept_open: Arc<AtomicUsize>,
}

impl Ground {
    pub(crate) fn new(directory: Directory, boot: BootId, runtime: Handle) -> Ground {
        Ground { directory, boot, runtime, kept_open: Arc::default() }
    }
}

/// One lock.
#[derive(Debug)]
pub(crate) struct Place {
    ground: Arc<Ground>,
    key: Arc<str>,
    dir_name: String,
    hash: u64,
    state_path: PathBuf,
    /// The same, as system calls take it: it is looked up at every acquisition.
    state_c_path: CString,
    inner: Arc<Mutex<Inner>>,
    /// A waiter that could hold but does not, and since when that has been seen.
    stalled: std::sync::Mutex<Option<(u64, Moment)>>,
}

/// What to do when the lock has no directory yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Make,
    Leave,
}

impl Place {
    pub(crate) fn new(ground: Arc<Ground>, key: Arc<str>) -> Place {
        let dir_name = path::encode(&key);
        let state_path = ground.directory.path().join(&dir_name).join(STATE);
        // Only a directory with a NUL in its path, which cannot be opened, has no such form.
        let state_c_path = CString::new(state_path.as_os_str().as_bytes()).unwrap_or_default();
        Place {
            hash: path::hash(&key),
            ground,
            key,
            dir_name,
            state_path,
            state_c_path,
            inner: Arc::default(),
            stalled: std::sync::Mutex::default(),
        }
    }

    pub(crate) fn caller(&self, ticket: u64) -> Caller {
        self.hash.wrapping_add(ticket)
    }

    /// Takes note that `ticket` could hold but does not; gives it back once that has been so for
    /// `patience`.
    pub(crate) fn stalled_for(
        &self,
        ticket: Option<u64>,
        now: Moment,
        patience: Duration,
    ) -> Option<u64> {
        let mut stalled = self.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        match (*stalled, ticket) {
            (Some((known, since)), Some(ticket)) if known == ticket => {
                (now.since(since) >= patience).then_some(ticket)
            }
            _ => {
                *stalled = ticket.map(|ticket| (ticket, now));
                None
            }
        }
    }

    /// The queue, for nobody else until what this returns is dropped. Makes the lock's directory.
    ///
    /// May be dropped at any await; then nothing stays latched.
    pub(crate) async fn latch(self: &Arc<Self>) -> Result<Latched> {
        match self.latch_or(Missing::Make).await? {
            Some(latched) => Ok(latched),
            None => Err(foreign(&self.state_path, "it vanishes as soon as it is made")),
        }
    }

    /// As [`latch`](Place::latch); `None` when the lock has no directory.
    pub(crate) async fn latch_if_there(self: &Arc<Self>) -> Result<Option<Latched>> {
        self.latch_or(Missing::Leave).await
    }

    async fn latch_or(self: &Arc<Self>, missing: Missing) -> Result<Option<Latched>> {
        for _ in 0..REPLACED_AT_MOST {
            let mut inner = match self.inner.clone().try_lock_owned() {
                Ok(inner) => inner,
                Err(_) => self.inner.clone().lock_owned().await,
            };
            let open = match &inner.open {
                Some(open) => open.clone(),
                None => match self.open()? {
                    Some(open) => inner.open.insert(Arc::new(open)).clone(),
                    None if missing == Missing::Leave => return Ok(None),
                    None => {
                        let place = self.clone();
                        self.blocking(move || place.make()).await??;
                        continue;
                    }
                },
            };
            let mut latched = match try_latch(&open) {
                Ok(()) => Latched { inner, place: self.clone() },
                Err(Errno::AGAIN) => {
                    let place = self.clone();
                    // The closure owns the latch: when nobody waits for it any more, it is
                    // unlatched as soon as it was latched.
                    let wait = move || wait_for_latch(&open).map(|()| Latched { inner, place });
                    let latched = self.blocking(wait).await?;
                    latched.map_err(|errno| failed("lock", &self.state_path, errno))?
                }
                Err(errno) => return Err(failed("lock", &self.state_path, errno)),
            };
            if self.is_current(&mut latched, missing)? {
                return Ok(Some(latched));
            }
            latched.abandon();
        }
        Err(foreign(&self.state_path, "somebody replaces it again and again"))
    }

    /// The queue as it may be, without the latch: for a look. `None` when it is just being used,
    /// or half-written, or gone.
    pub(crate) fn peek(&self) -> Result<Peek> {
        let Ok(mut inner) = self.inner.try_lock() else { return Ok(Peek::Busy) };
        if inner.open.is_none() {
            inner.open = self.open()?.map(Arc::new);
        }
        let Some(open) = inner.open.clone() else { return Ok(Peek::Gone) };
        if identity(&self.state_c_path) != Ok(open.identity) {
            return Ok(Peek::Gone);
        }
        let read = inner.load(self);
        inner.let_go();
        Ok(match read {
            Ok(()) => Peek::Queue(inner.queue.clone()),
            Err(_) => Peek::Busy,
        })
    }

    /// Whether the latched file is still this lock's. A descriptor of one that was removed or
    /// replaced by hand excludes nobody, since whoever comes later goes by the path. Whoever wants
    /// to make an entry sees at once that it was removed; the rest is looked up now and then,
    /// which is enough for a program that slept while somebody moved the directory.
    fn is_current(&self, latched: &mut Latched, missing: Missing) -> Result<bool> {
        let inner = &mut *latched.inner;
        let Some(open) = &inner.open else { return Ok(false) };
        let now = since_boot();
        let long_ago = inner.checked.is_none_or(|then| now > then + STAYS);
        if missing == Missing::Make || long_ago {
            let linked = identity_of(open.file.as_fd());
            let linked = linked.map_err(|errno| failed("look at", &self.state_path, errno))?;
            if linked != open.identity {
                return Ok(false);
            }
        }
        if missing == Missing::Leave || !long_ago {
            return Ok(true);
        }
        match identity(&self.state_c_path) {
            Ok(identity) if identity == open.identity => {
                inner.checked = Some(now);
                Ok(true)
            }
            Ok(_) | Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("find", &self.state_path, errno)),
        }
    }

    fn open(&self) -> Result<Option<Open>> {
        let directory = &self.ground.directory;
        directory.still_there()?;
        let failed = |errno| failed("open", &self.state_path, errno);
        let dir = match directory.open_dir(&self.dir_name) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        refuse_network(dir.as_fd(), &self.state_path)?;
        let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = open_quietly(dir.as_fd(), STATE, flags).map_err(|errno| match errno {
            Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO => {
                foreign(&self.state_path, "it is no regular file")
            }
            errno => failed(errno),
        })?;
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(foreign(&self.state_path, "it is no regular file"));
        }
        let name = read_name(file.as_fd()).map_err(failed)?;
        if name != self.key.as_bytes() {
            let why = format!(
                "it belongs to the lock {:?}; does the file system know upper and lower case?",
                String::from_utf8_lossy(&name)
            );
            return Err(foreign(&self.state_path, &why));
        }
        let identity = identity_of(file.as_fd()).map_err(failed)?;
        let kept = Kept::one_of(&self.ground.kept_open);
        Ok(Some(Open { dir, file, identity, kept }))
    }

    /// Makes the lock's directory, complete, unless another process has done so meanwhile.
    fn make(&self) -> Result<()> {
        let name = self.key.as_bytes();
        let room = || {
            let message = format!("the prefix is too long; expected at most {NAME_MOST} bytes");
            Error::new(ErrorKind::InvalidArgument, message)
        };
        let length = u32::try_from(name.len()).ok().filter(|_| name.len() <= NAME_MOST);
        let named = [&length.ok_or_else(room)?.to_le_bytes(), name].concat();
        let mut inner = Inner { queue: Queue::new(self.ground.boot), ..Inner::default() };
        // Where tickets begin: above those of every earlier directory of this lock in this boot,
        // so that nobody takes another's entry for its own.
        inner.queue.start_tickets_at(since_boot());
        let commit = inner.queue.encode(&mut inner.page, &mut inner.area);
        let page = &inner.page[..commit.page_len];
        let made = self.ground.directory.make(&self.dir_name, |dir, rights| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = openat(dir, STATE, flags, Mode::RUSR | Mode::WUSR)?;
            write_all(file.as_fd(), &named, NAME_AT)?;
            write_all(file.as_fd(), page, 0)?;
            rights.give_file(dir, STATE)?;
            pipe::make(dir, &PipeName::new(b's', 0), rights)
        });
        made.map_err(|errno| failed("make", &self.state_path, errno))
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let done = self.ground.runtime.spawn_blocking(work).await;
        done.map_err(|error| runtime_ended().caused_by(error))
    }
}

/// What a look without the latch found.
pub(crate) enum Peek {
    Queue(Queue),
    /// Somebody of this process works on it, or writes it at this moment.
    Busy,
    /// The file is not there any more, or another one is.
    Gone,
}

/// A lock's files while they are open.
#[derive(Debug)]
pub(crate) struct Open {
    dir: OwnedFd,
    file: OwnedFd,
    identity: Identity,
    /// Whether they stay open between uses.
    kept: Option<Kept>,
}

impl Open {
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// One of the files that a store keeps open.
#[derive(Debug)]
struct Kept(Arc<AtomicUsize>);

impl Kept {
    fn one_of(count: &Arc<AtomicUsize>) -> Option<Kept> {
        let more = |count| (count < KEPT_OPEN).then_some(count + 1);
        let kept = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        kept.is_ok().then(|| Kept(count.clone()))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug)]
struct Inner {
    open: Option<Arc<Open>>,
    /// When the path was last seen to lead to what is open, since the boot.
    checked: Option<Duration>,
    page: Box<[u8; PAGE]>,
    area: Vec<u8>,
    queue: Queue,
}

impl Default for Inner {
    fn default() -> Inner {
        let queue = Queue::new(BootId::default());
        Inner { open: None, checked: None, page: Box::new([0; PAGE]), area: Vec::new(), queue }
    }
}

impl Inner {
    fn load(&mut self, place: &Place) -> Result<()> {
        let Some(open) = &self.open else { return Err(runtime_ended()) };
        let file = open.file.as_fd();
        let failed = |errno| failed("read", &place.state_path, errno);
        let read = io::pread(file, &mut self.page[..], 0).map_err(failed)?;
        if read == 0 {
            // Lost by a power failure before anything was promised.
            self.queue = Queue::new(place.ground.boot);
            self.queue.start_tickets_at(since_boot());
            return Ok(());
        }
        let decoded = self.queue.decode(&self.page[..read], |range, bytes| {
            bytes.resize(usize::try_from(range.end - range.start).unwrap_or(0), 0);
            let read = read_fully(file, bytes, range.start).map_err(Unread::Errno)?;
            bytes.truncate(read);
            Ok(())
        });
        decoded.map_err(|unread| match unread {
            Unread::Errno(errno) => failed(errno),
            Unread::Corrupt(why) => corrupt(&place.state_path, why),
        })?;
        self.queue.begin(place.ground.boot);
        Ok(())
    }

    /// Closes what is not to be kept open.
    fn let_go(&mut self) {
        if self.open.as_ref().is_some_and(|open| open.kept.is_none()) {
            self.open = None;
        }
    }
}

enum Unread {
    Errno(Errno),
    Corrupt(Corrupt),
}

impl From<Corrupt> for Unread {
    fn from(why: Corrupt) -> Unread {
        Unread::Corrupt(why)
    }
}

/// The latched queue of one lock.
#[derive(Debug)]
pub(crate) struct Latched {
    inner: OwnedMutexGuard<Inner>,
    place: Arc<Place>,
}

impl Latched {
    /// Reads the queue.
    pub(crate) fn load(&mut self) -> Result<&mut Queue> {
        self.inner.load(&self.place)?;
        Ok(&mut self.inner.queue)
    }

    pub(crate) fn queue(&mut self) -> &mut Queue {
        &mut self.inner.queue
    }

    /// Writes the queue: all of it or nothing, also when this process is killed meanwhile.
    pub(crate) fn commit(&mut self) -> Result<()> {
        let inner = &mut *self.inner;
        let Some(open) = &inner.open else { return Err(runtime_ended()) };
        let file = open.file.as_fd();
        let commit = inner.queue.encode(&mut inner.page, &mut inner.area);
        let written = match commit.area {
            Some(which) => write_all(file, &inner.area, area_at(which)),
            None => Ok(()),
        };
        let written = written.and_then(|()| write_all(file, &inner.page[..commit.page_len], 0));
        written.map_err(|errno| failed("write", &self.place.state_path, errno))
    }

    /// The queue's files, which may outlive the latch.
    pub(crate) fn files(&self) -> Result<Arc<Open>> {
        self.inner.open.clone().ok_or_else(runtime_ended)
    }

    /// Takes a pipe that nobody has.
    pub(crate) fn take_slot(&self) -> Result<(Slot, OwnedFd)> {
        let open = self.files()?;
        let rights = self.place.ground.directory.rights();
        let taken = pipe::take(open.dir(), &self.inner.queue, rights);
        taken.map_err(|errno| failed("take a pipe beside", &self.place.state_path, errno))
    }

    /// As [`pipe::watch`].
    pub(crate) fn watch(&self, slot: Slot) -> Result<Option<OwnedFd>> {
        let open = self.files()?;
        pipe::watch(open.dir(), slot).map_err(|errno| match errno {
            Errno::NOENT => {
                foreign(&self.place.state_path, &format!("pipe s{slot} beside it was removed"))
            }
            errno => failed("watch a pipe beside", &self.place.state_path, errno),
        })
    }

    pub(crate) fn write_label(&self, slot: Slot, claim: &Claim) -> Result<()> {
        let open = self.files()?;
        let written = door::write_label(open.file.as_fd(), label_at(slot), claim.label());
        written.map_err(|errno| failed("write", &self.place.state_path, errno))
    }

    pub(crate) fn read_label(&self, slot: Slot) -> Option<Label> {
        let open = self.files().ok()?;
        door::read_label(open.file.as_fd(), label_at(slot))
    }

    /// Has the disk promise more tokens, then reads the queue anew. Takes milliseconds, once in a
    /// million grants.
    pub(crate) async fn promise_tokens(mut self) -> Result<Latched> {
        let place = self.place.clone();
        let promise = move || self.promise().map(|()| self);
        place.blocking(promise).await?
    }

    fn promise(&mut self) -> Result<()> {
        if !self.load()?.needs_tokens() {
            return Ok(());
        }
        let fresh = self.queue().is_fresh();
        self.queue().promise();
        self.commit()?;
        let open = self.files()?;
        let synced = match fresh {
            // The first promise is also that the file will be found.
            true => rustix::fs::fsync(&open.file)
                .and_then(|()| rustix::fs::fsync(&open.dir))
                .and_then(|()| rustix::fs::fsync(self.place.ground.directory.fd())),
            false => rustix::fs::fdatasync(&open.file),
        };
        synced.map_err(|errno| failed("sync", &self.place.state_path, errno))?;
        // Only now may they be used: a crash between must not leave a promise that looks kept.
        self.queue().promise_kept();
        self.commit()
    }

    /// Unlatches a file that is none of this lock's any more.
    fn abandon(mut self) {
        self.unlatch();
        (self.inner.open, self.inner.checked) = (None, None);
    }

    fn unlatch(&self) {
        if let Some(open) = &self.inner.open {
            // Fails for a bad descriptor only.
            let unlocked = rustix::fs::flock(&open.file, FlockOperation::Unlock);
            debug_assert!(unlocked.is_ok(), "flock: {unlocked:?}");
        }
    }
}

impl Drop for Latched {
    fn drop(&mut self) {
        self.unlatch();
        self.inner.let_go();
    }
}

fn try_latch(open: &Open) -> io::Result<()> {
    let once = || rustix::fs::flock(&open.file, FlockOperation::NonBlockingLockExclusive);
    // Whoever has it is mostly done by the second time.
    once().or_else(|_| once())
}

fn wait_for_latch(open: &Open) -> io::Result<()> {
    io::retry_on_intr(|| rustix::fs::flock(&open.file, FlockOperation::LockExclusive))
}

fn label_at(slot: Slot) -> u64 {
    LABELS_AT + u64::from(slot) * LABEL as u64
}

fn read_name(file: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    read_fully(file, &mut length, NAME_AT)?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    let mut name = vec![0; length.min(NAME_MOST)];
    let read = read_fully(file, &mut name, NAME_AT + 4)?;
    name.truncate(read);
    Ok(name)
}

/// Reads until `bytes` is full or the file ends.
fn read_fully(file: BorrowedFd<'_>, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match io::pread(file, &mut bytes[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(read)
}

fn write_all(file: BorrowedFd<'_>, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        match io::pwrite(file, &bytes[written..], at + written as u64) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(more) => written += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
