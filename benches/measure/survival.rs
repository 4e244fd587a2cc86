//! How long an outage an idle owner survives: the time from the loss of its connection until the
//! lock is lost, for outages that start at many moments between two keep-alives.
//!
//! An owner whose connection is lost just before a keep-alive has the least time left. So the first
//! outages start at moments throughout a session timeout, and never end. The next ones start
//! between the moment that left the least time and the one after it. Finally, an outage slightly
//! shorter than each of these is tested at each of the moments: the owner must still own when its
//! old lease has ended.
//!
//! The client library waits for an answer during these outages. If connections are refused it
//! retries without a pause, and dozens of sessions would take the processor from those that keep
//! their locks alive.

use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::{BlockingWriteLock, LockGuard};

use crate::support::relay::Relay;
use crate::support::server::{Server, ServerOptions};
use crate::support::wait::{deadline, eventually};
use crate::table::print_survival;
use crate::{ROOT, session};

/// The number of moments tested in each of the two rounds.
const MOMENTS: u32 = 12;

/// The time allowed for reconnecting and checking the znode on a busy machine. If an outage is not
/// survived at each moment, another one that is shorter by this is tested.
const STEP: Duration = Duration::from_millis(250);

const MAX_TRIES: u32 = 4;

pub(crate) struct Survival {
    pub(crate) session_timeout: Duration,
    /// Survived at every moment; `None` if no length was.
    pub(crate) certain: Option<Duration>,
    pub(crate) typical: Duration,
    pub(crate) moments: usize,
}

/// Measures for all of these session timeouts at the same time.
pub(crate) fn run(session_timeouts: &[Duration]) {
    // Ticks as in ZooKeeper's own configuration.
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
    // From there to the next keep-alive, the time left grows less.
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

/// An outage that does not end.
#[derive(Clone)]
struct Outage {
    /// Its start, after the acquisition of the lock.
    moment: Duration,
    /// How long the lock was kept afterwards.
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
    relay.restore();
    // By then the lock is under another lease, or lost.
    let survived = guard.lost().recv_timeout(timeout).is_err() && guard.is_owner();
    close(relay, guard);
    survived
}

/// Drops the last handle of a session and waits until it is closed. If it could not be closed, its
/// client library would reconnect forever, at the cost of the others.
fn close(relay: Relay, guard: LockGuard) {
    relay.restore();
    drop(guard);
    eventually("the session is closed", || relay.connections() == 0);
}

/// Owns a lock on an otherwise idle session, and returns this long after the acquisition.
fn own(server: &Server, timeout: Duration, moment: Duration) -> (Relay, LockGuard) {
    let relay = Relay::to(server.connect_string());
    let session = session(&relay.connect_string(), timeout);
    assert_eq!(session.session_timeout(), timeout, "as requested");
    let dir = format!("{ROOT}/survival-{}", relay.port());
    let guard = BlockingWriteLock::new(&session, &dir).expect("the path is valid").lock();
    thread::sleep(moment);
    (relay, guard.expect("the lock is uncontended"))
}

/// Applies a function to all items at the same time.
fn in_parallel<T: Sync, R: Send>(items: &[T], function: impl Fn(&T) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(|| function(item))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the function does not panic")).collect()
    })
}
