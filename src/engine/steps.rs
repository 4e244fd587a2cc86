//! The inputs of a request, and the choice of its next step.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::border::CallId;
use super::calls::Pending;
use super::commons::Commons;
use super::contender::{Activity, Asked, Contender, Loss, Next, Phase, Purpose, WatchedRead};
use super::listing::Listing;
use super::sight::Sight;
use crate::client::{Call, Reply, Stat};
use crate::error::{Operation, ZkError, ZkResult};
use crate::time::Priority;

/// How long a request whose turn has come waits before it tries again, if a proof was not enough to admit it.
const LEASE_LOOK: Duration = Duration::from_millis(100);

/// The interval at which an unreadable znode is read again, because the server may withhold its events.
const UNREADABLE_LOOK: Duration = Duration::from_secs(1);

impl Contender {
    /// Continues after an input: takes steps until the request rests, waits for an outcome, or must end.
    pub(super) fn run(&mut self, commons: &mut Commons, mut next: Next) -> Option<Loss> {
        loop {
            match (next, self.activity) {
                (Next::End(loss), _) => return Some(loss),
                (Next::Stay, _) => return None,
                (Next::Again, _) => {}
                (Next::Wake, Activity::Idle) | (Next::Rest, Activity::Woken) => {
                    self.activity = Activity::UnderWay;
                }
                (Next::Wake, Activity::UnderWay | Activity::Woken) => {
                    self.activity = Activity::Woken;
                    return None;
                }
                (Next::Rest, Activity::Idle | Activity::UnderWay) => {
                    self.activity = Activity::Idle;
                    return None;
                }
            }
            next = self.step(commons);
        }
    }

    fn step(&mut self, commons: &mut Commons) -> Next {
        match &self.phase {
            Phase::Joining { unconfirmed: true, .. } => self.find_again(commons),
            Phase::Joining { unconfirmed: false, .. } => self.join(commons),
            Phase::Owner { .. } => self.look_at_own(commons, Purpose::Verify),
            Phase::Queued { .. } if self.ahead.is_first() => self.take_over(commons),
            Phase::Queued { .. } if self.spec.access.watches_children() => self.count(commons),
            Phase::Queued { .. } => match &self.watched {
                Some(ahead) if self.listing.is_none() && !self.ahead.is_outdated => {
                    let ahead = ahead.clone();
                    self.watch_predecessor(commons, ahead)
                }
                _ => self.evaluate(commons),
            },
        }
    }

    // ---- inputs

    /// Handles the outcome of a call.
    pub(super) fn on_reply(
        &mut self,
        commons: &mut Commons,
        call: CallId,
        asked: Asked,
        outcome: ZkResult<Reply>,
    ) -> Next {
        match asked {
            Asked::Create(_) => self.on_created(commons, outcome.and_then(Reply::created)),
            Asked::Enqueue(_, connection) => {
                self.on_enqueued(commons, connection, outcome.and_then(Reply::enqueued))
            }
            Asked::Parent(missing) => self.on_parent_made(commons, missing, outcome),
            Asked::FoundAgain(znode) => self.on_found_again(commons, &znode, outcome.and_then(Reply::found)),
            Asked::Count(dir, connection) => {
                let listing = Listing::new(connection, outcome.and_then(Reply::children));
                self.on_counted(commons, &dir, &listing)
            }
            Asked::Peers(prefix) => {
                commons.peers_looked_for.remove(&prefix);
                let children = outcome.and_then(Reply::children).unwrap_or_default();
                self.warn_of_peers(commons, &self.spec.lock_path(), &children);
                Next::Stay
            }
            Asked::Data(look) => self.on_looked(commons, look, outcome.and_then(Reply::data)),
            Asked::Existence(look) => {
                self.on_seen(commons, &look, Sight::of_exists(outcome.and_then(Reply::found)))
            }
            Asked::WatchOwn(path, connection) => {
                let sight = Sight::of_data(outcome.and_then(Reply::data));
                self.on_own_watched(commons, &path, call, connection, sight)
            }
            Asked::WatchSecond(path) => {
                self.on_second_watched(commons, &path, Sight::of_data(outcome.and_then(Reply::data)))
            }
            Asked::CheckOwn(path) => {
                let is_gone = outcome.and_then(Reply::found) == Ok(None);
                if is_gone && self.znode() == Some(&path) { self.lose_znode(commons) } else { Next::Stay }
            }
        }
    }

