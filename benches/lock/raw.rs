//! The exclusive lock written by hand on the bare client: the same protocol, and nothing for the day when something
//! fails.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use zookeeper_recipes_lock::{Acl, CreateMode, ZkError, ZooKeeper};

use crate::{DATA, SESSION_TIMEOUT};

/// As long as the names that the crate under test makes.
const PREFIX: &str = "x-3b241101-e2bb-4255-8caf-4136c566a962-lock-";

/// A watch that has not fired by then never will.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn connect(connect_string: &str) -> Arc<ZooKeeper> {
    let zk = ZooKeeper::connect(connect_string, SESSION_TIMEOUT, |_| {}).expect("the address is valid");
    // Connecting goes on in the background; the first answer says that it is done.
    zk.exists("/", false).expect("the server is up");
    Arc::new(zk)
}

/// Creates a znode and returns its path.
pub(crate) fn create(zk: &ZooKeeper, path: &str, mode: CreateMode) -> String {
    zk.create(path, DATA.to_vec(), Acl::open_unsafe().clone(), mode).expect("the server creates the znode")
}

/// A lock, with the connection it uses.
pub(crate) struct RawLock {
    zk: Arc<ZooKeeper>,
    dir: String,
    prefix: String,
}

impl RawLock {
    pub(crate) fn new(zk: &Arc<ZooKeeper>, dir: &str) -> RawLock {
        RawLock { zk: Arc::clone(zk), dir: dir.to_owned(), prefix: format!("{dir}/{PREFIX}") }
    }

    /// The three calls of a lock that nobody else wants.
    pub(crate) fn cycle(&self) {
        let own = self.join();
        let children = self.list();
        assert!(!children.is_empty());
        self.unlock(&own);
    }

    /// Locks and unlocks, waiting for those ahead.
    pub(crate) fn contended_cycle(&self) {
        let own = self.lock();
        self.unlock(&own);
    }

    fn lock(&self) -> String {
        let own = self.join();
        loop {
            let children = self.list();
            match predecessor(&own, &children) {
                None => return own,
                Some(ahead) => self.wait_for(ahead),
            }
        }
    }

    fn join(&self) -> String {
        create(&self.zk, &self.prefix, CreateMode::EphemeralSequential)
    }

    fn list(&self) -> Vec<String> {
        self.zk.get_children(&self.dir, false).expect("the directory is there")
    }

    fn unlock(&self, own: &str) {
        self.zk.delete(own, None).expect("our znode is there");
    }

    /// Waits until the znode is gone, or changed in whatever way.
    fn wait_for(&self, ahead: &str) {
        let (fired, firing) = channel();
        let path = format!("{}/{ahead}", self.dir);
        let tell = move |_| {
            let _ = fired.send(());
        };
        match self.zk.get_data_w(&path, tell) {
            Ok(_) => firing.recv_timeout(PATIENCE).expect("the one ahead goes"),
            Err(ZkError::NoNode) => {}
            Err(error) => panic!("watching {path}: {error:?}"),
        }
    }
}

/// The nearest of those with a lower sequence number.
fn predecessor<'a>(own: &str, children: &'a [String]) -> Option<&'a str> {
    let own = sequence(own);
    children
        .iter()
        .map(String::as_str)
        .filter(|child| sequence(child) < own)
        .max_by_key(|child| sequence(child))
}

/// The ten digits at the end of the name; of one width, they compare as text.
fn sequence(name: &str) -> &str {
    &name[name.len() - 10..]
}
