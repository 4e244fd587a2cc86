//! Tests of data operations whose requests or replies are lost on a real network.

use std::thread;
use std::time::Duration;

use zookeeper_recipes_lock::client::{Acl, CreateMode, ZkError};
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::{
    BlockingWriteLock, ErrorKind, ErrorReason, LockError, LockOptions, RetryPolicy, Session,
};

use crate::fixtures::{LONG, Observer, connect, session, unique_dir};
use crate::support::relay::{Relay, Request};
use crate::support::server;
use crate::support::wait::eventually;

/// The operation `create2`, which also returns the metadata.
const CREATE: i32 = 15;
const CREATE_CONTAINER: i32 = 19;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const GET_CHILDREN: i32 = 8;

/// A session on a relay that can fail, and a directory.
struct Fixture {
    relay: Relay,
    observer: Observer,
    session: Session,
    dir: String,
}

impl Fixture {
    fn new(test: &str) -> Fixture {
        let relay = Relay::to(server::shared().connect_string());
        let observer = Observer::at(server::shared());
        let session = connect(&relay.connect_string(), LONG);
        let dir = unique_dir(test);
        observer.create_persistent(&dir);
        Fixture { relay, observer, session, dir }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    /// Makes a call that takes effect but whose reply is lost with the connection.
    fn lose_the_reply<T: Send>(
        &self,
        operation: i32,
        has_effect: impl Fn() -> bool,
        call: impl FnOnce(&RecoverableZooKeeper) -> Result<T, LockError> + Send,
    ) -> Result<T, LockError> {
        let zookeeper = caller(&self.session);
        thread::scope(|scope| {
            self.relay.hold_replies_from(self.request(operation));
            let calling = scope.spawn(move || call(&zookeeper));
            eventually("the call has taken effect", has_effect);
            assert!(!calling.is_finished(), "the call must still wait for its reply");
            self.relay.cut();
            calling.join().unwrap()
        })
    }

    /// Makes a call whose request is lost with the connection, after another client has acted.
    fn lose_the_request<T: Send>(
        &self,
        operation: i32,
        act: impl FnOnce(),
        call: impl FnOnce(&RecoverableZooKeeper) -> Result<T, LockError> + Send,
    ) -> Result<T, LockError> {
        let zookeeper = caller(&self.session);
        thread::scope(|scope| {
            self.relay.swallow_from(self.request(operation));
            let calling = scope.spawn(move || call(&zookeeper));
            eventually("the request is sent", || self.relay.bytes_held() > 0);
            act();
            self.relay.cut();
            calling.join().unwrap()
        })
    }

    /// Returns the relay's description of a request for a znode in the directory.
    fn request(&self, operation: i32) -> Request {
        Request { operation, path: self.dir.clone() }
    }
}

impl Drop for Fixture {
    /// Closes the session before the relay is dropped: without a server, the client would be busy connecting.
    fn drop(&mut self) {
        self.session.close();
    }
}

fn caller(session: &Session) -> RecoverableZooKeeper {
    let policy = RetryPolicy::exponential(Duration::from_millis(10), Duration::from_millis(500));
    RecoverableZooKeeper::new(session, policy.with_attempts(100).with_jitter())
}

fn is_answer<T>(outcome: &Result<T, LockError>, answer: ZkError) -> bool {
    matches!(outcome, Err(error) if error.reason() == ErrorReason::Server(answer))
}

fn is_unknown<T>(outcome: &Result<T, LockError>) -> bool {
    let expected = (ErrorKind::Permanent, ErrorReason::OutcomeUnknown);
    matches!(outcome, Err(error) if (error.kind(), error.reason()) == expected)
}

#[test]
fn create_with_a_lost_reply_takes_effect_once() {
    for mode in [CreateMode::Persistent, CreateMode::Ephemeral, CreateMode::Container] {
        let fixture = Fixture::new("recoverable-create");
        let path = fixture.path("znode");
        let operation = if mode == CreateMode::Container { CREATE_CONTAINER } else { CREATE };
        let created = fixture.lose_the_reply(
            operation,
            || fixture.observer.exists(&path),
            |zookeeper| zookeeper.create(&path, b"data", &Acl::open_unsafe(), mode),
        );
        assert_eq!(created.unwrap(), path, "{mode:?}");
        let near = session(server::shared());
        assert_eq!(caller(&near).get_data(&path).unwrap().0, b"data");
        let another = caller(&near).create(&path, b"data", &Acl::open_unsafe(), mode);
        assert!(is_answer(&another, ZkError::NodeExists), "{another:?}");
    }
}

#[test]
fn create_with_a_lost_request_does_not_claim_a_znode_of_another() {
    let fixture = Fixture::new("recoverable-others-znode");
    let path = fixture.path("znode");
    let create = |zookeeper: &RecoverableZooKeeper| {
        zookeeper.create(&path, b"data", &Acl::open_unsafe(), CreateMode::Persistent)
    };
    let another = caller(&session(server::shared()));
    let created = fixture.lose_the_request(CREATE, || drop(create(&another).unwrap()), create);
    assert!(is_unknown(&created), "{created:?}");
}

#[test]
fn sequential_create_with_a_lost_reply_makes_one_znode() {
    for mode in [CreateMode::PersistentSequential, CreateMode::EphemeralSequential] {
        let fixture = Fixture::new("recoverable-sequential");
        let created = fixture.lose_the_reply(
            CREATE,
            || fixture.observer.children(&fixture.dir).len() == 1,
            |zookeeper| zookeeper.create(&fixture.path("item-"), b"data", &Acl::open_unsafe(), mode),
        );
        let created = created.unwrap();
        assert!(created.ends_with("-0000000000"), "{created}");
        assert_eq!(
            fixture.observer.children(&fixture.dir),
            [created.strip_prefix(&fixture.path("")).unwrap()]
        );
    }
}

#[test]
fn queue_item_consumed_before_the_lost_reply_is_not_created_again() {
    let fixture = Fixture::new("recoverable-taken");
    let items = || fixture.observer.children(&fixture.dir);
    let take_one = || match items().pop() {
        Some(item) => {
            fixture.observer.delete(&fixture.path(&item));
            true
        }
        None => false,
    };
    let created = fixture.lose_the_reply(CREATE, take_one, |zookeeper| {
        zookeeper.create(&fixture.path("item-"), b"", &Acl::open_unsafe(), CreateMode::PersistentSequential)
    });
    assert!(is_unknown(&created), "{created:?}");
    assert!(items().is_empty(), "created again: {:?}", items());
}

#[test]
fn deletion_with_a_lost_reply_succeeds() {
    let fixture = Fixture::new("recoverable-delete");
    let path = fixture.path("znode");
    fixture.observer.create_persistent(&path);
    let is_gone = || !fixture.observer.exists(&path);
    fixture.lose_the_reply(DELETE, is_gone, |zookeeper| zookeeper.delete(&path, Some(0))).unwrap();
    let again = caller(&fixture.session).delete(&path, None);
    assert!(is_answer(&again, ZkError::NoNode), "{again:?}");
}

#[test]
fn deletion_keeps_a_znode_created_meanwhile() {
    let fixture = Fixture::new("recoverable-replaced");
    let path = fixture.path("znode");
    fixture.observer.create_persistent(&path);
    let is_replaced = || {
        let is_gone = !fixture.observer.exists(&path);
        if is_gone {
            fixture.observer.create_persistent(&path);
        }
        is_gone
    };
    let deleted = fixture.lose_the_reply(DELETE, is_replaced, |zookeeper| zookeeper.delete(&path, Some(0)));
    assert!(is_unknown(&deleted), "{deleted:?}");
    assert!(fixture.observer.exists(&path));
}

#[test]
fn write_with_a_lost_reply_takes_effect_once() {
    for version in [None, Some(0)] {
        let fixture = Fixture::new("recoverable-set");
        let path = fixture.path("znode");
        fixture.observer.create_persistent(&path);
        let written = fixture.lose_the_reply(
            SET_DATA,
            || !fixture.observer.data(&path).is_empty(),
            |zookeeper| zookeeper.set_data(&path, b"data", version),
        );
        assert_eq!(written.unwrap().version, 1);
        let (data, stat) = caller(&fixture.session).get_data(&path).unwrap();
        assert_eq!((data.as_slice(), stat.version), (b"data".as_slice(), 1));
    }
}

#[test]
fn reads_and_writes_with_a_lost_request_are_repeated() {
    let fixture = Fixture::new("recoverable-requests");
    let (path, dir) = (fixture.path("znode"), &fixture.dir);
    fixture.observer.create_persistent(&path);
    let nothing = || {};
    assert!(
        fixture.lose_the_request(EXISTS, nothing, |zookeeper| zookeeper.exists(&path)).unwrap().is_some()
    );
    for (version, new) in [(Some(0), 1), (None, 2)] {
        let set = |zookeeper: &RecoverableZooKeeper| zookeeper.set_data(&path, b"2", version);
        assert_eq!(fixture.lose_the_request(SET_DATA, nothing, set).unwrap().version, new);
    }
    let get = |zookeeper: &RecoverableZooKeeper| zookeeper.get_data(&path);
    assert_eq!(fixture.lose_the_request(GET_DATA, nothing, get).unwrap().0, b"2");
    let list = |zookeeper: &RecoverableZooKeeper| zookeeper.get_children(dir);
    assert_eq!(fixture.lose_the_request(GET_CHILDREN, nothing, list).unwrap(), ["znode"]);
    // The read that precedes a write may be lost, too.
    let delete = |zookeeper: &RecoverableZooKeeper| zookeeper.delete(&path, Some(2));
    fixture.lose_the_request(EXISTS, nothing, delete).unwrap();
    assert!(!fixture.observer.exists(&path));
}

#[test]
fn creation_or_deletion_with_a_lost_request_is_unknown() {
    let fixture = Fixture::new("recoverable-unknown");
    let path = fixture.path("znode");
    let nothing = || {};
    for mode in [CreateMode::Persistent, CreateMode::EphemeralSequential] {
        let create =
            |zookeeper: &RecoverableZooKeeper| zookeeper.create(&path, b"1", &Acl::open_unsafe(), mode);
        assert!(is_unknown(&fixture.lose_the_request(CREATE, nothing, create)), "{mode:?}");
        assert!(fixture.observer.children(&fixture.dir).is_empty(), "{mode:?}");
    }
    fixture.observer.create_persistent(&path);
    let delete = |zookeeper: &RecoverableZooKeeper| zookeeper.delete(&path, None);
    assert!(is_unknown(&fixture.lose_the_request(DELETE, nothing, delete)));
    assert!(fixture.observer.exists(&path));
}

#[test]
fn lock_joins_by_its_retry_policy() {
    let fixture = Fixture::new("recoverable-policy");
    let lock_with = |policy| {
        let options = LockOptions::new().retry(policy);
        BlockingWriteLock::with_options(&fixture.session, &fixture.path("lock"), options).unwrap()
    };
    let states = fixture.session.subscribe();
    fixture.relay.refuse();
    states.recv().unwrap();
    let lock = lock_with(RetryPolicy::constant(Duration::from_millis(1)).with_attempts(3));
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Retry);
    let hourly = RetryPolicy::constant(Duration::from_secs(3600));
    let lock = lock_with(hourly.with_total_time(Duration::from_secs(60)));
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Retry, "the next attempt would come too late");
    let lock = lock_with(RetryPolicy::constant(Duration::from_millis(20)).with_attempts(u32::MAX));
    thread::scope(|scope| {
        let locking = scope.spawn(|| lock.lock());
        fixture.relay.restore();
        assert!(locking.join().unwrap().unwrap().is_owner());
    });
}
