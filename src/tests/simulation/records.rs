//! Records: znodes that a user creates on its session and then deletes, as a consumer takes an item from
//! a queue. Once the creation and the deletion have returned `Ok`, the record must never exist again, although
//! a server may have held back one of the requests.

use std::time::Duration;

use super::guards::User;
use super::seen::saw;
use super::world::{World, short};
use crate::RetryPolicy;
use crate::client::{Acl, CreateMode};
use crate::data::RecoverableZooKeeper;
use crate::error::ErrorReason;

pub(super) const RECORDS: &str = "/records";

const RECORDS_AT_A_TIME: usize = 3;

impl User {
    /// Creates some records and deletes each of them.
    pub(super) fn make_records(&self) {
        (0..RECORDS_AT_A_TIME).filter(|_| self.world.in_trouble()).for_each(|_| self.make_a_record());
    }

    fn make_a_record(&self) {
        let path = {
            let mut state = self.world.state();
            state.records_so_far += 1;
            format!("{RECORDS}/{}", state.records_so_far)
        };
        let policy = RetryPolicy::exponential(Duration::from_millis(10), Duration::from_millis(100));
        let zookeeper = RecoverableZooKeeper::new(&self.session, policy);
        let created = zookeeper.create(&path, b"record", &Acl::open_unsafe(), CreateMode::Persistent);
        self.world.note(format!("creates the record {}: {created:?}", short(&path)));
        if created.as_ref().is_err_and(|error| error.reason() == ErrorReason::OutcomeUnknown) {
            saw("outcome-of-a-create-unknown");
        }
        if created.is_ok() {
            let deleted = zookeeper.delete(&path, None);
            self.world.note(format!("deletes the record {}: {deleted:?}", short(&path)));
            if deleted.is_ok() {
                saw("record-created-and-deleted");
                self.world.state().taken_records.insert(path);
            }
        }
    }
}

impl World {
    pub(super) fn create_records(&self) {
        self.zookeeper.create(RECORDS, b"");
    }

    /// Returns a description of a record that exists again.
    pub(super) fn check_records(&self) -> Option<String> {
        let names = self.zookeeper.children(RECORDS).into_iter();
        let mut paths = names.map(|name| format!("{RECORDS}/{name}"));
        let again = paths.find(|path| self.state().taken_records.contains(path))?;
        Some(format!("the record {again} exists again"))
    }
}
