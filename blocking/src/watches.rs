//! Keeps one closure for each path that is watched through a handle.
//!
//! The crate keeps every closure until an event for its path arrives, so a second closure for a path would
//! stay as long as the first. A second closure is not needed: a call without a closure also sets the watch on
//! the server, and the existing closure receives the event.
//!
//! One leak cannot be avoided: if a znode is deleted at the very moment when the watch is set, or during an outage, the
//! handle keeps the closure.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use zookeeper::{WatchedEvent, Watcher};

use crate::connection_state::ConnectionState;

pub(crate) struct HandleWatches {
    connection: Weak<ConnectionState>,
    armed: Arc<Armed>,
}

/// The closures that the crate keeps, by kind of watch and path, each with a number.
#[derive(Default)]
struct Armed {
    next: AtomicU64,
    closures: Mutex<HashMap<(Kind, String), u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Data,
    Children,
}

impl HandleWatches {
    pub(crate) fn new(connection: &Arc<ConnectionState>) -> HandleWatches {
        HandleWatches { connection: Arc::downgrade(connection), armed: Arc::default() }
    }

    /// Returns the closure to pass to the crate for a watch on this znode, or `None` if the crate already has
    /// one.
    pub(crate) fn arm(&self, path: &str) -> Option<OneShotWatcher> {
        self.arm_kind(Kind::Data, path)
    }

    /// Like [`arm`](HandleWatches::arm), for a watch on the children.
    pub(crate) fn arm_children(&self, path: &str) -> Option<OneShotWatcher> {
        self.arm_kind(Kind::Children, path)
    }

    fn arm_kind(&self, kind: Kind, path: &str) -> Option<OneShotWatcher> {
        let key = (kind, path.to_owned());
        let mut closures = self.armed.closures.lock();
        if closures.contains_key(&key) {
            return None;
        }
        let number = self.armed.next.fetch_add(1, Ordering::Relaxed);
        closures.insert(key.clone(), number);
        Some(OneShotWatcher {
            connection: Weak::clone(&self.connection),
            armed: Arc::downgrade(&self.armed),
            key,
            number,
        })
    }
}

/// A closure that the crate keeps. It only forwards the event: a panic would end the crate's event thread, on
/// which the closure runs.
pub(crate) struct OneShotWatcher {
    connection: Weak<ConnectionState>,
    armed: Weak<Armed>,
    key: (Kind, String),
    number: u64,
}

impl OneShotWatcher {
    fn disarm(&self) {
        let Some(armed) = self.armed.upgrade() else { return };
        let mut closures = armed.closures.lock();
        if closures.get(&self.key) == Some(&self.number) {
            closures.remove(&self.key);
        }
    }
}

impl Watcher for OneShotWatcher {
    fn handle(&self, event: WatchedEvent) {
        // Disarm first, so that a reader which this event wakes arms a new closure.
        self.disarm();
        if let Some(connection) = self.connection.upgrade() {
            connection.on_watch(event);
        }
    }
}

impl Drop for OneShotWatcher {
    /// This also runs if the crate drops the closure without calling it, because the call that set the watch
    /// lost its connection.
    fn drop(&mut self) {
        self.disarm();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use zookeeper::{KeeperState, WatchedEventType};
    use zookeeper_recipes_lock::client::seam::Granted;

    fn watches() -> HandleWatches {
        HandleWatches::new(&Arc::new(ConnectionState::new(Granted::new(Duration::from_secs(30)))))
    }

    fn event() -> WatchedEvent {
        WatchedEvent {
            event_type: WatchedEventType::NodeDeleted,
            keeper_state: KeeperState::SyncConnected,
            path: Some("/a".to_owned()),
        }
    }

    #[test]
    fn path_has_one_closure_until_it_fires() {
        let watches = watches();
        let closure = watches.arm("/a").unwrap();
        assert!(watches.arm("/a").is_none());
        assert!(watches.arm_children("/a").is_some());
        assert!(watches.arm("/b").is_some());
        closure.handle(event());
        assert!(watches.arm("/a").is_some());
    }

    #[test]
    fn closure_dropped_without_an_event_is_replaced() {
        let watches = watches();
        drop(watches.arm("/a").unwrap());
        assert!(watches.arm("/a").is_some());
    }

    #[test]
    fn late_drop_of_a_fired_closure_keeps_its_successor() {
        let watches = watches();
        let first = watches.arm("/a").unwrap();
        first.handle(event());
        let _second = watches.arm("/a").unwrap();
        drop(first);
        assert!(watches.arm("/a").is_none());
    }
}
