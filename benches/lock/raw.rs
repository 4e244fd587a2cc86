//! Locks written by hand on the bare connection: the same protocol without any error handling.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_recipes_lock::client::{Acl, CreateMode, ZkError};

use crate::raw_client::RawClient;
use crate::{DATA, SESSION_TIMEOUT};

/// As long as the names that the crate under test uses.
const PREFIX: &str = "x-3b241101-e2bb-4255-8caf-4136c566a962-lock-";
const READER_PREFIX: &str = "read-3b241101-e2bb-4255-8caf-4136c566a962-";
const WRITER_PREFIX: &str = "write-3b241101-e2bb-4255-8caf-4136c566a962-";

/// A watch that has not fired after this time never will.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn connect(connect_string: &str) -> Arc<RawClient> {
    Arc::new(RawClient::connect(connect_string, SESSION_TIMEOUT))
}

/// Creates a znode and returns its path.
pub(crate) fn create(zk: &RawClient, path: &str, mode: CreateMode) -> String {
    zk.create(path, DATA, &Acl::open_unsafe(), mode).expect("the server creates the znode")
}

/// A lock and the connection that it uses.
pub(crate) struct RawLock {
    zk: Arc<RawClient>,
    dir: String,
    prefix: String,
    /// The prefix of the requests that it waits for.
    waits_for: &'static str,
}

/// A lock that is held until this value is dropped.
pub(crate) struct Held<'a> {
    lock: &'a RawLock,
    own: String,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lock.unlock(&self.own);
    }
}

impl RawLock {
    pub(crate) fn new(zk: &Arc<RawClient>, dir: &str) -> RawLock {
        RawLock::named(zk, dir, PREFIX, "")
    }

    /// A lock shared with other readers.
    pub(crate) fn reader(zk: &Arc<RawClient>, dir: &str) -> RawLock {
        RawLock::named(zk, dir, READER_PREFIX, "write-")
    }

    /// A lock that excludes readers.
    pub(crate) fn writer(zk: &Arc<RawClient>, dir: &str) -> RawLock {
        RawLock::named(zk, dir, WRITER_PREFIX, "")
    }

    fn named(zk: &Arc<RawClient>, dir: &str, prefix: &str, waits_for: &'static str) -> RawLock {
        RawLock { zk: Arc::clone(zk), dir: dir.to_owned(), prefix: format!("{dir}/{prefix}"), waits_for }
    }

    pub(crate) fn hold(&self) -> Held<'_> {
        Held { lock: self, own: self.lock() }
    }

    /// Makes the three calls of an uncontended lock.
    pub(crate) fn cycle(&self) {
        let own = self.join();
        let children = self.list();
        assert!(!children.is_empty());
        self.unlock(&own);
    }

    /// Locks and unlocks, waiting for the requests ahead.
    pub(crate) fn contended_cycle(&self) {
        let own = self.lock();
        self.unlock(&own);
    }

    fn lock(&self) -> String {
        let own = self.join();
        loop {
            let children = self.list();
            match self.predecessor(&own, &children) {
                None => return own,
                Some(ahead) => self.wait_for(ahead),
            }
        }
    }

    fn join(&self) -> String {
        create(&self.zk, &self.prefix, CreateMode::EphemeralSequential)
    }

    fn list(&self) -> Vec<String> {
        self.zk.get_children(&self.dir).expect("the directory exists")
    }

    fn unlock(&self, own: &str) {
        self.zk.delete(own).expect("our znode exists");
    }

    /// Waits until the znode is deleted or changed.
    fn wait_for(&self, ahead: &str) {
        let path = format!("{}/{ahead}", self.dir);
        match self.zk.watch(&path) {
            Ok(()) => assert!(self.zk.await_change(&path, TIMEOUT), "the request ahead is not released"),
            Err(ZkError::NoNode) => {}
            Err(error) => panic!("watching {path}: {error:?}"),
        }
    }

    /// Returns the nearest request with a lower sequence number that this lock must wait for.
    fn predecessor<'a>(&self, own: &str, children: &'a [String]) -> Option<&'a str> {
        let own = sequence(own);
        children
            .iter()
            .map(String::as_str)
            .filter(|child| sequence(child) < own && child.starts_with(self.waits_for))
            .max_by_key(|child| sequence(child))
    }
}

/// Returns the ten digits at the end of the name. All have the same width, so they compare as text.
fn sequence(name: &str) -> &str {
    &name[name.len() - 10..]
}
