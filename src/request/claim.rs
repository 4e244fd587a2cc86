//! [`Claim`]: a handle that withdraws its request when it is dropped.

use std::ops::Deref;
use std::sync::Arc;

use super::Request;

/// A handle to a request. Dropping the handle withdraws the request.
pub(crate) struct Claim(Arc<Request>);

impl Claim {
    pub(crate) fn on(request: Arc<Request>) -> Claim {
        Claim(request)
    }
}

impl Deref for Claim {
    type Target = Arc<Request>;

    fn deref(&self) -> &Arc<Request> {
        &self.0
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.withdraw();
    }
}
