//! How long an outage an owner survives: all servers are cut off for a fraction of the session timeout.
//!
//! Outages of many lengths run at the same time, in two rounds. The first round takes coarse steps. The second takes
//! fine steps, for each kind of owner, around the longest length up to which all owners of that kind survived every
//! length in the first.
//!
//! Each outage hits several owners. In the first round, half of them also make requests (they are busy), and half only
//! own a lock (they are idle). In the second, all are of one kind. The owners have acquired their locks at different
//! moments, so the outage hits each at a different point of its keep-alive period. An owner has survived if it owns the
//! lock when its lease from before the outage has certainly ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{iter, sync::Arc};

use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::{BlockingWriteLock, LockGuard, RetryPolicy, Session};

use crate::support::ensemble::Ensemble;
use crate::support::relay::Relay;
use crate::support::server::ServerOptions;
use crate::table::print_survival;
use crate::{ROOT, in_parallel, session};

/// The number of coarse steps in the session timeout. The fine steps are a fifth of a coarse one.
const COARSE: u32 = 16;
const FINE: u32 = 5 * COARSE;

/// The shortest of the coarse lengths, in steps.
const SHORTEST: u32 = 2;

/// The number of moments at which the owners of an outage acquire their locks: at each, one owner of each kind.
const COARSE_MOMENTS: u32 = 4;
const FINE_MOMENTS: u32 = 8;

/// The longest time that may pass before the end of a lease is noticed.
const MARGIN: Duration = Duration::from_millis(250);

/// The pause between two requests of a busy session.
const PAUSE: Duration = Duration::from_millis(100);

/// How the servers are cut off.
#[derive(Clone, Copy)]
pub(crate) enum Cut {
    /// Connections are closed, and new ones are refused.
    Refused,
    /// Connections stay open and new ones are accepted, but nothing passes. What was sent meanwhile arrives
    /// afterwards.
    Silent,
}

/// The traffic of an owner's session.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Traffic {
    Idle,
    Busy,
}

pub(crate) struct Survival {
    pub(crate) servers: usize,
    pub(crate) session_timeout: Duration,
    pub(crate) traffic: Traffic,
    /// The longest length that all owners survived, along with all shorter lengths.
    pub(crate) certain: Option<Duration>,
    /// The longest length that at least half of the owners survived in the first round, along with all shorter lengths.
    pub(crate) typical: Option<Duration>,
    /// The number of owners that went through an outage.
    pub(crate) owners: usize,
}

/// One owner after an outage.
#[derive(Clone, Copy)]
struct Outcome {
    length: Duration,
    traffic: Traffic,
    survived: bool,
}

/// Measures one server and an ensemble of three, each with all these session timeouts at the same time.
pub(crate) fn run(session_timeouts: &[Duration], cut: Cut) {
    // The tick of ZooKeeper's sample configuration.
    let options = ServerOptions {
        tick_time_ms: 2_000,
        min_session_timeout_ms: 4_000,
        max_session_timeout_ms: 40_000,
        ..ServerOptions::default()
    };
    let mut survived = Vec::new();
    for size in [1, 3] {
        let servers = Ensemble::with(size, &options);
        let field = |timeout: &Duration| Field { servers: &servers, timeout: *timeout, cut };
        let measured = in_parallel(session_timeouts, |timeout| field(timeout).measure());
        survived.extend(measured.into_iter().flatten());
    }
    print_survival(cut, &survived);
}

/// What all outages with one session timeout on the same servers have in common.
struct Field<'a> {
    servers: &'a Ensemble,
    timeout: Duration,
    cut: Cut,
}

