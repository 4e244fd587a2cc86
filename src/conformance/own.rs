//! The crate's own client, for its tests on real servers.

use std::sync::Arc;
use std::time::Duration;

use crate::client::ZooKeeperClient;
use crate::error::Result;
use crate::session::{OwnClient, OwnOptions};
use crate::wait::Wait;

/// Opens a connection of the crate's own.
///
/// # Errors
/// As [`SessionBuilder::connect`](crate::SessionBuilder::connect).
pub fn connection(connect_string: &str, session_timeout: Duration) -> Result<Arc<dyn ZooKeeperClient>> {
    let options = OwnOptions::new(connect_string, session_timeout)?;
    Ok(OwnClient::connect(&options, &Wait::timeout(session_timeout))?)
}
