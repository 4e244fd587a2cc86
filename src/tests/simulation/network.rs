//! What the simulated clients have created and deleted.

use super::checks::has_number_in_doubt;
use super::world::World;
use crate::client::CreateMode;
use crate::recipe::session_tag::SessionTag;
use crate::recipe::znode_name::generated_sequence;

impl World {
    /// Records that a client has created a znode.
    pub(super) fn record_creation(&self, path: &str, data: &[u8], mode: CreateMode) {
        let (dir, name) = path.rsplit_once('/').unwrap_or_default();
        if has_number_in_doubt(name) {
            // The other request may leave in the same step.
            self.record_end_of_counter(dir, &self.zookeeper.children(dir));
        }
        let mut state = self.state();
        if SessionTag::read(name).is_some() && !state.paths.insert(path.to_owned()) {
            drop(state);
            return self.fail(format!("{path} is created for a second time"));
        }
        *state.created.entry(data.to_vec()).or_default() += 1;
        // A downgrade chooses the name of its znode itself, and may not be completed.
        if mode == CreateMode::Ephemeral && generated_sequence(path).is_some() {
            state.tentative.insert(path.to_owned());
        }
    }

    /// Records that a client has deleted a znode that belonged to the session `owner`.
    pub(super) fn record_deletion(&self, client: usize, path: &str, owner: i64) {
        let state = self.state();
        let is_revoked = state.revoked.contains(path);
        let is_of_another = owner != state.clients[client].simulated.session_id();
        drop(state);
        if is_revoked || (is_of_another && generated_sequence(path).is_some()) {
            self.record_deletion_by_another(path, owner);
        }
    }
}
