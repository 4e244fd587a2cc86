//! Each call over a lost request and a lost reply, and beside others that change the same znode meanwhile.

use std::sync::Arc;
use std::time::Duration;

use zookeeper::{Acl, CreateMode, Permission, ZkError};

use super::RecoverableZooKeeper;
use crate::sim::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::{LockError, Result, RetryPolicy, Session};

const LONG: Duration = Duration::from_secs(30);
const EFFECTS: [Effect; 2] = [Effect::Before, Effect::After];

/// A simulated server with one znode, `/a`, and a caller.
struct Field {
    server: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    zookeeper: RecoverableZooKeeper,
}

impl Field {
    fn new() -> Field {
        Field::on_session_of(LONG)
    }

    fn on_session_of(timeout: Duration) -> Field {
        let server = SimulatedZooKeeper::new();
        server.create("/a", b"old");
        let client = server.connect(timeout);
        let session = Session::from_client(client.clone()).unwrap();
        let policy = RetryPolicy::constant(Duration::from_millis(1)).with_attempts(4);
        Field { server, client, zookeeper: RecoverableZooKeeper::new(&session, policy) }
    }

    fn plain() -> Field {
        let field = Field::new();
        Field { zookeeper: field.zookeeper.with_plain_data(), ..field }
    }

    fn create(&self, path: &str, data: &[u8], mode: CreateMode) -> Result<String> {
        self.zookeeper.create(path, data, Acl::open_unsafe(), mode)
    }

    fn lose(&self, operation: SimOperation, when: Effect) {
        self.client.fail_next(operation, when, ZkError::ConnectionLoss);
    }

    /// Has somebody else do something between the first attempt at a call and the second.
    fn meanwhile(
        &self,
        operation: SimOperation,
        interfere: impl FnOnce(&SimulatedZooKeeper) + Send + 'static,
    ) {
        let server = self.server.clone();
        self.client.before_next(operation, || {});
        self.client.before_next(operation, move || interfere(&server));
    }

    /// A znode's data as the callers see them.
    fn data(&self, path: &str) -> Vec<u8> {
        self.zookeeper.get_data(path).unwrap().0
    }
}

fn is_answer<T>(outcome: Result<T>, answer: ZkError) -> bool {
    matches!(outcome, Err(LockError::Client { source, .. }) if source == answer)
}

fn is_unknown<T>(outcome: Result<T>) -> bool {
    matches!(outcome, Err(LockError::OutcomeUnknown { .. }))
}

// ---- over one lost call

#[test]
fn a_create_takes_effect_once_over_a_lost_call() {
    for when in EFFECTS {
        for mode in [CreateMode::Persistent, CreateMode::Ephemeral, CreateMode::Container] {
            for field in [Field::new(), Field::plain()] {
                field.lose(SimOperation::Create, when);
                assert_eq!(field.create("/a/b", b"mine", mode).unwrap(), "/a/b", "{when:?} {mode:?}");
                assert_eq!(field.data("/a/b"), b"mine");
                assert_eq!(field.client.pending_faults(), 0);
            }
        }
    }
}

#[test]
fn a_sequential_create_takes_effect_once_over_a_lost_call() {
    for when in EFFECTS {
        for mode in [CreateMode::PersistentSequential, CreateMode::EphemeralSequential] {
            for dir in ["/a", ""] {
                let field = Field::new();
                field.lose(SimOperation::Create, when);
                let path = field.create(&format!("{dir}/item-"), b"mine", mode).unwrap();
                let name = path.strip_prefix(&format!("{dir}/")).unwrap();
                let parent = if dir.is_empty() { "/" } else { dir };
                let items: Vec<_> = field
                    .server
                    .children(parent)
                    .into_iter()
                    .filter(|child| child.starts_with("item-"))
                    .collect();
                assert_eq!(items, [name], "{when:?} {mode:?}");
                assert!(name.ends_with("-0000000000") || dir.is_empty(), "{name}");
                assert_eq!(field.data(&path), b"mine");
            }
        }
    }
}

#[test]
fn a_deletion_takes_effect_once_over_a_lost_call() {
    for when in EFFECTS {
        for version in [None, Some(0)] {
            let field = Field::new();
            field.lose(SimOperation::Delete, when);
            field.zookeeper.delete("/a", version).unwrap();
            assert!(!field.server.exists("/a"), "{when:?} {version:?}");
        }
    }
}

#[test]
fn a_conditional_write_takes_effect_once_over_a_lost_call() {
    for when in EFFECTS {
        for field in [Field::new(), Field::plain()] {
            field.lose(SimOperation::SetData, when);
            let stat = field.zookeeper.set_data("/a", b"new", Some(0)).unwrap();
            assert_eq!((stat.version, field.data("/a")), (1, b"new".to_vec()), "{when:?}");
            assert_eq!(field.server.stat("/a").unwrap().version, 1);
        }
    }
}

