//! Checks whether a history keeps the promises. Every finding except a late return is proven: it does not depend on
//! when a clock was read.

use std::fmt::Write as _;

use super::linear::{Opinion, ask_about};
use super::sight::Sight;
use super::{Access, Actor, History, Hold, HoldEnd, Outcome, Stall, Wait};
use crate::clock::seconds;
use crate::plan::{LATENESS, LOCKS, PERMITS, SEMAPHORE};
use crate::support::wait::scaled;

/// Violations; empty if there are none.
#[derive(Debug, Default)]
pub struct Findings {
    pub overlaps: Vec<String>,
    /// Cases of more holders of the semaphore than permits.
    pub crowds: Vec<String>,
    pub disorders: Vec<String>,
    /// Owners that read a state older than the last write of a predecessor.
    pub stale: Vec<String>,
    /// Writes that the servers confirmed and then lost.
    pub undone: Vec<String>,
    pub late_returns: Vec<String>,
    /// The longest time by which a call returned after its deadline, in seconds.
    pub latest: f64,
}

pub fn check(history: &History, begin: u64) -> Findings {
    let mut findings = Findings::default();
    for lock in (0..LOCKS.len()).filter(|lock| *lock != SEMAPHORE) {
        let holds = history.holds_of(lock);
        findings.overlaps.extend(overlaps(&holds, begin));
        findings.disorders.extend(disorders(&holds, begin));
        let accesses = history.accesses_of(lock);
        findings.stale.extend(stale_reads(&accesses, begin));
        findings.undone.extend(undone_writes(&accesses, begin));
    }
    let permits = history.holds_of(SEMAPHORE);
    findings.crowds.extend(crowds(&permits, PERMITS, begin));
    findings.disorders.extend(overtakers(&permits, PERMITS, begin));
    for wait in &history.waits {
        let late = lateness(wait, &history.stalls);
        findings.latest = findings.latest.max(late);
        if late > scaled(LATENESS).as_secs_f64() {
            let began = seconds(wait.began - begin);
            let Actor { client, thread, .. } = wait.actor;
            findings.late_returns.push(format!(
                "client {client} thread {thread} waited from {began:.3} s for lock {} and returned {late:.3} s late",
                wait.lock
            ));
        }
    }
    findings
}

impl Hold {
    /// Returns the interval of proven ownership: from the end of the first sight to the start of the last one.
    /// The exact moments within these sights are unknown.
    fn proven(&self) -> (u64, u64) {
        (self.first.after, self.last.before)
    }

    fn covers(&self, sight: Sight) -> bool {
        let (from, to) = self.proven();
        from < sight.before && sight.after < to
    }

    /// Returns whether this hold and another one must not overlap.
    fn excludes(&self, other: &Hold) -> bool {
        !(self.shares && other.shares)
    }

    /// Returns how long both were owners, as far as that is proven.
    fn overlap(&self, other: &Hold) -> Option<u64> {
        let ((a, b), (c, d)) = (self.proven(), other.proven());
        let (from, to) = (a.max(c), b.min(d));
        if from < to {
            return Some(to - from);
        }
        let seen_within = self.covers(other.first)
            || self.covers(other.last)
            || other.covers(self.first)
            || other.covers(self.last);
        seen_within.then_some(0)
    }

    fn describe(&self, begin: u64) -> String {
        let Actor { client, incarnation, thread } = self.actor;
        let (from, to) = self.proven();
        let (from, to) = (seconds(from.saturating_sub(begin)), seconds(to.saturating_sub(begin)));
        let kind = match (self.lock, self.shares) {
            (SEMAPHORE, _) => "holder",
            (_, true) => "reader",
            (_, false) => "owner",
        };
        let sequence = self.sequence;
        format!(
            "client {client}.{incarnation} thread {thread}, {kind} with {sequence} [{from:.6}, {to:.6}] s"
        )
    }
}

/// Returns the pairs of holds of one lock that provably overlap, with the length of the overlap. `holds` are
/// ordered by their start.
pub fn meetings<'a>(holds: &'a [&'a Hold]) -> impl Iterator<Item = (&'a Hold, &'a Hold, u64)> {
    holds.iter().enumerate().flat_map(move |(index, hold)| {
        let later = holds[index + 1..].iter().take_while(|other| other.first.before <= hold.last.after);
        later.filter_map(|other| Some((*hold, *other, hold.overlap(other)?)))
    })
}

