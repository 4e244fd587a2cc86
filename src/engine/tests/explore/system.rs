//! [`Exploration`]: sessions, requests and the server together, every step that may come next, and the promises that
//! must hold after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stateright::{Model, Property};
use uuid::Uuid;

use super::member::{Contact, Member, SESSION_TIMEOUT, Seat, Stage};
use super::server::{DIR, Sent, Server, Wire};
use crate::client::CreateMode;
use crate::engine::RequestSpec;
use crate::error::{LossReason, ZkError};
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::recipe::session_tag::SessionTag;
use crate::retry::RetryPolicy;
use crate::tests::counts::Counts;

pub(super) const ALWAYS: &str = "no promise is broken";
/// This state shows that a case gets beyond its beginning.
pub(super) const SOMETIMES: &str = "the last request owns the lock";

/// The steps that were taken.
pub(super) static TAKEN: Counts = Counts::new("exploration");

/// What is explored.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    /// The session and the kind of each request.
    pub(super) requests: Vec<(usize, Access)>,
    pub(super) faults: Faults,
    /// Whether the directory exists at the beginning.
    pub(super) has_dir: bool,
    /// Whether servers may lag behind.
    pub(super) may_lag: bool,
    /// Whether the client sets its watches again after a reconnect.
    pub(super) sets_watches_again: bool,
    /// Whether a server may handle a write after the connection was lost, at any time within
    /// [`HELD_BACK`](super::member::HELD_BACK).
    pub(super) may_be_late: bool,
    /// The number of calls in the window of a session.
    pub(super) window: usize,
    /// The error with which servers refuse calls.
    pub(super) refusal: ZkError,
    /// The longest time for which a request may hold its lock.
    pub(super) max_hold: Option<Duration>,
}

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    pub(super) withdrawals: u8,
    pub(super) cuts: u8,
    pub(super) expiries: u8,
    /// Deletions of a request's znode by another client.
    pub(super) deletions: u8,
    /// Changes of a request's data by another client.
    pub(super) changes: u8,
    /// Alarms that ring while something else is under way.
    pub(super) alarms: u8,
    /// Sessions that are closed.
    pub(super) ends: u8,
    /// Calls that a server refuses.
    pub(super) refusals: u8,
}

/// See the [module](self).
pub(super) struct Exploration {
    pub(super) case: Case,
    /// The session of each request, the number of the request on it, and the spec.
    requests: Vec<(usize, u64, Arc<RequestSpec>)>,
    /// Whether a violation was found. The first one has the shortest trace; no others are searched for.
    is_violated: AtomicBool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) server: Server,
    pub(super) members: Vec<Shared>,
    left: Faults,
    /// The znodes that another client has deleted, each with whether it was its request's turn at that
    /// moment.
    deleted: BTreeMap<String, bool>,
    /// The promise that the last step has broken.
    broken: Option<&'static str>,
}

/// A session, behind an `Arc` that states share while the session does not change.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    member: Arc<Member>,
    hash: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The server handles the oldest item that the session has sent.
    Take(usize),
    /// The session receives the oldest item that the server has sent.
    Receive(usize),
    /// The session's server applies what the leader has applied.
    CatchUp(usize),
    CompleteEnd(usize),
    Start(usize),
    Ring(usize),
    Reconnect {
        session: usize,
        is_behind: bool,
    },
    Cut {
        session: usize,
        is_listing_lost: bool,
    },
    TakeLate(usize),
    /// The server refuses the oldest item that the session has sent.
    Refuse(usize),
    Expire(usize),
    Withdraw(usize),
    Close(usize),
    Delete(String),
    Change(String),
}

