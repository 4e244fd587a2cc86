//! [`Member`]: a session with its client and its driver, as plain data.
//!
//! It passes inputs to the engine and carries out the engine's effects as `session/driver` does: first ownerships,
//! then the alarm, then calls and reports.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::server::{Answer, Item, Watch, Wire, name_of};
use super::system::Case;
use crate::client::{ClientEvent, Granted, Reply};
use crate::engine::lease::Lease;
use crate::engine::{
    CallId, Effect, Engine, Event, ParticipantId, RequestEvent, RequestSpec, SessionEnd, Settings,
};
use crate::error::{LossReason, ZkError};
use crate::recipe::path::ZNodePath;
use crate::recipe::session_tag::SessionTag;
use crate::time::Moment;

/// The session timeout, so long that no lease ends unless a session expires on purpose.
pub(super) const SESSION_TIMEOUT: Duration = Duration::from_secs(3600);

/// How far the clock goes. It stops there, because whatever is due later recurs forever. Every wait of a request or a
/// deletion ends before the horizon, and the next keep-alive comes after it.
const HORIZON: Duration = Duration::from_secs(300);

/// The longest time for which a server holds a write back.
pub(super) const HELD_BACK: Duration = Duration::from_secs(100);

const BEGIN: Moment = Moment::from_nanos(1_000_000_000_000_000);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Member {
    tag: SessionTag,
    pub(super) engine: Engine,
    /// The session's own clock. Nothing that a session does depends on the clock of another session.
    pub(super) now: Moment,
    /// When the ensemble last heard from the session.
    pub(super) heard: Moment,
    alarm: Option<Moment>,
    pub(super) contact: Contact,
    /// The driver must call [`Engine::complete_end`].
    pub(super) is_ending: bool,
    /// What is on its way to the server, or is held until there is contact.
    pub(super) calls: VecDeque<Wire>,
    /// What is on its way from the server.
    pub(super) inbox: VecDeque<Item>,
    /// What was sent on a previous connection and may still be handled by a server.
    pub(super) late: VecDeque<Wire>,
    /// The latest time at which a server may still handle something in `late`.
    pub(super) held_back_until: Moment,
    /// The watches that the client sets again after a reconnect.
    pub(super) watches: BTreeSet<Watch>,
    /// The last transaction that the client has seen.
    pub(super) seen: i64,
    /// The last transaction that the client has seen in a reply.
    pub(super) replied: i64,
    pub(super) seats: Vec<Seat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Contact {
    Connected,
    CutOff,
    /// A server has refused the session, which has ended.
    Lost,
    /// The client was closed.
    Closed,
}

/// A request, as its lock sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Seat {
    /// The number of the request among all requests.
    pub(super) request: usize,
    id: ParticipantId,
    pub(super) stage: Stage,
    /// The name of the request's znode.
    pub(super) znode: Option<String>,
    owns_until: Option<Moment>,
    /// When the request became the owner.
    pub(super) owns_since: Option<Moment>,
    /// The request has searched for its znode, and the znode was gone.
    pub(super) is_gone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    NotStarted,
    Live,
    Withdrawn,
    /// The request has lost the lock or its place, or has failed.
    Ended(LossReason),
}

impl Member {
    /// Returns a session in contact, with these requests.
    pub(super) fn new(tag: SessionTag, requests: impl Iterator<Item = usize>, case: &Case) -> Member {
        let settings = Settings {
            chroot: None,
            routine_pause: SESSION_TIMEOUT * 100,
            window: case.window,
            jute_max_buffer: 1 << 20,
            opened_after: Some(BEGIN),
            tag,
            seed: 1,
        };
        let mut engine = Engine::new(BEGIN, settings, Lease::unproven(granted(), BEGIN));
        let seats = requests.map(|request| Seat {
            request,
            id: engine.new_id(),
            stage: Stage::NotStarted,
            znode: None,
            owns_until: None,
            owns_since: None,
            is_gone: false,
        });
        let seats = seats.collect();
        let mut member = Member {
            tag,
            engine,
            now: BEGIN,
            heard: BEGIN,
            alarm: None,
            contact: Contact::Connected,
            is_ending: false,
            calls: VecDeque::new(),
            inbox: VecDeque::new(),
            late: VecDeque::new(),
            held_back_until: BEGIN,
            watches: BTreeSet::new(),
            seen: 0,
            replied: 0,
            seats,
        };
        member.client_reports(ClientEvent::Connected(granted()));
        member
    }