/// Finds pairs of simultaneous owners that exclude each other.
fn overlaps(holds: &[&Hold], begin: u64) -> Vec<String> {
    let wrong = meetings(holds).filter(|(one, other, _)| one.excludes(other));
    let found = wrong.map(|(one, other, length)| {
        let (lock, length) = (one.lock, seconds(length));
        format!("{} and {}: lock {lock} for {length:.6} s", one.describe(begin), other.describe(begin))
    });
    found.collect()
}

/// Finds owners that were seen after an owner with a later request that excludes theirs, whether at the same
/// time or not.
///
/// A downgraded writer keeps its position: its reader has the same number and is just as far ahead of all later
/// requests, which have always had a znode of that number to wait for. Neither of these two holds is the later
/// one.
fn disorders(holds: &[&Hold], begin: u64) -> Vec<String> {
    let mut found = Vec::new();
    for hold in holds {
        let mut later = holds.iter().filter(|other| other.sequence > hold.sequence && other.excludes(hold));
        if let Some(later) = later.find(|later| later.first.after < hold.last.before) {
            let (one, two) = (hold.describe(begin), later.describe(begin));
            found.push(format!("{one} was seen to own lock {} after {two} had been", hold.lock));
        }
    }
    found
}

/// Finds owners that read a state older than one which an earlier owner left. The earlier owner still owned
/// after its write, so it wrote before its release. The accesses are ordered by request.
fn stale_reads(accesses: &[&Access], begin: u64) -> Vec<String> {
    let mut found = Vec::new();
    let mut last: Option<&Access> = None;
    for owner in accesses.chunk_by(|one, other| one.sequence == other.sequence) {
        let reads = owner.iter().filter(|access| !access.is_write);
        for (read, last) in reads.filter_map(|read| Some((read, last.filter(|last| last.zxid > read.zxid)?)))
        {
            let (one, two) = (read.describe(begin), last.describe(begin));
            found.push(format!("{one} after {two}: lock {}", read.lock));
        }
        let writes = owner.iter().copied().filter(|access| access.is_write);
        last = last.into_iter().chain(writes).max_by_key(|write| write.zxid);
    }
    found
}

/// Finds writes whose version is no larger than that of a write with a smaller transaction number. The servers
/// have then lost what was written in between; no client can cause that.
fn undone_writes(accesses: &[&Access], begin: u64) -> Vec<String> {
    let mut writes: Vec<&Access> = accesses.iter().copied().filter(|access| access.is_write).collect();
    writes.sort_by_key(|write| write.zxid);
    let undone = writes.windows(2).filter(|pair| pair[0].version >= pair[1].version);
    let describe = |write: &Access| format!("{} as version {}", write.describe(begin), write.version);
    undone.map(|pair| format!("{} and then {}", describe(pair[0]), describe(pair[1]))).collect()
}

impl Access {
    fn describe(&self, begin: u64) -> String {
        let Actor { client, incarnation, thread } = self.actor;
        let (what, at) =
            (if self.is_write { "left" } else { "read" }, seconds(self.at.saturating_sub(begin)));
        let Access { sequence, zxid, .. } = self;
        format!("client {client}.{incarnation} thread {thread} with {sequence} {what} {zxid:#x} at {at:.6} s")
    }
}

/// Returns how many of these holds, including `other`, provably have a permit when `other` is first proven to.
pub fn at_once(holds: &[&Hold], other: &Hold) -> usize {
    let moment = other.proven().0;
    let holds_then = |hold: &&&Hold| (hold.proven().0..=hold.proven().1).contains(&moment);
    holds.iter().filter(holds_then).count()
}

/// Finds cases of more simultaneous holders than permits.
fn crowds(holds: &[&Hold], permits: usize, begin: u64) -> Vec<String> {
    let crowded = holds.iter().filter(|hold| at_once(holds, hold) > permits);
    let found = crowded.map(|hold| format!("{} was one of {}", hold.describe(begin), at_once(holds, hold)));
    found.collect()
}

