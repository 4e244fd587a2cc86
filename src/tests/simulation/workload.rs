//! The actions of users: application threads that create, use and drop locks, and open and close sessions.

use std::sync::Arc;
use std::time::Duration;

use super::baton::{Body, Wait, pause};
use super::clients::open_client_later;
use super::guards::User;
use super::locks::{Action, Callback, LockRecord, act, new_lock};
use super::profile::Profile;
use super::scheduler::{DIRS, Scheduler};
use super::seen::saw;

/// The maximum number of concurrent user threads.
const MAX_USERS: usize = 6;

/// The maximum number of concurrent users of blocking locks.
const MAX_BLOCKING: usize = 5;

impl Scheduler<'_> {
    pub(super) fn use_something(&mut self) {
        let profile = &self.world.profile;
        let has_other_locks = profile.locks_per_client > 0;
        if profile.blocks && (!has_other_locks || self.world.state().random.one_in(2)) {
            if self.world.state().random.one_in(100) {
                return self.close_session();
            }
            return self.use_blocking_lock();
        }
        if self.users_at_work() >= MAX_USERS {
            return;
        }
        let choice = self.world.state().random.below(100);
        match choice {
            0 => self.close_session(),
            1 | 2 => open_client_later(&self.world),
            3 | 4 => self.create_lock(),
            5 => self.use_lock(Action::Close),
            6..8 => self.use_lock(Action::Drop),
            8..12 if self.world.profile.is_busy => self.occupy_workers(),
            8..20 => self.use_lock(Action::Unlock),
            20..44 => self.leave_an_owner(),
            _ => self.use_lock(Action::Lock),
        }
    }

    fn use_lock(&mut self, action: Action) {
        if let Some(lock) = self.choose_lock(|_| true) {
            self.act(lock, action);
        }
    }

    /// Releases a lock whose last callback reported ownership.
    fn leave_an_owner(&mut self) {
        if let Some(lock) = self.choose_lock(|record| record.last == Some(Callback::Acquired)) {
            self.leave(lock);
        }
    }

    pub(super) fn leave(&mut self, lock: usize) {
        self.act(lock, Action::Unlock);
    }

    /// Starts a thread that may block: it uses a lock, the semaphore or a job, stands for election, or revokes a lock.
    fn use_blocking_lock(&mut self) {
        if self.blocking_users() >= MAX_BLOCKING {
            return;
        }
        let (client, session, dir, choice) = {
            let mut state = self.world.state();
            let clients = state.clients.len();
            // Cohorts need several threads on one session.
            let limit = if self.world.profile.cohorts { clients.min(2) } else { clients };
            let client = state.random.index(limit);
            let dir = DIRS[state.random.index(self.world.profile.dirs)];
            (client, state.clients[client].session.clone(), dir, state.random.below(16))
        };
        let Some(session) = session else { return };
        // Rarely on a session that has ended, where every call fails at once.
        let has_ended = session.replacement().is_none() && session.core().snapshot().end_reason.is_some();
        if has_ended && !self.world.state().random.one_in(8) {
            return;
        }
        let user = User { world: Arc::clone(&self.world), client, session, dir };
        let revokes = self.world.profile.faults.deletions && !self.world.profile.unreadable;
        let uses_semaphore = self.world.profile.permits > 0 && self.world.state().random.one_in(2);
        let Profile { transacts, mostly_jobs, shares, .. } = self.world.profile;
        // Only blocking calls and tasks create readers.
        let may_share = shares && self.world.state().random.one_in(2);
        let runs_jobs = mostly_jobs || transacts && self.world.state().random.one_in(2);
        let kind = match self.world.profile.mixes {
            true => self.world.state().application.below(8),
            false => 8,
        };
        let transacts = self.world.profile.transacts;
        let body: Body = match choice {
            _ if kind == 0 && transacts => Box::new(move || user.use_job()),
            _ if kind == 1 => Box::new(move || user.use_semaphore()),
            _ if kind == 2 => Box::new(move || user.use_cohort_lock()),
            _ if kind == 3 => Box::new(move || user.stand()),
            _ if kind == 4 => Box::new(move || user.use_reentrant_lock()),
            _ if kind == 5 && revokes => Box::new(move || user.revoke()),
            _ if kind < 8 => Box::new(move || user.use_lock()),
            13.. if self.world.profile.is_narrow => Box::new(move || user.start_too_much()),
            _ if runs_jobs => Box::new(move || user.use_job()),
            _ if uses_semaphore => Box::new(move || user.use_semaphore()),
            _ if may_share => Box::new(move || user.use_lock()),
            choice if choice > 3 && self.world.profile.mostly_cohorts => {
                Box::new(move || user.use_cohort_lock())
            }
            0 | 1 => Box::new(move || user.use_reentrant_lock()),
            2..5 => Box::new(move || user.stand()),
            5 if revokes => Box::new(move || user.revoke()),
            5..13 if self.world.profile.cohorts => Box::new(move || user.use_cohort_lock()),
            _ => Box::new(move || user.use_lock()),
        };
        self.spawn_blocking(client, body);
    }

    fn choose_lock(&self, is_wanted: impl Fn(&LockRecord) -> bool) -> Option<usize> {
        let mut state = self.world.state();
        let is_usable = |record: &LockRecord| record.held_by_application.is_some() && record.users < 2;
        let usable: Vec<usize> = (0..state.locks.len())
            .filter(|lock| is_usable(&state.locks[*lock]) && is_wanted(&state.locks[*lock]))
            .collect();
        let chosen = state.random.index(usable.len());
        usable.get(chosen).copied()
    }

    pub(super) fn act(&mut self, lock: usize, action: Action) {
        let client = self.world.state().locks[lock].client;
        let world = Arc::clone(&self.world);
        self.spawn_user(client, Some(lock), Box::new(move || act(&world, lock, action)));
    }

    fn create_lock(&mut self) {
        let (client, session, dir) = {
            let mut state = self.world.state();
            let client = state.random.index(self.world.profile.clients);
            let dir = DIRS[state.random.index(self.world.profile.dirs)];
            (client, state.clients[client].session.clone(), dir)
        };
        if let Some(session) = session {
            new_lock(&self.world, client, &session, dir);
        }
    }

    /// Gives a session's workers other work, such as reading a long directory.
    fn occupy_workers(&mut self) {
        let (core, lengths) = {
            let mut state = self.world.state();
            let clients = state.clients.len();
            let client = state.random.index(clients);
            let longest = state.clients[client].session_timeout.as_nanos() as u64 / 2;
            let jobs = state.random.of(&[1, 4, 16]);
            let lengths: Vec<_> =
                (0..jobs).map(|_| Duration::from_nanos(state.random.below(longest))).collect();
            (state.clients[client].core.upgrade(), lengths)
        };
        let Some(core) = core else { return };
        for length in lengths {
            let world = Arc::downgrade(&self.world);
            core.run_job(move |core| {
                if world.upgrade().is_some_and(|world| world.in_trouble()) {
                    pause(Wait::Time(core.now().after(length)));
                }
            });
        }
    }

    fn close_session(&mut self) {
        let client = {
            let mut state = self.world.state();
            let clients = state.clients.len();
            state.random.index(clients)
        };
        self.close(client);
    }

    pub(super) fn close(&mut self, client: usize) {
        let session = self.world.state().clients[client].session.take();
        let Some(session) = session else { return };
        let world = Arc::clone(&self.world);
        self.spawn_user(
            client,
            None,
            Box::new(move || {
                saw("session-closed");
                world.note("closes its session");
                session.close();
            }),
        );
    }
}
