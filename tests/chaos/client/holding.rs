//! Holding a lock: an owner observes its ownership, writes to the register if it is alone, and finally releases
//! or loses the lock.

use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::{LockError, LossReason, ZNodeName};

use super::contender::{Contender, class_of};
use super::orders::Stage;
use crate::history::sight::Sight;
use crate::plan::{REPORTING, SEMAPHORE};
use crate::support::wait::{holds_within, scaled};

/// The pause between two calls of `is_owner` by a relaxed owner.
const LOOK: Duration = Duration::from_micros(100);

/// For how long after the report of a loss the former owner checks that ownership does not return.
const AFTERMATH: Duration = Duration::from_millis(20);

/// A lock that was granted by way of a guard or a listener.
pub trait Held: Sync {
    fn is_owner(&self) -> bool;
    /// Returns the path of its znode while it has one.
    fn id(&self) -> Option<String>;
    fn fencing_token(&self) -> Option<Result<i64, LockError>>;
    fn lost(&self) -> Option<LossReason>;

    /// Returns whether others may hold it at the same time.
    fn shares(&self) -> bool {
        false
    }
}

/// A hold in progress, and what its owner has seen so far.
pub struct Holding {
    pub(super) lock: usize,
    pub(super) sequence: i32,
    token: Option<i64>,
    manner: Manner,
    /// The limit for a prolonged hold that ends in a downgrade.
    pub(super) max_prolonged: Option<Duration>,
    last: Sight,
    looks: u64,
    /// Whether the lock was lost.
    pub(super) lost: bool,
}

/// How long a lock is held, and what the owner does in that time.
struct Manner {
    length: Duration,
    /// Whether the owner calls `is_owner` without pausing.
    tight: bool,
    /// Whether the owner sends nothing between its first write and the end of the hold.
    quiet: bool,
}

impl Contender {
    /// Holds a granted lock for a while or until it is lost. Returns whether it was seen to be owned.
    pub(super) fn hold(&mut self, lock: usize, held: &dyn Held) -> bool {
        let Some(mut holding) = self.begin(lock, held) else { return false };
        self.observe(&mut holding, held);
        self.end(&mut holding, held);
        true
    }

    /// Starts a hold. Returns `None` if the lock was lost before the first call of `is_owner`.
    pub(super) fn begin(&mut self, lock: usize, held: &dyn Held) -> Option<Holding> {
        let first = Sight::of(|| held.is_owner());
        let sequence = held.id().and_then(|id| sequence_of(&id));
        let (Some(first), Some(sequence)) = (first, sequence) else {
            self.note(&format!("unowned lock={lock}"));
            self.conductor.stop_prolonging(self.thread);
            return None;
        };
        self.holds += 1;
        self.journal.store_sight(self.thread, self.holds, first);
        let (before, after) = (first.before, first.after);
        let (hold, shares) = (self.holds, u8::from(held.shares()));
        self.note(&format!(
            "acquired lock={lock} hold={hold} sequence={sequence} shares={shares} before={before} after={after}"
        ));
        let (manner, token, max_prolonged) = (self.manner(lock), None, None);
        let mut holding =
            Holding { lock, sequence, token, manner, max_prolonged, last: first, looks: 1, lost: false };
        self.read_state(held, &mut holding);
        if !holding.manner.quiet {
            holding.token = self.token(held, &mut holding);
        }
        self.write(&holding, held);
        Some(holding)
    }

    /// Calls `is_owner` repeatedly until the time is up or the lock is lost, and occasionally writes.
    pub(super) fn observe(&mut self, holding: &mut Holding, held: &dyn Held) {
        let begin = Instant::now();
        let mut next_write = begin;
        loop {
            self.look(held, holding);
            if holding.lost || self.is_over(begin, holding) || !self.continues(holding.looks) {
                return;
            }
            if !holding.manner.quiet && Instant::now() >= next_write {
                next_write = Instant::now() + self.random.millis(2..40);
                self.write(holding, held);
            }
            if holding.manner.tight { thread::yield_now() } else { thread::sleep(LOOK) }
        }
    }

    /// Ends a hold. Called before the lock is released.
    pub(super) fn end(&mut self, holding: &mut Holding, held: &dyn Held) {
        self.conductor.stop_prolonging(self.thread);
        self.write_state(held, holding);
        if !holding.lost {
            return self.note_end(holding, "released");
        }
        self.note_end(holding, "lost");
        self.check_after_loss(holding, held);
    }

    pub(super) fn note_end(&mut self, holding: &Holding, how: &str) {
        let Holding { lock, sequence, last: Sight { before, after }, looks, .. } = holding;
        self.note(&format!("{how} hold={} before={before} after={after} looks={looks}", self.holds));
        self.send(&format!("done {lock} {sequence}"));
    }