#[test]
fn a_write_without_a_condition_is_made_again() {
    for when in EFFECTS {
        let field = Field::new();
        field.lose(SimOperation::SetData, when);
        field.zookeeper.set_data("/a", b"new", None).unwrap();
        assert_eq!(field.data("/a"), b"new", "{when:?}");
    }
}

#[test]
fn reads_are_made_again() {
    for when in EFFECTS {
        let field = Field::new();
        for operation in [SimOperation::Exists, SimOperation::GetData, SimOperation::GetChildren] {
            field.lose(operation, when);
        }
        assert_eq!(field.zookeeper.exists("/a").unwrap().unwrap().version, 0);
        assert_eq!(field.zookeeper.get_data("/a").unwrap().0, b"old");
        assert_eq!(field.zookeeper.get_children("/").unwrap(), ["a"]);
        assert_eq!(field.client.pending_faults(), 0, "{when:?}");
    }
}

#[test]
fn what_finds_out_is_tried_again_too() {
    let field = Field::new();
    field.lose(SimOperation::Create, Effect::After);
    field.lose(SimOperation::GetData, Effect::Before);
    field.create("/a/b", b"mine", CreateMode::Persistent).unwrap();
    field.lose(SimOperation::Create, Effect::After);
    field.lose(SimOperation::GetChildren, Effect::After);
    field.create("/a/b/c-", b"mine", CreateMode::PersistentSequential).unwrap();
    assert_eq!(field.server.children("/a/b").len(), 1);
    assert_eq!(field.client.pending_faults(), 0);
}

// ---- answers that are definite

#[test]
fn an_answer_to_the_first_attempt_is_returned() {
    let field = Field::new();
    assert!(is_answer(field.create("/a", b"old", CreateMode::Persistent), ZkError::NodeExists));
    assert!(is_answer(Field::plain().create("/a", b"old", CreateMode::Persistent), ZkError::NodeExists));
    assert!(is_answer(field.create("/b/c", b"", CreateMode::Persistent), ZkError::NoNode));
    assert!(is_answer(field.create("/b/c-", b"", CreateMode::EphemeralSequential), ZkError::NoNode));
    assert!(is_answer(field.zookeeper.delete("/b", None), ZkError::NoNode));
    assert!(is_answer(field.zookeeper.delete("/a", Some(7)), ZkError::BadVersion));
    assert!(is_answer(field.zookeeper.set_data("/a", b"old", Some(7)), ZkError::BadVersion));
    assert!(is_answer(field.zookeeper.set_data("/b", b"", None), ZkError::NoNode));
    assert!(is_answer(field.zookeeper.get_data("/b"), ZkError::NoNode));
    assert!(is_answer(field.zookeeper.get_children("/b"), ZkError::NoNode));
    assert!(field.zookeeper.exists("/b").unwrap().is_none());
}

#[test]
fn a_wrong_argument_is_refused_before_anything_is_sent() {
    let field = Field::new();
    field.server.clear_log();
    for path in ["", "/", "a", "/a/", "/a\0"] {
        assert!(
            field.create(path, b"", CreateMode::Persistent).unwrap_err().is_invalid_argument(),
            "{path:?}"
        );
        assert!(field.zookeeper.delete(path, None).unwrap_err().is_invalid_argument(), "{path:?}");
    }
    assert!(field.zookeeper.set_data("/a", &vec![0; 1 << 20], None).unwrap_err().is_invalid_argument());
    assert!(field.zookeeper.get_data("a").unwrap_err().is_invalid_argument());
    assert_eq!(field.server.log().len(), 0);
}

#[test]
fn the_policy_ends_the_attempts() {
    let field = Field::new();
    for _ in 0..4 {
        field.lose(SimOperation::GetData, Effect::Before);
    }
    let error = field.zookeeper.get_data("/a").unwrap_err();
    assert!(error.is_connection_loss() && error.is_recoverable(), "{error}");
    assert_eq!(field.client.pending_faults(), 0);
    assert_eq!(field.server.calls(SimOperation::GetData), 4);
}

#[test]
fn the_end_of_the_session_ends_a_call_that_is_stuck() {
    let field = Field::on_session_of(Duration::from_millis(800));
    field.client.swallow_next(SimOperation::Create, Effect::After);
    let error = field.create("/a/b", b"", CreateMode::Persistent).unwrap_err();
    assert!(error.is_session_lost() && error.is_fatal(), "{error}");
    assert!(field.zookeeper.get_data("/a").unwrap_err().is_session_lost());
    field.client.release();
}

#[test]
fn closing_ends_the_calls() {
    let field = Field::new();
    field.zookeeper.protocol_support().close();
    let error = field.zookeeper.get_data("/a").unwrap_err();
    assert!(error.is_closed() && error.to_string().starts_with("read '/a': closed"), "{error}");
}

// ---- others at the same znode

#[test]
fn a_znode_that_another_created_meanwhile_is_anothers() {
    let field = Field::new();
    field.lose(SimOperation::Create, Effect::Before);
    field.meanwhile(SimOperation::Create, |server| server.create("/a/b", b"mine"));
    assert!(is_answer(field.create("/a/b", b"mine", CreateMode::Persistent), ZkError::NodeExists));
}

