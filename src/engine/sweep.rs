//! [`Sweep`]: the search of a directory for znodes that lost creates have left, and the deletion of those that belong
//! to no request.
//!
//! If the reply to a create was lost, a server may be holding the create back, and may pass it on after other servers
//! have served the session. (`docs/design.md` says how, under "How late a lost create takes effect".) So a search that
//! finds nothing does not settle whether the znode will exist, and neither does a write that another server has
//! answered. Two rules together cover every case:
//! - A session recognizes the names of its znodes, and knows which request it created each one for. A znode whose
//!   request has ended, has another znode or has begun a later attempt is a stray, unless it is being deleted already.
//!   So is a znode of a session that this one has replaced. The session deletes each stray that any listing shows.
//! - After a lost create, the session lists the directory after each reconnect and from time to time. The last listing
//!   is the first to succeed once the create can no longer take effect.
//!
//! All lost creates of a directory share its sweep, because an outage may lose thousands at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::border::{Effect, ParticipantId, Target};
use super::calls::{Pending, may_have_created};
use super::commons::Commons;
use super::contender::Activity;
use crate::client::Call;
use crate::error::ZkError;
use crate::recipe::path::ZNodePath;
use crate::recipe::session_tag::SessionTag;
use crate::time::{Moment, Priority};

/// The time after which a lost create can no longer take effect. The leader gives up on a server that it has not heard
/// from for `syncLimit` ticks, and whatever that server holds is then lost. ZooKeeper's sample configuration sets that
/// limit to 10 s. This constant allows about 20 s for it, and about 100 s for the client's operating system, which may
/// still send data that a closed connection has left unsent.
const SETTLES_IN: Duration = Duration::from_secs(120);

/// The pause after a lost create, and after the first round that follows. It doubles with each later round, up to
/// [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(15);

/// The sweeps of a session, at most one for each directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Sweeps {
    pub(super) by_id: BTreeMap<ParticipantId, Sweep>,
    by_dir: BTreeMap<ZNodePath, ParticipantId>,
    /// The tags of earlier sessions that this one has replaced, and that may live on at the server.
    pub(super) former: BTreeSet<SessionTag>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sweep {
    pub(super) dir: ZNodePath,
    /// The moment after which no lost create can take effect.
    until: Moment,
    /// A request that may have a znode has ended, and no round that began later is complete yet.
    is_owed: bool,
    /// When the present round began.
    begun: Moment,
    /// The state of the present round, which is a write and a listing.
    activity: Activity,
    /// The requests that search for their znodes in the next round.
    waiting: BTreeSet<ParticipantId>,
    /// The requests that search for their znodes in the present round.
    pub(super) searching: Vec<ParticipantId>,
    /// The number of rounds since the last lost create or reconnect.
    rounds: u32,
    /// The error of the last round, which is logged when it changes.
    pub(super) failure: Option<ZkError>,
}

impl Sweeps {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns the number of sweeps that have yet to look for what an ended request may have left.
    pub(super) fn owed(&self) -> usize {
        self.by_id.values().filter(|sweep| sweep.is_owed).count()
    }

    fn remove(&mut self, id: ParticipantId) -> Option<Sweep> {
        let sweep = self.by_id.remove(&id)?;
        self.by_dir.remove(&sweep.dir);
        Some(sweep)
    }
}

impl Sweep {
    fn pause(&self) -> Duration {
        FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.rounds.saturating_sub(1))).min(MAX_PAUSE)
    }
}

/// A call of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SweepCall {
    Write,
    List,
}

impl Commons {
    /// Notes that a create in this directory has failed. Begins to sweep the directory, unless the error says that
    /// nothing was created.
    pub(super) fn note_failed_create(&mut self, dir: &ZNodePath, error: ZkError) {
        if !may_have_created(error) {
            return;
        }
        if self.life.has_ended() {
            return self.leave_sweep_behind(dir.clone());
        }
        let (id, until) = (self.sweep_of(dir), self.now.after(SETTLES_IN));
        if let Some(sweep) = self.sweeps.by_id.get_mut(&id) {
            (sweep.until, sweep.rounds) = (until, 0);
        }
        self.alarms.set(id, self.now.after(FIRST_PAUSE));
    }

    /// Sweeps the directory of a request that has ended and may have a znode.
    pub(super) fn sweep(&mut self, dir: &ZNodePath) {
        if self.life.has_ended() {
            return self.leave_sweep_behind(dir.clone());
        }
        let id = self.sweep_of(dir);
        if let Some(sweep) = self.sweeps.by_id.get_mut(&id) {
            sweep.is_owed = true;
        }
        self.wake_sweep(id);
    }