impl Field<'_> {
    fn measure(&self) -> Vec<Survival> {
        let lengths: Vec<Duration> = (SHORTEST..=COARSE).map(|steps| self.timeout * steps / COARSE).collect();
        let coarse = in_parallel(&lengths, |length| {
            self.outage(*length, COARSE_MOMENTS, &[Traffic::Idle, Traffic::Busy])
        });
        let coarse = coarse.concat();
        in_parallel(&[Traffic::Idle, Traffic::Busy], |traffic| self.refine(*traffic, &coarse))
    }

    fn refine(&self, traffic: Traffic, coarse: &[Outcome]) -> Survival {
        let coarse: Vec<Outcome> = coarse.iter().copied().filter(|one| one.traffic == traffic).collect();
        let around = longest_survived(&coarse, 1.0).unwrap_or(self.timeout * (SHORTEST - 1) / COARSE);
        let step = self.timeout / FINE;
        let lengths: Vec<Duration> = (0..7).map(|steps| around + step * steps - step * 2).collect();
        let fine = in_parallel(&lengths, |length| self.outage(*length, FINE_MOMENTS, &[traffic])).concat();
        let typical = longest_survived(&coarse, 0.5);
        let all = [coarse, fine].concat();
        Survival {
            servers: self.servers.size(),
            session_timeout: self.timeout,
            traffic,
            certain: longest_survived(&all, 1.0),
            typical,
            owners: all.len(),
        }
    }

    /// Cuts off owners of these kinds for this long.
    fn outage(&self, length: Duration, moments: u32, kinds: &[Traffic]) -> Vec<Outcome> {
        let relays: Vec<Relay> =
            (0..self.servers.size()).map(|index| Relay::to(self.servers.connect_string_of(index))).collect();
        let addresses: Vec<String> = relays.iter().map(Relay::connect_string).collect();
        let addresses = addresses.join(",");
        let mut owners = Vec::new();
        for _ in 0..moments {
            for traffic in kinds {
                let dir = format!("{ROOT}/survival-{}-{}", relays[0].port(), owners.len());
                owners.push(Owner::new(&addresses, self.timeout, &dir, *traffic));
            }
            thread::sleep(self.timeout / 2 / moments);
        }
        thread::sleep(self.timeout / 2);

        relays.iter().for_each(|relay| match self.cut {
            Cut::Refused => relay.refuse(),
            Cut::Silent => relay.swallow(),
        });
        let begun = Instant::now();
        thread::sleep(length.saturating_sub(begun.elapsed()));
        relays.iter().for_each(Relay::restore);
        thread::sleep((self.timeout + MARGIN).saturating_sub(begun.elapsed()));
        owners.iter().map(|owner| owner.outcome(length)).collect()
    }
}

/// Returns the longest length up to which at least this fraction of the owners survived every length.
fn longest_survived(outcomes: &[Outcome], part: f64) -> Option<Duration> {
    let mut lengths: Vec<Duration> = outcomes.iter().map(|outcome| outcome.length).collect();
    lengths.sort();
    lengths.dedup();
    let survives = |length: &Duration| {
        let of_length = || outcomes.iter().filter(|outcome| outcome.length == *length);
        let survived = of_length().filter(|outcome| outcome.survived).count();
        survived as f64 >= part * of_length().count() as f64
    };
    lengths.into_iter().take_while(survives).last()
}

/// The owner of a lock, on a session of its own.
struct Owner {
    guard: LockGuard,
    session: Session,
    traffic: Traffic,
    busy: Option<Requests>,
}

impl Owner {
    fn new(addresses: &str, timeout: Duration, dir: &str, traffic: Traffic) -> Owner {
        let session = session(addresses, timeout);
        assert_eq!(session.session_timeout(), timeout, "as requested");
        let lock = BlockingWriteLock::new(&session, dir).expect("the path is valid");
        let guard = lock.lock().expect("the lock is uncontended");
        let busy = (traffic == Traffic::Busy).then(|| Requests::start(&session));
        Owner { guard, session, traffic, busy }
    }

    fn outcome(&self, length: Duration) -> Outcome {
        let survived = self.guard.is_owner() && self.guard.loss().is_none();
        Outcome { length, traffic: self.traffic, survived }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.busy.take());
        self.session.close();
    }
}

/// A thread that keeps a session busy until this value is dropped.
pub(crate) struct Requests {
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Requests {
    pub(crate) fn start(session: &Session) -> Requests {
        let zk = RecoverableZooKeeper::new(session, RetryPolicy::constant(PAUSE).with_attempts(1));
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let thread = thread::spawn(move || {
            for () in iter::repeat(()).take_while(|()| !stop.load(Ordering::Relaxed)) {
                // This may fail during an outage.
                let _ = zk.exists("/");
                thread::sleep(PAUSE);
            }
        });
        Requests { stopping, thread: Some(thread) }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no request panics");
        }
    }
}
