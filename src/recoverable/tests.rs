//! Tests of each call with a lost request and with a lost reply, while other clients change the same znode.

mod history;
mod other_clients;

use crate::error::Result;
use std::sync::Arc;
use std::time::Duration;

use super::RecoverableZooKeeper;
use crate::client::{Acl, CreateMode, Permissions};
use crate::error::ZkError;
use crate::fake::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::{ErrorKind, ErrorReason, RetryPolicy};

const LONG: Duration = Duration::from_secs(30);
const EFFECTS: [Effect; 2] = [Effect::Before, Effect::After];

/// A simulated server with one znode, `/a`, and a caller.
struct Fixture {
    server: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    zookeeper: RecoverableZooKeeper,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::on_session_of(LONG)
    }

    fn on_session_of(timeout: Duration) -> Fixture {
        let server = SimulatedZooKeeper::new();
        server.create("/a", b"old");
        let client = server.connect(timeout);
        let session = client.open_session().unwrap();
        let policy = RetryPolicy::constant(Duration::from_millis(1)).with_attempts(4);
        Fixture { server, client, zookeeper: RecoverableZooKeeper::new(&session, policy) }
    }

    fn plain() -> Fixture {
        let fixture = Fixture::new();
        Fixture { zookeeper: fixture.zookeeper.with_plain_data(), ..fixture }
    }

    fn create(&self, path: &str, data: &[u8], mode: CreateMode) -> Result<String> {
        self.zookeeper.create(path, data, &Acl::open_unsafe(), mode)
    }

    fn lose(&self, operation: SimOperation, when: Effect) {
        self.client.fail_next(operation, when, ZkError::ConnectionLoss);
    }

    /// Loses the next call of this operation, and lets another client act before the loss is noticed.
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

    /// A znode's data as callers see it.
    fn data(&self, path: &str) -> Vec<u8> {
        self.zookeeper.get_data(path).unwrap().0
    }
}

fn is_answer<T>(outcome: Result<T>, answer: ZkError) -> bool {
    outcome.is_err_and(|error| error.reason() == ErrorReason::Server(answer))
}

fn is_unknown<T>(outcome: Result<T>) -> bool {
    matches!(outcome, Err(ref error) if error.reason() == ErrorReason::OutcomeUnknown)
}

// ---- with one lost call

#[test]
fn create_takes_effect_once_over_a_lost_reply() {
    for mode in [CreateMode::Persistent, CreateMode::Ephemeral, CreateMode::Container] {
        for fixture in [Fixture::new(), Fixture::plain()] {
            fixture.lose(SimOperation::Create, Effect::After);
            assert_eq!(fixture.create("/a/b", b"mine", mode).unwrap(), "/a/b", "{mode:?}");
            assert_eq!(fixture.data("/a/b"), b"mine");
            assert_eq!(fixture.client.pending_faults(), 0);
        }
    }
}

#[test]
fn sequential_create_takes_effect_once_over_a_lost_reply() {
    for mode in [CreateMode::PersistentSequential, CreateMode::EphemeralSequential] {
        for dir in ["/a", ""] {
            let fixture = Fixture::new();
            fixture.lose(SimOperation::Create, Effect::After);
            let path = fixture.create(&format!("{dir}/item-"), b"mine", mode).unwrap();
            let name = path.strip_prefix(&format!("{dir}/")).unwrap();
            let parent = if dir.is_empty() { "/" } else { dir };
            let items: Vec<_> = fixture
                .server
                .children(parent)
                .into_iter()
                .filter(|child| child.starts_with("item-"))
                .collect();
            assert_eq!(items, [name], "{mode:?}");
            assert!(name.ends_with("-0000000000") || dir.is_empty(), "{name}");
            assert_eq!(fixture.data(&path), b"mine");
        }
    }
}

#[test]
fn deletion_takes_effect_once_over_a_lost_reply() {
    for version in [None, Some(0)] {
        let fixture = Fixture::new();
        fixture.lose(SimOperation::Delete, Effect::After);
        fixture.zookeeper.delete("/a", version).unwrap();
        assert!(!fixture.server.exists("/a"), "{version:?}");
    }
}

// ---- with a request that a server passes on late

