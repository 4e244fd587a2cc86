//! Data operations over requests and replies that a real network loses.

use std::thread;
use std::time::Duration;

use zookeeper_recipes_lock::{
    Acl, BlockingWriteLock, CreateMode, LockError, LockOptions, RecoverableZooKeeper, Result, RetryPolicy,
    Session, ZkError,
};

use crate::fixtures::{LONG, Onlooker, connect, session, unique_dir};
use crate::support::relay::{Relay, Request};
use crate::support::server;
use crate::support::wait::eventually;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const GET_CHILDREN: i32 = 8;

/// A caller behind a network that can fail, and a directory.
struct Fixture {
    relay: Relay,
    onlooker: Onlooker,
    session: Session,
    dir: String,
}

impl Fixture {
    fn new(test: &str) -> Fixture {
        let relay = Relay::to(server::shared().connect_string());
        let onlooker = Onlooker::at(server::shared());
        let session = connect(&relay.connect_string(), LONG);
        let dir = unique_dir(test);
        onlooker.create_persistent(&dir);
        Fixture { relay, onlooker, session, dir }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    /// Makes a call whose reply is lost with the connection, once the effect is there.
    fn lose_the_reply<T: Send>(
        &self,
        operation: i32,
        has_effect: impl Fn() -> bool,
        call: impl FnOnce(&RecoverableZooKeeper) -> Result<T> + Send,
    ) -> Result<T> {
        let zookeeper = caller(&self.session);
        thread::scope(|scope| {
            self.relay.hold_replies_from(self.request(operation));
            let calling = scope.spawn(move || call(&zookeeper));
            eventually("the effect is there", has_effect);
            assert!(!calling.is_finished(), "no reply has come");
            self.relay.cut();
            calling.join().unwrap()
        })
    }

    /// Makes a call whose request is lost with the connection, after another client has acted.
    fn lose_the_request<T: Send>(
        &self,
        operation: i32,
        act: impl FnOnce(),
        call: impl FnOnce(&RecoverableZooKeeper) -> Result<T> + Send,
    ) -> Result<T> {
        let zookeeper = caller(&self.session);
        thread::scope(|scope| {
            self.relay.swallow_from(self.request(operation));
            let calling = scope.spawn(move || call(&zookeeper));
            eventually("the request is under way", || self.relay.bytes_held() > 0);
            act();
            self.relay.cut();
            calling.join().unwrap()
        })
    }

    /// A request on something in the directory.
    fn request(&self, operation: i32) -> Request {
        Request { operation, path: self.dir.clone() }
    }
}

impl Drop for Fixture {
    /// Before the relay goes: a client without a server is busy connecting.
    fn drop(&mut self) {
        self.session.close();
    }
}

fn caller(session: &Session) -> RecoverableZooKeeper {
    let policy = RetryPolicy::bounded_exponential(Duration::from_millis(10), Duration::from_millis(500));
    RecoverableZooKeeper::new(session, policy.with_attempts(100).with_jitter())
}

fn is_answer<T>(outcome: &Result<T>, answer: ZkError) -> bool {
    matches!(outcome, Err(LockError::Server { source, .. }) if *source == answer)
}

fn is_unknown<T>(outcome: &Result<T>) -> bool {
    matches!(outcome, Err(LockError::OutcomeUnknown { .. }))
}

#[test]
fn a_create_whose_reply_is_lost_is_made_once() {
    for mode in [CreateMode::Persistent, CreateMode::Ephemeral, CreateMode::Container] {
        let fixture = Fixture::new("recoverable-create");
        let path = fixture.path("znode");
        let created = fixture.lose_the_reply(
            CREATE,
            || fixture.onlooker.exists(&path),
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
fn a_create_whose_request_is_lost_leaves_anothers_znode_to_its_maker() {
    let fixture = Fixture::new("recoverable-others-znode");
    let path = fixture.path("znode");
    let create = |zookeeper: &RecoverableZooKeeper| {
        zookeeper.create(&path, b"data", &Acl::open_unsafe(), CreateMode::Persistent)
    };
    let another = caller(&session(server::shared()));
    let created = fixture.lose_the_request(CREATE, || drop(create(&another).unwrap()), create);
    assert!(is_answer(&created, ZkError::NodeExists), "{created:?}");
}

#[test]
fn a_sequential_create_whose_reply_is_lost_makes_one_znode() {
    for mode in [CreateMode::PersistentSequential, CreateMode::EphemeralSequential] {
        let fixture = Fixture::new("recoverable-sequential");
        let created = fixture.lose_the_reply(
            CREATE,
            || fixture.onlooker.children(&fixture.dir).len() == 1,
            |zookeeper| zookeeper.create(&fixture.path("item-"), b"data", &Acl::open_unsafe(), mode),
        );
        let created = created.unwrap();
        assert!(created.ends_with("-0000000000"), "{created}");
        assert_eq!(
            fixture.onlooker.children(&fixture.dir),
            [created.strip_prefix(&fixture.path("")).unwrap()]
        );
    }
}

#[test]
fn a_queue_item_that_was_taken_before_the_reply_was_lost_is_not_made_again() {
    let fixture = Fixture::new("recoverable-taken");
    let items = || fixture.onlooker.children(&fixture.dir);
    let take_one = || match items().pop() {
        Some(item) => {
            fixture.onlooker.delete(&fixture.path(&item));
            true
        }
        None => false,
    };
    let created = fixture.lose_the_reply(CREATE, take_one, |zookeeper| {
        zookeeper.create(&fixture.path("item-"), b"", &Acl::open_unsafe(), CreateMode::PersistentSequential)
    });
    assert!(is_unknown(&created), "{created:?}");
    assert!(items().is_empty(), "made again: {:?}", items());
}

#[test]
fn a_deletion_whose_reply_is_lost_succeeds() {
    let fixture = Fixture::new("recoverable-delete");
    let path = fixture.path("znode");
    fixture.onlooker.create_persistent(&path);
    let is_gone = || !fixture.onlooker.exists(&path);
    fixture.lose_the_reply(DELETE, is_gone, |zookeeper| zookeeper.delete(&path, Some(0))).unwrap();
    let again = caller(&fixture.session).delete(&path, None);
    assert!(is_answer(&again, ZkError::NoNode), "{again:?}");
}

#[test]
fn a_deletion_leaves_the_znode_that_another_has_made_meanwhile() {
    let fixture = Fixture::new("recoverable-replaced");
    let path = fixture.path("znode");
    fixture.onlooker.create_persistent(&path);
    let is_replaced = || {
        let is_gone = !fixture.onlooker.exists(&path);
        if is_gone {
            fixture.onlooker.create_persistent(&path);
        }
        is_gone
    };
    let deleted = fixture.lose_the_reply(DELETE, is_replaced, |zookeeper| zookeeper.delete(&path, Some(0)));
    assert!(is_unknown(&deleted), "{deleted:?}");
    assert!(fixture.onlooker.exists(&path));
}

#[test]
fn a_write_whose_reply_is_lost_is_made_once() {
    for version in [None, Some(0)] {
        let fixture = Fixture::new("recoverable-set");
        let path = fixture.path("znode");
        fixture.onlooker.create_persistent(&path);
        let written = fixture.lose_the_reply(
            SET_DATA,
            || !fixture.onlooker.data(&path).is_empty(),
            |zookeeper| zookeeper.set_data(&path, b"data", version),
        );
        assert_eq!(written.unwrap().version, 1);
        let (data, stat) = caller(&fixture.session).get_data(&path).unwrap();
        assert_eq!((data.as_slice(), stat.version), (b"data".as_slice(), 1));
    }
}

#[test]
fn every_call_is_made_in_the_end_whose_request_is_lost() {
    let fixture = Fixture::new("recoverable-requests");
    let (path, dir) = (fixture.path("znode"), &fixture.dir);
    let create = |zookeeper: &RecoverableZooKeeper| {
        zookeeper.create(&path, b"1", &Acl::open_unsafe(), CreateMode::Persistent)
    };
    let nothing = || {};
    assert_eq!(fixture.lose_the_request(CREATE, nothing, create).unwrap(), path);
    assert!(
        fixture.lose_the_request(EXISTS, nothing, |zookeeper| zookeeper.exists(&path)).unwrap().is_some()
    );
    let set = |zookeeper: &RecoverableZooKeeper| zookeeper.set_data(&path, b"2", Some(0));
    assert_eq!(fixture.lose_the_request(SET_DATA, nothing, set).unwrap().version, 1);
    let get = |zookeeper: &RecoverableZooKeeper| zookeeper.get_data(&path);
    assert_eq!(fixture.lose_the_request(GET_DATA, nothing, get).unwrap().0, b"2");
    let list = |zookeeper: &RecoverableZooKeeper| zookeeper.get_children(dir);
    assert_eq!(fixture.lose_the_request(GET_CHILDREN, nothing, list).unwrap(), ["znode"]);
    let delete = |zookeeper: &RecoverableZooKeeper| zookeeper.delete(&path, Some(1));
    fixture.lose_the_request(DELETE, nothing, delete).unwrap();
    assert!(!fixture.onlooker.exists(&path));
    // What is read before a call that changes something may be lost as well.
    assert_eq!(fixture.lose_the_request(EXISTS, nothing, create).unwrap(), path);
}

#[test]
fn a_lock_joins_by_the_policy_that_it_was_given() {
    let fixture = Fixture::new("recoverable-policy");
    let lock_with = |policy| {
        let options = LockOptions::new().retry(policy);
        BlockingWriteLock::with_options(&fixture.session, &fixture.path("lock"), options).unwrap()
    };
    let states = fixture.session.subscribe();
    fixture.relay.refuse();
    states.recv().unwrap();
    let lock = lock_with(RetryPolicy::constant(Duration::from_millis(1)).with_attempts(3));
    assert!(lock.lock().unwrap_err().is_recoverable());
    let hourly = RetryPolicy::constant(Duration::from_secs(3600));
    let lock = lock_with(hourly.with_total_time(Duration::from_secs(60)));
    assert!(lock.lock().unwrap_err().is_recoverable(), "the next attempt would come too late");
    let lock = lock_with(RetryPolicy::constant(Duration::from_millis(20)).with_attempts(u32::MAX));
    thread::scope(|scope| {
        let locking = scope.spawn(|| lock.lock());
        fixture.relay.restore();
        assert!(locking.join().unwrap().unwrap().is_owner());
    });
}
