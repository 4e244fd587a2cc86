//! [`Outbox`]: the replies and events that have reached a client but not yet its callers and its sink, in the
//! order of the connection.
//!
//! Any thread may deliver the items, but only one at a time for each client, and only while it holds no lock of the
//! simulation. A method or a blocking call returns once all items that were queued earlier, or by itself, have been
//! delivered, with two exceptions. It does not wait if it is called from a callback, and it does not wait for items
//! behind a reply that is swallowed or held up by a running stop point.

use std::collections::VecDeque;
use std::thread::{self, ThreadId};

use parking_lot::MutexGuard;

use super::state::{Client, Shared, State};
use crate::client::{ClientEvent, Done, EventSink, Reply};
use crate::error::ZkResult;

/// The position of an item in the order of all clients' items.
type Ticket = u64;

#[derive(Default)]
pub(super) struct Outbox {
    items: VecDeque<(Ticket, Item)>,
    /// The thread that is delivering an item, and the ticket of the item.
    under_way: Option<(ThreadId, Ticket)>,
    /// The number of stop points that are running between an effect and its reply.
    pub(super) stopped: usize,
}

enum Item {
    Event(EventSink, ClientEvent),
    Reply(Done, ZkResult<Reply>),
    /// Holds the place of the reply to the call with this number in the log. Items behind it wait.
    Expected(usize),
}

impl Outbox {
    pub(super) fn push_event(&mut self, ticket: Ticket, sink: EventSink, event: ClientEvent) {
        self.items.push_back((ticket, Item::Event(sink, event)));
    }

    pub(super) fn expect_reply(&mut self, ticket: Ticket, number: usize) {
        self.items.push_back((ticket, Item::Expected(number)));
    }

    /// Puts an outcome in the place of the expected reply. If there is no such place, because the call failed before
    /// its effect or the connection was lost, the outcome goes to the end.
    pub(super) fn push_outcome(
        &mut self,
        ticket: Ticket,
        number: usize,
        done: Done,
        outcome: ZkResult<Reply>,
    ) {
        let outcome = Item::Reply(done, outcome);
        match self.position_of(number) {
            Some(position) => self.items[position].1 = outcome,
            None => self.items.push_back((ticket, outcome)),
        }
    }

    /// Drops the place of the reply to the first part of a call. That reply is delivered together with the
    /// reply to the second part.
    pub(super) fn take_part(&mut self, number: usize) {
        if let Some(position) = self.position_of(number) {
            self.items.remove(position);
        }
    }

    /// Drops everything from the first outstanding reply on, because the connection is lost.
    pub(super) fn lose_the_rest(&mut self) {
        let is_expected = |(_, item): &(Ticket, Item)| matches!(item, Item::Expected(_));
        if let Some(position) = self.items.iter().position(is_expected) {
            self.items.truncate(position);
        }
    }

    fn position_of(&self, number: usize) -> Option<usize> {
        self.items
            .iter()
            .position(|(_, item)| matches!(item, Item::Expected(expected) if *expected == number))
    }

    /// Returns the ticket of the item that can be delivered now, if there is one.
    fn next(&self) -> Option<Ticket> {
        match self.items.front() {
            Some((ticket, Item::Event(..) | Item::Reply(..))) if self.under_way.is_none() => Some(*ticket),
            _ => None,
        }
    }

    /// Returns whether an item up to this ticket is still to be delivered, and will be soon. An item does not
    /// count if it is behind a reply that is swallowed, or that a running stop point holds up.
    fn is_awaited(&self, until: Ticket, is_swallowed: bool) -> bool {
        let is_held_up = is_swallowed || self.stopped > 0;
        let is_under_way = self.under_way.is_some_and(|(_, ticket)| ticket <= until);
        let is_waiting = self.items.front().is_some_and(|(ticket, item)| {
            *ticket <= until && !(is_held_up && matches!(item, Item::Expected(_)))
        });
        is_under_way || is_waiting
    }
}

impl Shared {
    /// Delivers, on this thread, everything that can be delivered now. While another thread delivers an item of a
    /// client, neither that item nor those behind it can.
    ///
    /// Does nothing when a callback makes calls or injects faults, because the thread of the callback
    /// continues the delivery when the callback returns.
    pub(super) fn flush<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.notify(&mut state);
        let this = thread::current().id();
        while !state.is_passing_on(this) {
            let next = state
                .clients
                .iter()
                .filter_map(|(session, client)| client.outbox.next().map(|ticket| (ticket, *session)));
            let Some((ticket, session)) = next.min() else { break };
            let outbox = &mut state.client(session).outbox;
            let Some((_, item)) = outbox.items.pop_front() else { break };
            outbox.under_way = Some((this, ticket));
            drop(state);
            let delivery = Delivery { shared: self, session };
            match item {
                // Consumed here, without the lock: dropping what the sink holds may call the client.
                Item::Event(sink, event) => sink(event),
                Item::Reply(done, outcome) => done.finish(outcome),
                Item::Expected(_) => {}
            }
            drop(delivery);
            state = self.lock();
        }
        state
    }

    /// Releases the lock. Returns once this thread or another has delivered everything that was queued, with the
    /// exceptions that the [module](self) names.
    pub(super) fn deliver<'a>(&'a self, state: MutexGuard<'a, State>) {
        let (this, until) = (thread::current().id(), state.last_ticket);
        let mut state = self.flush(state);
        let is_awaited = |state: &State| {
            let mut clients = state.clients.values();
            let is_awaited = |client: &Client| client.outbox.is_awaited(until, client.swallowed);
            !state.is_passing_on(this) && clients.any(is_awaited)
        };
        while is_awaited(&state) {
            self.await_change(&mut state);
            state = self.flush(state);
        }
    }
}

impl State {
    pub(super) fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// Reserves the place of the reply to a call that the server has executed.
    pub(super) fn expect_reply(&mut self, session: i64, number: usize) {
        let ticket = self.next_ticket();
        self.client(session).outbox.expect_reply(ticket, number);
    }

    fn is_passing_on(&self, thread: ThreadId) -> bool {
        let is_of_it = |(other, _): (ThreadId, Ticket)| other == thread;
        self.clients.values().any(|client| client.outbox.under_way.is_some_and(is_of_it))
    }
}

/// A delivery in progress. Dropped when the delivery ends, even if the callback panics.
struct Delivery<'a> {
    shared: &'a Shared,
    session: i64,
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(client) = state.clients.get_mut(&self.session) {
            client.outbox.under_way = None;
        }
        self.shared.notify(&mut state);
    }
}
