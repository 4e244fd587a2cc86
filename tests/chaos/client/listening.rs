//! Acquires with `WriteLock` and its listener, and checks that the listener is called as documented.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use zookeeper_recipes_lock::{LockError, LockListener, LossReason, Session, SessionState, WriteLock};

use super::contender::{Contender, class_of};
use super::holding::Held;
use super::journal::Journal;
use super::state;
use crate::plan::LOCKS;

/// The locks of one thread. They are reused as long as their session lives.
pub struct Listening {
    journal: Arc<Journal>,
    thread: usize,
    locks: [Option<Elected>; LOCKS.len()],
}

struct Elected {
    lock: WriteLock,
    session: Session,
    callbacks: Receiver<()>,
    listener: Arc<RecordingListener>,
}

impl Listening {
    pub fn new(journal: Arc<Journal>, thread: usize) -> Listening {
        Listening { journal, thread, locks: [const { None }; LOCKS.len()] }
    }

    pub fn forget(&mut self) {
        self.locks.iter_mut().for_each(|elected| *elected = None);
    }

    fn take(&mut self, session: &Session, lock: usize) -> Elected {
        let kept = self.locks[lock].take();
        kept.filter(|kept| kept.session.state() != SessionState::Lost)
            .unwrap_or_else(|| self.make(session, lock))
    }

    fn make(&self, session: &Session, lock: usize) -> Elected {
        let (sender, callbacks) = unbounded();
        let (journal, thread) = (Arc::clone(&self.journal), self.thread);
        let listener = Arc::new(RecordingListener { sender, record: Mutex::default(), journal, thread });
        let lock = WriteLock::with_listener(session, LOCKS[lock], Arc::clone(&listener));
        Elected { lock: lock.expect("the path is fine"), session: session.clone(), callbacks, listener }
    }
}

impl Contender {
    pub(super) fn acquire_listening(
        &mut self,
        session: &Session,
        lock: usize,
        time_limit: Option<Duration>,
    ) -> bool {
        let elected = self.listening.take(session, lock);
        self.state = Some(state::on(&elected.session));
        self.note_wait("listen", lock, None);
        let owned = match elected.wait(time_limit) {
            Ok(true) => self.hold(lock, &elected),
            Ok(false) => {
                self.note("gave-up");
                false
            }
            Err(error) => {
                self.note(&format!("failed error={error}"));
                false
            }
        };
        if let Err(error) = elected.lock.unlock() {
            self.note(&format!("unlocked {}", class_of(&error)));
        }
        // Occasionally the lock is closed instead of being reused.
        if !self.random.one_in(8) {
            self.listening.locks[lock] = Some(elected);
        }
        owned
    }
}

impl Elected {
    /// Returns whether the lock was acquired in time.
    fn wait(&self, time_limit: Option<Duration>) -> Result<bool, String> {
        let deadline = time_limit.map(|time_limit| Instant::now() + time_limit);
        if self.lock.lock().map_err(|error| class_of(&error))? {
            return Ok(true);
        }
        loop {
            // A callback may belong to an earlier request, so it only triggers another check.
            if self.lock.is_owner() {
                return Ok(true);
            }
            if self.lock.id().is_none() {
                return Err("Dropped".to_owned());
            }
            let notified = match deadline {
                None => self.callbacks.recv().is_ok(),
                Some(deadline) => self.callbacks.recv_deadline(deadline).is_ok(),
            };
            if !notified {
                return Ok(false);
            }
        }
    }
}

impl Held for Elected {
    fn is_owner(&self) -> bool {
        self.lock.is_owner()
    }

    fn id(&self) -> Option<String> {
        self.lock.id()
    }

    fn fencing_token(&self) -> Option<Result<i64, LockError>> {
        None
    }

    fn lost(&self) -> Option<LossReason> {
        self.listener.record.lock().lost
    }
}

/// A listener that records callbacks in the wrong order. They must alternate: acquired, then released or lost,
/// then acquired again.
struct RecordingListener {
    sender: Sender<()>,
    record: Mutex<Record>,
    journal: Arc<Journal>,
    thread: usize,
}

#[derive(Default)]
struct Record {
    owner: bool,
    lost: Option<LossReason>,
}

impl RecordingListener {
    fn on_callback(&self, call: &str, needs_owner: bool, owner: bool, lost: Option<LossReason>) {
        let mut record = self.record.lock();
        if record.owner != needs_owner {
            let what = format!("violation kind=listener call={call} owner={}", u8::from(record.owner));
            self.journal.note(&self.thread.to_string(), &what);
        }
        *record = Record { owner, lost };
        drop(record);
        let _ = self.sender.send(()); // the lock may have been dropped
    }
}

impl LockListener for RecordingListener {
    fn lock_acquired(&self) {
        self.on_callback("acquired", false, true, None);
    }

    fn lock_released(&self) {
        self.on_callback("released", true, false, None);
    }

    fn lock_lost(&self, _lock: &WriteLock, reason: LossReason) {
        self.on_callback("lost", true, false, Some(reason));
    }

    fn request_dropped(&self, _lock: &WriteLock, reason: LossReason) {
        self.on_callback("dropped", false, false, Some(reason));
    }
}

impl Drop for RecordingListener {
    fn drop(&mut self) {
        if self.record.lock().owner {
            self.journal.note(&self.thread.to_string(), "violation kind=listener call=none owner=1");
        }
    }
}
