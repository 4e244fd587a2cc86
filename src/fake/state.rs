//! [`Shared`]: the whole state of a simulation under one lock.
//!
//! Events are queued under the lock, in the order in which they happen. The [outbox](super::outbox) of each
//! client delivers them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::access::{Identity, ReadChecks};
use super::faults::Script;
use super::jobs::{self, Parked};
use super::log::Log;
use super::outbox::Outbox;
use super::served::{Fired, Served};
use super::tree::{Change, Tree};
use super::watches::Watches;
use super::wire::Wire;
use crate::client::{self, ClientEvent, EventSink, Granted};
use zookeeper_connection::codec::EventKind;

/// Far above the small numbers that tests use for sessions without a client.
const FIRST_SESSION: i64 = 0x0100_0000_0000_0001;

pub(super) struct Shared {
    state: Mutex<State>,
    /// Signalled after everything that a thread may wait for: a delivery, a change of a client's contact, the end of a
    /// closure or of a queue of calls.
    changed: Condvar,
}

pub(super) struct State {
    pub(super) tree: Tree,
    pub(super) watches: Watches,
    /// The live sessions that clients opened, including those whose client has been dropped.
    pub(super) sessions: BTreeSet<i64>,
    /// The clients that have not been dropped, keyed by the session that each opened, whether live or ended.
    pub(super) clients: BTreeMap<i64, Client>,
    /// The connections of clients that speak the wire protocol. Their watches are keyed by connection number,
    /// which is never a session's id.
    pub(super) served: BTreeMap<i64, Served>,
    pub(super) last_session: i64,
    pub(super) log: Log,
    pub(super) read_checks: ReadChecks,
    /// The number of the last event or reply.
    pub(super) last_ticket: u64,
    /// Jobs on a virtual clock that wait for a change.
    parked: Vec<Parked>,
}

/// A client's end of its connection.
#[derive(Default)]
pub(super) struct Client {
    pub(super) contact: Contact,
    /// The number of connections lost so far. When it grows, replies in transit are lost.
    pub(super) connection: u64,
    /// Whether the network swallows what is sent. True only while the client is connected or believes that it
    /// is.
    pub(super) swallowed: bool,
    /// The events of watches that fired while the network swallowed packets.
    pub(super) held: Vec<ClientEvent>,
    pub(super) sink: Option<EventSink>,
    /// The timeout that the server has granted or, if a test has changed it since, grants at the next reconnect.
    pub(super) session_timeout: Duration,
    /// How long each call takes.
    pub(super) delay: Duration,
    pub(super) report_delay: Duration,
    /// Whether the answer to a create lacks the metadata of the new znode.
    pub(super) hides_stats: bool,
    pub(super) identities: Vec<Identity>,
    pub(super) script: Script,
    /// The tree that the client's server has applied, if it lags behind.
    pub(super) lagging: Option<Tree>,
    /// The znodes that the client's server shows even if they are deleted, each with the tree that has it.
    pub(super) kept: BTreeMap<String, Tree>,
    /// The znodes that the client's server does not show even if they exist.
    pub(super) hidden: BTreeSet<String>,
    /// The requests that a server holds back, each with its number in the log.
    pub(super) held_back: Vec<(usize, client::Call)>,
    pub(super) wire: Wire,
    pub(super) outbox: Outbox,
}

/// What a client knows about its session. `close` and `give_up` also end each of the first three states. While packets
/// are swallowed, calls block, and `expire` does not end `Connected` before `release` or `report_expiry`.
///
/// | state          | calls                      | left by                                    |
/// |----------------|----------------------------|--------------------------------------------|
/// | `Connected`    | are executed               | `disconnect`, `expire`, `expire_silently`  |
/// | `Silent`       | fail with `ConnectionLoss` | `disconnect`, `reconnect`, `report_expiry` |
/// | `Disconnected` | fail with `ConnectionLoss` | `reconnect`, `report_expiry` if expired    |
/// | `Lost`         | fail with `SessionExpired` | nothing                                    |
/// | `Closed`       | fail with `SessionExpired` | nothing                                    |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Contact {
    Connected,
    /// The session has expired, but the client has been notified neither of the expiry nor of a disconnect.
    Silent,
    Disconnected,
    #[default]
    Lost,
    Closed,
}

