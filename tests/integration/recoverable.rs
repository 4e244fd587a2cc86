//! Data operations over requests and replies that a real network loses.

use std::thread;
use std::time::Duration;

use zookeeper_recipes_lock::{
    Acl, BlockingWriteLock, CreateMode, LockError, RecoverableZooKeeper, Result, RetryPolicy, Session,
    ZkError,
};

use crate::fixtures::{LONG, Onlooker, connect, session, unique_dir};
use crate::support::relay::Relay;
use crate::support::server;
use crate::support::wait::eventually;

/// A caller behind a network that can fail, and a directory.
struct Field {
    relay: Relay,
    onlooker: Onlooker,
    session: Session,
    dir: String,
}

impl Field {
    fn new(test: &str) -> Field {
        let relay = Relay::to(server::shared().connect_string());
        let onlooker = Onlooker::at(server::shared());
        let session = connect(&relay.connect_string(), LONG);
        let dir = unique_dir(test);
        onlooker.create_persistent(&dir);
        Field { relay, onlooker, session, dir }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    /// Makes a call whose reply is lost with the connection, once the effect is there.
    fn lose_the_reply<T: Send>(
        &self,
        has_effect: impl Fn() -> bool,
        call: impl FnOnce(&RecoverableZooKeeper) -> Result<T> + Send,
    ) -> Result<T> {
        let zookeeper = caller(&self.session);
        thread::scope(|scope| {
            self.relay.hold_replies();
            let calling = scope.spawn(move || call(&zookeeper));
            eventually("the effect is there", has_effect);
            assert!(!calling.is_finished(), "no reply has come");
            self.relay.cut();
            calling.join().unwrap()
        })
    }

    /// Makes a call whose request is lost with the connection.
    fn lose_the_request<T: Send>(
        &self,
        call: impl FnOnce(&RecoverableZooKeeper) -> Result<T> + Send,
    ) -> Result<T> {
        let zookeeper = caller(&self.session);
        thread::scope(|scope| {
            self.relay.swallow();
            let calling = scope.spawn(move || call(&zookeeper));
            eventually("the request is under way", || self.relay.bytes_held() > 0);
            self.relay.cut();
            calling.join().unwrap()
        })
    }
}

impl Drop for Field {
    /// Before the relay goes: a client without a server is busy connecting.
    fn drop(&mut self) {
        self.session.close();
    }
}

fn caller(session: &Session) -> RecoverableZooKeeper {
    let policy = RetryPolicy::bounded_exponential(Duration::from_millis(10), Duration::from_millis(500));
    RecoverableZooKeeper::new(session, policy.with_attempts(100).with_jitter())
}

#[test]
fn a_create_whose_reply_is_lost_is_made_once() {
    for mode in [CreateMode::Persistent, CreateMode::Ephemeral] {
        let field = Field::new("recoverable-create");
        let path = field.path("znode");
        let created = field.lose_the_reply(
            || field.onlooker.exists(&path),
            |zookeeper| zookeeper.create(&path, b"data", Acl::open_unsafe(), mode),
        );
        assert_eq!(created.unwrap(), path, "{mode:?}");
        let near = session(server::shared());
        assert_eq!(caller(&near).get_data(&path).unwrap().0, b"data");
        let another = caller(&near).create(&path, b"data", Acl::open_unsafe(), mode);
        assert!(matches!(another, Err(LockError::Client { source: ZkError::NodeExists, .. })), "{another:?}");
    }
}

#[test]
fn a_create_whose_request_is_lost_leaves_anothers_znode_to_its_maker() {
    let field = Field::new("recoverable-others-znode");
    let path = field.path("znode");
    let created = field.lose_the_request(|zookeeper| {
        // The request is held back until the connection is cut, so this one is first.
        caller(&session(server::shared())).create(
            &path,
            b"data",
            Acl::open_unsafe(),
            CreateMode::Persistent,
        )?;
        zookeeper.create(&path, b"data", Acl::open_unsafe(), CreateMode::Persistent)
    });
    assert!(matches!(created, Err(LockError::Client { source: ZkError::NodeExists, .. })), "{created:?}");
}

#[test]
fn a_sequential_create_whose_reply_is_lost_makes_one_znode() {
    for mode in [CreateMode::PersistentSequential, CreateMode::EphemeralSequential] {
        let field = Field::new("recoverable-sequential");
        let created = field.lose_the_reply(
            || field.onlooker.children(&field.dir).len() == 1,
            |zookeeper| zookeeper.create(&field.path("item-"), b"data", Acl::open_unsafe(), mode),
        );
        let created = created.unwrap();
        assert!(created.ends_with("-0000000000"), "{created}");
        assert_eq!(field.onlooker.children(&field.dir), [created.strip_prefix(&field.path("")).unwrap()]);
    }
}

#[test]
fn a_deletion_whose_reply_is_lost_succeeds() {
    let field = Field::new("recoverable-delete");
    let path = field.path("znode");
    field.onlooker.create_persistent(&path);
    let deleted =
        field.lose_the_reply(|| !field.onlooker.exists(&path), |zookeeper| zookeeper.delete(&path, Some(0)));
    deleted.unwrap();
    let again = caller(&field.session).delete(&path, None);
    assert!(matches!(again, Err(LockError::Client { source: ZkError::NoNode, .. })), "{again:?}");
}

#[test]
fn a_conditional_write_whose_reply_is_lost_is_made_once() {
    let field = Field::new("recoverable-set");
    let path = field.path("znode");
    field.onlooker.create_persistent(&path);
    let written = field.lose_the_reply(
        || !field.onlooker.data(&path).is_empty(),
        |zookeeper| zookeeper.set_data(&path, b"data", Some(0)),
    );
    assert_eq!(written.unwrap().version, 1);
    let (data, stat) = caller(&field.session).get_data(&path).unwrap();
    assert_eq!((data.as_slice(), stat.version), (b"data".as_slice(), 1));
}

#[test]
fn every_call_is_made_in_the_end_whose_request_is_lost() {
    let field = Field::new("recoverable-requests");
    let (path, dir) = (field.path("znode"), &field.dir);
    let create = |zookeeper: &RecoverableZooKeeper| {
        zookeeper.create(&path, b"1", Acl::open_unsafe(), CreateMode::Persistent)
    };
    assert_eq!(field.lose_the_request(create).unwrap(), path);
    assert!(field.lose_the_request(|zookeeper| zookeeper.exists(&path)).unwrap().is_some());
    let version = Some(0);
    assert_eq!(
        field.lose_the_request(|zookeeper| zookeeper.set_data(&path, b"2", version)).unwrap().version,
        1
    );
    assert_eq!(field.lose_the_request(|zookeeper| zookeeper.get_data(&path)).unwrap().0, b"2");
    assert_eq!(field.lose_the_request(|zookeeper| zookeeper.get_children(dir)).unwrap(), ["znode"]);
    field.lose_the_request(|zookeeper| zookeeper.delete(&path, Some(1))).unwrap();
    assert!(!field.onlooker.exists(&path));
}

#[test]
fn a_lock_joins_by_the_policy_that_it_was_given() {
    let field = Field::new("recoverable-policy");
    let lock = BlockingWriteLock::new(&field.session, &field.path("lock"), None).unwrap();
    let states = field.session.subscribe();
    field.relay.refuse();
    states.recv().unwrap();
    lock.protocol_support()
        .set_retry_policy(RetryPolicy::constant(Duration::from_millis(1)).with_attempts(3));
    assert!(lock.lock().unwrap_err().is_recoverable());
    lock.protocol_support().set_retry_policy(
        RetryPolicy::constant(Duration::from_secs(3600)).with_total_time(Duration::from_secs(60)),
    );
    assert!(lock.lock().unwrap_err().is_recoverable(), "the next attempt would come too late");
    lock.protocol_support()
        .set_retry_policy(RetryPolicy::constant(Duration::from_millis(20)).with_attempts(u32::MAX));
    thread::scope(|scope| {
        let locking = scope.spawn(|| lock.lock());
        field.relay.heal();
        assert!(locking.join().unwrap().unwrap().is_owner());
    });
}