#[test]
fn an_ephemeral_znode_of_an_older_session_is_anothers() {
    let field = Field::new();
    let older = field.server.connect(LONG);
    let before = RecoverableZooKeeper::new(&Session::from_client(older).unwrap(), RetryPolicy::default());
    before.create("/a/b", b"mine", Acl::open_unsafe(), CreateMode::Ephemeral).unwrap();
    field.lose(SimOperation::Create, Effect::Before);
    assert!(is_answer(field.create("/a/b", b"mine", CreateMode::Ephemeral), ZkError::NodeExists));
}

#[test]
fn without_marks_the_data_and_the_kind_tell_whose_a_znode_is() {
    let cases = [
        (b"other", CreateMode::Persistent, false),
        (b"mine!", CreateMode::Ephemeral, false),
        (b"mine!", CreateMode::Persistent, true),
    ];
    for (data, mode, is_taken_for_own) in cases {
        let field = Field::plain();
        field.lose(SimOperation::Create, Effect::Before);
        field.meanwhile(SimOperation::Create, move |server| server.create("/a/b", data));
        let outcome = field.create("/a/b", b"mine!", mode);
        assert_eq!(outcome.is_ok(), is_taken_for_own, "{outcome:?}");
        assert!(outcome.is_ok() || is_answer(outcome, ZkError::NodeExists));
    }
}

#[test]
fn whose_a_znode_was_that_has_been_changed_is_unknown() {
    for when in EFFECTS {
        let field = Field::new();
        field.lose(SimOperation::Create, when);
        field.meanwhile(SimOperation::Create, move |server| {
            if when == Effect::Before {
                server.create("/a/b", b"");
            }
            server.set_data("/a/b", b"changed");
        });
        assert!(is_unknown(field.create("/a/b", b"mine", CreateMode::Persistent)), "{when:?}");
    }
}

#[test]
fn whose_a_znode_was_that_has_been_deleted_is_unknown() {
    let field = Field::new();
    field.lose(SimOperation::Create, Effect::After);
    let server = field.server.clone();
    field.client.before_next(SimOperation::GetData, move || server.delete("/a/b"));
    assert!(is_unknown(field.create("/a/b", b"mine", CreateMode::Persistent)));
}

#[test]
fn a_version_that_another_wrote_is_anothers() {
    for data in [b"other", b"mine!"] {
        let field = Field::new();
        field.lose(SimOperation::SetData, Effect::Before);
        field.meanwhile(SimOperation::SetData, move |server| server.set_data("/a", data));
        assert!(is_answer(field.zookeeper.set_data("/a", b"mine!", Some(0)), ZkError::BadVersion));
    }
}

#[test]
fn whose_a_version_was_that_has_been_replaced_is_unknown() {
    for when in EFFECTS {
        let field = Field::new();
        field.lose(SimOperation::SetData, when);
        field.meanwhile(SimOperation::SetData, |server| {
            server.set_data("/a", b"one");
            server.set_data("/a", b"two");
        });
        assert!(is_unknown(field.zookeeper.set_data("/a", b"mine", Some(0))), "{when:?}");
    }
}

#[test]
fn a_znode_that_cannot_be_read_denies_the_answer_whose_it_is() {
    let field = Field::new();
    field.lose(SimOperation::Create, Effect::After);
    let hidden = [Acl::new(Permission::WRITE, "world", "anyone")];
    let error = field.zookeeper.create("/a/b", b"", &hidden, CreateMode::Persistent).unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains("READ"), "{error}");
}

#[test]
fn counting_under_lost_replies_counts_right() {
    let field = Field::new();
    field.zookeeper.set_data("/a", b"0", None).unwrap();
    for round in 1..=20_u32 {
        let (count, stat) = field.zookeeper.get_data("/a").unwrap();
        assert_eq!(count, (round - 1).to_string().as_bytes());
        field.lose(SimOperation::SetData, EFFECTS[round as usize % 2]);
        field.zookeeper.set_data("/a", round.to_string().as_bytes(), Some(stat.version)).unwrap();
    }
    assert_eq!(field.data("/a"), b"20");
}

// ---- marks

#[test]
fn plain_data_are_written_as_they_are() {
    let field = Field::plain();
    field.create("/a/b", b"text", CreateMode::Persistent).unwrap();
    assert_eq!(field.server.data("/a/b").unwrap(), b"text");
    field.zookeeper.set_data("/a/b", b"", None).unwrap();
    assert_eq!(field.server.data("/a/b").unwrap(), b"");
}

#[test]
fn marked_data_are_read_without_their_mark_and_others_as_they_are() {
    let field = Field::new();
    field.create("/a/b", b"text", CreateMode::Persistent).unwrap();
    assert_eq!(field.server.data("/a/b").unwrap().len(), 21 + 4);
    assert_eq!(field.data("/a/b"), b"text");
    assert_eq!(field.data("/a"), b"old");
}
