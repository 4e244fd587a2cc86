//! Each call over a lost request and a lost reply, and beside others that change the same znode meanwhile.

mod history;

use std::sync::Arc;
use std::time::Duration;

use zookeeper::{Acl, CreateMode, Permission, ZkError};

use super::RecoverableZooKeeper;
use crate::sim::{Effect, SequenceEnd, SimOperation, SimulatedClient, SimulatedZooKeeper};
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

    /// Loses the next call of this operation, and has another client act before that is noticed.
    fn lose_and(
        &self,
        operation: SimOperation,
        when: Effect,
        act: impl FnOnce(&SimulatedZooKeeper) + Send + 'static,
    ) {
        self.lose(operation, when);
        let server = self.server.clone();
        match when {
            Effect::Before => self.client.before_next(operation, move || act(&server)),
            Effect::After => self.client.after_next(operation, move || act(&server)),
        }
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
fn create_over_a_znode_that_another_created_is_refused() {
    let field = Field::new();
    field.lose_and(SimOperation::Create, Effect::Before, |server| server.create("/a/b", b"mine"));
    assert!(is_answer(field.create("/a/b", b"mine", CreateMode::Persistent), ZkError::NodeExists));
}

#[test]
fn create_over_an_ephemeral_znode_of_an_older_session_is_refused() {
    for is_plain in [false, true] {
        let field = if is_plain { Field::plain() } else { Field::new() };
        let older = Session::from_client(field.server.connect(LONG)).unwrap();
        let mut before = RecoverableZooKeeper::new(&older, RetryPolicy::default());
        if is_plain {
            before = before.with_plain_data();
        }
        before.create("/a/b", b"mine", Acl::open_unsafe(), CreateMode::Ephemeral).unwrap();
        field.lose(SimOperation::Create, Effect::Before);
        let outcome = field.create("/a/b", b"mine", CreateMode::Ephemeral);
        assert!(is_answer(outcome, ZkError::NodeExists), "plain={is_plain}");
    }
}

#[test]
fn plain_create_knows_its_znode_by_data_and_kind() {
    let cases = [
        (b"other", CreateMode::Persistent, false),
        (b"mine!", CreateMode::Ephemeral, false),
        (b"mine!", CreateMode::Persistent, true),
        (b"mine!", CreateMode::Container, true),
    ];
    for (data, mode, is_taken_for_own) in cases {
        let field = Field::plain();
        field.lose_and(SimOperation::Create, Effect::Before, move |server| server.create("/a/b", data));
        let outcome = field.create("/a/b", b"mine!", mode);
        assert_eq!(outcome.is_ok(), is_taken_for_own, "{outcome:?}");
        assert!(outcome.is_ok() || is_answer(outcome, ZkError::NodeExists));
    }
}

#[test]
fn create_is_unknown_once_the_znode_was_changed() {
    for when in EFFECTS {
        let field = Field::new();
        field.lose_and(SimOperation::Create, when, move |server| {
            if when == Effect::Before {
                server.create("/a/b", b"");
            }
            server.set_data("/a/b", b"changed");
        });
        assert!(is_unknown(field.create("/a/b", b"mine", CreateMode::Persistent)), "{when:?}");
    }
}

#[test]
fn create_finds_its_mark_in_a_znode_that_was_written_again() {
    let field = Field::new();
    field.lose_and(SimOperation::Create, Effect::After, |server| {
        server.set_data("/a/b", &server.data("/a/b").unwrap());
    });
    field.create("/a/b", b"mine", CreateMode::Persistent).unwrap();
}

#[test]
fn create_is_unknown_once_the_znode_was_deleted() {
    for mode in [CreateMode::Persistent, CreateMode::PersistentSequential] {
        let field = Field::new();
        field.lose_and(SimOperation::Create, Effect::After, |server| {
            server.children("/a").iter().for_each(|name| server.delete(&format!("/a/{name}")));
        });
        assert!(is_unknown(field.create("/a/b", b"mine", mode)), "{mode:?}");
        assert!(field.server.children("/a").is_empty(), "{mode:?}: created again");
    }
}

#[test]
fn create_is_unknown_once_the_znode_was_replaced() {
    let field = Field::new();
    field.lose_and(SimOperation::Create, Effect::After, |server| {
        server.delete("/a/b");
        server.create("/a/b", b"another's");
    });
    assert!(is_unknown(field.create("/a/b", b"mine", CreateMode::Persistent)));
}

#[test]
fn create_is_unknown_in_a_directory_whose_counter_has_ended() {
    let field = Field::new();
    field.server.create("/a/other", b"");
    field.server.set_sequence("/a", i32::MAX);
    field.server.set_sequence_end(SequenceEnd::Sticks);
    field.lose_and(SimOperation::Create, Effect::After, |server| {
        server.delete("/a/b");
        server.delete("/a/other");
    });
    assert!(is_unknown(field.create("/a/b", b"mine", CreateMode::Persistent)));
}

#[test]
fn create_is_repeated_although_another_child_came() {
    for mode in [CreateMode::Persistent, CreateMode::PersistentSequential] {
        let field = Field::new();
        field.lose_and(SimOperation::Create, Effect::Before, |server| server.create("/a/other", b""));
        field.create("/a/b", b"mine", mode).unwrap();
    }
}

#[test]
fn set_data_at_a_version_that_another_has_written_is_refused() {
    for data in [b"other", b"mine!"] {
        let field = Field::new();
        field.lose_and(SimOperation::SetData, Effect::Before, |server| server.set_data("/a", data));
        assert!(is_answer(field.zookeeper.set_data("/a", b"mine!", Some(0)), ZkError::BadVersion));
    }
}

#[test]
fn set_data_is_unknown_once_the_data_were_replaced() {
    for when in EFFECTS {
        for version in [None, Some(0)] {
            let field = Field::new();
            field.lose_and(SimOperation::SetData, when, |server| {
                server.set_data("/a", b"one");
                server.set_data("/a", b"two");
            });
            assert!(is_unknown(field.zookeeper.set_data("/a", b"mine", version)), "{when:?} {version:?}");
        }
    }
}

#[test]
fn set_data_is_unknown_once_the_znode_was_deleted() {
    for version in [None, Some(0)] {
        let field = Field::new();
        field.lose_and(SimOperation::SetData, Effect::After, |server| server.delete("/a"));
        assert!(is_unknown(field.zookeeper.set_data("/a", b"mine", version)), "{version:?}");
    }
}

#[test]
fn set_data_writes_once_when_the_znode_is_replaced_at_the_same_version() {
    let field = Field::new();
    field.lose_and(SimOperation::SetData, Effect::After, |server| {
        server.delete("/a");
        server.create("/a", b"another's");
    });
    assert!(is_unknown(field.zookeeper.set_data("/a", b"mine", Some(0))));
    assert_eq!(field.server.data("/a").unwrap(), b"another's");
}

#[test]
fn delete_is_unknown_once_another_has_replaced_the_znode() {
    for version in [None, Some(0), Some(1)] {
        for when in EFFECTS {
            let field = Field::new();
            if version == Some(1) {
                field.server.set_data("/a", b"older");
            }
            field.lose_and(SimOperation::Delete, when, move |server| {
                if when == Effect::Before {
                    server.delete("/a");
                }
                server.create("/a", b"another's");
            });
            assert!(is_unknown(field.zookeeper.delete("/a", version)), "{when:?} {version:?}");
            assert!(field.server.exists("/a"), "{when:?} {version:?}");
        }
    }
}

#[test]
fn delete_of_a_znode_that_another_changed_is_refused() {
    let field = Field::new();
    field.lose_and(SimOperation::Delete, Effect::Before, |server| server.set_data("/a", b"other"));
    assert!(is_answer(field.zookeeper.delete("/a", Some(0)), ZkError::BadVersion));
    field.lose_and(SimOperation::Delete, Effect::Before, |server| server.create("/a/b", b""));
    assert!(is_answer(field.zookeeper.delete("/a", None), ZkError::NotEmpty));
}

#[test]
fn delete_succeeds_when_the_znode_is_gone() {
    let field = Field::new();
    field.lose_and(SimOperation::Delete, Effect::Before, |server| server.delete("/a"));
    field.zookeeper.delete("/a", None).unwrap();
}

#[test]
fn delete_of_a_znode_that_had_children_is_unknown_once_it_is_gone() {
    for when in EFFECTS {
        let field = Field::new();
        field.server.create("/a/b", b"");
        field.lose_and(SimOperation::Delete, when, |server| {
            server.delete("/a/b");
            server.delete("/a");
        });
        assert!(is_unknown(field.zookeeper.delete("/a", None)), "{when:?}");
    }
}

#[test]
fn delete_at_a_version_that_the_znode_did_not_have_is_unknown_once_it_is_gone() {
    for when in EFFECTS {
        let field = Field::new();
        field.lose_and(SimOperation::Delete, when, |server| server.delete("/a"));
        assert!(is_unknown(field.zookeeper.delete("/a", Some(7))), "{when:?}");
    }
}

#[test]
fn set_data_at_a_version_that_was_replaced_before_the_call_is_refused() {
    let field = Field::new();
    field.server.set_data("/a", b"older");
    field.lose_and(SimOperation::SetData, Effect::Before, |server| {
        server.set_data("/a", b"one");
        server.set_data("/a", b"two");
    });
    assert!(is_answer(field.zookeeper.set_data("/a", b"mine", Some(0)), ZkError::BadVersion));
}

#[test]
fn plain_set_data_writes_what_was_there_already() {
    for version in [None, Some(0)] {
        let field = Field::plain();
        field.lose(SimOperation::SetData, Effect::Before);
        field.zookeeper.set_data("/a", b"old", version).unwrap();
        assert_eq!(field.server.stat("/a").unwrap().version, 1, "{version:?}");
    }
}

#[test]
fn minus_one_is_any_version() {
    let field = Field::plain();
    field.lose(SimOperation::SetData, Effect::After);
    field.zookeeper.set_data("/a", b"new", Some(-1)).unwrap();
    assert_eq!(field.server.stat("/a").unwrap().version, 1);
}

// ---- without READ

/// Everybody may do everything but read.
fn unreadable() -> [Acl; 1] {
    let granted = Permission::CREATE | Permission::WRITE | Permission::DELETE;
    [Acl::new(granted, "world", "anyone")]
}

#[test]
fn create_without_read_on_the_znode_is_unknown_after_a_lost_reply() {
    let field = Field::new();
    field.lose(SimOperation::Create, Effect::After);
    let outcome = field.zookeeper.create("/a/b", b"", &unreadable(), CreateMode::Persistent);
    assert!(is_unknown(outcome));
}

#[test]
fn calls_without_read_succeed_when_nothing_is_lost() {
    let field = Field::new();
    field.server.create_with_acl("/hidden", b"", &unreadable());
    field.create("/hidden/b", b"", CreateMode::Persistent).unwrap();
    field.create("/hidden/c-", b"", CreateMode::PersistentSequential).unwrap();
    field.zookeeper.set_data("/hidden", b"", Some(0)).unwrap();
    field.zookeeper.delete("/hidden/b", None).unwrap();
}

#[test]
fn delete_without_read_succeeds_over_a_lost_reply() {
    let field = Field::new();
    field.server.create_with_acl("/hidden", b"", &unreadable());
    field.lose(SimOperation::Delete, Effect::After);
    field.zookeeper.delete("/hidden", None).unwrap();
}

#[test]
fn refusal_to_read_after_a_lost_reply_is_unknown() {
    for (operation, error) in
        [(SimOperation::GetData, ZkError::NoAuth), (SimOperation::GetData, ZkError::Unimplemented)]
    {
        let field = Field::new();
        field.lose(SimOperation::Create, Effect::After);
        field.client.fail_next(operation, Effect::Before, error);
        let outcome = field.create("/a/b", b"", CreateMode::Persistent);
        assert!(
            matches!(outcome, Err(LockError::OutcomeUnknown { source, .. }) if source == error),
            "{outcome:?}"
        );
    }
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

#[test]
fn data_that_only_begin_like_a_mark_are_read_whole() {
    let field = Field::new();
    let not_a_guid = [&[0xff, 0, 0, 0, 16][..], &[7; 40]].concat();
    let marked_by_hbase = [&[0xff, 0, 0, 0, 16][..], b"regionserver:160data"].concat();
    for data in [not_a_guid, marked_by_hbase] {
        field.server.set_data("/a", &data);
        assert_eq!(field.data("/a"), data);
    }
}
