//! How long an outage an idle owner survives: the time from the loss of its connection until the
//! lock is lost, for outages that begin at many moments between two keep-alives.
//!
//! An owner whose connection is lost just before a keep-alive has the least time left. So the first
//! outages begin at moments all over a session timeout, and never end; the next ones begin between
//! the moment that left the least and the one after it. At last, an outage that is a little shorter
//! than each of these is tried at each of the moments: the owner must still own when its old lease
//! is over.
//!
//! The client library waits for an answer during these outages. Where connections are refused it
//! tries again without a pause, and dozens of sessions at once would take the processor from those
//! that keep their locks alive.

use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::{BlockingWriteLock, LockGuard};

use crate::support::relay::Relay;
use crate::support::server::{Server, ServerOptions};
use crate::support::wait::{deadline, eventually};
use crate::table::print_survival;
use crate::{ROOT, session};

/// How many moments are tried in each of the two rounds.
const MOMENTS: u32 = 12;

/// What connecting again and looking at the znode may take, while others are at work on the
/// machine. When a length is not survived at each moment, another one is tried that is as much
/// shorter.
const STEP: Duration = Duration::from_millis(250);

const MAX_TRIES: u32 = 4;

pub(crate) struct Survival {
    pub(crate) session_timeout: Duration,
    /// Survived at every moment; `None` if no length was.
    pub(crate) certain: Option<Duration>,
    pub(crate) typical: Duration,
    pub(crate) moments: usize,
}

/// Measures for each of these session timeouts, at the same time.
pub(crate) fn run(session_timeouts: &[Duration]) {
    // Ticks as ZooKeeper's own configuration has them.
    let options = ServerOptions {
        tick_time_ms: 2_000,
        min_session_timeout_ms: 4_000,
        max_session_timeout_ms: 40_000,
        ..ServerOptions::default()
    };
    let server = Server::with(options);
    let survived = in_parallel(session_timeouts, |timeout| measure(&server, *timeout));
    print_survival(&survived);
}

fn measure(server: &Server, timeout: Duration) -> Survival {
    let all_over = (0..MOMENTS).map(|number| timeout + timeout * number / MOMENTS).collect();
    let coarse = times_to_loss(server, timeout, all_over);
    // What is left grows less from there, up to the next keep-alive.
    let worst = coarse.iter().min_by_key(|outage| outage.lasted).expect("several were tried").moment;
    let behind = (1..=MOMENTS).map(|number| worst + timeout * number / MOMENTS / (MOMENTS + 1)).collect();
    let fine = times_to_loss(server, timeout, behind);

    let mut lasted: Vec<Duration> = coarse.iter().map(|outage| outage.lasted).collect();
    lasted.sort();
    let outages = [coarse, fine].concat();
    let least = outages.iter().map(|outage| outage.lasted).min().expect("several were tried");
    let certain = (1..=MAX_TRIES).filter_map(|number| least.checked_sub(STEP * number)).find(|length| {
        let survives = |outage: &Outage| survives(server, timeout, outage.moment, *length);
        in_parallel(&outages, survives).iter().all(|survived| *survived)
    });
    Survival { session_timeout: timeout, certain, typical: lasted[lasted.len() / 2], moments: outages.len() }
}

/// An outage without an end.
#[derive(Clone)]
struct Outage {
    /// When it began, after the acquisition of the lock.
    moment: Duration,
    /// How long the lock was kept from then on.
    lasted: Duration,
}

fn times_to_loss(server: &Server, timeout: Duration, moments: Vec<Duration>) -> Vec<Outage> {
    in_parallel(&moments, |moment| Outage { moment: *moment, lasted: time_to_loss(server, timeout, *moment) })
}

fn time_to_loss(server: &Server, timeout: Duration, moment: Duration) -> Duration {
    let (relay, guard) = own(server, timeout, moment);
    relay.black_out();
    let begun = Instant::now();
    guard.lost().recv_timeout(timeout + deadline()).expect("a lock is lost without contact");
    let lasted = begun.elapsed();
    close(relay, guard);
    lasted
}

/// Whether the lock is still owned after an outage of this length.
fn survives(server: &Server, timeout: Duration, moment: Duration, length: Duration) -> bool {
    let (relay, guard) = own(server, timeout, moment);
    relay.black_out();
    thread::sleep(length);
    relay.heal();
    // By then it is under another lease, or lost.
    let survived = guard.lost().recv_timeout(timeout).is_err() && guard.is_owner();
    close(relay, guard);
    survived
}

/// Lets go of the last handle of a session and waits until it is closed: the client library of one
/// that cannot be closed connects again and again, at the cost of the others.
fn close(relay: Relay, guard: LockGuard) {
    relay.heal();
    drop(guard);
    eventually("the session is closed", || relay.connections() == 0);
}

/// Owns a lock on a session that does nothing else, and returns so long after the acquisition.
fn own(server: &Server, timeout: Duration, moment: Duration) -> (Relay, LockGuard) {
    let relay = Relay::to(server.connect_string());
    let session = session(&relay.connect_string(), timeout);
    assert_eq!(session.session_timeout(), timeout, "as it was asked for");
    let dir = format!("{ROOT}/survival-{}", relay.port());
    let guard = BlockingWriteLock::new(&session, &dir).expect("the path is valid").lock();
    thread::sleep(moment);
    (relay, guard.expect("nobody else is there"))
}

/// Applies a function to all items at the same time.
fn in_parallel<T: Sync, R: Send>(items: &[T], function: impl Fn(&T) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(|| function(item))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}
