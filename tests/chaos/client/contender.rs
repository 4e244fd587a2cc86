//! A contending thread: it waits for a lock, holds it, releases it, and starts again.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::{LockError, Session};

use super::futures::Tasks;
use super::journal::Journal;
use super::keeper::Keeper;
use super::listening::Listening;
use super::orders::{Conductor, Orders, Stage};
use super::state;
use crate::plan::{LOCKS, SEMAPHORE, THREADS};
use crate::random::Random;

pub struct Contender {
    pub(super) journal: Arc<Journal>,
    pub(super) random: Random,
    pub(super) listening: Listening,
    pub(super) conductor: Arc<Conductor>,
    pub(super) tasks: Tasks,
    pub(super) index: usize,
    pub(super) thread: usize,
    /// The number of holds of this thread so far.
    pub(super) holds: u64,
    /// The calls on the session of the current hold.
    pub(super) state: Option<RecoverableZooKeeper>,
    settled: u64,
    keeper: Arc<Keeper>,
    register: BufReader<UnixStream>,
}

impl Contender {
    pub fn new(
        orders: &Orders,
        incarnation: u64,
        thread: usize,
        keeper: Arc<Keeper>,
        journal: Arc<Journal>,
        conductor: Arc<Conductor>,
    ) -> Contender {
        let register = UnixStream::connect(&orders.socket).expect("the register listens");
        Contender {
            random: Random::of(orders.seed, [orders.index as u64, incarnation, thread as u64]),
            listening: Listening::new(Arc::clone(&journal), thread),
            journal,
            tasks: Tasks::new(thread),
            index: orders.index,
            thread,
            holds: 0,
            state: None,
            settled: 0,
            keeper,
            conductor,
            register: BufReader::new(register),
        }
    }

    pub fn run(mut self) {
        loop {
            match self.conductor.stage() {
                Stage::End => break,
                Stage::Settle(round) if self.settled < round => self.settle(round),
                stage @ Stage::Settle(_) => self.conductor.wait_while(stage),
                Stage::Contend => self.contend(),
            }
        }
        self.listening.forget();
        self.state = None;
    }

    /// Acquires each lock once.
    fn settle(&mut self, round: u64) {
        for turn in 0..LOCKS.len() {
            let lock = (turn + self.index + self.thread) % LOCKS.len();
            while !self.with_session(|me, session| me.acquire(session, lock, None)) {}
        }
        self.settled = round;
        self.note(&format!("settled round={round}"));
        self.conductor.report(&format!("settled {round} {}", self.thread));
    }

    fn contend(&mut self) {
        if self.random.one_in(400) {
            self.keeper.close();
        }
        // The semaphore is chosen twice as often, because it has room for several.
        let lock = self.random.below(LOCKS.len() + 1).min(SEMAPHORE);
        let time_limit = match self.random.below(10) {
            0..=4 => None,
            5 => Some(Duration::ZERO),
            6..=7 => Some(self.random.millis(1..100)),
            _ => Some(self.random.millis(100..2_500)),
        };
        self.with_session(|me, session| me.acquire(session, lock, time_limit));
        if self.random.one_in(4) {
            let rest = self.random.millis(1..60);
            self.conductor.pause(rest);
        }
    }

    fn with_session(&mut self, act: impl FnOnce(&mut Self, &Session) -> bool) -> bool {
        let Some(session) = self.keeper.session() else {
            thread::sleep(Duration::from_millis(50));
            return false;
        };
        act(self, &session)
    }

    /// Waits for a lock and holds it. Returns whether the thread was seen to own it.
    fn acquire(&mut self, session: &Session, lock: usize, time_limit: Option<Duration>) -> bool {
        self.state = Some(state::on(session));
        if lock == SEMAPHORE {
            return self.acquire_permit(session, time_limit);
        }
        // The last thread of each client waits with a listener. The others make blocking calls or await futures; some
        // of the time they share the lock, or a place in the queue.
        if self.thread + 1 == THREADS {
            return self.acquire_listening(session, lock, time_limit);
        }
        match self.random.below(16) {
            0..=4 => self.acquire_reading(session, lock, time_limit),
            5..=7 => self.acquire_writing(session, lock, time_limit),
            8..=11 => match self.keeper.cohort_lock(lock) {
                Some((session, cohort)) => {
                    self.state = Some(state::on(&session));
                    self.acquire_in_cohort(&cohort, lock, time_limit)
                }
                None => false,
            },
            _ => self.acquire_blocking(session, lock, time_limit),
        }
    }

    // ---- the journal

    pub(super) fn note(&self, what: &str) {
        self.journal.note(&self.thread.to_string(), what);
    }

    pub(super) fn note_wait(&self, how: &str, lock: usize, time_limit: Option<Duration>) {
        let time_limit = time_limit.map_or("none".to_owned(), |time| time.as_millis().to_string());
        self.note(&format!("wait lock={lock} how={how} time_limit={time_limit}"));
    }

    pub(super) fn note_failure(&self, error: &LockError) {
        self.note(&format!("failed error={}", class_of(error)));
    }

    /// Sends a line to the register and returns its answer.
    pub(super) fn send(&mut self, line: &str) -> String {
        let mut answer = String::new();
        let sent = self.register.get_mut().write_all(format!("{line}\n").as_bytes());
        let answered = sent.and_then(|()| self.register.read_line(&mut answer));
        if !answered.is_ok_and(|bytes| bytes > 0) {
            std::process::exit(3); // the conductor has ended
        }
        answer
    }
}

/// Returns the name of an error's reason.
pub fn class_of(error: &LockError) -> String {
    let debug = format!("{:?}", error.reason());
    debug.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}
