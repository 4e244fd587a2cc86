//! The znodes of this session that a listing shows: those that requests search for, and strays, which belong
//! to no request.
//!
//! See [`sweep`](super::sweep) for why both are needed.

use std::collections::BTreeSet;

use super::Engine;
use super::border::{Effect, Event, ParticipantId, Target};
use super::sweep::SweepCall;
use crate::client::Names;
use crate::client::{Enqueued, Reply};
use crate::error::{Operation, ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::recipe::session_tag::SessionTag;

impl Engine {
    /// Deletes what an earlier session has left behind.
    pub(crate) fn delete_left_behind(&mut self, left: Target) {
        match left {
            Target::ZNode(path) => drop(self.remove(path)),
            strays @ Target::Strays { .. } if self.commons.life.has_ended() => {
                let id = self.new_id();
                self.commons.effects.push_back(Effect::LeftBehind(id, strays));
            }
            Target::Strays { dir, tags } => {
                self.commons.sweeps.former.extend(tags);
                self.commons.note_failed_create(&dir, ZkError::ConnectionLoss);
                self.commons.sweep(&dir);
            }
        }
    }

    /// Notes that a create has failed, for a request that is yet to be [started](Engine::start_as_owner).
    pub(crate) fn note_failed_create(&mut self, dir: &ZNodePath, error: ZkError) {
        self.commons.note_failed_create(dir, error);
    }

    /// Handles the outcome of a call in a round of a sweep.
    pub(super) fn sweep_goes_on(&mut self, id: ParticipantId, asked: SweepCall, outcome: ZkResult<Reply>) {
        match (asked, outcome) {
            (SweepCall::Write, Ok(_)) => self.commons.list_for_sweep(id),
            (SweepCall::List, Ok(Reply::Children(children))) => self.swept(id, &children),
            (SweepCall::List, Err(ZkError::NoNode)) => self.swept(id, &Names::default()),
            (_, Err(error)) => self.sweep_failed(id, error),
            (SweepCall::List, Ok(_)) => self.sweep_failed(id, ZkError::MarshallingError),
        }
    }

    fn swept(&mut self, id: ParticipantId, children: &Names) {
        let Some(sweep) = self.commons.sweeps.by_id.get_mut(&id) else { return };
        sweep.failure = None;
        let (dir, searching) = (sweep.dir.clone(), std::mem::take(&mut sweep.searching));
        self.commons.calls.budget.settle(dir.as_str(), children);
        self.search_in(children, searching);
        self.commons.end_round(id);
    }

    /// Searches a listing for the znodes of these requests, and tells each request what was found.
    fn search_in(&mut self, children: &Names, searching: Vec<ParticipantId>) {
        if searching.is_empty() {
            return;
        }
        // The names are sorted, because many requests may be searching.
        let mut sorted: Vec<&str> = children.iter().collect();
        sorted.sort_unstable();
        let find = |id| {
            let contender = self.contenders.get(&id)?;
            let prefix = contender.znode_prefix(&self.commons);
            let first = sorted.partition_point(|child| *child < prefix.as_str());
            let name = sorted.get(first).filter(|child| child.starts_with(&prefix));
            Some((id, name.map(|name| contender.spec.dir.child(name))))
        };
        let found: Vec<_> = searching.into_iter().filter_map(find).collect();
        for (id, znode) in found {
            self.with_request(id, |request, commons| request.on_searched(commons, znode));
        }
    }

    fn sweep_failed(&mut self, id: ParticipantId, error: ZkError) {
        let Some(sweep) = self.commons.sweeps.by_id.get_mut(&id) else { return };
        let is_news = sweep.failure.replace(error) != Some(error);
        let (dir, searching) = (sweep.dir.clone(), std::mem::take(&mut sweep.searching));
        for request in searching {
            self.with_request(request, |request, commons| {
                let dir = request.spec.dir.clone();
                request.join_failed(commons, Operation::LIST, dir, error)
            });
        }
        if is_news {
            self.commons.report(Event::CannotSweep { dir, error });
        }
        self.commons.put_off_sweep(id, error);
    }

    // ---- strays

    /// Takes phantoms out of a listing: strays whose deletion the leader has answered with `NoNode`. A server that has
    /// diverged from the others may show phantoms forever, and no call makes them go away.
    pub(super) fn pass_over_phantoms(&mut self, dir: &ZNodePath, outcome: &mut ZkResult<Reply>) {
        let Engine { strays, removed_paths, .. } = self;
        let is_here = |stray: &ZNodePath| stray.dir() == Some(dir.as_str());
        if !strays.keys().any(is_here) {
            return;
        }
        let children = match outcome {
            Ok(Reply::Children(children) | Reply::Enqueued(Enqueued { children: Ok(children), .. })) => {
                children
            }
            Err(ZkError::NoNode) => &mut Names::default(),
            _ => return,
        };
        let listed: BTreeSet<ZNodePath> = children.iter().map(|name| dir.child(name)).collect();
        strays.retain(|stray, _| !is_here(stray) || listed.contains(stray));
        let is_phantom = |path: &ZNodePath| strays.get(path) == Some(&true) && !removed_paths.contains(path);
        *children = children.iter().filter(|name| !is_phantom(&dir.child(name))).collect();
    }

    /// Deletes the strays among these children: znodes that were created by this session, or by one that it
    /// has replaced, and that belong to no request.
    pub(super) fn remove_strays(&mut self, dir: &ZNodePath, children: &Names) {
        let strays = children.iter().filter(|name| self.is_stray(dir, name));
        let strays: Vec<ZNodePath> = strays.map(|name| dir.child(name)).collect();
        for stray in strays {
            self.commons.report(Event::Stray(stray.clone()));
            self.strays.insert(stray.clone(), false);
            self.remove(stray);
        }
    }

    fn is_stray(&self, dir: &ZNodePath, name: &str) -> bool {
        let Some((tag, number)) = SessionTag::read(name) else { return false };
        let is_known = match tag == self.commons.settings.tag {
            true => self.has_or_makes(ParticipantId(number), name),
            false => !self.commons.sweeps.former.contains(&tag),
        };
        !is_known && !self.removed_paths.contains(&dir.child(name))
    }

    /// Returns whether a request has this znode, or may have made it in its present attempt.
    fn has_or_makes(&self, id: ParticipantId, name: &str) -> bool {
        match self.contenders.get(&id) {
            Some(contender) => match contender.znode() {
                Some(own) => own.name() == name,
                None => name.starts_with(&contender.znode_prefix(&self.commons)),
            },
            // The number may belong to a downgrade that is under way.
            None => self.pins.contains(&id),
        }
    }
}