    // ---- inputs

    pub(super) fn start(&mut self, seat: usize, spec: &Arc<RequestSpec>) {
        let id = self.seats[seat].id;
        self.seats[seat].stage = Stage::Live;
        let now = self.now;
        self.feed(|engine| engine.start(id, Arc::clone(spec), now));
    }

    pub(super) fn withdraw(&mut self, seat: usize) {
        let id = self.seats[seat].id;
        self.seats[seat].stage = Stage::Withdrawn;
        self.feed(|engine| {
            engine.withdraw(id);
        });
    }

    pub(super) fn receive(&mut self, item: Item) {
        self.seen = self.seen.max(item.zxid());
        if let Some(name) = item.shows_as_gone() {
            let (tag, request) = (self.tag, SessionTag::read(name));
            let searching = self.seats.iter_mut().filter(|seat| request == Some((tag, seat.id.0)));
            searching.for_each(|seat| seat.is_gone = true);
        }
        match item {
            Item::Reply { call, answer, watch, zxid, .. } => {
                self.replied = self.replied.max(zxid);
                self.watches.extend(watch);
                self.feed(|engine| engine.handle_reply(call, answer.map(Reply::from)));
            }
            Item::Event { watch, is_deleted, .. } => {
                let path = watch.path();
                self.watches.remove(&watch);
                self.client_reports(ClientEvent::NodeChanged { path, is_deleted });
            }
        }
    }

    /// Loses the connection. Calls that may have been sent are answered with an error. `is_listing_lost` says
    /// that the reply to a znode's creation has come, but the reply to the listing that follows it is lost.
    pub(super) fn disconnect(&mut self, is_listing_lost: bool, may_be_late: bool) {
        self.contact = Contact::CutOff;
        self.held_back_until = self.now.after(HELD_BACK);
        let answered: Vec<CallId> = self.inbox.drain(..).filter_map(|item| item.call()).collect();
        let calls: Vec<Wire> = self.calls.drain(..).collect();
        self.client_reports(ClientEvent::Disconnected);
        for call in answered {
            self.fail(call, ZkError::ConnectionLoss);
        }
        for wire in calls {
            match wire {
                Wire::List(call, path, stat) if is_listing_lost => {
                    let children = Err(ZkError::ConnectionLoss);
                    let answer = Answer::Enqueued(path, stat, children);
                    self.replied = self.replied.max(stat.czxid);
                    self.seen = self.seen.max(stat.czxid);
                    self.feed(|engine| engine.handle_reply(call, Ok(answer.into())));
                }
                wire => {
                    wire.call().into_iter().for_each(|call| self.fail(call, ZkError::ConnectionLoss));
                    if may_be_late && matches!(&wire, Wire::Call(_, made) if made.is_write()) {
                        self.late.push_back(wire);
                    }
                }
            }
        }
    }

    pub(super) fn reconnect(&mut self) {
        self.contact = Contact::Connected;
        self.heard = self.now;
        self.client_reports(ClientEvent::Connected(granted()));
    }

    /// Handles a server's refusal to resume the session, which has ended.
    pub(super) fn lose(&mut self) {
        self.contact = Contact::Lost;
        let calls: Vec<Wire> = self.calls.drain(..).collect();
        self.client_reports(ClientEvent::SessionLost);
        for call in calls.iter().filter_map(Wire::call) {
            self.fail(call, ZkError::SessionExpired);
        }
    }

    pub(super) fn complete_end(&mut self) {
        self.is_ending = false;
        self.feed(Engine::complete_end);
    }

    pub(super) fn close(&mut self) {
        self.feed(|engine| engine.end(SessionEnd::Closed));
    }

    /// Returns whether the alarm may ring, now or when nothing else is left to happen.
    pub(super) fn has_alarm(&self) -> bool {
        self.alarm.is_some_and(|alarm| alarm <= self.now.max(BEGIN.after(HORIZON)))
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.alarm.is_some_and(|alarm| alarm <= self.now)
    }

    pub(super) fn ring(&mut self) {
        let Some(alarm) = self.alarm.take() else { return };
        self.now = self.now.max(alarm);
        self.feed(Engine::handle_deadline);
    }

