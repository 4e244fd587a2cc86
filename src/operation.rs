//! [`ZooKeeperOperation`]: something that can be tried again.

use crate::error::Result;

/// An operation on ZooKeeper that [`ProtocolSupport::retry_operation`](crate::ProtocolSupport::retry_operation) may
/// execute more than once, when the connection is lost.
///
/// Closures are operations too. The Java interface of this name returns a boolean; here an operation has an output.
pub trait ZooKeeperOperation {
    /// What the operation returns.
    type Output;

    /// Performs the operation once. After a connection loss it is called again, so it must find out for itself, or not
    /// mind, whether the attempt before took effect.
    ///
    /// # Errors
    /// An error for which [`is_connection_loss`](crate::LockError::is_connection_loss) holds is tried again; every other
    /// one is final.
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
