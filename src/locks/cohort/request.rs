//! [`CohortRequest`]: the request through which a process owns the lock on behalf of all threads of a cohort.
//! [`CohortObserver`] receives the events of that request, even while the request still waits.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::Cohort;
use super::state::CohortShared;
use crate::recipe::path::ZNodePath;
use crate::request::{Claim, Ending, Observer, Request, RequestEvent};

/// The request of a cohort that has acquired the lock. Dropping it withdraws the request, so drop it outside every
/// mutex.
pub(crate) struct CohortRequest {
    /// The number of the request within the cohort.
    pub(super) number: u64,
    claim: Claim,
    /// The number of the current tenure. Each hand-over begins a new one. Written only under the mutex of the cohort.
    tenure: AtomicU64,
    /// The path of the znode.
    znode: ZNodePath,
}

impl CohortRequest {
    pub(super) fn new(number: u64, request: Arc<Request>) -> Arc<CohortRequest> {
        // The empty path is never used: an owner has a znode.
        let znode = request.znode().unwrap_or_else(|| ZNodePath::from_server(String::new()));
        Arc::new(CohortRequest { number, claim: Claim::on(request), tenure: AtomicU64::new(0), znode })
    }

    /// Begins the next tenure, and returns its number.
    pub(super) fn next_tenure(&self) -> u64 {
        self.tenure.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(crate) fn tenure(&self) -> u64 {
        self.tenure.load(Ordering::Acquire)
    }

    pub(crate) fn path(&self) -> &ZNodePath {
        &self.znode
    }
}

impl Deref for CohortRequest {
    type Target = Arc<Request>;

    fn deref(&self) -> &Arc<Request> {
        &self.claim
    }
}

/// Receives the events of a cohort's request.
pub(super) struct CohortObserver {
    number: u64,
    shared: Arc<CohortShared>,
    cohort: Weak<Cohort>,
    /// Whether the cohort may have to act on an event.
    has_news: AtomicBool,
}

impl CohortObserver {
    pub(super) fn new(number: u64, cohort: &Arc<Cohort>) -> Arc<CohortObserver> {
        let (shared, cohort) = (Arc::clone(&cohort.shared), Arc::downgrade(cohort));
        Arc::new(CohortObserver { number, shared, cohort, has_news: AtomicBool::new(false) })
    }
}

impl Observer for CohortObserver {
    fn post(&self, event: &RequestEvent) {
        let is_withdrawn = matches!(event, RequestEvent::Ended { how: Ending::Withdrawn, .. });
        if !is_withdrawn {
            self.shared.take_event(self.number, event);
            self.has_news.store(true, Ordering::Release);
        }
    }

    fn has_callbacks(&self) -> bool {
        self.has_news.load(Ordering::Acquire)
    }

    fn deliver(&self) {
        if self.has_news.swap(false, Ordering::AcqRel) {
            if let Some(cohort) = self.cohort.upgrade() {
                cohort.advance();
            }
        }
    }
}