    fn client_reports(&mut self, event: ClientEvent) {
        let now = self.now;
        self.feed(|engine| engine.handle_event(now, event));
    }

    fn fail(&mut self, call: CallId, error: ZkError) {
        self.feed(|engine| engine.handle_reply(call, Err(error)));
    }

    // ---- effects

    fn feed(&mut self, input: impl FnOnce(&mut Engine)) {
        let now = self.now;
        self.engine.begin(now);
        input(&mut self.engine);
        self.engine.settle();
        while let Some((owner, held)) = self.engine.poll_ownership() {
            if let Some(seat) = self.seat(owner) {
                seat.owns_until = held.map(|held| held.until);
                seat.owns_since.get_or_insert(now);
            }
        }
        self.alarm = self.alarm.filter(|alarm| *alarm > now);
        let next = self.engine.poll_deadline();
        self.alarm = self.alarm.into_iter().chain(next).min();
        while let Some(effect) = self.engine.poll_effect() {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Submit(call, made, _) => match self.contact {
                Contact::Connected | Contact::CutOff => self.calls.push_back(Wire::Call(call, made)),
                Contact::Lost | Contact::Closed => self.inbox.push_back(Item::Reply {
                    call,
                    name: String::new(),
                    answer: Err(ZkError::SessionExpired),
                    watch: None,
                    zxid: 0,
                }),
            },
            Effect::RemoveWatch(path) => self.remove_watch(&path),
            Effect::Happened(Event::Request(id, event)) => self.take_event(id, event),
            Effect::Ending => self.is_ending = true,
            Effect::Finished => {
                self.contact = Contact::Closed;
                self.calls.clear();
                self.inbox.clear();
            }
            Effect::RemovalAnswered(..)
            | Effect::Diverged(_)
            | Effect::LeftBehind(..)
            | Effect::BeginLook(_)
            | Effect::ReadFor(..)
            | Effect::Answered(..)
            | Effect::Untracked(..)
            | Effect::Happened(_) => {}
        }
    }

    fn remove_watch(&mut self, path: &ZNodePath) {
        if self.contact == Contact::Connected {
            self.calls.push_back(Wire::RemoveWatch(path.to_string()));
        }
        let path = path.to_string();
        self.watches.retain(|watch| watch.path() != path);
    }

    fn take_event(&mut self, id: ParticipantId, event: RequestEvent) {
        let Some(seat) = self.seat(id) else { return };
        match event {
            RequestEvent::Joined { znode, .. } => seat.znode = Some(name_of(&znode.to_string()).to_owned()),
            RequestEvent::Ended { how, .. } => {
                if let Some(reason) = how.reason() {
                    seat.stage = Stage::Ended(reason);
                }
            }
            _ => {}
        }
    }

    fn seat(&mut self, id: ParticipantId) -> Option<&mut Seat> {
        self.seats.iter_mut().find(|seat| seat.id == id)
    }

    // ---- what the promises are about

    pub(super) fn owns(&self, seat: &Seat) -> bool {
        seat.owns_until.is_some_and(|until| until > self.now)
    }

    /// Returns whether a request has held the lock for this time.
    pub(super) fn has_owned_for(&self, seat: &Seat, time: Duration) -> bool {
        seat.owns_since.is_some_and(|since| self.now.since(since) >= time)
    }

    pub(super) fn is_live(&self) -> bool {
        self.seats.iter().any(|seat| seat.stage == Stage::Live)
    }
}

impl Wire {
    pub(super) fn call(&self) -> Option<CallId> {
        match self {
            Wire::Call(call, _) | Wire::List(call, ..) => Some(*call),
            Wire::RemoveWatch(_) => None,
        }
    }
}

impl Item {
    /// Returns the znode that a request has searched for, and that does not exist.
    fn shows_as_gone(&self) -> Option<&str> {
        match self {
            Item::Reply { name, answer: Ok(Answer::Found(None)), .. } => Some(name),
            Item::Reply { .. } | Item::Event { .. } => None,
        }
    }

    fn call(&self) -> Option<CallId> {
        match self {
            Item::Reply { call, .. } => Some(*call),
            Item::Event { .. } => None,
        }
    }
}

/// What each server grants. With this grant, one write proves the session.
fn granted() -> Granted {
    Granted::new(SESSION_TIMEOUT).with_report_delay(Duration::ZERO)
}
