//! The certificates of a run, and what the servers and the clients with TLS need of them.

use std::path::Path;

use zookeeper_recipes_lock::client::TlsConfig;

use crate::support::certificates::{Authority, Files};
use crate::support::server::ServerTls;

/// The name in the servers' certificate. They have it whatever address a client reaches them by.
const SERVER_NAME: &str = "localhost";

/// Writes the certificates of the servers and of the clients into a new directory below this one.
pub fn issue(dir: &Path) -> (Files, ServerTls) {
    let files = Files { dir: tempfile::tempdir_in(dir).expect("the directory is ours") };
    let authority = Authority::new();
    files.write_identity(&authority.issue(&["client"]));
    let identity = files.write_server_identity(&authority.issue(&[SERVER_NAME]));
    let authorities = files.write_authority(&authority);
    (files, ServerTls { identity, authorities })
}

/// Returns the configuration of a client with a certificate from this directory.
pub fn of_client(dir: &Path) -> TlsConfig {
    TlsConfig::new()
        .ca_file(dir.join("ca.pem"))
        .client_certificate(dir.join("client.pem"), dir.join("client.key"))
        .server_name(SERVER_NAME)
}
