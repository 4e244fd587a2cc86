//! [`Commons`]: the state that everything on a session shares.
//!
//! The commons cannot reach a participant. If an input concerns participants, the methods here return what it
//! means for them, and the engine tells the participants.

use std::collections::{BTreeSet, VecDeque};

use super::alarms::Alarms;
use super::border::{Effect, Event, ParticipantId, Settings};
use super::calls::Calls;
use super::lease::Lease;
use super::life::{Contact, Life, SessionEnd};
use super::listings::Listings;
use super::own::OwnQueues;
use super::proof::Proof;
use super::sweep::Sweeps;
use super::watchers::Watchers;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::time::Moment;

/// The maximum number of znodes that are remembered as mentioned in the log.
const MAX_MENTIONED: usize = 1000;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Commons {
    pub(super) settings: Settings,
    /// The moment of the present input.
    pub(super) now: Moment,
    /// Requests count how many others are ahead of them, because an observer wants to know the number.
    pub(super) counts_ahead: bool,
    /// The last number that was given to a participant or to a call.
    last: u64,
    random: u64,

    pub(super) life: Life,
    pub(super) contact: Contact,
    pub(super) lease: Lease,
    pub(super) proof: Proof,

    pub(super) calls: Calls,
    pub(super) alarms: Alarms,
    pub(super) watchers: Watchers,
    pub(super) own_queues: OwnQueues,
    pub(super) listings: Listings,
    pub(super) sweeps: Sweeps,
    /// The looks that are under way for requests that do not count ours, by the prefix of the request that asks,
    /// without its GUID. Whether another library counts a request depends on that prefix.
    pub(super) peers_looked_for: BTreeSet<ZNodePath>,
    /// The znodes that the log has mentioned, for lines that are logged once per znode.
    mentioned: BTreeSet<ZNodePath>,

    pub(super) effects: VecDeque<Effect>,
}

impl Commons {
    pub(super) fn new(now: Moment, settings: Settings, lease: Lease) -> Commons {
        Commons {
            now,
            counts_ahead: false,
            last: 0,
            random: settings.seed,
            life: Life::Open,
            contact: Contact::NotYet { opened_after: settings.opened_after },
            lease,
            proof: Proof::default(),
            calls: Calls::new(&settings),
            alarms: Alarms::default(),
            watchers: Watchers::default(),
            own_queues: OwnQueues::default(),
            listings: Listings::default(),
            sweeps: Sweeps::default(),
            peers_looked_for: BTreeSet::new(),
            mentioned: BTreeSet::new(),
            effects: VecDeque::new(),
            settings,
        }
    }

    pub(super) fn new_id(&mut self) -> ParticipantId {
        ParticipantId(self.next_number())
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Returns the name of the znode that an attempt of a request creates, without the sequence number.
    pub(super) fn znode_prefix(&self, access: Access, id: ParticipantId, attempt: u32) -> String {
        access.prefix(self.settings.tag.guid(id.0, attempt))
    }

    /// Draws a random number between 0 and 1.
    pub(super) fn draw(&mut self) -> f64 {
        let mut random = fastrand::Rng::with_seed(self.random);
        let drawn = random.f64();
        self.random = random.get_seed();
        drawn
    }

    // ---- what goes out

    pub(super) fn report(&mut self, event: Event) {
        self.effects.push_back(Effect::Happened(event));
    }

    /// Marks this znode as mentioned in the log. Returns `true` if it had not been mentioned before.
    pub(super) fn mentions_first(&mut self, path: &ZNodePath) -> bool {
        if self.mentioned.len() == MAX_MENTIONED {
            self.mentioned.clear();
        }
        self.mentioned.insert(path.clone())
    }

    // ---- watches

    /// Ends a participant's wait for the next event on a path, if it waits for one. Removes the watch from
    /// the server if nobody else waits for that event.
    pub(super) fn unwatch(&mut self, path: &ZNodePath, id: ParticipantId) {
        if self.watchers.remove(path, id) {
            self.effects.push_back(Effect::RemoveWatch(path.clone()));
        }
    }

    /// Removes the watch that a read may have left although its participant stopped waiting before the answer. Keeps
    /// the watch if somebody else waits for its event. Unlike [`unwatch`](Commons::unwatch), does not require the
    /// participant to be still registered.
    pub(super) fn remove_stray_watch(&mut self, path: &ZNodePath, id: ParticipantId) {
        self.watchers.remove(path, id);
        if !self.watchers.has_any(path) {
            self.effects.push_back(Effect::RemoveWatch(path.clone()));
        }
    }

    // ---- contact, and the end

    pub(super) fn in_contact(&self) -> bool {
        matches!(self.contact, Contact::Present | Contact::Regained)
    }

    pub(super) fn end_reason(&self) -> Option<SessionEnd> {
        self.life.end_reason()
    }

    /// Gives the session up if it has had contact and has then been silent for too long. Call this when the clock has
    /// reached the deadline of the engine, and when a request's znode is gone. Do not call it on every input: after a
    /// pause of the process, answers may have arrived that nobody has handled yet.
    pub(super) fn give_up_if_silent(&mut self) {
        match self.life {
            Life::Open if matches!(self.contact, Contact::NotYet { .. }) => {}
            Life::Open if self.lease.given_up_at() <= self.now => self.end(SessionEnd::Silent),
            _ => {}
        }
    }

    /// Ends the session, and every lease with it. [`Engine::complete_end`](super::Engine::complete_end) follows.
    pub(super) fn end(&mut self, reason: SessionEnd) {
        if self.life.has_ended() {
            return;
        }
        self.life = Life::Ending(reason);
        self.lease.finish(self.now);
        self.calls.refuse_waiting();
        self.effects.push_back(Effect::Ending);
    }
}
