//! No server can be reached: the processor time and the log lines of a process that only has a session, a lock
//! and waiters.

use std::thread;
use std::time::Duration;

use crate::child::{Child, Usage};
use crate::support::relay::Relay;
use crate::support::server::Server;
use crate::table::{Aim, print_row};
use crate::{Plan, ROOT};

/// Longer than the outage, so the process spends all of it on reconnecting.
const SESSION_TIMEOUT: Duration = Duration::from_secs(40);

const WAITERS: usize = 10;

/// The session and the lock are suspended, and no server was reached for 1 s and then for 10 s.
const MAX_WARNINGS: f64 = 4.0;

pub(crate) fn run(plan: &Plan, server: &Server) {
    let relay = Relay::to(server.connect_string());
    let (near, far) = (server.connect_string(), relay.connect_string());
    let child = |name: &str, connect_string: &str, is_busy| {
        let dir = format!("{ROOT}/outage-{name}");
        Child::holding(connect_string, &dir, WAITERS, SESSION_TIMEOUT, is_busy)
    };
    let mut children = [
        ("connections refused", child("refused", &near, false)),
        ("connections refused, ten requests a second", child("refused-busy", &near, true)),
        ("the network silent", child("silent", &far, false)),
    ];
    let mut usage = || children.each_mut().map(|(_, child)| child.usage());
    let before = usage();
    relay.swallow();
    server.kill();
    thread::sleep(plan.outage);
    let after = usage();
    relay.restore();
    server.restart();

    print_figures(plan, &children.each_ref().map(|(name, _)| *name), &before, &after);
}

fn print_figures(plan: &Plan, names: &[&str], before: &[Usage], after: &[Usage]) {
    for (name, (before, after)) in names.iter().zip(before.iter().zip(after)) {
        let percent = 100.0 * (after.seconds - before.seconds) / plan.outage.as_secs_f64();
        let figure = format!("no server for {:?}, {name}, a held lock and {WAITERS} waiters", plan.outage);
        print_row(&figure, "% of a core", &[percent], &Aim::AtMost(1.0));
        let warnings = after.warnings - before.warnings;
        print_row("… warnings in the log", "lines", &[warnings], &Aim::AtMost(MAX_WARNINGS));
        print_row("… lines at the level `info`", "lines", &[after.notes - before.notes], &Aim::None);
    }
}
