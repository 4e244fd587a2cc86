//! The crate's own client, for its tests on real servers.

use std::sync::Arc;
use std::time::Duration;

use crate::client::ZooKeeperClient;
use crate::client::connect_string::ConnectString;
use crate::connection::{Connection, ConnectionOptions};
use crate::error::Result;
use crate::wait::Wait;

/// Opens a connection of the crate's own.
///
/// # Errors
/// As [`SessionBuilder::connect`](crate::SessionBuilder::connect).
pub fn connection(connect_string: &str, session_timeout: Duration) -> Result<Arc<dyn ZooKeeperClient>> {
    let servers = ConnectString::parse(connect_string)?;
    let options = ConnectionOptions::new(session_timeout);
    Ok(Connection::connect(&servers, &options, &Wait::timeout(session_timeout))?)
}