#[test]
fn create_whose_request_may_still_come_is_unknown_and_not_repeated() {
    for mode in [CreateMode::Persistent, CreateMode::Ephemeral, CreateMode::PersistentSequential] {
        for fixture in [Fixture::new(), Fixture::plain()] {
            fixture.client.hold_back_next(SimOperation::Create);
            assert!(is_unknown(fixture.create("/a/b", b"mine", mode)), "{mode:?}");
            fixture.client.pass_on();
            assert_eq!(fixture.server.children("/a").len(), 1, "{mode:?}");
            assert_eq!(fixture.server.calls(SimOperation::Create), 1);
        }
    }
}

#[test]
fn deletion_whose_request_may_still_come_is_unknown_and_not_repeated() {
    for version in [None, Some(0)] {
        let fixture = Fixture::new();
        fixture.client.hold_back_next(SimOperation::Delete);
        assert!(is_unknown(fixture.zookeeper.delete("/a", version)), "{version:?}");
        fixture.client.pass_on();
        assert!(!fixture.server.exists("/a"));
        assert_eq!(fixture.server.calls(SimOperation::Delete), 1);
    }
}

#[test]
fn write_that_a_server_passes_on_late_undoes_no_later_one() {
    for version in [None, Some(0)] {
        for fixture in [Fixture::new(), Fixture::plain()] {
            fixture.client.hold_back_next(SimOperation::SetData);
            assert_eq!(fixture.zookeeper.set_data("/a", b"first", version).unwrap().version, 1);
            assert_eq!(fixture.zookeeper.set_data("/a", b"second", None).unwrap().version, 2);
            fixture.client.pass_on();
            assert_eq!(fixture.data("/a"), b"second", "{version:?}");
        }
    }
}

#[test]
fn write_that_comes_just_before_its_repetition_takes_effect_once() {
    for version in [None, Some(0)] {
        let fixture = Fixture::new();
        fixture.client.hold_back_next(SimOperation::SetData);
        let client = Arc::clone(&fixture.client);
        // These are the first attempt, the write that brings the server up to date, and the second attempt.
        fixture.client.before_next(SimOperation::SetData, || {});
        fixture.client.before_next(SimOperation::SetData, || {});
        fixture.client.before_next(SimOperation::SetData, move || client.pass_on());
        assert_eq!(fixture.zookeeper.set_data("/a", b"mine", version).unwrap().version, 1);
        assert_eq!(fixture.client.pending_faults(), 0);
        assert_eq!(fixture.server.stat("/a").unwrap().version, 1);
    }
}

#[test]
fn write_at_any_version_succeeds_although_others_write() {
    let fixture = Fixture::new();
    for round in 1..=3 {
        let server = fixture.server.clone();
        fixture.client.before_next(SimOperation::SetData, move || server.set_data("/a", b"other"));
        assert_eq!(fixture.zookeeper.set_data("/a", b"mine", None).unwrap().version, 2 * round);
    }
    assert_eq!(fixture.data("/a"), b"mine");
}

#[test]
fn conditional_write_takes_effect_once_over_a_lost_call() {
    for when in EFFECTS {
        for fixture in [Fixture::new(), Fixture::plain()] {
            fixture.lose(SimOperation::SetData, when);
            let stat = fixture.zookeeper.set_data("/a", b"new", Some(0)).unwrap();
            assert_eq!((stat.version, fixture.data("/a")), (1, b"new".to_vec()), "{when:?}");
            assert_eq!(fixture.server.stat("/a").unwrap().version, 1);
        }
    }
}

#[test]
fn unconditional_write_is_retried() {
    for when in EFFECTS {
        let fixture = Fixture::new();
        fixture.lose(SimOperation::SetData, when);
        fixture.zookeeper.set_data("/a", b"new", None).unwrap();
        assert_eq!(fixture.data("/a"), b"new", "{when:?}");
    }
}

#[test]
fn reads_are_retried() {
    for when in EFFECTS {
        let fixture = Fixture::new();
        for operation in [SimOperation::Exists, SimOperation::GetData, SimOperation::GetChildren] {
            fixture.lose(operation, when);
        }
        assert_eq!(fixture.zookeeper.exists("/a").unwrap().unwrap().version, 0);
        assert_eq!(fixture.zookeeper.get_data("/a").unwrap().0, b"old");
        assert_eq!(fixture.zookeeper.get_children("/").unwrap(), ["a"]);
        assert_eq!(fixture.client.pending_faults(), 0, "{when:?}");
    }
}

