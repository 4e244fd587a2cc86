//! Tests of lock directories on the fake server.

mod cleanup;
mod inspection;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use super::{LockDirectory, LockInfo};
use crate::Session;
use crate::client::{Acl, Permissions};
use crate::fake::{ReadChecks, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::tests::{eventually, in_background, next};

const DIR: &str = "/locks/it";
const LONG: Duration = Duration::from_secs(30);

/// A session that belongs to no client.
const OTHER_SESSION: i64 = 7;

struct Fixture {
    zk: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    directory: LockDirectory,
}

impl Fixture {
    fn new() -> Fixture {
        let zk = SimulatedZooKeeper::new();
        let client = zk.connect(LONG);
        Fixture::of(zk, client)
    }

    fn of(zk: SimulatedZooKeeper, client: Arc<SimulatedClient>) -> Fixture {
        let session = client.open_session().unwrap();
        let directory = LockDirectory::new(&session, DIR).unwrap();
        Fixture { zk, client, directory }
    }

    /// A fixture with an empty directory.
    fn with_directory() -> Fixture {
        let fixture = Fixture::new();
        fixture.zk.create(DIR, b"");
        fixture
    }

    /// A request of another session, with data.
    fn request(&self, prefix: &str, data: &[u8]) -> String {
        let path = self.zk.create_sequential(DIR, prefix, Some(OTHER_SESSION));
        self.zk.set_data(&path, data);
        path
    }

    /// A persistent request.
    fn persistent_request(&self, prefix: &str) -> String {
        self.zk.create_sequential(DIR, prefix, None)
    }

    fn contenders(&self) -> Vec<LockInfo> {
        self.directory.contenders().unwrap()
    }

    fn forcing(&self) -> LockDirectory {
        self.directory.clone().including_live_sessions(true)
    }

    fn session(&self) -> &Session {
        &self.directory.session
    }
}

fn names(infos: &[LockInfo]) -> Vec<&str> {
    infos.iter().map(LockInfo::name).collect()
}

fn paths(infos: &[LockInfo]) -> Vec<&str> {
    infos.iter().map(|request| request.path.as_str()).collect()
}

fn nobody_may_read() -> [Acl; 1] {
    [Acl::new(Permissions::CREATE | Permissions::DELETE, "world", "anyone")]
}
