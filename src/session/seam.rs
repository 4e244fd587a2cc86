//! Sessions on the clients of other libraries.

use std::sync::Arc;

use super::threads::Threads;
use super::{Factory, Session, replacement};
use crate::client::ZooKeeperClient;
use crate::error::Result;
use crate::time::Runtime;
use crate::wait::CancelToken;

impl Session {
    /// Opens a session on a client that the factory makes: see [`client::seam`](crate::client::seam).
    ///
    /// With `replace_lost_sessions`, the session behaves like one with
    /// [`SessionBuilder::replace_lost_sessions`](crate::SessionBuilder::replace_lost_sessions): the factory makes the next client after each loss.
    ///
    /// **Each call of the factory must open a new ZooKeeper session.** The lease begins with the call. If the ZooKeeper
    /// session were older, a lock could seem to be held after the servers have given it to another client.
    ///
    /// The first call of the factory is made on the calling thread, and each later one on a thread of the session. The
    /// factory may block, preferably for no longer than a session timeout. If a later call fails or panics, the factory
    /// is called again: soon at first, later after at most three seconds. A client that cannot be used is closed. The
    /// factory and the lost clients are dropped on a callback thread.
    ///
    /// # Errors
    /// - The error of the factory's first call.
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the session timeout is out of bounds.
    /// - [`NoServer`](crate::ErrorReason::NoServer): no server answered a write of the client within the session
    ///   timeout, the client's session has ended, or the factory panicked.
    /// - [`Thread`](crate::ErrorReason::Thread): no thread could be started.
    #[cfg_attr(docsrs, doc(cfg(feature = "seam")))]
    pub fn from_factory(
        factory: impl Fn() -> Result<Arc<dyn ZooKeeperClient>> + Send + Sync + 'static,
        replace_lost_sessions: bool,
    ) -> Result<Session> {
        let runtime = || Ok(Threads::start()? as Arc<dyn Runtime>);
        let factory = Factory::new(runtime, move |_, _| factory());
        match replace_lost_sessions {
            true => Session::open_replaced(factory),
            false => Ok(Session::on(replacement::make(&factory, &CancelToken::new())?)),
        }
    }
}
