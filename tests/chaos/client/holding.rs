//! Holding: an owner watches itself owning, writes to the register meanwhile, and lets go or loses.

use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::{LockError, LossReason, ZNodeName};

use super::contender::{Contender, class_of};
use super::orders::Stage;
use crate::history::sight::Sight;
use crate::plan::TELLING;
use crate::support::wait::{holds_within, scaled};

/// Between two looks at `is_owner` of a relaxed owner.
const LOOK: Duration = Duration::from_micros(100);

/// After a loss: the time in which ownership must not come back.
const AFTERMATH: Duration = Duration::from_millis(20);

/// A lock that was granted, by a guard or a listener.
pub trait Held: Sync {
    fn is_owner(&self) -> bool;
    /// The path of its znode, while it has one.
    fn id(&self) -> Option<String>;
    fn fencing_token(&self) -> Option<Result<i64, LockError>>;
    fn lost(&self) -> Option<LossReason>;
}

/// What an owner has seen so far.
struct View {
    last: Sight,
    looks: u64,
    /// It is not the owner any more.
    lost: bool,
}

/// How long a hold lasts, and what is done meanwhile.
struct Manner {
    length: Duration,
    /// Looks without a pause.
    tight: bool,
    /// Sends nothing to anybody after the first write.
    quiet: bool,
}

impl Contender {
    /// Holds a lock that was granted, for a while or until it is lost; returns whether it was seen to be owned.
    pub(super) fn hold(&mut self, lock: usize, held: &dyn Held) -> bool {
        let first = Sight::of(|| held.is_owner());
        let sequence = held.id().and_then(|id| sequence_of(&id));
        let (Some(first), Some(sequence)) = (first, sequence) else {
            self.note(&format!("unowned lock={lock}"));
            return false;
        };
        self.holds += 1;
        self.journal.keep_sight(self.thread, self.holds, first);
        let (before, after) = (first.before, first.after);
        let hold = self.holds;
        self.note(&format!(
            "acquired lock={lock} hold={hold} sequence={sequence} before={before} after={after}"
        ));
        let manner = self.manner();
        let mut view = View { last: first, looks: 1, lost: false };
        let token = if manner.quiet { None } else { self.token(held, &mut view) };
        self.write(lock, sequence, token, held);
        self.look_on(lock, sequence, token, held, &manner, &mut view);
        let View { last: Sight { before, after }, looks, lost } = view;
        self.conductor.lets_go(self.thread);
        let end = if lost { "lost" } else { "released" };
        self.note(&format!("{end} hold={hold} before={before} after={after} looks={looks}"));
        self.send(&format!("done {lock} {sequence}"));
        if lost {
            self.look_after(lock, sequence, token, held);
        }
        true
    }

    /// Looks again and again until the time is up or the lock is lost, and writes now and then.
    fn look_on(
        &mut self,
        lock: usize,
        sequence: i32,
        token: Option<i64>,
        held: &dyn Held,
        manner: &Manner,
        view: &mut View,
    ) {
        let end = Instant::now() + manner.length;
        let mut next_write = Instant::now();
        while (Instant::now() < end || self.conductor.clings(self.thread)) && self.goes_on(view.looks) {
            self.look(held, view);
            if view.lost {
                return;
            }
            if !manner.quiet && Instant::now() >= next_write {
                next_write = Instant::now() + self.random.millis(2..40);
                self.write(lock, sequence, token, held);
            }
            if manner.tight { thread::yield_now() } else { thread::sleep(LOOK) }
        }
    }

    fn look(&self, held: &dyn Held, view: &mut View) {
        match Sight::of(|| held.is_owner()) {
            Some(sight) => {
                (view.last, view.looks) = (sight, view.looks + 1);
                self.journal.keep_sight(self.thread, self.holds, sight);
            }
            None => view.lost = true,
        }
    }

    fn manner(&mut self) -> Manner {
        let length = match (self.conductor.stage(), self.random.below(1000)) {
            (Stage::Contend, 0..=699) => self.random.millis(1..20),
            (Stage::Contend, 700..=949) => self.random.millis(20..120),
            (Stage::Contend, 950..=994) => self.random.millis(200..1_000),
            (Stage::Contend, _) => self.random.millis(2_500..7_000),
            _ => self.random.millis(1..4),
        };
        let is_long = length > Duration::from_secs(2);
        let quiet = is_long && !self.random.one_in(4);
        Manner { length, tight: !is_long && self.random.one_in(4), quiet }
    }

    /// A hold ends early when everybody is to settle.
    fn goes_on(&self, looks: u64) -> bool {
        looks < 10 || self.conductor.stage() == Stage::Contend
    }

    /// Looks whether the loss is told, and whether what was lost stays lost. Some owners also write once more, at once or
    /// late, as those would who do not ask.
    fn look_after(&mut self, lock: usize, sequence: i32, token: Option<i64>, held: &dyn Held) {
        let mut told = None;
        holds_within(scaled(TELLING), || {
            told = held.lost();
            told.is_some()
        });
        match told {
            Some(reason) => self.note(&format!("told reason={reason:?}")),
            None => self.note(&format!("violation kind=loss-not-told lock={lock}")),
        }
        if self.random.one_in(2) {
            let delay = self.random.millis(0..3_000);
            self.conductor.pause(delay);
        }
        self.write(lock, sequence, token, held);
        let end = Instant::now() + AFTERMATH;
        while Instant::now() < end {
            if let Some(sight) = Sight::of(|| held.is_owner()) {
                self.note(&format!("violation kind=owner-again lock={lock} at={}", sight.before));
                return;
            }
            thread::sleep(LOOK);
        }
    }

    /// Asks for the fencing token, which may take as long as the servers are silent, and goes on looking meanwhile.
    fn token(&self, held: &dyn Held, view: &mut View) -> Option<i64> {
        let answer = thread::scope(|scope| {
            let asked = thread::Builder::new().name("chaos-token".to_owned());
            let asked = asked.spawn_scoped(scope, || held.fencing_token()).expect("a thread can be started");
            while !asked.is_finished() {
                if !view.lost {
                    self.look(held, view);
                }
                thread::sleep(LOOK);
            }
            asked.join().expect("it does not panic")
        });
        match answer? {
            Ok(token) => Some(token),
            Err(error) => {
                self.note(&format!("no-token error={}", class_of(&error)));
                None
            }
        }
    }

    /// Writes to the register; what it refuses is noted.
    fn write(&mut self, lock: usize, sequence: i32, token: Option<i64>, held: &dyn Held) {
        let believed_before = held.is_owner();
        let token_text = token.map_or("-".to_owned(), |token| token.to_string());
        let line = format!("write {lock} {sequence} {token_text} {} {}", self.index, self.thread);
        let answer = self.send(&line);
        if let Some(why) = answer.trim().strip_prefix("refused ") {
            // The question is asked after the answer, so who still owns now has owned beside a later owner.
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