    /// Searches for the znode of a request. [`Contender::on_searched`](super::contender::Contender::on_searched)
    /// follows or, if the search fails, [`Contender::join_failed`](super::contender::Contender::join_failed).
    pub(super) fn search(&mut self, dir: &ZNodePath, request: ParticipantId) {
        let id = self.sweep_of(dir);
        if let Some(sweep) = self.sweeps.by_id.get_mut(&id) {
            sweep.waiting.insert(request);
        }
        self.wake_sweep(id);
    }

    fn sweep_of(&mut self, dir: &ZNodePath) -> ParticipantId {
        if let Some(id) = self.sweeps.by_dir.get(dir) {
            return *id;
        }
        let sweep = Sweep {
            dir: dir.clone(),
            until: self.now,
            begun: self.now,
            is_owed: false,
            activity: Activity::Idle,
            waiting: BTreeSet::new(),
            searching: Vec::new(),
            rounds: 0,
            failure: None,
        };
        let id = self.new_id();
        self.sweeps.by_dir.insert(dir.clone(), id);
        self.sweeps.by_id.insert(id, sweep);
        id
    }

    // ---- rounds

    /// Begins a round now or, if one is under way, another one after it. A round begins with a write, because without
    /// it a server that lags behind might answer the listing.
    pub(super) fn wake_sweep(&mut self, id: ParticipantId) {
        let Some(sweep) = self.sweeps.by_id.get_mut(&id) else { return };
        if sweep.activity != Activity::Idle {
            sweep.activity = Activity::Woken;
            return;
        }
        sweep.activity = Activity::UnderWay;
        sweep.begun = self.now;
        sweep.searching = std::mem::take(&mut sweep.waiting).into_iter().collect();
        self.calls.budget.search(sweep.dir.as_str());
        self.write_nothing(Priority::Owner, Pending::Sweep(id, SweepCall::Write));
    }

    pub(super) fn list_for_sweep(&mut self, id: ParticipantId) {
        let Some(sweep) = self.sweeps.by_id.get(&id) else { return };
        let list = Call::get_children(&sweep.dir, false);
        self.submit(list, Priority::Owner, Pending::Sweep(id, SweepCall::List));
    }

    /// Ends a round that has failed.
    pub(super) fn put_off_sweep(&mut self, id: ParticipantId, error: ZkError) {
        let in_contact = self.in_contact();
        let Some(sweep) = self.sweeps.by_id.get_mut(&id) else { return };
        sweep.rounds = sweep.rounds.saturating_add(1);
        let pause = sweep.pause();
        // In neither case below, the reply was lost and there is no contact. Then the reconnect wakes every sweep.
        if std::mem::take(&mut sweep.activity) == Activity::Woken {
            self.wake_sweep(id);
        } else if in_contact || !error.is_reply_lost() {
            self.alarms.set(id, self.now.after(pause));
        }
    }

    /// Ends a round that has succeeded.
    pub(super) fn end_round(&mut self, id: ParticipantId) {
        let Some(sweep) = self.sweeps.by_id.get_mut(&id) else { return };
        sweep.rounds = sweep.rounds.saturating_add(1);
        if std::mem::take(&mut sweep.activity) == Activity::Woken {
            return self.wake_sweep(id);
        }
        sweep.is_owed = false;
        let pause = sweep.pause();
        if sweep.until <= sweep.begun {
            self.alarms.clear(id);
            self.sweeps.remove(id);
        } else {
            self.alarms.set(id, self.now.after(pause));
        }
    }

    /// Starts all sweeps afresh. After a reconnect, this is needed because the session may now be on the server that
    /// holds a create back, and that server may now pass it on.
    pub(super) fn sweep_again(&mut self) {
        let all: Vec<ParticipantId> = self.sweeps.by_id.keys().copied().collect();
        for id in all {
            if let Some(sweep) = self.sweeps.by_id.get_mut(&id) {
                sweep.rounds = 0;
            }
            self.wake_sweep(id);
        }
    }

    // ---- the end

    /// Leaves all sweeps to the next session, because this one has ended.
    pub(super) fn leave_sweeps_behind(&mut self) {
        for (id, sweep) in std::mem::take(&mut self.sweeps.by_id) {
            self.alarms.clear(id);
            self.leave_sweep_behind(sweep.dir);
        }
        self.sweeps.by_dir.clear();
    }

    /// Leaves the sweep of a directory to the next session.
    fn leave_sweep_behind(&mut self, dir: ZNodePath) {
        let tags = self.sweeps.former.iter().copied().chain([self.settings.tag]).collect();
        let id = self.new_id();
        self.effects.push_back(Effect::LeftBehind(id, Target::Strays { dir, tags }));
    }
}
