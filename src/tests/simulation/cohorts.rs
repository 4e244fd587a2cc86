//! The users of cohort locks, and the promises about these locks.

use std::sync::Arc;
use std::time::Duration;

use super::baton::{Wait as Pause, pause};
use super::guards::User;
use super::holds::Holding;
use super::locks::options;
use super::run::Verdict;
use super::scheduler::{DIRS, Scheduler};
use super::world::{World, short};
use super::{faults, wire};
use crate::LockOptions;
use crate::locks::cohort::state::CohortShared;
use crate::locks::locking::finish;
use crate::locks::{CohortGuard, CohortLock, CohortOptions};
use crate::recipe::znode_name::generated_sequence;
use crate::time::Moment;

/// What the checks know of a cohort lock.
pub(super) struct CohortRecord {
    client: usize,
    dir: &'static str,
    options: CohortOptions,
    /// `None` once the application has dropped its last handle; handles in use may remain.
    lock: Option<CohortLock>,
    shared: Arc<CohortShared>,
    seen: Seen,
}

/// What the checks saw of a lock after the last step.
#[derive(Default)]
struct Seen {
    /// The number of the request that owns the lock.
    request: Option<u64>,
    last_granted: u64,
    handovers: u64,
    grants: u64,
    /// When a request behind it became known, and the number of hand-overs up to then.
    waiter_known: Option<(Moment, u64)>,
}

impl CohortRecord {
    /// Returns a description of a promise that the last step has broken, if any.
    fn check(&mut self, now: Moment) -> Option<String> {
        let Some(view) = self.shared.view() else {
            self.seen.request = None;
            return None;
        };
        let seen = &mut self.seen;
        if seen.request.replace(view.number) != Some(view.number) {
            seen.waiter_known = None;
        }
        let has_handed_over =
            std::mem::replace(&mut seen.handovers, view.tally.handovers) != view.tally.handovers;
        let has_granted = std::mem::replace(&mut seen.grants, view.tally.grants) != view.tally.grants;
        let last_granted = std::mem::replace(&mut seen.last_granted, view.tally.last_granted);
        if view.tally.last_granted < last_granted {
            return Some("a thread overtook an earlier one".to_owned());
        }
        if has_granted && !view.is_owner && !view.is_kept {
            return Some("a thread got the lock after the lease had ended".to_owned());
        }
        if has_granted && view.half_time.is_some_and(|half| half <= now) {
            return Some("a thread got the lock when half of its process's time was over".to_owned());
        }
        if !view.waiter_is_known {
            return None;
        }
        let (since, before) = *seen.waiter_known.get_or_insert((now, view.tally.handovers));
        if view.tally.handovers - before > u64::from(self.options.max_handovers) {
            return Some("the lock was handed over too often while another process waited".to_owned());
        }
        if has_handed_over && view.tally.handovers > before && now.since(since) >= self.options.hand_over_for
        {
            return Some("the lock was handed over for too long while another process waited".to_owned());
        }
        None
    }
}

impl World {
    pub(super) fn check_cohorts(&self) -> Option<String> {
        let now = self.now();
        // Taken out because the checks call the library; no other thread runs meanwhile.
        let mut records = std::mem::take(&mut self.state().cohorts);
        let broken = records.iter_mut().enumerate().find_map(|(number, record)| {
            record.check(now).map(|broken| format!("cohort lock {number} on {}: {broken}", record.dir))
        });
        self.state().cohorts = records;
        broken
    }

    /// Checks, when nothing is left to do at this moment, that no idle lock is kept while another request
    /// waits.
    pub(super) fn check_that_kept_locks_are_given_up(&self) -> Verdict {
        let records: Vec<_> = {
            let state = self.state();
            state.cohorts.iter().map(|record| (record.dir, Arc::clone(&record.shared))).collect()
        };
        for (number, (dir, shared)) in records.into_iter().enumerate() {
            let Some(view) = shared.view().filter(|view| view.is_kept && view.is_owner) else { continue };
            let children = self.zookeeper.children(dir);
            let is_other = |child: &&String| {
                generated_sequence(child).is_some() && !view.znode.ends_with(child.as_str())
            };
            if let Some(waiter) = children.iter().find(is_other) {
                let waiter = short(waiter);
                return Err(format!("cohort lock {number} on {dir} is kept idle while {waiter} waits"));
            }
        }
        Ok(())
    }
}

impl User {
    /// Uses a cohort lock, perhaps several times in a row.
    pub(super) fn use_cohort_lock(&self) {
        let times = self.world.state().random.of(&[1, 3, 10]);
        for _ in 0..times {
            self.use_cohort_lock_once();
            let has_ended =
                self.session.replacement().is_none() && self.session.core().snapshot().end_reason.is_some();
            if has_ended || !self.world.in_trouble() {
                return;
            }
            pause(Pause::Turn);
        }
    }

    /// Acquires the lock in one of four ways, holds it, and releases it.
    fn use_cohort_lock_once(&self) {
        let (number, lock) = self.cohort_lock();
        self.world.note(format!("uses cohort lock {number} on {}", self.dir));
        let way = self.world.state().random.below(6);
        let outcome = match way {
            0 => lock.lock().and_then(|guard| {
                self.hold_cohort_lock(number, &guard);
                finish(None, guard.unlock())
            }),
            1 => lock.try_lock(),
            2 => lock.lock().map(Some),
            _ => self.wait_limited(|wait| lock.try_lock_for(wait)),
        };
        match outcome {
            Ok(Some(guard)) => self.keep_cohort_lock(number, guard),
            Ok(None) => {}
            Err(error) => {
                self.world.note(format!("cohort lock {number} fails: {error}"));
                self.check_error(&error);
                if way > 1 {
                    self.check_loss(&error);
                }
            }
        }
        self.drop_cohort_lock_sometimes(number);
    }

