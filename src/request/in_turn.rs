//! A request in turn: a request that is made when another one, the turn, is at the front of its own queue, and that ends
//! the turn once it has acquired its lock or has ended.
//!
//! The thread that handles the events of the session takes both steps. So whoever waits for the request may not run for
//! a long time, like a task that nobody polls, and holds up nobody: a turn is held only while the request waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::LastingRequest;
use crate::engine::{Ending, RequestEvent, RequestSpec};
use crate::session::{Observer, Session};

/// Makes a turn, and the request that is made when the turn comes. The request does not outlive the session of its turn.
///
/// The caller starts the turn. Later it must take or withdraw the request, and then withdraw the turn. The observer
/// receives the events of the request, and the end of a turn that has not come.
pub(crate) fn in_turn(
    session: &Session,
    turn: RequestSpec,
    request: RequestSpec,
    observer: Arc<dyn Observer>,
) -> (Arc<LastingRequest>, Arc<LastingRequest>) {
    let link = Arc::new(Link { turn: OnceLock::new(), request: OnceLock::new(), observer });
    let of_turn = TurnObserver { link: Arc::clone(&link), has_come: AtomicBool::new(false) };
    let of_request = RequestObserver { link: Arc::clone(&link), is_decided: AtomicBool::new(false) };
    let turn = LastingRequest::new(session, turn, true, Arc::new(of_turn));
    let request = LastingRequest::made_later(session, request, Arc::new(of_request));
    let _ = (link.turn.set(Arc::downgrade(&turn)), link.request.set(Arc::downgrade(&request)));
    (turn, request)
}

/// What the two observers share. Weak, because each of the two requests holds its observer.
struct Link {
    turn: OnceLock<Weak<LastingRequest>>,
    request: OnceLock<Weak<LastingRequest>>,
    observer: Arc<dyn Observer>,
}

impl Link {
    fn turn(&self) -> Option<Arc<LastingRequest>> {
        self.turn.get().and_then(Weak::upgrade)
    }

    /// Makes the request on the session of the turn.
    fn make_request(&self) {
        // The turn is over if the wait was given up meanwhile.
        let Some(turn) = self.turn().and_then(|turn| turn.request()) else { return };
        if let Some(request) = self.request.get().and_then(Weak::upgrade) {
            request.make_on(turn.core());
        }
    }

    fn end_turn(&self) {
        if let Some(turn) = self.turn() {
            turn.withdraw();
        }
    }
}

struct TurnObserver {
    link: Arc<Link>,
    has_come: AtomicBool,
}

impl Observer for TurnObserver {
    fn post(&self, event: &RequestEvent) {
        match event {
            RequestEvent::Acquired { .. } => self.has_come.store(true, Ordering::Release),
            RequestEvent::Ended { how: Ending::Dropped(..), .. } => self.link.observer.post(event),
            // Once the turn has come, its loss changes nothing for the request.
            _ => {}
        }
    }

    fn has_steps(&self) -> bool {
        self.has_come.load(Ordering::Acquire)
    }

    fn advance(&self) {
        if self.has_come.swap(false, Ordering::AcqRel) {
            self.link.make_request();
        }
    }

    fn has_callbacks(&self) -> bool {
        self.link.observer.has_callbacks()
    }

    fn deliver(&self) {
        self.link.observer.deliver();
    }
}

struct RequestObserver {
    link: Arc<Link>,
    is_decided: AtomicBool,
}

impl Observer for RequestObserver {
    fn post(&self, event: &RequestEvent) {
        self.link.observer.post(event);
        if matches!(event, RequestEvent::Acquired { .. } | RequestEvent::Ended { .. }) {
            self.is_decided.store(true, Ordering::Release);
        }
    }

    fn has_steps(&self) -> bool {
        self.is_decided.load(Ordering::Acquire)
    }

    fn advance(&self) {
        if self.is_decided.swap(false, Ordering::AcqRel) {
            self.link.end_turn();
        }
    }

    fn has_callbacks(&self) -> bool {
        self.link.observer.has_callbacks()
    }

    fn deliver(&self) {
        self.link.observer.deliver();
    }
}
