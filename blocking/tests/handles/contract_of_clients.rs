//! Checks a handle of the crate `zookeeper`, with its adapter, on a real server against the contract of clients.

use std::thread;

use zookeeper::ZooKeeper;
use zookeeper_recipes_lock_blocking::adapter;

use crate::contract::{Problem, assert_passed, checks};
use crate::one_server::OneServer;

/// The checks run on several servers at once, because in sequence they take a minute, mostly waiting.
const SERVERS: usize = 4;

/// A watch on the root never fires within a chroot: the adapter cannot mend that.
const VIOLATED: &str = "watch_on_the_chroot_itself_fires";

#[test]
fn handle_keeps_the_contract() {
    let count = checks().len();
    let mut outcomes: Vec<_> = thread::scope(|scope| {
        let check_every = |server| scope.spawn(move || check_each((server..count).step_by(SERVERS)));
        let servers: Vec<_> = (0..SERVERS).map(check_every).collect();
        servers.into_iter().flat_map(|server| server.join().unwrap()).collect()
    });
    outcomes.sort_by_key(|(number, _)| *number);
    let outcomes: Vec<_> =
        outcomes.into_iter().map(|(number, outcome)| (checks()[number].name, outcome)).collect();
    let (known, others): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|(name, _)| *name == VIOLATED);
    assert!(matches!(known.as_slice(), [(_, Err(Problem::Violated(_)))]), "{known:?}");
    assert_passed(&others, &["sink_is_called_after_it_panicked"]);
}

fn check_each(numbers: impl Iterator<Item = usize>) -> Vec<(usize, Result<(), Problem>)> {
    // `false`, because a panic in the sink ends the crate's event thread.
    let fixture = OneServer::new(false, |connect_string, session_timeout| {
        let zk = ZooKeeper::connect(connect_string, session_timeout, |_| {}).unwrap();
        (adapter(zk, session_timeout).unwrap(), ())
    });
    let checks = checks();
    numbers.map(|number| (number, checks[number].run(&fixture))).collect()
}