/// Finds holders that were seen although as many earlier requests as there are permits still had a permit or
/// obtained one later. All of these were ahead of the holder when it acquired.
fn overtakers(holds: &[&Hold], permits: usize, begin: u64) -> Vec<String> {
    let mut found = Vec::new();
    for hold in holds {
        let is_ahead =
            |other: &&&Hold| other.sequence < hold.sequence && other.last.before > hold.first.after;
        let ahead = holds.iter().filter(is_ahead).count();
        if ahead >= permits {
            found.push(format!("{} acquired with {ahead} requests ahead of it", hold.describe(begin)));
        }
    }
    found
}

/// Returns how long after its deadline a call returned, in seconds, excluding the time in which its process did
/// not run.
fn lateness(wait: &Wait, stalls: &[Stall]) -> f64 {
    let Some(time_limit) = wait.time_limit.filter(|_| wait.outcome != Outcome::Cut) else { return 0.0 };
    let stalled: f64 = stalls
        .iter()
        .filter(|stall| stall.client == wait.actor.client)
        .map(|stall| stall.ended.min(wait.ended).saturating_sub(stall.began.max(wait.began)))
        .map(seconds)
        .sum();
    (seconds(wait.ended - wait.began) - time_limit as f64 / 1e3 - stalled).max(0.0)
}

