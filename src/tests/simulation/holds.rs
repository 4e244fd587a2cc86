//! What is held at a moment, as seen by the checks.

use std::sync::Arc;

use super::baton::role;
use super::scheduler::{ALL_DIRS, DIRS};
use super::world::World;
use crate::locks::cohort::Grant;
use crate::locks::cohort::request::CohortRequest;
use crate::request::Request;
use crate::time::Moment;

/// A guard, or a leadership, for as long as its holder acts under it.
#[derive(Clone)]
pub(super) struct Hold {
    pub(super) dir: &'static str,
    pub(super) request: Arc<Request>,
    /// The turn of a thread, if this is a cohort lock.
    turn: Option<Turn>,
    /// The moment from which it cannot own. The lock was acquired before the hold is registered.
    limit: Option<Moment>,
}

impl Hold {
    /// Returns whether both hold the same request and, if it is a cohort's, belong to the same thread.
    pub(super) fn is_same_as(&self, other: &Hold) -> bool {
        let thread = |hold: &Hold| hold.turn.as_ref().map(|turn| turn.thread.clone());
        Arc::ptr_eq(&self.request, &other.request) && thread(self) == thread(other)
    }

    pub(super) fn has_limit(&self) -> bool {
        self.limit.is_some()
    }

    pub(super) fn is_owner(&self) -> bool {
        let is_current = |turn: &Turn| turn.request.tenure() == turn.tenure;
        self.turn.as_ref().is_none_or(is_current) && self.request.is_owner()
    }
}

/// The turn of a thread with a cohort lock.
#[derive(Clone)]
struct Turn {
    request: Arc<CohortRequest>,
    tenure: u64,
    thread: String,
}

/// Keeps holds registered until it is dropped.
pub(super) struct Holding {
    world: Arc<World>,
    numbers: Vec<usize>,
}

impl Holding {
    pub(super) fn of(world: &Arc<World>, requests: impl IntoIterator<Item = Arc<Request>>) -> Holding {
        Holding::of_all(world, requests.into_iter().map(|request| (request, None)))
    }

    pub(super) fn of_cohort(world: &Arc<World>, grant: &Grant) -> Holding {
        let thread = role().map(|role| role.name).unwrap_or_default();
        let turn = Turn { request: Arc::clone(&grant.request), tenure: grant.tenure, thread };
        Holding::of_all(world, [(Arc::clone(&**grant.request), Some(turn))])
    }

    fn of_all(
        world: &Arc<World>,
        requests: impl IntoIterator<Item = (Arc<Request>, Option<Turn>)>,
    ) -> Holding {
        let mut numbers = Vec::new();
        for (request, turn) in requests {
            let znode = request.znode().map(|znode| znode.to_string()).unwrap_or_default();
            let Some(dir) = ALL_DIRS.into_iter().find(|dir| znode.starts_with(dir)) else { continue };
            let now = world.now();
            let mut state = world.state();
            state.holds_so_far += 1;
            let number = state.holds_so_far;
            let limit = request.max_hold().map(|max_hold| now.after(max_hold));
            state.holds.insert(number, Hold { dir, request, turn, limit });
            numbers.push(number);
        }
        Holding { world: Arc::clone(world), numbers }
    }
}

impl Holding {
    /// Registers the holds to which these were downgraded. They keep the limit.
    pub(super) fn downgraded(self, requests: impl IntoIterator<Item = Arc<Request>>) -> Holding {
        let next = Holding::of(&self.world, requests);
        let mut state = self.world.state();
        let limits: Vec<Moment> =
            self.numbers.iter().filter_map(|number| state.holds.get(number)?.limit).collect();
        for number in &next.numbers {
            if let Some(hold) = state.holds.get_mut(number) {
                hold.limit = hold.limit.into_iter().chain(limits.iter().copied()).min();
            }
        }
        drop(state);
        next
    }
}

impl World {
    /// Checks that nobody owns beyond the limit of a hold.
    pub(super) fn check_limits(&self) -> Option<String> {
        if !self.profile.limits_holds {
            return None;
        }
        let now = self.now();
        let over: Vec<(usize, Hold)> = {
            let state = self.state();
            let is_over = |hold: &Hold| hold.limit.is_some_and(|limit| limit <= now);
            let over = state.holds.iter().filter(|(_, hold)| is_over(hold));
            over.map(|(number, hold)| (*number, hold.clone())).collect()
        };
        let guard = over.into_iter().find(|(_, hold)| hold.is_owner());
        let guard = guard.map(|(number, _)| format!("guard {number} owns beyond the limit of its hold"));
        guard.or_else(|| DIRS.iter().find_map(|dir| self.check_limits_of_locks(dir, now)))
    }

    fn check_limits_of_locks(&self, dir: &str, now: Moment) -> Option<String> {
        for (number, lock) in self.owners(dir) {
            let id = lock.id().unwrap_or_default();
            let mut state = self.state();
            let record = &mut state.locks[number];
            let Some(max_hold) = record.max_hold else { continue };
            let (_, since) = match record.owned.take().filter(|(known, _)| *known == id) {
                Some(owned) => record.owned.insert(owned),
                None => record.owned.insert((id, now)),
            };
            if now >= since.after(max_hold) {
                return Some(format!("lock {number} owns beyond the limit of its hold"));
            }
        }
        None
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        for number in &self.numbers {
            let hold = self.world.state().holds.remove(number);
            drop(hold);
        }
    }
}
