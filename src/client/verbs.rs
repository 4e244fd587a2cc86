//! [`Verbs`]: a blocking method for each call.

use crossbeam_channel::bounded;
use zookeeper_connection::Verbs;
use zookeeper_connection::support::keeping_unpark_token;

use super::{Call, Done, Reply, ZooKeeperClient};
use crate::error::{ZkError, ZkResult};

impl Verbs for dyn ZooKeeperClient + '_ {
    fn make(&self, call: Call) -> ZkResult<Reply> {
        let (sender, outcome) = bounded(1);
        self.submit(call, Done::new(move |result| drop(sender.send(result))));
        keeping_unpark_token(|| outcome.recv()).unwrap_or(Err(ZkError::ConnectionLoss))
    }
}
