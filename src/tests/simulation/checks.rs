//! The promises that are checked after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::holds::Hold;
use super::locks::Callback;
use super::turns::Place;
use super::world::{ClientState, World, short};
use crate::WriteLock;
use crate::recipe::counter::is_in_doubt;
use crate::recipe::session_tag::SessionTag;
use crate::recipe::znode_name::generated_sequence;
use crate::session::Core;

/// The number of bytes that a path's length takes in a transaction.
const LENGTH: usize = 4;

impl World {
    /// Returns a description of a broken promise, if any.
    pub(super) fn check(&self, dirs: &[&str]) -> Option<String> {
        self.note_replacements();
        let has_changed = self.note_turns();
        dirs.iter()
            .filter(|_| has_changed)
            .find_map(|dir| self.check_children(dir))
            .or_else(|| dirs.iter().find_map(|dir| self.check_owners(dir)))
            .or_else(|| if has_changed { self.check_budgets() } else { None })
            .or_else(|| if has_changed { self.check_records() } else { None })
            .or_else(|| self.check_outages())
            .or_else(|| self.check_limits())
            .or_else(|| self.check_cohorts())
            .or_else(|| self.check_turns())
    }

    fn check_children(&self, dir: &str) -> Option<String> {
        let children = self.zookeeper.children(dir);
        self.record_end_of_counter(dir, &children);
        let late = &self.state().late;
        check_names(&children, |child| late.contains(&format!("{dir}/{child}")))
    }

    /// Checks the budgets of sessions. The transaction that ends a session names all its ephemeral znodes, so a session
    /// counts each one that exists and creates no more than the transaction can name. A session cannot know of a znode
    /// whose create a server has held back, and deletes such a znode when it sees it.
    fn check_budgets(&self) -> Option<String> {
        let sessions: Vec<(usize, i64, Arc<Core>)> = {
            let state = self.state();
            let clients = state.clients.iter().enumerate();
            let session = |(number, client): (usize, &ClientState)| {
                Some((number, client.session_id, client.core.upgrade()?))
            };
            clients.filter_map(session).collect()
        };
        let late = self.state().late.clone();
        let mut existing: BTreeMap<i64, usize> = BTreeMap::new();
        for (session, path) in self.zookeeper.ephemerals() {
            if !late.contains(&path) {
                *existing.entry(session).or_default() += LENGTH + path.len();
            }
        }
        for (number, session, core) in sessions {
            let bytes = existing.get(&session).copied().unwrap_or_default();
            if bytes > self.profile.jute_max_buffer {
                return Some(format!(
                    "client {number} has {bytes} bytes of znodes, so no server can end its session"
                ));
            }
            let counted = core.bytes_of_znodes();
            if counted < bytes && core.snapshot().end_reason.is_none() {
                return Some(format!("client {number} counts {counted} of {bytes} bytes of znodes"));
            }
        }
        None
    }

    /// Checks that no lock that reports ownership has another request before it in the queue, except that
    /// readers may precede a reader. So a writer owns alone.
    ///
    /// No lock can prevent another client from deleting its znode. If the znode was first in the queue, the request
    /// owns until it notices the deletion; the end of the run checks that it has noticed. Otherwise it must never own.
    fn check_owners(&self, dir: &str) -> Option<String> {
        let owning = self.owning_requests(dir);
        if owning.is_empty() {
            return None;
        }
        let children = self.zookeeper.children(dir);
        let mut undisturbed = Vec::new();
        for (owner, id) in owning {
            let Some(id) = id else {
                return Some(format!("{owner} owns {dir} without a znode"));
            };
            match self.is_deleted_by_another(&id) {
                Some(Place::First) => continue,
                Some(Place::Behind) => {
                    return Some(format!(
                        "{owner} owns {dir}, but {} was deleted while it waited",
                        short(&id)
                    ));
                }
                None => {}
            }
            let Some(name) = id.strip_prefix(dir).and_then(|name| name.strip_prefix('/')) else {
                return Some(format!("{owner} owns {dir} with the znode {id}, which is elsewhere"));
            };
            if !children.iter().any(|child| child == name) {
                return Some(format!("{owner} owns {dir} but its znode {} is deleted", short(&id)));
            }
            let is_tentative = |child: &str| self.state().tentative.contains(&format!("{dir}/{child}"));
            let mut ahead = children.iter().filter(|child| keeps_waiting(child, name));
            if let Some(ahead) = ahead.find(|ahead| !is_tentative(ahead)) {
                return Some(format!("{owner} owns {dir} but {} is before it", short(ahead)));
            }
            undisturbed.push((owner, is_readers(name)));
        }
        let is_shared = undisturbed.iter().all(|(_, reads)| *reads);
        (undisturbed.len() > 1 && !is_shared)
            .then(|| format!("several locks own {dir} (`true` marks readers): {undisturbed:?}"))
    }

