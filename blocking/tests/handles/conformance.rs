//! Checks a handle of the crate `zookeeper` on a real server against the contract of `client::port`.

use std::sync::Arc;
use std::thread;

use zookeeper_recipes_lock_blocking::{adapter, on_workers};
use zookeeper_recipes_lock_conformance::{Verdict, Violation, checks};

use crate::handle;
use crate::one_server::OneServer;

/// The checks run on several servers at once, because in sequence they take a minute, mostly waiting.
const SERVERS: usize = 4;

/// The adapter cannot satisfy the rules that are listed as exceptions.
#[test]
fn handle_conforms_to_the_port() {
    let results = check_on_servers();
    let violations: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    let violated: Vec<_> = violations.iter().map(|violation| violation.check).collect();
    assert_eq!(violated, ["watch_on_the_chroot_itself_fires"], "{violations:?}");
    let is_skipped = |result: &Result<Verdict, Violation>| matches!(result, Ok(Verdict::Skipped(_)));
    let of_checks = checks().into_iter().zip(&results);
    let skipped: Vec<_> =
        of_checks.filter(|(_, result)| is_skipped(result)).map(|(check, _)| check.name()).collect();
    assert_eq!(
        skipped,
        [
            "transaction_takes_effect_in_order",
            "failed_transaction_changes_nothing",
            "failed_check_fails_a_transaction",
            "sink_is_called_after_it_panicked",
            "submitted_calls_of_one_thread_take_effect_in_order",
        ]
    );
}

/// Returns the results of the checks, in order.
fn check_on_servers() -> Vec<Result<Verdict, Violation>> {
    let count = checks().len();
    let mut results: Vec<_> = thread::scope(|scope| {
        let servers: Vec<_> = (0..SERVERS)
            .map(|server| scope.spawn(move || check_each((server..count).step_by(SERVERS))))
            .collect();
        servers.into_iter().flat_map(|server| server.join().unwrap()).collect()
    });
    results.sort_by_key(|(number, _)| *number);
    assert_eq!(results.len(), count);
    results.into_iter().map(|(_, result)| result).collect()
}

fn check_each(numbers: impl Iterator<Item = usize>) -> Vec<(usize, Result<Verdict, Violation>)> {
    // `false`, because a panic in the sink ends the crate's event thread.
    let fixture = OneServer::new(false, |connect_string, session_timeout| {
        let zk = Arc::new(handle::connect(connect_string, session_timeout));
        (on_workers(adapter(Arc::clone(&zk), session_timeout)), zk)
    });
    let checks = checks();
    numbers.map(|number| (number, checks[number].run(&fixture))).collect()
}
