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
    let turn = LastingRequest::new(session, turn, true, Stage::of(Part::Turn, &link));
    let request = LastingRequest::made_later(session, request, Stage::of(Part::Request, &link));
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

/// Passes events on, and takes the step that follows from them.
struct Stage {
    link: Arc<Link>,
    part: Part,
    /// Whether the step is to be taken.
    is_due: AtomicBool,
}

enum Part {
    /// When the turn comes, the request is made.
    Turn,
    /// When the request has acquired its lock or has ended, the turn ends.
    Request,
}

impl Stage {
    fn of(part: Part, link: &Arc<Link>) -> Arc<Stage> {
        Arc::new(Stage { link: Arc::clone(link), part, is_due: AtomicBool::new(false) })
    }
}

impl Observer for Stage {
    fn post(&self, event: &RequestEvent) {
        let (is_passed_on, is_due) = match (&self.part, event) {
            (Part::Turn, RequestEvent::Acquired { .. }) => (false, true),
            (Part::Turn, RequestEvent::Ended { how: Ending::Dropped(..), .. }) => (true, false),
            // Once the turn has come, its loss changes nothing for the request.
            (Part::Turn, _) => (false, false),
            (Part::Request, RequestEvent::Acquired { .. } | RequestEvent::Ended { .. }) => (true, true),
            (Part::Request, _) => (true, false),
        };
        if is_passed_on {
            self.link.observer.post(event);
        }
        if is_due {
            self.is_due.store(true, Ordering::Release);
        }
    }

    fn has_steps(&self) -> bool {
        self.is_due.load(Ordering::Acquire)
    }

    fn advance(&self) {
        if self.is_due.swap(false, Ordering::AcqRel) {
            match self.part {
                Part::Turn => self.link.make_request(),
                Part::Request => self.link.end_turn(),
            }
        }
    }

    fn has_callbacks(&self) -> bool {
        self.link.observer.has_callbacks()
    }

    fn deliver(&self) {
        self.link.observer.deliver();
    }
}
