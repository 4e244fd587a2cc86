//! The only way to reach a participant, and the inputs that concern many participants.
//!
//! A participant never touches another one: it returns what must happen next, and the engine passes that on.
//! If an input concerns many participants, the methods here pass it to one after another, and each
//! participant handles it to completion.

use super::Engine;
use super::ahead::ZNodeChange;
use super::border::ParticipantId;
use super::commons::Commons;
use super::contender::{Contender, Next};
use super::removal::{Fate, Removal};
use crate::error::ZkResult;
use crate::recipe::path::ZNodePath;
use crate::recipe::session_tag::SessionTag;

impl Engine {
    /// Passes an input to a request, which then takes its next steps. Does nothing if the request has ended.
    pub(super) fn with_request(
        &mut self,
        id: ParticipantId,
        input: impl FnOnce(&mut Contender, &mut Commons) -> Next,
    ) {
        let Some(contender) = self.contenders.get_mut(&id) else { return };
        let next = input(contender, &mut self.commons);
        if let Some(loss) = contender.run(&mut self.commons, next) {
            self.end_unasked(id, loss);
        }
    }

    /// Passes an input to a deletion, and notifies the participants that wait for it. Does nothing if the
    /// deletion has ended.
    pub(super) fn with_removal(
        &mut self,
        id: ParticipantId,
        input: impl FnOnce(&mut Removal, &mut Commons) -> Fate,
    ) {
        let Some(removal) = self.removals.get_mut(&id) else { return };
        let (fate, path) = (input(removal, &mut self.commons), removal.path.clone());
        if matches!(fate, Fate::Done { .. } | Fate::LeftBehind) {
            self.removals.remove(&id);
            self.removed_paths.remove(&path);
        }
        match fate {
            Fate::Done { has_deleted: true } => drop(self.strays.remove(&path)),
            Fate::Done { has_deleted: false } => {
                if let Some(is_phantom) = self.strays.get_mut(&path) {
                    *is_phantom = true;
                }
            }
            _ => {}
        }
        match fate {
            Fate::GoesOn | Fate::LeftBehind => {}
            Fate::Done { .. } => {
                let has_owned = self.commons.own_queues.remove(&path);
                self.notify(&path, ZNodeChange::Removed { has_owned });
            }
            // The participants that wait for the deletion look again and set a watch, because another client
            // may delete the znode.
            Fate::Refused => {
                if self.commons.own_queues.refuse(&path) {
                    self.notify(&path, ZNodeChange::Unknown);
                }
            }
        }
    }

    /// Tells the participants that wait for a znode what has happened to it.
    pub(super) fn notify(&mut self, path: &ZNodePath, change: ZNodeChange) {
        for id in self.commons.watchers.take(path) {
            self.with_request(id, |request, commons| request.on_change(commons, path, change));
            self.look_at_tracked(id);
        }
    }

    /// Wakes a participant of any kind because its alarm is due.
    pub(super) fn wake(&mut self, id: ParticipantId) {
        self.with_request(id, |_, _| Next::Wake);
        if let Some(removal) = self.removals.get_mut(&id) {
            removal.wake(&mut self.commons);
        }
        self.commons.wake_sweep(id);
        self.look_at_tracked(id);
    }

    pub(super) fn look_at_tracked(&mut self, id: ParticipantId) {
        if let Some(tracked) = self.tracked.get_mut(&id) {
            tracked.wake(&mut self.commons);
        }
    }

    /// Makes every participant look again after a reconnect, because every watch must be set again. Until it has
    /// looked, a participant stays registered for its watch's event: the client may have set the watch again by itself,
    /// and then that watch must be removed in the end.
    pub(super) fn everybody_looks_again(&mut self) {
        // Owners first, because a lease may end while long listings arrive.
        let mut requests: Vec<(bool, ParticipantId)> =
            self.contenders.iter().map(|(id, contender)| (!contender.is_owner(), *id)).collect();
        requests.sort_unstable();
        for (_, id) in requests {
            self.with_request(id, |request, commons| request.on_reconnect(commons));
        }
        for removal in self.removals.values_mut() {
            removal.on_reconnect(&mut self.commons);
        }
        self.commons.sweep_again();
        self.tracked.values_mut().for_each(|tracked| tracked.wake(&mut self.commons));
    }

    /// Makes every request and every tracker look. Does nothing without contact, because the reconnect wakes
    /// everybody.
    pub(crate) fn look_routinely(&mut self) {
        if !self.commons.in_contact() {
            return;
        }
        let requests: Vec<ParticipantId> = self.contenders.keys().copied().collect();
        for id in requests {
            self.with_request(id, |request, commons| request.on_routine(commons));
        }
        self.tracked.values_mut().for_each(|tracked| tracked.wake(&mut self.commons));
    }

    // ---- deletions

    /// Deletes a znode of this session or of one that it has replaced. Tries again until the znode is gone or nothing
    /// more can be deleted on this session.
    pub(crate) fn remove(&mut self, path: ZNodePath) -> ParticipantId {
        let id = self.commons.new_id();
        self.commons.own_queues.note_leaving(&path);
        self.removed_paths.insert(path.clone());
        self.removals.insert(id, Removal::new(id, path));
        self.with_removal(id, |removal, commons| removal.start(commons));
        id
    }

    pub(super) fn handle_removal_reply(&mut self, id: ParticipantId, outcome: ZkResult<()>) {
        self.with_removal(id, |removal, commons| removal.on_reply(commons, outcome));
    }

    /// Returns whether a znode of this request is still to be deleted.
    pub(crate) fn is_removing(&self, request: ParticipantId) -> bool {
        let of_request = Some((self.commons.settings.tag, request.0));
        self.removals.values().any(|removal| SessionTag::read(removal.path.name()) == of_request)
    }
}
