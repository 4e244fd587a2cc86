//! [`ZooKeeperOperation`]: an operation that may be retried.

use crate::error::Result;

/// An operation on ZooKeeper that may be executed more than once.
///
/// [`ProtocolSupport::retry_operation`](crate::ProtocolSupport::retry_operation) repeats it after a lost connection. A
/// closure that returns a `Result` is an operation. The Java interface of the same name returns a boolean;
/// here, an operation may return any type.
///
/// ```
/// use zookeeper_recipes_lock::{LockError, ZooKeeperOperation};
///
/// let mut operation = || Ok::<u32, LockError>(1);
/// assert_eq!(operation.execute().unwrap(), 1);
/// ```
pub trait ZooKeeperOperation {
    /// The operation's result.
    type Output;

    /// Performs the operation once.
    ///
    /// After a connection loss, this method is called again, unless the retry policy gives up. So the operation must
    /// either detect whether the previous attempt took effect, or be harmless to repeat.
    ///
    /// # Errors
    /// After [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss), the operation is retried. Every other error is
    /// final. To convert a client's error, use [`LockError::from_client`](crate::LockError::from_client).
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
