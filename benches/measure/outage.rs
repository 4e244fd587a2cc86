//! No server runs: the processor time of a process with a session, a lock and waiters.

use std::thread;
use std::time::Duration;

use crate::child::Child;
use crate::support::server::Server;
use crate::table::{Aim, print_row};
use crate::{Plan, ROOT};

/// Longer than the outage, so that all of it is spent on reconnecting.
const SESSION_TIMEOUT: Duration = Duration::from_secs(40);

const WAITERS: usize = 10;

pub(crate) fn run(plan: &Plan, server: &Server) {
    let dir = format!("{ROOT}/outage");
    let mut child = Child::holding(&server.connect_string(), &dir, WAITERS, SESSION_TIMEOUT);
    server.kill();
    let before = child.processor_time();
    thread::sleep(plan.outage);
    let after = child.processor_time();
    server.restart();

    let percent = |seconds: f64| 100.0 * seconds / plan.outage.as_secs_f64();
    let (whole, ours) = (percent(after.whole - before.whole), percent(after.ours - before.ours));
    let figure =
        format!("no server for {:?}, a held lock and {WAITERS} waiters: the crate's threads", plan.outage);
    print_row(&figure, "% of a core", &[ours], &Aim::AtMost(1.0));
    print_row("… the client library's threads", "% of a core", &[whole - ours], &Aim::None);
}