#[test]
fn outcome_probe_is_retried() {
    let fixture = Fixture::new();
    fixture.lose(SimOperation::Create, Effect::After);
    fixture.lose(SimOperation::GetData, Effect::Before);
    fixture.create("/a/b", b"mine", CreateMode::Persistent).unwrap();
    fixture.lose(SimOperation::Create, Effect::After);
    fixture.lose(SimOperation::GetChildren, Effect::After);
    fixture.create("/a/b/c-", b"mine", CreateMode::PersistentSequential).unwrap();
    assert_eq!(fixture.server.children("/a/b").len(), 1);
    assert_eq!(fixture.client.pending_faults(), 0);
}

// ---- definite answers

#[test]
fn answer_to_the_first_attempt_is_returned() {
    let fixture = Fixture::new();
    assert!(is_answer(fixture.create("/a", b"old", CreateMode::Persistent), ZkError::NodeExists));
    assert!(is_answer(Fixture::plain().create("/a", b"old", CreateMode::Persistent), ZkError::NodeExists));
    assert!(is_answer(fixture.create("/b/c", b"", CreateMode::Persistent), ZkError::NoNode));
    assert!(is_answer(fixture.create("/b/c-", b"", CreateMode::EphemeralSequential), ZkError::NoNode));
    assert!(is_answer(fixture.zookeeper.delete("/b", None), ZkError::NoNode));
    assert!(is_answer(fixture.zookeeper.delete("/a", Some(7)), ZkError::BadVersion));
    assert!(is_answer(fixture.zookeeper.set_data("/a", b"old", Some(7)), ZkError::BadVersion));
    assert!(is_answer(fixture.zookeeper.set_data("/b", b"", None), ZkError::NoNode));
    assert!(is_answer(fixture.zookeeper.get_data("/b"), ZkError::NoNode));
    assert!(is_answer(fixture.zookeeper.get_children("/b"), ZkError::NoNode));
    assert!(fixture.zookeeper.exists("/b").unwrap().is_none());
}

#[test]
fn invalid_argument_is_refused_before_anything_is_sent() {
    let fixture = Fixture::new();
    fixture.server.clear_log();
    for path in ["", "/", "a", "/a/", "/a\0"] {
        assert!(
            fixture.create(path, b"", CreateMode::Persistent).unwrap_err().is_invalid_argument(),
            "{path:?}"
        );
        assert!(fixture.zookeeper.delete(path, None).unwrap_err().is_invalid_argument(), "{path:?}");
    }
    assert!(fixture.zookeeper.get_data("a").unwrap_err().is_invalid_argument());
    assert_eq!(fixture.server.log().len(), 0);
}

#[test]
fn data_that_is_too_long_for_the_servers_is_never_written() {
    let fixture = Fixture::new();
    fixture.server.clear_log();
    let long = vec![0; 1 << 20];
    let refused = [
        fixture.create("/b", &long, CreateMode::Persistent).unwrap_err(),
        fixture.create("/b-", &long, CreateMode::EphemeralSequential).unwrap_err(),
        fixture.zookeeper.set_data("/a", &long, None).unwrap_err(),
        fixture.zookeeper.set_data("/a", &long, Some(0)).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.reason(), ErrorReason::CallTooLong, "{error}");
    }
    assert_eq!([SimOperation::Create, SimOperation::SetData].map(|kind| fixture.server.calls(kind)), [0, 0]);
}

#[test]
fn policy_limits_the_attempts() {
    let fixture = Fixture::new();
    for _ in 0..4 {
        fixture.lose(SimOperation::GetData, Effect::Before);
    }
    let error = fixture.zookeeper.get_data("/a").unwrap_err();
    assert!(error.is_connection_loss() && error.kind() == ErrorKind::Retry, "{error}");
    assert_eq!(fixture.client.pending_faults(), 0);
    assert_eq!(fixture.server.calls(SimOperation::GetData), 4);
}

#[test]
fn end_of_the_session_ends_a_stuck_call() {
    let fixture = Fixture::on_session_of(Duration::from_secs(3));
    fixture.client.swallow_next(SimOperation::Create, Effect::After);
    let error = fixture.create("/a/b", b"", CreateMode::Persistent).unwrap_err();
    assert!(error.is_session_lost() && error.kind() == ErrorKind::Reconnect, "{error}");
    assert!(fixture.zookeeper.get_data("/a").unwrap_err().is_session_lost());
    fixture.client.release();
}

// ---- without READ

/// Grants everything except READ to everybody.
fn unreadable() -> [Acl; 1] {
    let granted = Permissions::CREATE | Permissions::WRITE | Permissions::DELETE;
    [Acl::new(granted, "world", "anyone")]
}

