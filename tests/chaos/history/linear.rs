//! A second opinion on a history, from the linearizability checker of the library `stateright`.
//!
//! Each hold is two operations: the request is granted at some moment up to the first sight of ownership, and gives the
//! lock back at some moment after the last sight. The history is right if these operations can be put into an order
//! that a lock allows, in which each operation comes after all those that had already ended when it began. The sequence
//! numbers are the fencing tokens: the lock grants in their order.
//!
//! The library tries one order after another, so the history is cut into short pieces. It is cut at moments at which no
//! hold is about to end, when it is known who holds the lock.

use std::collections::BTreeMap;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use super::{History, Hold, HoldEnd};
use crate::clock::seconds;
use crate::plan::{LOCKS, PERMITS, SEMAPHORE};

/// The number of holds in a piece. A piece is longer if the history cannot be cut there.
const PIECE: usize = 8;

/// The largest number of holds in a piece. The library takes too long for longer pieces.
const MAX_PIECE: usize = 40;

/// The model of a correct lock.
#[derive(Clone, Debug)]
struct Lock {
    /// The current holders, by the numbers of their holds.
    holders: BTreeMap<usize, Request>,
    /// The last request that was granted, of any kind, and the last writer.
    last: i32,
    last_writer: i32,
    /// The number of permits; `None` for a lock on which readers and writers exclude each other.
    permits: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Request {
    sequence: i32,
    shares: bool,
}

#[derive(Clone, Debug)]
enum Operation {
    Grant(usize, Request),
    GiveBack(usize),
}

impl SequentialSpec for Lock {
    type Op = Operation;
    /// Whether the operation is possible.
    type Ret = bool;

    fn invoke(&mut self, operation: &Operation) -> bool {
        match *operation {
            Operation::Grant(hold, request) => {
                let may = self.may_grant(request);
                self.grant(hold, request);
                may
            }
            Operation::GiveBack(hold) => self.holders.remove(&hold).is_some(),
        }
    }
}

impl Lock {
    fn new(permits: Option<usize>) -> Lock {
        Lock { holders: BTreeMap::new(), last: -1, last_writer: -1, permits }
    }

    fn may_grant(&self, Request { sequence, shares }: Request) -> bool {
        if let Some(permits) = self.permits {
            return self.holders.len() < permits;
        }
        // A writer that is being downgraded has a reader with the same number beside it.
        let excludes = |other: &Request| !(shares && (other.shares || other.sequence == sequence));
        let is_free = !self.holders.values().any(excludes);
        // The threads of a cohort pass one request on to each other.
        is_free && if shares { self.last_writer <= sequence } else { self.last <= sequence }
    }

