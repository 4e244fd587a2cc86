//! Checks the crate's own client on a real server against the contract of `client::port`.

use zookeeper_recipes_lock::own_connection;
use zookeeper_recipes_lock_conformance::check;

use crate::one_server::OneServer;

#[test]
fn connection_conforms_to_the_port() {
    let fixture = OneServer::new(true, |connect_string, session_timeout| {
        (own_connection(connect_string, session_timeout).unwrap(), ())
    });
    let report = check(&fixture);
    assert!(report.is_passed(), "\n{report}");
    assert_eq!(report.skipped().count(), 0, "\n{report}");
}