impl Action {
    /// Returns a name for what the environment does, as `tests/environment.md` lists it.
    fn name(&self) -> &'static str {
        match self {
            Action::Take(_) => "request-served",
            Action::Receive(_) => "reply-received",
            Action::CatchUp(_) => "server-catches-up",
            Action::CompleteEnd(_) => "end-completed",
            Action::Start(_) => "request-started",
            Action::Ring(_) => "alarm",
            Action::Reconnect { is_behind: false, .. } => "reconnect",
            Action::Reconnect { is_behind: true, .. } => "reconnect-to-a-server-behind",
            Action::Cut { is_listing_lost: false, .. } => "connection-lost",
            Action::Cut { is_listing_lost: true, .. } => "connection-lost-between-two-replies",
            Action::TakeLate(_) => "write-held-back",
            Action::Refuse(_) => "call-refused",
            Action::Expire(_) => "session-expired",
            Action::Withdraw(_) => "request-withdrawn",
            Action::Close(_) => "session-closed",
            Action::Delete(_) => "znode-deleted",
            Action::Change(_) => "znode-changed",
        }
    }
}

impl Shared {
    fn new(member: Member) -> Shared {
        let mut shared = Shared { member: Arc::new(member), hash: 0 };
        shared.note();
        shared
    }

    fn note(&mut self) {
        let mut hasher = DefaultHasher::new();
        self.member.hash(&mut hasher);
        self.hash = hasher.finish();
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut Member) -> T) -> T {
        let result = change(Arc::make_mut(&mut self.member));
        self.note();
        result
    }
}

impl std::ops::Deref for Shared {
    type Target = Member;

    fn deref(&self) -> &Member {
        &self.member
    }
}

impl PartialEq for Shared {
    fn eq(&self, other: &Shared) -> bool {
        self.hash == other.hash && self.member == other.member
    }
}

impl Eq for Shared {}

impl Hash for Shared {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

fn tag_of(session: usize) -> SessionTag {
    SessionTag::new(Uuid::from_u128(u128::try_from(session).unwrap() << 96))
}

impl Exploration {
    pub(super) fn new(case: Case) -> Exploration {
        let mut made: BTreeMap<usize, u64> = BTreeMap::new();
        let spec = |(session, access): &(usize, Access)| {
            // The members number their requests in the same way.
            let number = made.entry(*session).or_default();
            *number += 1;
            let spec = RequestSpec {
                dir: ZNodePath::parse(DIR).unwrap(),
                data: Arc::from([]),
                acl: Arc::from([]),
                retry: RetryPolicy::constant(Duration::from_millis(100)),
                access: *access,
                directory_mode: CreateMode::Persistent,
                max_hold: case.max_hold,
            };
            (*session, *number, Arc::new(spec))
        };
        let requests = case.requests.iter().map(spec).collect();
        Exploration { case, requests, is_violated: AtomicBool::new(false) }
    }

    fn access(&self, seat: &Seat) -> Access {
        self.requests[seat.request].2.access
    }

    /// Returns whether two requests can never own the lock at the same time.
    fn exclude(&self, one: &Seat, other: &Seat) -> bool {
        let kinds = (self.access(one), self.access(other));
        let share = matches!(kinds, (Access::Read(_), Access::Read(_)));
        !share && self.access(one).permits().is_none() && self.access(other).permits().is_none()
    }

    // ---- what may happen

    /// Returns the steps that must happen sooner or later.
    fn pending(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        for (session, member) in state.members.iter().enumerate() {
            if member.contact == Contact::Connected && !member.calls.is_empty() {
                actions.push(Action::Take(session));
            }
            if !member.inbox.is_empty() {
                actions.push(Action::Receive(session));
            }
            if member.is_ending {
                actions.push(Action::CompleteEnd(session));
            }
            if state.server.links[session].behind.is_some() {
                actions.push(Action::CatchUp(session));
            }
            if member.contact == Contact::CutOff {
                actions.push(Action::Reconnect { session, is_behind: false });
                if state.server.links[session].is_alive && state.server.may_connect_behind(member.seen) {
                    actions.push(Action::Reconnect { session, is_behind: true });
                }
            }
            if member.contact == Contact::Closed && state.server.links[session].is_alive {
                actions.push(Action::Expire(session));
            }
            if member.is_overdue() {
                actions.push(Action::Ring(session));
            }
            let waiting = member.seats.iter().filter(|seat| seat.stage == Stage::NotStarted);
            actions.extend(waiting.map(|seat| Action::Start(seat.request)));
        }
        if actions.is_empty() {
            actions.extend(alarms(state));
        }
        actions
    }

