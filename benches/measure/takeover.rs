//! A holder's process is killed: the time until a waiter in another process has the lock.

use std::thread;
use std::time::{Duration, Instant};

use crate::child::Child;
use crate::support::server::Server;
use crate::support::wait::deadline;
use crate::table::{Aim, print_row};
use crate::{Plan, ROOT, join_queue, seconds, session};

const SESSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Allows for the server's detection time and the load of the machine.
const MARGIN: Duration = Duration::from_secs(1);

/// Each holder is killed at a different time after its last keep-alive.
const STEP: Duration = Duration::from_millis(400);

pub(crate) fn run(plan: &Plan, server: &Server) {
    let times: Vec<f64> = (0..plan.runs).map(|run| time_takeover(run, server)).collect();
    let aim = Aim::AtMost((SESSION_TIMEOUT + MARGIN).as_secs_f64());
    let figure = format!("holder's process killed → a waiter owns (session timeout {SESSION_TIMEOUT:?})");
    print_row(&figure, "s", &times, &aim);
}

fn time_takeover(run: u32, server: &Server) -> f64 {
    let (connect_string, dir) = (server.connect_string(), format!("{ROOT}/takeover-{run}"));
    let mut holder = Child::holding(&connect_string, &dir, 0, SESSION_TIMEOUT, false);
    let session = session(&connect_string, SESSION_TIMEOUT);
    let (lock, acquired) = join_queue(&session, &dir);
    assert!(!lock.is_owner(), "the child holds the lock");
    thread::sleep(run * STEP);
    let killed = Instant::now();
    holder.kill();
    seconds(killed, acquired.recv_timeout(deadline()).expect("the lock becomes free"))
}
