//! The only server is killed and restarted: the time from when it serves again until locks are acquired.

use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::{BlockingWriteLock, Session};

use crate::support::server::Server;
use crate::support::wait::deadline;
use crate::table::{Aim, print_row};
use crate::{Plan, ROOT, join_queue, seconds, session};

/// Longer than the server is down.
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

/// The connection is retried after pauses of up to 1 s. It may reach the server when that accepts connections
/// but does not answer yet.
const MARGIN: Aim = Aim::AtMost(2.5);

struct Times {
    start: f64,
    waiter: f64,
    newcomer: f64,
}

pub(crate) fn run(plan: &Plan, server: &Server) {
    let times: Vec<Times> = (0..plan.runs).map(|run| time_restart(run, server)).collect();
    let of = |time: fn(&Times) -> f64| times.iter().map(time).collect::<Vec<f64>>();
    print_row("only server killed and started → it serves again", "s", &of(|times| times.start), &Aim::None);
    print_row(
        "… → a waiter from before owns what was released meanwhile",
        "s",
        &of(|times| times.waiter),
        &MARGIN,
    );
    print_row(
        "… → a `lock()` called at the server's start returns",
        "s",
        &of(|times| times.newcomer),
        &MARGIN,
    );
}

fn time_restart(run: u32, server: &Server) -> Times {
    let new_session = || session(&server.connect_string(), SESSION_TIMEOUT);
    let dir = format!("{ROOT}/restart-{run}");
    let holder = BlockingWriteLock::new(&new_session(), &dir).expect("the path is valid");
    let guard = holder.lock().expect("the lock is free");
    let waiting = new_session();
    let (_lock, acquired) = join_queue(&waiting, &dir);
    let newcomer = new_session();

    server.kill();
    drop(guard);
    let started = Instant::now();
    let newcomer = thread::spawn(move || time_lock(&newcomer, &format!("{dir}-too")));
    server.restart();
    let serving = Instant::now();
    let waiter = acquired.recv_timeout(deadline()).expect("the lock was released");
    let newcomer = newcomer.join().expect("the call returns");
    Times {
        start: seconds(started, serving),
        waiter: seconds(serving, waiter),
        newcomer: seconds(serving, newcomer),
    }
}

/// Locks a free lock. Returns the time of the acquisition.
fn time_lock(session: &Session, dir: &str) -> Instant {
    let lock = BlockingWriteLock::new(session, dir).expect("the path is valid");
    let _guard = lock.lock().expect("the server comes back before the retries end");
    Instant::now()
}