    /// Returns the cohort lock that the threads of this session share.
    fn cohort_lock(&self) -> (usize, CohortLock) {
        let found = {
            let state = self.world.state();
            let is_ours = |record: &CohortRecord| record.client == self.client && record.dir == self.dir;
            let mut records = state.cohorts.iter().enumerate().filter(|(_, record)| is_ours(record));
            records.find_map(|(number, record)| Some((number, record.lock.clone()?)))
        };
        if let Some(found) = found {
            return found;
        }
        let options = LockOptions::clone(&options(&self.world)).data("cohort");
        let cohort_options = {
            let mut state = self.world.state();
            // A waiter whose znode was deleted notices that when the queue moves, which must happen before
            // the run ends.
            let (long, hour) = (Duration::from_secs(30), Duration::from_secs(3600));
            CohortOptions::new()
                .keep_for(state.random.of(&[Duration::ZERO, Duration::from_millis(30), long, long]))
                .max_handovers(state.random.of(&[0, 1, 3, 64]))
                .hand_over_for(state.random.of(&[Duration::ZERO, Duration::from_millis(100), hour]))
        };
        let lock = CohortLock::with_options(&self.session, self.dir, options, cohort_options);
        let lock = lock.expect("a good path");
        let mut state = self.world.state();
        state.cohorts.push(CohortRecord {
            client: self.client,
            dir: self.dir,
            options: cohort_options,
            shared: Arc::clone(&lock.cohort().shared),
            lock: Some(lock.clone()),
            seen: Seen::default(),
        });
        (state.cohorts.len() - 1, lock)
    }

    /// Acts under a guard and releases it.
    fn keep_cohort_lock(&self, number: usize, guard: CohortGuard) {
        // Registered until after the release, when nobody may own with this guard any more.
        let holding = Holding::of_cohort(&self.world, guard.grant());
        self.hold_cohort_lock(number, &guard);
        let Some((guard, _holding)) = self.world.leave((guard, holding)) else { return };
        let drops = self.world.state().random.one_in(3);
        if drops {
            drop(guard);
            return pause(Pause::Turn);
        }
        let held = guard.loss().is_none();
        let released = guard.unlock();
        self.world.note(format!("releases cohort lock {number}: {released:?}"));
        if let Err(error) = released {
            if held && self.world.profile.is_calm() && !error.is_closed() {
                self.world.fail(format!("a cohort lock was held, but its release failed: {error}"));
            }
        }
        pause(Pause::Turn);
    }

    /// Acts under a guard for a while.
    fn hold_cohort_lock(&self, number: usize, guard: &CohortGuard) {
        let _holding = Holding::of_cohort(&self.world, guard.grant());
        self.world.state().acquisitions += 1;
        self.world.note(format!("holds cohort lock {number}"));
        let check = || {
            if !guard.is_owner() && guard.loss().is_none() {
                self.world.fail("a guard of a cohort lock does not own and reports no loss");
            }
        };
        check();
        faults::perhaps_change_leader_of_owner(&self.world, self.client, &guard.grant().request);
        faults::perhaps_hold_through_stalls(&self.world, &guard.grant().request);
        let way = self.world.state().random.below(7);
        if !self.world.in_trouble() || way < 3 {
            pause(Pause::Turn);
        } else if way == 3 {
            pause(Pause::Time(self.some_time_from_now()));
        } else if way == 4 {
            let short = Duration::from_millis(self.world.state().random.below(40));
            pause(Pause::Time(self.world.now().after(short)));
        } else if way == 5 && self.world.profile.faults.partitions {
            self.hold_until_the_lease_ends(guard);
        } else {
            let until = self.some_time_from_now();
            let lost = guard.lost().clone();
            pause(Pause::Signals(vec![Box::new(move || !lost.is_empty())], Some(until)));
            if !guard.lost().is_empty() && guard.loss().is_none() {
                self.world.fail("a loss was reported without cause");
            }
        }
        check();
    }

    /// Holds until the very moment at which the lease ends, perhaps before the library has noticed.
    fn hold_until_the_lease_ends(&self, guard: &CohortGuard) {
        wire::faults::partition(&self.world, self.client);
        let (world, request) = (Arc::clone(&self.world), Arc::clone(&**guard.grant().request));
        pause(Pause::Until(Box::new(move || !request.is_owner() || !world.in_trouble())));
    }

    /// Sometimes drops the application's handle, and closes the lock before that in half of the cases.
    fn drop_cohort_lock_sometimes(&self, number: usize) {
        if !self.world.in_trouble() || !self.world.state().random.one_in(30) {
            return;
        }
        let Some(lock) = self.world.state().cohorts[number].lock.take() else { return };
        self.world.note(format!("drops cohort lock {number}"));
        if self.world.state().random.one_in(2) {
            lock.close();
        }
    }
}

impl Scheduler<'_> {
    /// Drops all cohort locks.
    pub(super) fn drop_the_cohort_locks(&mut self) {
        let locks: Vec<_> = {
            let mut state = self.world.state();
            let taken = |record: &mut CohortRecord| Some((record.client, record.lock.take()?));
            state.cohorts.iter_mut().filter_map(taken).collect()
        };
        for (client, lock) in locks {
            self.spawn_user(client, None, Box::new(move || drop(lock)));
        }
    }
}

/// Adds a child to each directory and removes it again. This fires only the watches that cohort locks have
/// left on the children.
pub(super) fn fire_watches_on_children(world: &World) {
    for dir in DIRS.into_iter().filter(|dir| world.zookeeper.exists(dir)) {
        let path = format!("{dir}/last");
        world.zookeeper.create(&path, b"");
        world.zookeeper.delete(&path);
    }
}