    fn look(&self, held: &dyn Held, holding: &mut Holding) {
        match Sight::of(|| held.is_owner()) {
            Some(sight) => {
                (holding.last, holding.looks) = (sight, holding.looks + 1);
                self.journal.store_sight(self.thread, self.holds, sight);
            }
            None => holding.lost = true,
        }
    }

    fn manner(&mut self, lock: usize) -> Manner {
        // Permits are held for longer, so they have a queue, too.
        let short = if lock == SEMAPHORE { 2..12 } else { 0..3 };
        let length = match (self.conductor.stage(), self.random.below(10_000)) {
            (Stage::Contend, 0..=9_749) => self.random.millis(short),
            (Stage::Contend, 9_750..=9_959) => self.random.millis(20..120),
            (Stage::Contend, 9_960..=9_994) => self.random.millis(200..1_000),
            (Stage::Contend, _) => self.random.millis(2_500..7_000),
            _ => self.random.millis(short),
        };
        let is_long = length > Duration::from_secs(2);
        let quiet = is_long && !self.random.one_in(4);
        Manner { length, tight: !is_long && self.random.one_in(4), quiet }
    }

    fn is_over(&self, begin: Instant, holding: &Holding) -> bool {
        let Some(beyond) = begin.elapsed().checked_sub(holding.manner.length) else { return false };
        !self.conductor.prolongs(self.thread) || holding.max_prolonged.is_some_and(|time| beyond >= time)
    }

    /// Returns whether the hold may continue. It ends early when all threads must settle.
    fn continues(&self, looks: u64) -> bool {
        looks < 10 || self.conductor.stage() == Stage::Contend
    }

    /// Checks that the loss is reported and that ownership does not return. In between, the former owner writes once
    /// more, immediately or later, as an application that does not check would.
    fn check_after_loss(&mut self, holding: &Holding, held: &dyn Held) {
        let lock = holding.lock;
        let mut reported = None;
        holds_within(scaled(REPORTING), || {
            reported = held.lost();
            reported.is_some()
        });
        match reported {
            Some(reason) => self.note(&format!("reported reason={reason:?}")),
            None => self.note(&format!("violation kind=loss-not-reported lock={lock}")),
        }
        if self.random.one_in(2) {
            let delay = self.random.millis(0..3_000);
            self.conductor.pause(delay);
        }
        self.write(holding, held);
        let end = Instant::now() + AFTERMATH;
        while Instant::now() < end {
            if let Some(sight) = Sight::of(|| held.is_owner()) {
                self.note(&format!("violation kind=owner-again lock={lock} at={}", sight.before));
                return;
            }
            thread::sleep(LOOK);
        }
    }

    /// Makes a call, which may block for as long as the servers are silent, and keeps calling `is_owner`
    /// meanwhile.
    pub(super) fn meanwhile<T: Send>(
        &self,
        held: &dyn Held,
        holding: &mut Holding,
        call: impl FnOnce() -> T + Send,
    ) -> T {
        thread::scope(|scope| {
            let calling = thread::Builder::new().name("chaos-call".to_owned());
            let calling = calling.spawn_scoped(scope, call).expect("a thread can be started");
            while !calling.is_finished() {
                if !holding.lost {
                    self.look(held, holding);
                }
                thread::sleep(LOOK);
            }
            calling.join().expect("the call never panics")
        })
    }

    fn token(&self, held: &dyn Held, holding: &mut Holding) -> Option<i64> {
        match self.meanwhile(held, holding, || held.fencing_token())? {
            Ok(token) => Some(token),
            Err(error) => {
                self.note(&format!("no-token error={}", class_of(&error)));
                None
            }
        }
    }

    /// Writes to the register if no other thread may hold the lock at the same time. Records refused writes.
    fn write(&mut self, holding: &Holding, held: &dyn Held) {
        if held.shares() {
            return;
        }
        let Holding { lock, sequence, token, .. } = holding;
        let believed_before = held.is_owner();
        let token_text = token.map_or("-".to_owned(), |token| token.to_string());
        let line = format!("write {lock} {sequence} {token_text} {} {}", self.index, self.thread);
        let answer = self.send(&line);
        if let Some(why) = answer.trim().strip_prefix("refused ") {
            // Checked after the answer: if this thread still owns the lock now, it owned the lock at the same time as a
            // later owner.
            let believed = believed_before && held.is_owner();
            self.note(&format!(
                "refused lock={lock} sequence={sequence} believed={} before={} {why}",
                u8::from(believed),
                u8::from(believed_before)
            ));
        }
    }
}

fn sequence_of(id: &str) -> Option<i32> {
    let (_, name) = id.rsplit_once('/')?;
    ZNodeName::new(name).sequence()
}