    /// Adds the faults, which need not happen.
    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        let left = &state.left;
        for (session, member) in state.members.iter().enumerate() {
            let is_alive = state.server.links[session].is_alive;
            if left.cuts > 0 && member.contact == Contact::Connected {
                actions.push(Action::Cut { session, is_listing_lost: false });
                if matches!(member.calls.front(), Some(Wire::List(..))) {
                    actions.push(Action::Cut { session, is_listing_lost: true });
                }
            }
            let is_call = matches!(member.calls.front(), Some(Wire::Call(..) | Wire::List(..)));
            if left.refusals > 0 && member.contact == Contact::Connected && is_call {
                actions.push(Action::Refuse(session));
            }
            if left.expiries > 0 && member.contact == Contact::CutOff && is_alive {
                actions.push(Action::Expire(session));
            }
            if !member.late.is_empty() && is_alive && member.now <= member.held_back_until {
                actions.push(Action::TakeLate(session));
            }
            let is_open = matches!(member.contact, Contact::Connected | Contact::CutOff);
            if left.ends > 0 && is_open && member.engine.end_reason().is_none() {
                actions.push(Action::Close(session));
            }
            if left.withdrawals > 0 {
                let live = member.seats.iter().filter(|seat| seat.stage == Stage::Live);
                actions.extend(live.map(|seat| Action::Withdraw(seat.request)));
            }
        }
        let znodes = state.server.tree.znodes.keys();
        if left.deletions > 0 {
            actions.extend(znodes.clone().cloned().map(Action::Delete));
        }
        if left.changes > 0 {
            actions.extend(znodes.cloned().map(Action::Change));
        }
        if left.alarms > 0 {
            actions.extend(alarms(state).filter(|alarm| !actions.contains(alarm)).collect::<Vec<_>>());
        }
    }

    fn seat_of(&self, request: usize) -> (usize, usize) {
        let (session, _) = self.case.requests[request];
        let before = self.case.requests[..request].iter().filter(|(of, _)| *of == session);
        (session, before.count())
    }

    fn take_step(&self, state: &mut State, action: &Action) {
        match action {
            Action::Take(session) => state.take(*session),
            Action::Receive(session) => {
                state.members[*session].change(|member| {
                    let item = member.inbox.pop_front().unwrap();
                    member.receive(item);
                });
            }
            Action::CatchUp(session) => {
                let sent = state.server.catch_up(*session);
                state.deliver(sent);
            }
            Action::CompleteEnd(session) => state.members[*session].change(Member::complete_end),
            Action::Start(request) => {
                let (session, seat) = self.seat_of(*request);
                state.members[session].change(|member| member.start(seat, &self.requests[*request].2));
            }
            Action::Ring(session) => {
                // An alarm does not count as a fault if nothing else is left to happen.
                if !self.pending(state).contains(action) {
                    state.left.alarms -= 1;
                }
                state.members[*session].change(Member::ring);
            }
            Action::Reconnect { session, is_behind } => self.reconnect(state, *session, *is_behind),
            Action::Cut { session, is_listing_lost } => {
                state.left.cuts -= 1;
                state.server.disconnect(*session);
                state.members[*session].change(|member| {
                    member.disconnect(*is_listing_lost, self.case.may_be_late);
                    if !self.case.sets_watches_again {
                        member.watches.clear();
                    }
                });
            }
            Action::TakeLate(session) => {
                let late = state.members[*session].change(|member| member.late.pop_front());
                if let Some(Wire::Call(_, call)) = late {
                    let sent = state.server.take_late(*session, &call);
                    state.deliver(sent);
                }
            }
            Action::Refuse(session) => {
                state.left.refusals -= 1;
                state.refuse(*session, self.case.refusal);
            }
            Action::Expire(session) => state.expire(*session),
            Action::Withdraw(request) => {
                state.left.withdrawals -= 1;
                let (session, seat) = self.seat_of(*request);
                state.members[session].change(|member| member.withdraw(seat));
            }
            Action::Close(session) => {
                state.left.ends -= 1;
                state.members[*session].change(Member::close);
            }
            Action::Delete(name) => {
                state.left.deletions -= 1;
                let is_of = |seat: &&Seat| seat.znode.as_ref() == Some(name);
                let was_its_turn = state.seats().find(is_of).is_none_or(|seat| self.is_its_turn(state, seat));
                state.deleted.insert(name.clone(), was_its_turn);
                let sent = state.server.delete(name);
                state.deliver(sent);
            }
            Action::Change(name) => {
                state.left.changes -= 1;
                let sent = state.server.touch(name);
                state.deliver(sent);
            }
        }
    }

