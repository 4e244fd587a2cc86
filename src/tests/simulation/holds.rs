//! What is held at a moment, for the checks.

use std::sync::Arc;

use super::baton::role;
use super::scheduler::ALL_DIRS;
use super::world::World;
use crate::locks::cohort::Grant;
use crate::locks::cohort::request::CohortRequest;
use crate::request::Request;

/// A guard, or a leadership, for as long as its holder acts under it.
#[derive(Clone)]
pub(super) struct Hold {
    pub(super) dir: &'static str,
    pub(super) request: Arc<Request>,
    /// Of a cohort lock.
    turn: Option<Turn>,
}

impl Hold {
    /// Returns whether the same guard is held, or another of the same thread.
    pub(super) fn is_same_as(&self, other: &Hold) -> bool {
        let thread = |hold: &Hold| hold.turn.as_ref().map(|turn| turn.thread.clone());
        Arc::ptr_eq(&self.request, &other.request) && thread(self) == thread(other)
    }

    pub(super) fn is_owner(&self) -> bool {
        let is_current = |turn: &Turn| turn.request.tenure() == turn.tenure;
        self.turn.as_ref().is_none_or(is_current) && self.request.is_owner()
    }
}

/// A thread's turn of a cohort lock.
#[derive(Clone)]
struct Turn {
    request: Arc<CohortRequest>,
    tenure: u64,
    thread: String,
}

/// Registers holds until it is dropped.
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
            let mut state = world.state();
            state.holds_so_far += 1;
            let number = state.holds_so_far;
            state.holds.insert(number, Hold { dir, request, turn });
            numbers.push(number);
        }
        Holding { world: Arc::clone(world), numbers }
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
