//! One closure for each path watched through a handle whose default watcher is the application's.
//!
//! The crate keeps every closure until an event for its path comes, so a second one for a path that is watched already
//! would stay as long as the first. A call made without a closure sets the watch on the server all the same, and the
//! closure that is there hears of it.
//!
//! What cannot be helped: the closure for a znode that is deleted at the very moment at which it is watched, or while
//! contact is lost, stays with the handle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use zookeeper::{WatchedEvent, Watcher};

use super::connection_state::ConnectionState;

pub(super) struct Watches {
    connection: Weak<ConnectionState>,
    armed: Arc<Armed>,
}

/// The closures that the crate keeps, by kind of watch and path, each with a number of its own.
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

impl Watches {
    pub(super) fn new(connection: &Arc<ConnectionState>) -> Watches {
        Watches { connection: Arc::downgrade(connection), armed: Arc::default() }
    }

    /// The closure to give to the crate for a watch on this path's znode, or `None` when it has one.
    pub(super) fn arm(&self, path: &str) -> Option<OneShotWatcher> {
        self.arm_kind(Kind::Data, path)
    }

    /// The same for a watch on its children.
    pub(super) fn arm_children(&self, path: &str) -> Option<OneShotWatcher> {
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

/// What the crate keeps. It hands over and nothing else: it runs on the crate's event thread, which a panic would end.
pub(super) struct OneShotWatcher {
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
        // First, so that whoever looks again because of this event arms a new one.
        self.disarm();
        if let Some(connection) = self.connection.upgrade() {
            connection.on_watch(event);
        }
    }
}

impl Drop for OneShotWatcher {
    /// The crate drops a closure without calling it when the call that brought it lost its connection.
    fn drop(&mut self) {
        self.disarm();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Granted;
    use std::time::Duration;
    use zookeeper::{KeeperState, WatchedEventType};

    fn watches() -> Watches {
        Watches::new(&Arc::new(ConnectionState::of_a_handle_in_use(Granted::new(Duration::from_secs(30)))))
    }

    fn event() -> WatchedEvent {
        WatchedEvent {
            event_type: WatchedEventType::NodeDeleted,
            keeper_state: KeeperState::SyncConnected,
            path: Some("/a".to_owned()),
        }
    }

    #[test]
    fn a_path_has_one_closure_until_it_has_fired() {
        let watches = watches();
        let closure = watches.arm("/a").unwrap();
        assert!(watches.arm("/a").is_none());
        assert!(watches.arm_children("/a").is_some());
        assert!(watches.arm("/b").is_some());
        closure.handle(event());
        assert!(watches.arm("/a").is_some());
    }

    #[test]
    fn a_closure_that_was_dropped_unheard_is_replaced() {
        let watches = watches();
        drop(watches.arm("/a").unwrap());
        assert!(watches.arm("/a").is_some());
    }

    #[test]
    fn a_fired_closure_that_goes_late_leaves_its_successor_alone() {
        let watches = watches();
        let first = watches.arm("/a").unwrap();
        first.handle(event());
        let _second = watches.arm("/a").unwrap();
        drop(first);
        assert!(watches.arm("/a").is_none());
    }
}
