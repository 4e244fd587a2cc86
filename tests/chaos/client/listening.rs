//! Acquires by `WriteLock` and its listener, and sees to it that the listener is told what it must be told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use zookeeper_recipes_lock::{LockError, LockListener, LossReason, Session, SessionState, WriteLock};

use super::contender::{Contender, class_of};
use super::holding::Held;
use super::journal::Journal;
use crate::plan::LOCKS;

/// The locks of one thread, used again as long as their session lives.
pub struct Listening {
    journal: Arc<Journal>,
    thread: usize,
    locks: [Option<Elected>; LOCKS.len()],
}

struct Elected {
    lock: WriteLock,
    told: Receiver<()>,
    ear: Arc<RecordingListener>,
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
        kept.filter(|kept| kept.lock.session().state() != SessionState::Lost)
            .unwrap_or_else(|| self.make(session, lock))
    }

    fn make(&self, session: &Session, lock: usize) -> Elected {
        let (sender, told) = unbounded();
        let (journal, thread) = (Arc::clone(&self.journal), self.thread);
        let ear = Arc::new(RecordingListener { told: sender, heard: Mutex::default(), journal, thread });
        let lock = WriteLock::with_listener(session, LOCKS[lock], Arc::clone(&ear));
        Elected { lock: lock.expect("the path is fine"), told, ear }
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
        // Now and then it is closed in place of being used again.
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
            // What is told may be of an earlier request, so it only says: look again.
            if self.lock.is_owner() {
                return Ok(true);
            }
            if self.lock.id().is_none() {
                return Err("Dropped".to_owned());
            }
            let told = match deadline {
                None => self.told.recv().is_ok(),
                Some(deadline) => self.told.recv_deadline(deadline).is_ok(),
            };
            if !told {
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
        self.ear.heard.lock().lost
    }
}

/// Listens, and notes when the calls do not come as they must: acquired, then released or lost, then acquired…
struct RecordingListener {
    told: Sender<()>,
    heard: Mutex<Heard>,
    journal: Arc<Journal>,
    thread: usize,
}

#[derive(Default)]
struct Heard {
    owner: bool,
    lost: Option<LossReason>,
}

impl RecordingListener {
    fn hear(&self, call: &str, needs_owner: bool, owner: bool, lost: Option<LossReason>) {
        let mut heard = self.heard.lock();
        if heard.owner != needs_owner {
            let what = format!("violation kind=listener call={call} owner={}", u8::from(heard.owner));
            self.journal.note(&self.thread.to_string(), &what);
        }
        *heard = Heard { owner, lost };
        drop(heard);
        let _ = self.told.send(()); // the lock may be gone already
    }
}

impl LockListener for RecordingListener {
    fn lock_acquired(&self) {
        self.hear("acquired", false, true, None);
    }

    fn lock_released(&self) {
        self.hear("released", true, false, None);
    }

    fn lock_lost(&self, reason: LossReason) {
        self.hear("lost", true, false, Some(reason));
    }

    fn request_dropped(&self, reason: LossReason) {
        self.hear("dropped", false, false, Some(reason));
    }
}

impl Drop for RecordingListener {
    fn drop(&mut self) {
        if self.heard.lock().owner {
            self.journal.note(&self.thread.to_string(), "violation kind=listener call=none owner=1");
        }
    }
}
