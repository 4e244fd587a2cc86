//! [`SessionRuntime`]: the clock and the threads of a session, for its client.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::time::Runtime;

/// The clock and the threads of a session.
///
/// Only the client of the fake can use them. A client that wraps another client passes them on to the wrapped client.
#[derive(Clone)]
pub struct SessionRuntime {
    #[cfg_attr(not(any(test, feature = "test-util")), allow(dead_code, reason = "for the fake"))]
    runtime: Weak<dyn Runtime>,
}

impl SessionRuntime {
    pub(crate) fn of(runtime: &Arc<dyn Runtime>) -> SessionRuntime {
        SessionRuntime { runtime: Arc::downgrade(runtime) }
    }

    /// Returns the runtime, or `None` if the session is gone.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn get(&self) -> Option<Arc<dyn Runtime>> {
        self.runtime.upgrade()
    }
}

impl fmt::Debug for SessionRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionRuntime").finish_non_exhaustive()
    }
}