    fn grant(&mut self, hold: usize, request: Request) {
        self.holders.insert(hold, request);
        self.last = self.last.max(request.sequence);
        if !request.shares {
            self.last_writer = self.last_writer.max(request.sequence);
        }
    }
}

/// A hold, with the intervals in which it began and ended.
struct Span {
    number: usize,
    request: Request,
    began: (u64, u64),
    ended: (u64, u64),
}

impl Span {
    fn describe(&self, begin: u64) -> String {
        let at = |moment: u64| seconds(moment.saturating_sub(begin));
        let Span { request: Request { sequence, shares }, began, ended, .. } = *self;
        let kind = if shares { "reader" } else { "owner" };
        format!(
            "{kind} {sequence} from [{:.6}, {:.6}] to [{:.6}, {:.6}] s",
            at(began.0),
            at(began.1),
            at(ended.0),
            at(ended.1)
        )
    }
}

/// The library's findings.
#[derive(Debug, Default)]
pub struct Opinion {
    pub pieces: usize,
    /// Pieces for which no order is possible.
    pub wrong: Vec<String>,
    /// The number of pieces that were too long.
    pub undecided: usize,
}

/// Checks the histories of all locks.
pub fn ask(history: &History, begin: u64) -> Opinion {
    let mut opinion = Opinion::default();
    for lock in 0..LOCKS.len() {
        let holds = history.holds_of(lock);
        ask_about(&holds, (lock == SEMAPHORE).then_some(PERMITS), begin, &mut opinion);
    }
    opinion
}

/// Checks the holds of one lock, which are ordered by their start.
pub fn ask_about(holds: &[&Hold], permits: Option<usize>, begin: u64, opinion: &mut Opinion) {
    let mut spans: Vec<Span> = holds.iter().enumerate().map(|(number, _)| span(holds, number)).collect();
    spans.sort_by_key(|span| span.began.1);
    let mut lock = Lock::new(permits);
    let mut left = &spans[..];
    let mut open: Vec<&Span> = Vec::new();
    let mut since = 0;
    while !left.is_empty() {
        let length = cut(left, &open);
        let (piece, rest) = left.split_at(length);
        let until = rest.first().map_or(u64::MAX, |_| piece[length - 1].began.1);
        opinion.pieces += 1;
        if length > MAX_PIECE {
            opinion.undecided += 1;
        } else if !is_possible(&lock, piece, &open, since, until) {
            let spans: Vec<String> =
                open.iter().copied().chain(piece).map(|span| span.describe(begin)).collect();
            opinion.wrong.push(format!("lock {}: {}", holds[0].lock, spans.join("; ")));
        }
        for span in piece {
            lock.grant(span.number, span.request);
        }
        open.extend(piece);
        open.retain(|span| span.ended.0 >= until);
        lock.holders.retain(|number, _| open.iter().any(|span| span.number == *number));
        (left, since) = (rest, until);
    }
}

fn span(holds: &[&Hold], number: usize) -> Span {
    let hold = holds[number];
    let request = Request { sequence: hold.sequence, shares: hold.shares };
    let downgraded = |other: &&&Hold| {
        other.actor == hold.actor && other.end == HoldEnd::Downgraded && other.sequence == hold.sequence
    };
    let since = hold.waited_since.or_else(|| holds.iter().find(downgraded).map(|writer| writer.last.before));
    let began = (since.unwrap_or(hold.first.before).min(hold.first.after), hold.first.after);
    let ended_by = match hold.end {
        HoldEnd::Released { at } => at,
        // The next hold that excludes this one was granted later.
        HoldEnd::Downgraded | HoldEnd::Lost | HoldEnd::Cut => {
            let next =
                holds.iter().filter(|other| other.sequence > hold.sequence && !(other.shares && hold.shares));
            next.map(|other| other.first.after).min().unwrap_or(u64::MAX)
        }
    };
    Span { number, request, began, ended: (hold.last.before, ended_by.max(hold.last.before)) }
}

/// Returns the length of the next piece: up to a moment at which no hold is about to end.
fn cut(left: &[Span], open: &[&Span]) -> usize {
    let is_settled = |length: usize| {
        let until = left[length - 1].began.1;
        let is_ending = |span: &Span| span.ended.0 < until && until <= span.ended.1;
        !open.iter().any(|span| is_ending(span)) && !left.iter().any(is_ending)
    };
    (PIECE.min(left.len())..left.len()).find(|length| is_settled(*length)).unwrap_or(left.len())
}

fn is_possible(lock: &Lock, piece: &[Span], open: &[&Span], since: u64, until: u64) -> bool {
    // At the same moment, beginnings come first: they may precede or follow what ends then.
    let mut moments: Vec<(u64, bool, usize, Operation)> = Vec::new();
    let mut add = |(begins, ends): (u64, u64), operation: Operation| {
        let thread = moments.len();
        moments.push((begins.max(since), false, thread, operation.clone()));
        moments.push((ends.min(until), true, thread, operation));
    };
    for span in piece {
        add(span.began, Operation::Grant(span.number, span.request));
    }
    for span in piece.iter().chain(open.iter().copied()).filter(|span| span.ended.0 < until) {
        add(span.ended, Operation::GiveBack(span.number));
    }
    moments.sort_by_key(|(at, is_end, thread, _)| (*at, *is_end, *thread));
    let mut tester = LinearizabilityTester::new(lock.clone());
    for (_, is_end, thread, operation) in moments {
        let noted = match is_end {
            false => tester.on_invoke(thread, operation).map(drop),
            true => tester.on_return(thread, true).map(drop),
        };
        noted.expect("each operation begins before it ends");
    }
    tester.is_consistent()
}