    fn reconnect(&self, state: &mut State, session: usize, is_behind: bool) {
        if !state.server.links[session].is_alive {
            return state.members[session].change(Member::lose);
        }
        let (watches, since) = {
            let member = &state.members[session];
            (member.watches.clone(), member.replied)
        };
        let sent = state.server.connect(session, is_behind, &watches, since);
        state.members[session].change(Member::reconnect);
        state.deliver(sent);
    }

    // ---- the promises

    /// Returns the promise that is broken in a state.
    pub(super) fn violation(&self, state: &State) -> Option<&'static str> {
        state
            .broken
            .or_else(|| self.unlawful_owner(state))
            .or_else(|| self.unlawful_znode(state))
            .or_else(|| self.unlawful_end(state))
            .or_else(|| self.pending(state).is_empty().then(|| self.unlawful_rest(state)).flatten())
    }

    fn unlawful_owner(&self, state: &State) -> Option<&'static str> {
        let has_lost_its_turn = |seat: &Seat| {
            seat.is_gone || seat.znode.as_ref().and_then(|name| state.deleted.get(name)) == Some(&false)
        };
        if state.owners().any(has_lost_its_turn) {
            return Some(
                "a request owns the lock although its znode was deleted before its turn, or is known to be gone",
            );
        }
        if state.members.iter().any(|member| self.owns_too_long(member)) {
            return Some("a request owns the lock beyond the limit of its hold");
        }
        // The other promises hold only while no other client deletes a znode.
        let owners: Vec<&Seat> = state.owners().filter(|seat| !state.was_deleted(seat)).collect();
        for (number, owner) in owners.iter().enumerate() {
            if owners[..number].iter().any(|other| self.exclude(owner, other)) {
                return Some("two requests that exclude each other own the lock");
            }
            let is_ahead = |other: &Seat| state.is_ahead(other, owner) && self.exclude(owner, other);
            if state.seats().any(is_ahead) {
                return Some("a request owns the lock although a request ahead excludes it");
            }
            if self.access(owner).permits().is_some_and(|permits| owners.len() > permits.get() as usize) {
                return Some("more requests own the lock than there are permits");
            }
        }
        None
    }

    fn owns_too_long(&self, member: &Member) -> bool {
        let is_over = |seat: &Seat| self.case.max_hold.is_some_and(|limit| member.has_owned_for(seat, limit));
        member.seats.iter().any(|seat| member.owns(seat) && is_over(seat))
    }

    /// Checks that a create is repeated only after a search has failed to find the znode. If servers may hold
    /// creates back, a search proves nothing, so nothing is checked.
    fn unlawful_znode(&self, state: &State) -> Option<&'static str> {
        if self.case.may_be_late {
            return None;
        }
        let has_two = self.requests.iter().any(|(session, number, _)| {
            let is_of_request = |name: &&String| SessionTag::read(name) == Some((tag_of(*session), *number));
            state.server.tree.znodes.keys().filter(is_of_request).count() > 1
        });
        has_two.then_some("a request has two znodes")
    }

    /// Checks that no request has ended without a cause. The causes are: it was withdrawn, its session has
    /// ended, another client has deleted its znode, a server has refused a call, or it has held its lock for
    /// too long.
    fn unlawful_end(&self, state: &State) -> Option<&'static str> {
        let was_refused = state.left.refusals < self.case.faults.refusals;
        for (member, link) in state.members.iter().zip(&state.server.links) {
            let is_lawful = |seat: &Seat, reason| match reason {
                LossReason::Closed => true,
                LossReason::Failed => was_refused,
                LossReason::HeldTooLong => {
                    self.case.max_hold.is_some_and(|limit| member.has_owned_for(seat, limit))
                }
                _ => false,
            };
            let is_ended = |seat: &&Seat| matches!(seat.stage, Stage::Ended(reason) if link.is_alive && !is_lawful(seat, reason));
            if member.seats.iter().filter(is_ended).any(|seat| !state.was_deleted(seat)) {
                return Some("a request has ended without a cause");
            }
        }
        None
    }

    /// Returns what is wrong in a state in which nothing is left to happen.
    fn unlawful_rest(&self, state: &State) -> Option<&'static str> {
        for (member, link) in state.members.iter().zip(&state.server.links) {
            let is_open = member.contact == Contact::Connected;
            if is_open && !member.engine.commons.calls.is_empty() {
                return Some("a session waits for a call that was answered");
            }
            if is_open && !member.is_live() && member.engine.census() != (0, 0) {
                return Some("something is left of requests that have ended");
            }
            if is_open && !member.is_live() && !link.watches.is_empty() {
                return Some("a watch is left of requests that have ended");
            }
            for seat in member.seats.iter().filter(|seat| seat.stage == Stage::Live) {
                if let Some(wrong) = self.unlawful_wait(state, member, seat) {
                    return Some(wrong);
                }
            }
        }
        let is_live = |name: &str| {
            let mut live = state.seats().filter(|seat| seat.stage == Stage::Live);
            live.any(|seat| seat.znode.as_deref() == Some(name))
        };
        let is_left = state.server.tree.znodes.keys().any(|name| !is_live(name));
        is_left.then_some("a znode is left without a request")
    }

    /// Returns whether the requests ahead of a request let it own the lock.
    fn is_its_turn(&self, state: &State, seat: &Seat) -> bool {
        let mut ahead = state.seats().filter(|other| state.is_ahead(other, seat));
        match self.access(seat).permits() {
            Some(permits) => ahead.count() < permits.get() as usize,
            None => !ahead.any(|other| self.exclude(seat, other)),
        }
    }

    fn unlawful_wait(&self, state: &State, member: &Member, seat: &Seat) -> Option<&'static str> {
        if state.was_deleted(seat) {
            let owns = member.owns(seat);
            return owns.then_some("an owner does not know that its znode was deleted");
        }
        let exists = seat.znode.as_ref().is_some_and(|name| state.server.tree.znodes.contains_key(name));
        if !exists {
            return Some("a request has no znode");
        }
        (self.is_its_turn(state, seat) && !member.owns(seat)).then_some("a request waits for nobody")
    }
}