    /// Records that requests exclude each other although their numbers define no order. One of them may have
    /// left in the step in which the other came.
    pub(super) fn record_end_of_counter(&self, dir: &str, children: &[String]) {
        let mut state = self.state();
        let in_doubt = state.in_doubt.entry(dir.to_owned()).or_default();
        in_doubt.extend(children.iter().filter(|child| has_number_in_doubt(child)).cloned());
        if in_doubt.len() > 1 && !in_doubt.iter().all(|child| is_readers(child)) {
            state.exhausted.insert(dir.to_owned());
        }
    }

    /// Checks, when nothing is left to do at this moment, that every lock that lost ownership has reported it, unless
    /// its process is suspended or has jobs left.
    pub(super) fn check_that_losses_are_reported(&self) -> Option<String> {
        let now = self.now();
        let believing: Vec<(usize, Arc<WriteLock>)> = {
            let state = self.state();
            let is_free = |process: usize| {
                let mut clients = state.clients.iter().filter(|client| client.process == process);
                clients.all(|client| client.jobs.is_empty() && client.paused_until <= now)
            };
            let locks = state.locks.iter().enumerate();
            let believing = locks
                .filter(|(_, record)| record.last == Some(Callback::Acquired))
                .filter(|(_, record)| !record.in_callback && is_free(record.client));
            believing.filter_map(|(number, record)| Some((number, record.weak.upgrade()?))).collect()
        };
        let (number, _) = believing.into_iter().find(|(_, lock)| !lock.is_owner())?;
        Some(format!("lock {number} lost ownership without a notification"))
    }

    /// Returns the locks with a listener, guards and leaderships that currently report ownership of a
    /// directory, each with its znode.
    pub(super) fn owning_requests(&self, dir: &str) -> Vec<(String, Option<String>)> {
        let holds: Vec<(usize, Hold)> = {
            let state = self.state();
            let of_dir = state.holds.iter().filter(|(_, hold)| hold.dir == dir);
            of_dir.map(|(number, hold)| (*number, hold.clone())).collect()
        };
        let owners = self.owners(dir).into_iter().map(|(number, lock)| (format!("lock {number}"), lock.id()));
        let mut all: Vec<_> = owners.collect();
        let mut seen: Vec<Hold> = Vec::new();
        for (number, hold) in holds {
            // A thread may hold one request several times, but two threads of a cohort may not hold it at
            // once.
            if hold.is_owner() && !seen.iter().any(|other| other.is_same_as(&hold)) {
                all.push((format!("guard {number}"), hold.request.znode().map(|znode| znode.to_string())));
                seen.push(hold);
            }
        }
        all
    }

    /// Returns the locks on a directory that currently report ownership.
    pub(super) fn owners(&self, dir: &str) -> Vec<(usize, Arc<WriteLock>)> {
        let locks: Vec<(usize, Arc<WriteLock>)> = {
            let state = self.state();
            let of_dir = state.locks.iter().enumerate().filter(|(_, record)| record.dir == dir);
            of_dir.filter_map(|(number, record)| Some((number, record.weak.upgrade()?))).collect()
        };
        // Outside the lock, because `is_owner` reads the clock.
        locks.into_iter().filter(|(_, lock)| lock.is_owner()).collect()
    }
}

/// Checks that no request ever has two znodes, unless a server has held a create back.
fn check_names(children: &[String], is_late: impl Fn(&str) -> bool) -> Option<String> {
    let mut requests = BTreeSet::new();
    let ours = children.iter().filter(|child| !child.contains("stranger") && !is_late(child));
    let mut ours = ours.filter_map(|child| Some((child, SessionTag::read(child)?)));
    let again = ours.find(|(_, request)| !requests.insert(*request));
    again.map(|(child, _)| format!("one request has two znodes: {child}"))
}

/// Returns whether a child comes before the named one and the two must not own at the same time. Numbers from the end
/// of the counter define no order.
pub(super) fn keeps_waiting(child: &str, name: &str) -> bool {
    let both_in_doubt = has_number_in_doubt(child) && has_number_in_doubt(name);
    let is_ahead = match (generated_sequence(child), generated_sequence(name)) {
        (Some(theirs), Some(mine)) => mine.wrapping_sub(theirs) > 0,
        _ => false,
    };
    is_ahead && !both_in_doubt && !(is_readers(child) && is_readers(name))
}

pub(super) fn has_number_in_doubt(name: &str) -> bool {
    generated_sequence(name).is_some_and(is_in_doubt)
}

fn is_readers(name: &str) -> bool {
    name.starts_with("read-")
}