impl Contact {
    /// Returns whether the client knows that its session has ended.
    pub(super) fn has_ended(self) -> bool {
        matches!(self, Contact::Lost | Contact::Closed)
    }
}

impl Shared {
    pub(super) fn new() -> Shared {
        let state = State {
            tree: Tree::new(),
            watches: Watches::default(),
            sessions: BTreeSet::new(),
            clients: BTreeMap::new(),
            served: BTreeMap::new(),
            last_session: FIRST_SESSION - 1,
            log: Log::default(),
            read_checks: ReadChecks::default(),
            last_ticket: 0,
            parked: Vec::new(),
        };
        Shared { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn wait(&self, state: &mut MutexGuard<'_, State>) {
        state.parked.extend(jobs::park(&[]));
        self.changed.wait(state);
    }

    pub(super) fn wait_until(&self, state: &mut MutexGuard<'_, State>, moment: Instant) {
        self.changed.wait_until(state, moment);
    }

    /// Waits for something that other threads are about to do. Unlike [`wait`](Shared::wait), does not park a
    /// job.
    pub(super) fn await_change(&self, state: &mut MutexGuard<'_, State>) {
        self.changed.wait(state);
    }

    pub(super) fn notify(&self, state: &mut State) {
        state.parked.drain(..).for_each(Parked::resume);
        self.changed.notify_all();
    }
}

impl Client {
    pub(super) fn granted(&self) -> Granted {
        Granted::new(self.session_timeout).with_report_delay(self.report_delay)
    }
}

impl State {
    /// Returns the client of a session. A client that was dropped counts as lost.
    pub(super) fn client(&mut self, session: i64) -> &mut Client {
        self.clients.entry(session).or_default()
    }

    /// Returns whether this is a client's session that has ended. The session 0, which stands for none, counts as
    /// ended: it owns every persistent znode.
    pub(super) fn has_ended(&self, session: i64) -> bool {
        let is_of_a_client = (FIRST_SESSION..=self.last_session).contains(&session);
        session == 0 || is_of_a_client && !self.sessions.contains(&session)
    }

    /// Queues an event for the client's sink. Nothing follows the end of the session.
    pub(super) fn queue_event(&mut self, session: i64, event: ClientEvent) {
        let ticket = self.next_ticket();
        let client = self.clients.get_mut(&session);
        if let Some(client) = client.filter(|client| !client.contact.has_ended()) {
            if let Some(sink) = client.sink.clone() {
                client.outbox.push_event(ticket, sink, event);
            }
        }
    }

    /// Fires the watches that these changes trigger. The changes must already be in the tree, which supplies
    /// the ACLs.
    pub(super) fn publish(&mut self, changes: &[Change]) {
        for change in changes {
            for (session, path, kind) in self.watches.fire(change) {
                if self.read_checks != ReadChecks::ReadsOnly && !self.may_read(session, &path, change) {
                    continue;
                }
                if let Some(served) = self.served.get_mut(&session) {
                    served.events.push_back(Fired { kind, path });
                    continue;
                }
                let event = ClientEvent::NodeChanged { path, is_deleted: kind == EventKind::Deleted };
                match self.clients.get_mut(&session) {
                    Some(client) if client.swallowed => client.held.push(event),
                    _ => self.queue_event(session, event),
                }
            }
        }
    }

    /// Ends a session on the server, unless it has ended already. Removes its watches and its ephemeral
    /// znodes, which other clients may watch.
    pub(super) fn end_session(&mut self, session: i64) {
        if self.has_ended(session) {
            return;
        }
        self.sessions.remove(&session);
        self.watches.drop_session(session);
        let changes = self.tree.end_session(session);
        self.publish(&changes);
    }
}
