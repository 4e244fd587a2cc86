//! [`LastingRequest`]: a request that outlives its session.
//!
//! If a session is lost while a request waits, and lost sessions are
//! [replaced](crate::SessionBuilder::replace_lost_sessions), the request is made again on the next session.
//! This module does that for every kind of lock.
//!
//! A lasting request is in one of three stages:
//! - `Unmade`: there was no session to make the request on. The request will be made on the next session. A request
//!   [in turn](super::in_turn()) is made when its turn comes.
//! - `Made`: the request waits, owns the lock, or has ended. If its session is lost while it waits, it is made again on
//!   the next session.
//! - `Over`: the request was taken out or withdrawn, or the session was closed before the request could be made on the
//!   next session. This is final.
//!
//! A lasting request observes the requests that it makes. It passes their events on to the lock's observer,
//! except the end of a request that will be made again. If the application closes the session before that,
//! the lasting request reports the end after all.
//!
//! A lasting request and the request that it has made refer to each other. [`take`](LastingRequest::take) and
//! [`withdraw`](LastingRequest::withdraw) break this cycle, so the lock must call one of them before it drops its
//! handle.

use std::mem;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Request;
use crate::engine::{Ending, Place, RequestEvent, RequestSpec};
use crate::error::{ErrorReason, LockError, LossReason, Operation, Result};
use crate::lock_order::{Mutex, rank::LASTING};
use crate::session::{Core, Mailbox, Observer, OnNewSession, Replacement, Session, WeakSession};
use crate::time::Latch;

pub(crate) struct LastingRequest {
    me: Weak<LastingRequest>,
    /// Weak, because the session holds the observers of its requests.
    session: WeakSession,
    spec: RequestSpec,
    /// Whether the request is made again after the loss of its session.
    is_lasting: bool,
    observer: Arc<dyn Observer>,
    stage: Mutex<LASTING, Stage>,
    /// Reminders to check whether the request must be made. One thread at a time checks.
    news: Mailbox<()>,
}

enum Stage {
    Unmade,
    Made(Arc<Request>),
    Over,
}

impl LastingRequest {
    /// Makes a lasting request, which does nothing until it is [started](LastingRequest::start). It is made again
    /// only if `is_lasting` is set and the session is replaced.
    pub(crate) fn new(
        session: &Session,
        spec: RequestSpec,
        is_lasting: bool,
        observer: Arc<dyn Observer>,
    ) -> Arc<LastingRequest> {
        let lasting = LastingRequest::unmade(session, spec, is_lasting, observer);
        // Make the request now, because other threads may wait for it before it is started.
        if let Some(first) = lasting.make(session) {
            *lasting.stage.lock() = Stage::Made(first);
        }
        lasting
    }

    /// Makes a lasting request that waits for [`make_on`](LastingRequest::make_on) and is not made again after that.
    pub(super) fn made_later(
        session: &Session,
        spec: RequestSpec,
        observer: Arc<dyn Observer>,
    ) -> Arc<LastingRequest> {
        LastingRequest::unmade(session, spec, false, observer)
    }

    fn unmade(
        session: &Session,
        spec: RequestSpec,
        is_lasting: bool,
        observer: Arc<dyn Observer>,
    ) -> Arc<LastingRequest> {
        Arc::new_cyclic(|me| LastingRequest {
            me: Weak::clone(me),
            session: session.downgrade(),
            spec,
            is_lasting: is_lasting && session.replacement().is_some(),
            observer,
            stage: Mutex::new(Stage::Unmade),
            news: Mailbox::new(),
        })
    }

    /// Makes the request on this session and starts it, unless it was withdrawn. The caller must hold no mutex.
    pub(super) fn make_on(&self, core: &Arc<Core>) {
        if let Some(me) = self.me.upgrade() {
            self.install(&Request::new(Arc::clone(core), &self.spec, me));
        }
    }

    /// Starts the request now, or on the next session if there is none now. The caller must hold no mutex.
    pub(crate) fn start(&self) {
        if let Some(first) = self.request() {
            first.start();
        }
        if self.is_lasting {
            if let Some(session) = self.session.upgrade() {
                let me: Weak<LastingRequest> = Weak::clone(&self.me);
                session.follow(me);
            }
            // We were not notified of a session that opened before we subscribed.
            self.follow_session();
        }
    }

    /// Returns the request on the current session or, until it is made again there, the previous request.
    pub(crate) fn request(&self) -> Option<Arc<Request>> {
        match &*self.stage.lock() {
            Stage::Made(request) => Some(Arc::clone(request)),
            Stage::Unmade | Stage::Over => None,
        }
    }

    /// Takes the request out, if there is one. It is then not made again, but its events still go to the
    /// observer.
    pub(crate) fn take(&self) -> Option<Arc<Request>> {
        match mem::replace(&mut *self.stage.lock(), Stage::Over) {
            Stage::Made(request) => Some(request),
            Stage::Unmade | Stage::Over => None,
        }
    }

    /// Ends the request and deletes its znode, in the background if need be. Does nothing if the request was taken out.
    /// The caller must hold no mutex.
    pub(crate) fn withdraw(&self) {
        if let Some(request) = self.take() {
            request.withdraw();
        }
    }

