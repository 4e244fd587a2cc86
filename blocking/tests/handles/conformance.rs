//! The contract of the client port, checked with a handle of the crate `zookeeper` on a real server.

use std::sync::Arc;

use zookeeper_recipes_lock_blocking::{adapter, on_workers};
use zookeeper_recipes_lock_conformance::check;

use crate::handle;
use crate::one_server::OneServer;

/// With the exceptions that the adapter cannot work around.
#[test]
fn handle_conforms_to_the_port() {
    // A panic of the sink ends the crate's event thread.
    let fixture = OneServer::new(false, |connect_string, session_timeout| {
        let zk = Arc::new(handle::connect(connect_string, session_timeout));
        (on_workers(adapter(Arc::clone(&zk), session_timeout)), zk)
    });
    let report = check(&fixture);
    let violations: Vec<_> = report.violations().map(|violation| violation.check).collect();
    assert_eq!(violations, ["watch_on_the_chroot_itself_fires"], "\n{report}");
    let skipped = [
        "transaction_takes_effect_in_order",
        "failed_transaction_changes_nothing",
        "failed_check_fails_a_transaction",
        "sink_is_called_after_it_panicked",
        "submitted_calls_of_one_thread_take_effect_in_order",
    ];
    assert_eq!(report.skipped().collect::<Vec<_>>(), skipped);
}