fn alarms(state: &State) -> impl Iterator<Item = Action> {
    let ringing = state.members.iter().enumerate().filter(|(_, member)| member.has_alarm());
    ringing.map(|(session, _)| Action::Ring(session))
}

impl State {
    fn take(&mut self, session: usize) {
        let wire = self.members[session].change(|member| {
            member.heard = member.now;
            member.calls.pop_front().unwrap()
        });
        let (sent, rest) = self.server.take(session, wire);
        if let Some(rest) = rest {
            self.members[session].change(|member| member.calls.push_front(rest));
        }
        self.deliver(sent);
    }

    fn refuse(&mut self, session: usize, error: ZkError) {
        let call = self.members[session].change(|member| {
            member.heard = member.now;
            member.calls.pop_front().unwrap()
        });
        let sent = self.server.refuse(session, call, error);
        self.deliver(sent);
    }

    /// Lets the ensemble end a session that was closed, or that it has not heard from for a session timeout. In the
    /// second case, at least as much time has then passed on the session's own clock.
    fn expire(&mut self, session: usize) {
        if self.members[session].contact == Contact::CutOff {
            self.left.expiries -= 1;
            self.members[session].change(|member| {
                member.now = member.now.max(member.heard.after(SESSION_TIMEOUT));
                member.late.clear();
            });
        }
        let sent = self.server.expire(session);
        self.deliver(sent);
    }

