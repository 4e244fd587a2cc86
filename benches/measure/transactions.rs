//! What a session costs the ensemble while nothing happens: the number of transactions that it causes.

use std::thread;
use std::time::Duration;

use crate::support::server::{Server, ServerOptions};
use crate::survival::Requests;
use crate::table::print_transactions;
use crate::{ROOT, in_parallel, join_queue, session};

/// The number of ways of using a session that are compared.
const ROLES: usize = 5;

/// The number of transactions per minute for one session timeout.
pub(crate) struct Transactions {
    pub(crate) session_timeout: Duration,
    pub(crate) idle: f64,
    pub(crate) busy: f64,
    pub(crate) waiting: f64,
    pub(crate) owning: f64,
    pub(crate) owning_busy: f64,
}

/// Measures each role on a server of its own, all at the same time, for this long.
pub(crate) fn run(session_timeouts: &[Duration], length: Duration) {
    let measured = in_parallel(session_timeouts, |timeout| measure(*timeout, length));
    print_transactions(length, &measured);
}

fn measure(timeout: Duration, length: Duration) -> Transactions {
    let roles: [usize; ROLES] = std::array::from_fn(|role| role);
    let counted = in_parallel(&roles, |role| count(*role, timeout, length));
    let [idle, busy, owning, owning_busy, with_waiter] = counted[..] else {
        unreachable!("one count for each role")
    };
    // The number of an owner's keep-alives in the same time may differ by one.
    let waiting = (with_waiter - owning).max(0.0);
    Transactions { session_timeout: timeout, idle, busy, waiting, owning, owning_busy }
}

/// Returns the transactions per minute of a role.
fn count(role: usize, timeout: Duration, length: Duration) -> f64 {
    let options = ServerOptions {
        tick_time_ms: 2_000,
        min_session_timeout_ms: 4_000,
        max_session_timeout_ms: 40_000,
        ..ServerOptions::default()
    };
    let server = Server::with(options);
    let first = session(&server.connect_string(), timeout);
    let _busy = matches!(role, 1 | 3).then(|| Requests::start(&first));
    let _owned = (role >= 2).then(|| join_queue(&first, ROOT));
    let second = (role == 4).then(|| session(&server.connect_string(), timeout));
    let _awaited = second.as_ref().map(|session| join_queue(session, ROOT));
    // By then, the transactions caused by the acquisition are over.
    thread::sleep(Duration::from_secs(3));
    let before = zxid(&server);
    thread::sleep(length);
    (zxid(&server) - before) as f64 * 60.0 / length.as_secs_f64()
}

/// Returns the number of the server's last transaction.
fn zxid(server: &Server) -> i64 {
    let answer = server.four_letter("srvr");
    let zxid = answer.lines().find_map(|line| line.strip_prefix("Zxid: 0x"));
    i64::from_str_radix(zxid.expect("srvr reports it").trim(), 16).expect("a hexadecimal number")
}