/// Tests the checker with histories that are known to be right or wrong.
pub fn check_the_checker() {
    let hold = |sequence, first: (u64, u64), last: (u64, u64)| Hold {
        actor: Actor { client: 0, incarnation: 1, thread: 0 },
        lock: 0,
        waited_since: None,
        sequence,
        shares: false,
        first: Sight { before: first.0, after: first.1 },
        last: Sight { before: last.0, after: last.1 },
        end: HoldEnd::Lost,
    };
    let reader = |sequence, first, last| Hold { shares: true, ..hold(sequence, first, last) };
    let count = |holds: &[Hold]| {
        let holds: Vec<&Hold> = holds.iter().collect();
        let found = (overlaps(&holds, 0).len(), disorders(&holds, 0).len());
        assert_agreement(&holds, None, found == (0, 0));
        found
    };
    // Two holds in sequence, and a hold that starts during the last sight of another.
    assert_eq!(count(&[hold(1, (10, 11), (20, 21)), hold(2, (30, 31), (40, 41))]), (0, 0));
    assert_eq!(count(&[hold(1, (10, 11), (20, 29)), hold(2, (22, 23), (40, 41))]), (0, 0));
    // A hold that was seen only once, during which its process was stopped.
    assert_eq!(count(&[hold(1, (10, 50), (10, 50)), hold(2, (20, 21), (40, 41))]), (0, 0));
    // Two simultaneous holds, a single sight of an owner during another hold, and an earlier request after a
    // later one.
    assert_eq!(count(&[hold(1, (10, 11), (20, 21)), hold(2, (15, 16), (40, 41))]), (1, 1));
    assert_eq!(count(&[hold(2, (10, 11), (40, 41)), hold(1, (20, 21), (20, 21))]), (1, 1));
    assert_eq!(count(&[hold(2, (10, 11), (20, 21)), hold(1, (30, 31), (40, 41))]), (0, 1));

    // Simultaneous readers, in any order.
    assert_eq!(count(&[reader(1, (10, 11), (40, 41)), reader(2, (20, 21), (30, 31))]), (0, 0));
    assert_eq!(count(&[reader(2, (10, 11), (40, 41)), reader(1, (20, 21), (30, 31))]), (0, 0));
    // A writer that continues as a reader, together with a later reader and the next writer.
    let (writer, downgraded) = (hold(1, (10, 11), (20, 21)), reader(1, (30, 31), (40, 41)));
    let (beside, next) = (reader(2, (31, 32), (42, 43)), hold(3, (50, 51), (60, 61)));
    assert_eq!(count(&[writer.clone(), downgraded.clone(), beside, next]), (0, 0));
    // A writer at the same time as a reader whose request is later or earlier.
    assert_eq!(count(&[hold(1, (10, 11), (20, 21)), reader(2, (15, 16), (40, 41))]), (1, 1));
    assert_eq!(count(&[reader(1, (10, 11), (20, 21)), hold(2, (15, 16), (40, 41))]), (1, 1));
    assert_eq!(count(&[hold(2, (10, 11), (20, 21)), reader(1, (15, 16), (40, 41))]), (1, 1));
    assert_eq!(count(&[reader(2, (10, 11), (20, 21)), hold(1, (15, 16), (40, 41))]), (1, 1));
    // A reader after a later writer, and the reverse; a writer between another writer and its downgrade.
    assert_eq!(count(&[hold(2, (10, 11), (20, 21)), reader(1, (30, 31), (40, 41))]), (0, 1));
    assert_eq!(count(&[reader(2, (10, 11), (20, 21)), hold(1, (30, 31), (40, 41))]), (0, 1));
    assert_eq!(count(&[writer, hold(2, (22, 23), (28, 29)), downgraded]), (0, 1));

    // Two permits: three holders in turn, three at once, and a third one that overtakes the second.
    let permit = |sequence, first, last| Hold { lock: SEMAPHORE, ..reader(sequence, first, last) };
    let count = |holds: &[Hold]| {
        let holds: Vec<&Hold> = holds.iter().collect();
        let crowds = crowds(&holds, 2, 0).len();
        assert_agreement(&holds, Some(2), crowds == 0);
        (crowds, overtakers(&holds, 2, 0).len())
    };
    let (first, second) = (permit(1, (10, 11), (40, 41)), permit(2, (20, 21), (30, 31)));
    let (third, early) = (permit(3, (32, 33), (50, 51)), permit(3, (22, 23), (50, 51)));
    assert_eq!(count(&[first.clone(), second.clone(), third]), (0, 0));
    assert_eq!(count(&[first.clone(), second.clone(), early]), (1, 1));
    assert_eq!(count(&[first, permit(3, (12, 13), (15, 16)), second]), (0, 1));

    let access = |sequence, is_write, zxid| Access {
        actor: Actor { client: 0, incarnation: 1, thread: 0 },
        lock: 0,
        sequence,
        is_write,
        zxid,
        version: zxid,
        at: 0,
    };
    let (third, undone) = (access(1, true, 7), Access { version: 3, ..access(1, true, 9) });
    assert_eq!(undone_writes(&[&access(1, true, 3), &third, &access(1, false, 3)], 0).len(), 0);
    assert_eq!(undone_writes(&[&access(1, true, 3), &undone, &third], 0).len(), 1);
    let count = |accesses: &[Access]| stale_reads(&accesses.iter().collect::<Vec<_>>(), 0).len();
    // Each owner reads what the previous one left; an owner that wrote nothing is in between.
    let (first, second) = ([access(1, false, 3), access(1, true, 7)], [access(2, false, 7)]);
    let third = [access(3, false, 7), access(3, true, 9), access(3, false, 9)];
    assert_eq!(count(&[first.clone().as_slice(), &second, &third].concat()), 0);
    // An owner reads what its predecessor replaced, or an even older state.
    assert_eq!(count(&[first.clone().as_slice(), &[access(2, false, 3)]].concat()), 1);
    assert_eq!(count(&[first.as_slice(), &second, &[access(3, false, 3)]].concat()), 1);

    let wait = |time_limit, outcome| Wait {
        actor: Actor { client: 2, incarnation: 1, thread: 0 },
        call: "lock".to_owned(),
        lock: 0,
        began: 0,
        ended: 5_000_000_000,
        time_limit,
        outcome,
    };
    let stall = Stall { client: 2, began: 1_000_000_000, ended: 4_000_000_000 };
    assert_eq!(lateness(&wait(None, Outcome::Acquired), &[]), 0.0);
    assert_eq!(lateness(&wait(Some(1_000), Outcome::GaveUp), &[]), 4.0);
    assert_eq!(lateness(&wait(Some(1_000), Outcome::GaveUp), &[stall]), 1.0);
}

/// Checks that both checkers find something, or neither does.
fn assert_agreement(holds: &[&Hold], permits: Option<usize>, is_right: bool) {
    let mut opinion = Opinion::default();
    ask_about(holds, permits, 0, &mut opinion);
    assert_eq!(opinion.wrong.is_empty(), is_right, "{holds:#?}: {opinion:?}");
}

/// Returns the first few findings, one per line.
pub fn list(findings: &[String]) -> String {
    let mut text = String::new();
    for finding in findings.iter().take(10) {
        let _ = write!(text, "\n    {finding}");
    }
    if findings.len() > 10 {
        let _ = write!(text, "\n    and {} more", findings.len() - 10);
    }
    text
}
