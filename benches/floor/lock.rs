//! A lock made of bare frames.

use std::time::Duration;

use super::wire::Wire;

/// As long as the names that the crate under test uses.
const PREFIX: &str = "x-3b241101-e2bb-4255-8caf-4136c566a962-lock-";

/// A lock, with its own socket.
pub(crate) struct FloorLock {
    wire: Wire,
    dir: String,
    prefix: String,
    data: Vec<u8>,
}

impl FloorLock {
    /// Connects and creates the directory if it is missing. The directory's parent must exist.
    pub(crate) fn new(address: &str, timeout: Duration, dir: &str, data: &[u8]) -> FloorLock {
        let mut wire = Wire::connect(address, timeout);
        wire.create_dir(dir);
        FloorLock { wire, dir: dir.to_owned(), prefix: format!("{dir}/{PREFIX}"), data: data.to_vec() }
    }

    /// Joins the queue and waits for the requests ahead. Returns the path of the request.
    pub(crate) fn lock(&mut self) -> String {
        let (own, mut children) = self.wire.create_and_list(&self.prefix, &self.data, &self.dir);
        while let Some(ahead) = predecessor(&own, &children) {
            if self.wire.watch(&format!("{}/{ahead}", self.dir)) {
                self.wire.wait_event();
            }
            children = self.wire.list(&self.dir);
        }
        own
    }

    pub(crate) fn unlock(&mut self, own: &str) {
        self.wire.delete(own);
    }

    pub(crate) fn cycle(&mut self) {
        let own = self.lock();
        self.unlock(&own);
    }

    /// Makes one round trip that changes nothing.
    pub(crate) fn ask(&mut self) {
        self.wire.ask();
    }
}

/// Locks that share a socket and are all free. Each step of theirs is made for all of them in one write, so none waits for
/// another, and no thread is woken for a single reply.
pub(crate) struct FloorLocks {
    wire: Wire,
    /// The directory of each lock, and the name of its znodes without the number.
    locks: Vec<(String, String)>,
    data: Vec<u8>,
}

impl FloorLocks {
    pub(crate) fn new(address: &str, timeout: Duration, dirs: &[String], data: &[u8]) -> FloorLocks {
        let mut wire = Wire::connect(address, timeout);
        dirs.iter().for_each(|dir| wire.create_dir(dir));
        let locks = dirs.iter().map(|dir| (dir.clone(), format!("{dir}/{PREFIX}"))).collect();
        FloorLocks { wire, locks, data: data.to_vec() }
    }

    /// Acquires and releases every lock once.
    pub(crate) fn cycle(&mut self) {
        let own = self.wire.create_and_list_each(&self.locks, &self.data);
        self.wire.delete_each(&own);
    }
}

/// Returns the nearest request with a lower sequence number.
fn predecessor<'a>(own: &str, children: &'a [String]) -> Option<&'a str> {
    let own = sequence(own);
    let ahead = children.iter().map(String::as_str).filter(|child| sequence(child) < own);
    ahead.max_by_key(|child| sequence(child))
}

/// Returns the ten digits at the end of the name. All have the same width, so they compare as text.
fn sequence(name: &str) -> &str {
    &name[name.len().saturating_sub(10)..]
}