    /// Handles a listing that the request shares with others.
    pub(super) fn on_listed(&mut self, listing: &Arc<Listing>) -> Next {
        if !self.is_queued() {
            return Next::Stay;
        }
        self.listing = Some(Arc::clone(listing));
        Next::Wake
    }

    /// Handles the end of the proof that the request was waiting for.
    pub(super) fn on_proof_ended(&mut self, commons: &mut Commons, result: ZkResult<()>) -> Next {
        match result {
            Err(error) => {
                let dir = self.spec.dir.clone();
                self.look_failed(commons, Operation::WATCH, &dir, error)
            }
            Ok(()) if commons.lease.admits_owners(commons.now) => Next::Again,
            Ok(()) => {
                commons.alarms.set(self.id, commons.now.after(LEASE_LOOK));
                Next::Rest
            }
        }
    }

    pub(super) fn on_reconnect(&mut self, commons: &mut Commons) -> Next {
        let is_behind_own = self.watched.as_ref().is_some_and(|ahead| commons.own_queues.is_in_queue(ahead));
        self.ahead.on_reconnect(is_behind_own);
        self.has_reconnected = true;
        Next::Wake
    }

    /// Makes a routine look. Routine looks are needed because a watch may have ended silently: a server
    /// withholds the event from a client that may no longer read the znode (CVE-2024-23944), and a change of
    /// an ACL fires no watch.
    pub(super) fn on_routine(&mut self, commons: &mut Commons) -> Next {
        match &self.phase {
            // The retry policy repeats whatever fails in this phase.
            Phase::Joining { .. } => return Next::Stay,
            Phase::Owner { .. } => {
                // Requests that do not count this one may have joined after it: those of another library, or of a lock
                // beside a semaphore. Of a thousand readers, one looks for them. A listing that is still under way
                // suffices.
                let prefix = self.spec.dir.child(&self.spec.access.prefix(Uuid::nil()));
                if commons.peers_looked_for.insert(prefix.clone()) {
                    let pending = Pending::Request(self.id, Asked::Peers(prefix));
                    let list = Call::get_children(&self.spec.lock_path(), false);
                    commons.submit(list, Priority::Other, pending);
                }
            }
            // The listing that follows also shows the request's own znode.
            Phase::Queued { .. } if self.spec.access.watches_children() => {}
            Phase::Queued { znode, .. } => {
                // Some waiters do not watch their own znodes (see `ahead.rs`). Without this check, they would learn of
                // the deletion of their znodes only when the queue moves.
                let pending = Pending::Request(self.id, Asked::CheckOwn(znode.clone()));
                commons.submit(Call::exists(znode, false), Priority::Other, pending);
            }
        }
        Next::Wake
    }

    // ---- looks

    fn on_looked(
        &mut self,
        commons: &mut Commons,
        look: WatchedRead,
        outcome: ZkResult<(Vec<u8>, Stat)>,
    ) -> Next {
        if outcome == Err(ZkError::NoAuth) {
            let exists = Call::exists(&look.path, true);
            let pending = Pending::Request(self.id, Asked::Existence(look));
            commons.submit(exists, self.priority(), pending);
            return Next::Stay;
        }
        self.on_seen(commons, &look, Sight::of_data(outcome))
    }

    fn on_seen(&mut self, commons: &mut Commons, look: &WatchedRead, sight: ZkResult<Sight>) -> Next {
        let WatchedRead { path, connection, purpose } = look;
        // In two cases, forget the watch that this read has left: the request was woken meanwhile and no longer needs
        // it, or the znode is gone. (If it is gone, an existence check leaves a watch for its creation.)
        if self.watched.as_ref() != Some(path) || sight == Ok(Sight::Gone) {
            commons.remove_stray_watch(path, self.id);
        }
        let sight = match sight {
            Ok(sight) => sight,
            Err(error) => return self.look_failed(commons, Operation::WATCH, path, error),
        };
        self.refusal = None;
        if sight == Sight::Unreadable {
            commons.alarms.set(self.id, commons.now.after(UNREADABLE_LOOK));
        }
        match purpose {
            Purpose::WaitFor => self.on_predecessor_seen(commons, path, *connection, &sight),
            _ if sight == Sight::Gone => self.lose_znode(commons),
            // The predecessor was deleted. A listing had shown no request between it and this one, and none
            // can get there later. All that was left to find out was whether this request's znode exists.
            Purpose::TakeOver => self.acquire(commons, *connection),
            Purpose::Verify => self.keep_owning(commons, *connection, &sight),
        }
    }
}
