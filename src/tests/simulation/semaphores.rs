//! The users of the semaphore, and the promises about its permits.

use std::sync::Arc;

use super::checks::keeps_waiting;
use super::guards::{User, is_set};
use super::holds::Holding;
use super::locks::options;
use super::scheduler::{LEASES, SEMAPHORE};
use super::turns::Place;
use super::world::{World, short};
use crate::locks::locking::finish;
use crate::locks::{Permit, Semaphore};

impl World {
    /// Checks that no more permits are owned than exist, and no permit with that many requests ahead of it.
    /// As with locks, another client may delete the znode of an owner, which then only has to notice in time.
    pub(super) fn check_permits(&self) -> Option<String> {
        let permits = self.profile.permits as usize;
        if permits == 0 {
            return None;
        }
        let children = self.zookeeper.children(LEASES);
        let mut owners = Vec::new();
        for (owner, id) in self.owning_requests(LEASES) {
            let Some(id) = id else { return Some(format!("{owner} owns a permit without a znode")) };
            match self.is_deleted_by_another(&id) {
                Some(Place::First) => continue,
                Some(Place::Behind) => {
                    return Some(format!(
                        "{owner} owns a permit, but {} was deleted in the queue",
                        short(&id)
                    ));
                }
                None => {}
            }
            let name = &id[LEASES.len() + 1..];
            if !children.iter().any(|child| child == name) {
                return Some(format!("{owner} owns a permit but its znode {} is deleted", short(&id)));
            }
            let ahead = children.iter().filter(|child| keeps_waiting(child, name)).count();
            if ahead >= permits {
                return Some(format!("{owner} owns one of {permits} permits but {ahead} are before it"));
            }
            owners.push(owner);
        }
        (owners.len() > permits).then(|| format!("{owners:?} own {permits} permits"))
    }
}

impl User {
    /// Acquires a permit in one of five ways, holds it, and releases it.
    pub(super) fn use_semaphore(&self) {
        let tag = self.new_tag();
        let options = options(&self.world).data(&*tag);
        let permits = self.world.profile.permits;
        let semaphore = Semaphore::with_options(&self.session, SEMAPHORE, permits, options);
        let semaphore = Arc::new(semaphore.expect("a good path"));
        let of_closer = Arc::clone(&semaphore);
        let closed = self.sometimes_close(move || of_closer.close());
        let way = self.choose_way();
        self.world.note("uses the semaphore");
        let outcome = match way {
            0 => semaphore.acquire().and_then(|permit| {
                self.hold(&[&permit]);
                finish(None, permit.release())
            }),
            1 => semaphore.try_acquire(),
            2 => semaphore.acquire().map(Some),
            3 => {
                let of_closer = Arc::clone(&semaphore);
                self.close_while_a_task_waits(&closed, move || of_closer.close());
                self.run_task(semaphore.acquire_async(), Some(is_set(&closed))).transpose()
            }
            _ => self.wait_limited(|wait| semaphore.try_acquire_for(wait)),
        };
        match outcome {
            Ok(Some(permit)) => self.keep_permit(permit),
            Ok(None) if way == 0 => {}
            Ok(None) => self.check_that_nothing_is_held(&tag),
            Err(error) => {
                self.world.note(format!("the semaphore fails: {error}"));
                self.check_error(&error);
                if way > 1 {
                    self.check_loss(&error);
                }
                self.check_that_nothing_is_held(&tag);
            }
        }
    }

    /// Acts with a permit and releases it.
    fn keep_permit(&self, permit: Permit) {
        let holding = Holding::of(&self.world, [permit.request()]);
        self.hold(&[&permit]);
        let Some((permit, _holding)) = self.world.leave((permit, holding)) else { return };
        let drops = self.world.state().random.one_in(3);
        if drops {
            return drop(permit);
        }
        let held = permit.loss().is_none();
        let released = permit.release();
        self.world.note(format!("releases a permit: {released:?}"));
        if let Err(error) = released {
            if held && self.world.profile.is_calm() && !error.is_closed() {
                self.world.fail(format!("a permit was held, but its release failed: {error}"));
            }
        }
    }
}