#[test]
fn create_without_read_on_the_znode_is_unknown_after_a_lost_reply() {
    let fixture = Fixture::new();
    fixture.lose(SimOperation::Create, Effect::After);
    let outcome = fixture.zookeeper.create("/a/b", b"", &unreadable(), CreateMode::Persistent);
    assert!(is_unknown(outcome));
}

#[test]
fn calls_without_read_succeed_if_nothing_is_lost() {
    let fixture = Fixture::new();
    fixture.server.create_with_acl("/hidden", b"", &unreadable());
    fixture.create("/hidden/b", b"", CreateMode::Persistent).unwrap();
    fixture.create("/hidden/c-", b"", CreateMode::PersistentSequential).unwrap();
    fixture.zookeeper.set_data("/hidden", b"", Some(0)).unwrap();
    fixture.zookeeper.delete("/hidden/b", None).unwrap();
}

#[test]
fn delete_without_read_succeeds_over_a_lost_reply() {
    let fixture = Fixture::new();
    fixture.server.create_with_acl("/hidden", b"", &unreadable());
    fixture.lose(SimOperation::Delete, Effect::After);
    fixture.zookeeper.delete("/hidden", None).unwrap();
}

#[test]
fn refusal_to_read_after_a_lost_reply_is_unknown() {
    for (operation, error) in
        [(SimOperation::GetData, ZkError::NoAuth), (SimOperation::GetData, ZkError::Throttled)]
    {
        let fixture = Fixture::new();
        fixture.lose(SimOperation::Create, Effect::After);
        fixture.client.fail_next(operation, Effect::Before, error);
        let outcome = fixture.create("/a/b", b"", CreateMode::Persistent);
        let unknown = outcome.unwrap_err();
        assert_eq!(unknown.reason(), ErrorReason::OutcomeUnknown, "{unknown:?}");
        let source = std::error::Error::source(&unknown).and_then(|source| source.downcast_ref());
        assert_eq!(source, Some(&error));
    }
}

#[test]
fn reply_to_a_change_that_cannot_be_read_is_unknown() {
    let fixture = Fixture::new();
    fixture.client.fail_next(SimOperation::Create, Effect::After, ZkError::MarshallingError);
    assert!(is_unknown(fixture.create("/a/b", b"", CreateMode::Persistent)));
    assert_eq!(fixture.data("/a/b"), b"");
}

#[test]
fn counter_is_exact_under_lost_replies() {
    let fixture = Fixture::new();
    fixture.zookeeper.set_data("/a", b"0", None).unwrap();
    for round in 1..=20_u32 {
        let (count, stat) = fixture.zookeeper.get_data("/a").unwrap();
        assert_eq!(count, (round - 1).to_string().as_bytes());
        fixture.lose(SimOperation::SetData, EFFECTS[round as usize % 2]);
        fixture.zookeeper.set_data("/a", round.to_string().as_bytes(), Some(stat.version)).unwrap();
    }
    assert_eq!(fixture.data("/a"), b"20");
}

// ---- marks

#[test]
fn plain_data_are_written_unchanged() {
    let fixture = Fixture::plain();
    fixture.create("/a/b", b"text", CreateMode::Persistent).unwrap();
    assert_eq!(fixture.server.data("/a/b").unwrap(), b"text");
    fixture.zookeeper.set_data("/a/b", b"", None).unwrap();
    assert_eq!(fixture.server.data("/a/b").unwrap(), b"");
}

#[test]
fn marked_data_are_read_without_their_mark_and_others_unchanged() {
    let fixture = Fixture::new();
    fixture.create("/a/b", b"text", CreateMode::Persistent).unwrap();
    assert_eq!(fixture.server.data("/a/b").unwrap().len(), 21 + 4);
    assert_eq!(fixture.data("/a/b"), b"text");
    assert_eq!(fixture.data("/a"), b"old");
}

#[test]
fn data_that_only_begin_like_a_mark_are_read_unchanged() {
    let fixture = Fixture::new();
    let not_a_guid = [&[0xff, 0, 0, 0, 16][..], &[7; 40]].concat();
    let marked_by_hbase = [&[0xff, 0, 0, 0, 16][..], b"regionserver:160data"].concat();
    for data in [not_a_guid, marked_by_hbase] {
        fixture.server.set_data("/a", &data);
        assert_eq!(fixture.data("/a"), data);
    }
}
