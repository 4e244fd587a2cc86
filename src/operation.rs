//! [`ZooKeeperOperation`]: an operation that can be retried.

use crate::error::Result;

/// An operation on ZooKeeper that
/// [`ProtocolSupport::retry_operation`](crate::ProtocolSupport::retry_operation) may execute more
/// than once if the connection is lost.
///
/// Closures are operations too. The Java interface of this name returns a boolean; here an
/// operation has an output.
pub trait ZooKeeperOperation {
    /// The operation's result.
    type Output;

    /// Performs the operation once. It is called again after a connection loss. So it must either
    /// detect whether the previous attempt took effect, or be harmless to repeat.
    ///
    /// # Errors
    /// A [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss) is
    /// retried. Every other error is final. [`LockError::from_client`](crate::LockError::from_client) makes
    /// one of the error of a client.
    fn execute(&mut self) -> Result<Self::Output>;
}

impl<F, T> ZooKeeperOperation for F
where
    F: FnMut() -> Result<T>,
{
    type Output = T;

    fn execute(&mut self) -> Result<T> {
        self()
    }
}

impl<T> ZooKeeperOperation for Box<dyn ZooKeeperOperation<Output = T> + '_> {
    type Output = T;

    fn execute(&mut self) -> Result<T> {
        (**self).execute()
    }
}