    fn deliver(&mut self, sent: Sent) {
        let sessions: BTreeSet<usize> = sent.iter().map(|(session, _)| *session).collect();
        for session in sessions {
            let items = sent.iter().filter(|(of, _)| *of == session).map(|(_, item)| item.clone());
            self.members[session].change(|member| member.inbox.extend(items));
        }
    }

    /// Closes the connection of a client that the last step has closed.
    fn close_connections(&mut self) {
        for (session, member) in self.members.iter().enumerate() {
            if member.contact == Contact::Closed && self.server.links[session].is_connected {
                self.server.disconnect(session);
            }
        }
    }

    pub(super) fn seats(&self) -> impl Iterator<Item = &Seat> {
        self.members.iter().flat_map(|member| &member.seats)
    }

    fn owners(&self) -> impl Iterator<Item = &Seat> {
        let of = |member: &'_ Shared, seat: &&Seat| member.owns(seat);
        self.members.iter().flat_map(move |member| member.seats.iter().filter(move |seat| of(member, seat)))
    }

    fn was_deleted(&self, seat: &Seat) -> bool {
        seat.znode.as_ref().is_some_and(|name| self.deleted.contains_key(name))
    }

    /// Returns whether the znode of `one` exists and came before the znode of `other`.
    fn is_ahead(&self, one: &Seat, other: &Seat) -> bool {
        let number = |seat: &Seat| {
            let name = seat.znode.as_ref()?;
            name[name.len() - 10..].parse::<u32>().ok()
        };
        let exists = one.znode.as_ref().is_some_and(|name| self.server.tree.znodes.contains_key(name));
        exists && number(one) < number(other)
    }
}

impl Model for Exploration {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let sessions = self.case.requests.iter().map(|(session, _)| session + 1).max().unwrap_or_default();
        let requests_of = |session: usize| {
            let all = self.case.requests.iter().enumerate();
            all.filter(move |(_, (of, _))| *of == session).map(|(request, _)| request)
        };
        let member = |session| Shared::new(Member::new(tag_of(session), requests_of(session), &self.case));
        let mut state = State {
            server: Server::new(sessions, self.case.has_dir, self.case.may_lag),
            members: (0..sessions).map(member).collect(),
            left: self.case.faults,
            deleted: BTreeMap::new(),
            broken: None,
        };
        // The new sessions are proven first.
        let is_start = |action: &Action| matches!(action, Action::Start(_));
        while let Some(action) = self.pending(&state).into_iter().find(|action| !is_start(action)) {
            self.take_step(&mut state, &action);
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_none() {
            actions.extend(self.pending(state));
            self.faults(state, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        TAKEN.add(action.name());
        let mut state = last.clone();
        let step = catch_unwind(AssertUnwindSafe(|| {
            self.take_step(&mut state, &action);
            state.close_connections();
        }));
        if step.is_err() {
            state.broken = Some("a panic");
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Exploration>> {
        vec![
            Property::always(ALWAYS, |model, state| {
                model.violation(state).is_none() || model.is_violated.swap(true, Ordering::Relaxed)
            }),
            Property::sometimes(SOMETIMES, |_, state: &State| {
                state.owners().any(|owner| state.seats().all(|seat| seat.request <= owner.request))
            }),
        ]
    }
}
