//! Opens handles of the crate `zookeeper` that are safe to call.

#![allow(clippy::expect_used, clippy::missing_panics_doc, unreachable_pub, reason = "as in the kit")]

use std::time::Duration;

use crossbeam_channel::bounded;
use zookeeper::ZooKeeper;

/// How long the I/O thread of a new handle may take to start, even on the slowest machine.
const MAX_START: Duration = Duration::from_secs(1);

/// Opens a handle whose first call is safe. A call that is made while the handle's I/O thread starts may not
/// wake that thread, and then this call and all later calls never return.
pub fn connect(connect_string: &str, session_timeout: Duration) -> ZooKeeper {
    let zk = ZooKeeper::connect(connect_string, session_timeout, |_| {}).expect("the address is valid");
    let (reports, first_report) = bounded(1);
    let subscription = zk.add_listener(move |_| {
        let _ = reports.try_send(());
    });
    // No report arrives if the handle connects before the listener is added.
    let _ = first_report.recv_timeout(MAX_START);
    zk.remove_listener(subscription);
    zk
}