    /// Returns whether the request has ended and will not be made again.
    pub(crate) fn is_over(&self) -> bool {
        match &*self.stage.lock() {
            Stage::Unmade => false,
            Stage::Made(request) => request.has_ended() && !self.lasts_beyond(request),
            Stage::Over => true,
        }
    }

    /// Waits as [`Request::wait_until_placed`] does, but the place is `Unknown` if the request will be made on the next
    /// session.
    pub(crate) fn wait_until_placed(&self, ends: &[&Latch]) -> Result<Option<Place>> {
        let Some(request) = self.request() else {
            return Ok((!self.is_over()).then_some(Place::Unknown));
        };
        match request.wait_until_placed(ends) {
            Err(_) if self.lasts_beyond(&request) => Ok(Some(Place::Unknown)),
            placed => placed,
        }
    }

    /// Returns why the request is over.
    pub(crate) fn end_error(&self, operation: Operation) -> LockError {
        match self.request() {
            Some(request) => request.end_error(operation),
            None => LockError::of(ErrorReason::Closed, operation, &self.spec.dir),
        }
    }

    /// Returns the refusal by a server that keeps the request from knowing whether the lock is free, if there is one.
    pub(crate) fn refusal(&self) -> Option<LockError> {
        self.request()?.refusal()
    }

    /// Like [`end_error`](LastingRequest::end_error), but does not take the mutex of the session.
    pub(crate) fn unclassified_end_error(&self, operation: Operation) -> LockError {
        match self.request() {
            Some(request) => request.unclassified_end_error(operation),
            None => LockError::of(ErrorReason::Closed, operation, &self.spec.dir),
        }
    }

    fn lasts_beyond(&self, request: &Request) -> bool {
        self.is_lasting && request.was_dropped_with_its_session()
    }

    fn needs_session(&self) -> bool {
        match &*self.stage.lock() {
            Stage::Unmade => true,
            Stage::Made(request) => self.lasts_beyond(request),
            Stage::Over => false,
        }
    }

    /// Makes the request if it must be made and there is a session. The caller must hold no mutex.
    fn follow_session(&self) {
        self.news.post(());
        self.deliver_news();
    }

    fn deliver_news(&self) {
        self.news.deliver(|()| self.make_if_needed());
    }

    fn make_if_needed(&self) {
        // If no handle to the session is left, nobody waits.
        let Some(session) = self.session.upgrade().filter(|_| self.needs_session()) else { return };
        if self.is_lasting && session.replacement().is_none_or(Replacement::is_closed) {
            return self.end_with(&session);
        }
        if let Some(next) = self.make(&session) {
            self.install(&next);
        }
    }

    /// Makes the request on the current session. Returns `None` if that session has ended and the request lasts beyond
    /// its session.
    fn make(&self, session: &Session) -> Option<Arc<Request>> {
        let core = session.core();
        // A session that is ending counts as lost: we will be notified of the next one.
        let is_awaited = self.is_lasting && core.snapshot().end_reason.is_some();
        let me = self.me.upgrade().filter(|_| !is_awaited)?;
        Some(Request::new(core, &self.spec, me))
    }

    fn install(&self, next: &Arc<Request>) {
        let (is_wanted, _former) = {
            let mut stage = self.stage.lock();
            match &*stage {
                Stage::Over => (false, None),
                // The former stage is dropped outside the mutex, because it may hold the last handle to a
                // client.
                _ => (true, Some(mem::replace(&mut *stage, Stage::Made(Arc::clone(next))))),
            }
        };
        if is_wanted { next.start() } else { next.withdraw() }
    }

    /// Reports the end of a request that waits for a session, now that no other session will follow.
    fn end_with(&self, session: &Session) {
        // The former stage is dropped outside the mutex.
        let former = mem::replace(&mut *self.stage.lock(), Stage::Over);
        if matches!(former, Stage::Over) {
            return;
        }
        let how = Ending::Dropped(LossReason::Closed, None);
        self.observer.post(&RequestEvent::Ended { place: Place::Unknown, how, time: Duration::ZERO });
        if self.observer.has_callbacks() {
            let observer = Arc::clone(&self.observer);
            session.core().run_callback(move || observer.deliver());
        }
    }
}

impl Observer for LastingRequest {
    fn post(&self, event: &RequestEvent) {
        match event {
            RequestEvent::Ended { how: Ending::Dropped(reason, _), .. }
                if self.is_lasting && *reason == LossReason::SessionLost =>
            {
                self.news.post(());
            }
            event => self.observer.post(event),
        }
    }

    fn has_steps(&self) -> bool {
        self.observer.has_steps()
    }

    fn advance(&self) {
        self.observer.advance();
    }

    fn has_callbacks(&self) -> bool {
        self.news.is_waiting() || self.observer.has_callbacks()
    }

    fn deliver(&self) {
        self.deliver_news();
        self.observer.deliver();
    }
}

impl OnNewSession for LastingRequest {
    fn new_session(&self) {
        self.follow_session();
    }

    fn closed(&self) {
        self.follow_session();
    }
}

#[cfg(test)]
mod tests;
