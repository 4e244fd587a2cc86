//! The figures of a run: acquisitions, their speed, and the failures during the run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::checker::{at_once, meetings};
use super::{History, Hold, HoldEnd, Outcome};
use crate::clock::seconds;
use crate::nemesis::record::{Fault, Record, Target};
use crate::plan::{CLIENTS, LOCKS, PERMITS, SEMAPHORE};

pub fn report(history: &History, faults: &[Record], starts: u64) -> String {
    let mut text = "\nfaults\n".to_owned();
    for fault in Fault::ALL {
        let count = faults.iter().filter(|record| record.fault == fault).count();
        let _ = writeln!(text, "  {:37} {count}", fault.name());
    }
    for fault in Fault::ALL {
        let count = faults.iter().filter(|record| record.fault == fault).count();
        let _ = writeln!(text, "exercised chaos/{} {count}", fault.token());
    }
    let acquired: Vec<&Hold> = history.acquisitions().collect();
    let of_client = |client| acquired.iter().filter(|hold| hold.actor.client == client).count();
    let each: Vec<_> = (0..CLIENTS).map(|client| of_client(client).to_string()).collect();
    let _ = writeln!(text, "acquisitions: {} (by client: {})", acquired.len(), each.join(", "));
    for (kind, count) in history.kinds() {
        let _ = writeln!(text, "  {kind:37} {count}");
    }
    let (permits, locks): (Vec<&Hold>, Vec<&Hold>) =
        acquired.iter().copied().partition(|hold| hold.lock == SEMAPHORE);
    let shared = locks.iter().filter(|hold| hold.shares).count();
    let downgraded = history.holds.iter().filter(|hold| hold.end == HoldEnd::Downgraded).count();
    let _ = writeln!(
        text,
        "  shared: {shared}; exclusive, then downgraded: {downgraded}; readers at once: {} times",
        readers_at_once(history)
    );
    let all_held = permits.iter().filter(|hold| at_once(&permits, hold) == PERMITS).count();
    let _ = writeln!(text, "  permits: {}; all {PERMITS} held: {all_held} times", permits.len());
    let writes = history.accesses.iter().filter(|access| access.is_write).count();
    let reads = history.accesses.len() - writes;
    let _ = writeln!(text, "  state in the tree: {reads} times read by owners, {writes} times replaced");
    let _ = writeln!(text, "  client processes started: {starts}");

    let mut ends = BTreeMap::new();
    for wait in &history.waits {
        *ends.entry(wait.outcome).or_insert(0) += 1;
    }
    let ends: Vec<_> = ends.iter().map(|(outcome, count)| format!("{} {count}", name_of(*outcome))).collect();
    let _ = writeln!(text, "  waits: {}", ends.join(", "));
    let lost = history.holds.iter().filter(|hold| hold.end == HoldEnd::Lost).count();
    let cut = history.holds.iter().filter(|hold| hold.end == HoldEnd::Cut).count();
    let _ = writeln!(text, "  holds lost: {lost}, ended by a kill: {cut}");
    let stalled: u64 = history.stalls.iter().map(|stall| stall.ended - stall.began).sum();
    let _ = writeln!(
        text,
        "  processes stalled for 0.1 s and more: {} times, {:.1} s",
        history.stalls.len(),
        seconds(stalled)
    );
    let mut remarks: Vec<_> = history.remarks.iter().collect();
    remarks.sort();
    for (remark, count) in remarks {
        let _ = writeln!(text, "  {remark:37} {count}");
    }

    let _ = writeln!(text, "hand-over of an exclusive hold to a waiter: {}", spread(handovers(history)));
    let _ = writeln!(
        text,
        "from kill -9 of an exclusive holder to the next acquisition: {}",
        spread(successions(history, faults))
    );
    text
}

fn name_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Acquired => "acquired",
        Outcome::Unowned => "granted too late",
        Outcome::GaveUp => "gave up",
        Outcome::Failed => "failed",
        Outcome::Cut => "killed",
    }
}

/// Returns how often two readers were seen to hold a lock at the same time.
fn readers_at_once(history: &History) -> usize {
    let of_lock = |lock| {
        let holds = history.holds_of(lock);
        meetings(&holds).filter(|(one, other, _)| one.shares && other.shares).count()
    };
    (0..SEMAPHORE).map(of_lock).sum()
}

/// Returns the times from the release of an exclusive holder to the first sight of the next owner, if that one
/// was already waiting. After the release of a reader, others may still hold the lock.
fn handovers(history: &History) -> Vec<f64> {
    let mut times = Vec::new();
    for lock in 0..LOCKS.len() {
        for pair in history.holds_of(lock).windows(2) {
            let (owner, next) = (pair[0], pair[1]);
            let HoldEnd::Released { at } = owner.end else { continue };
            let waited = next.waited_since.is_some_and(|since| since < at);
            if !owner.shares && waited && next.first.after > at {
                times.push(seconds(next.first.after - at));
            }
        }
    }
    times
}

fn successions(history: &History, faults: &[Record]) -> Vec<f64> {
    let kill_of = |hold: &Hold| {
        let mut kills = faults.iter().filter(|record| {
            record.fault == Fault::ClientKilled
                && record.target == Target::Client(hold.actor.client)
                && record.ended >= hold.last.before
        });
        kills.next().map(|kill| kill.began.max(hold.last.before))
    };
    let mut times = Vec::new();
    for hold in history.holds.iter().filter(|hold| hold.end == HoldEnd::Cut && !hold.shares) {
        let Some(killed) = kill_of(hold) else { continue };
        let mut later =
            history.holds.iter().filter(|next| next.lock == hold.lock && next.first.after > killed);
        if let Some(next) = later.next() {
            times.push(seconds(next.first.after - killed));
        }
    }
    times
}

fn spread(mut times: Vec<f64>) -> String {
    if times.is_empty() {
        return "none".to_owned();
    }
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    let (median, high, most) = (at(0.5) * 1e3, at(0.99) * 1e3, at(1.0) * 1e3);
    format!("{} times, median {median:.1} ms, p99 {high:.1} ms, longest {most:.1} ms", times.len())
}
