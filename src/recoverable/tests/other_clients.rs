//! Tests in which other clients change the same znode.

use super::*;
use crate::client::Verbs;

#[test]
fn create_does_not_claim_another_clients_znode() {
    let fixture = Fixture::new();
    fixture.lose_and(SimOperation::Create, Effect::Before, |server| server.create("/a/b", b"mine"));
    assert!(is_unknown(fixture.create("/a/b", b"mine", CreateMode::Persistent)));
}

#[test]
fn create_does_not_claim_an_older_sessions_ephemeral_znode() {
    for is_plain in [false, true] {
        let fixture = if is_plain { Fixture::plain() } else { Fixture::new() };
        let older = fixture.server.connect(LONG).open_session().unwrap();
        let mut before = RecoverableZooKeeper::new(&older, RetryPolicy::default());
        if is_plain {
            before = before.with_plain_data();
        }
        before.create("/a/b", b"mine", &Acl::open_unsafe(), CreateMode::Ephemeral).unwrap();
        fixture.lose(SimOperation::Create, Effect::Before);
        let outcome = fixture.create("/a/b", b"mine", CreateMode::Ephemeral);
        assert!(is_unknown(outcome), "plain={is_plain}");
    }
}

#[test]
fn plain_create_recognizes_its_znode_by_data_and_mode() {
    let cases = [
        (b"other", CreateMode::Persistent, false),
        (b"mine!", CreateMode::Ephemeral, false),
        (b"mine!", CreateMode::Persistent, true),
        (b"mine!", CreateMode::Container, true),
    ];
    for (data, mode, is_taken_for_own) in cases {
        let fixture = Fixture::plain();
        fixture.lose_and(SimOperation::Create, Effect::Before, move |server| server.create("/a/b", data));
        let outcome = fixture.create("/a/b", b"mine!", mode);
        assert_eq!(outcome.is_ok(), is_taken_for_own, "{outcome:?}");
        assert!(outcome.is_ok() || is_unknown(outcome));
    }
}

#[test]
fn create_is_unknown_once_the_znode_was_changed() {
    for when in EFFECTS {
        let fixture = Fixture::new();
        fixture.lose_and(SimOperation::Create, when, move |server| {
            if when == Effect::Before {
                server.create("/a/b", b"");
            }
            server.set_data("/a/b", b"changed");
        });
        assert!(is_unknown(fixture.create("/a/b", b"mine", CreateMode::Persistent)), "{when:?}");
    }
}

#[test]
fn create_finds_its_mark_in_a_rewritten_znode() {
    let fixture = Fixture::new();
    fixture.lose_and(SimOperation::Create, Effect::After, |server| {
        server.set_data("/a/b", &server.data("/a/b").unwrap());
    });
    fixture.create("/a/b", b"mine", CreateMode::Persistent).unwrap();
}

#[test]
fn create_is_unknown_once_the_znode_was_deleted() {
    for mode in [CreateMode::Persistent, CreateMode::PersistentSequential] {
        let fixture = Fixture::new();
        fixture.lose_and(SimOperation::Create, Effect::After, |server| {
            server.children("/a").iter().for_each(|name| server.delete(&format!("/a/{name}")));
        });
        assert!(is_unknown(fixture.create("/a/b", b"mine", mode)), "{mode:?}");
        assert!(fixture.server.children("/a").is_empty(), "{mode:?}: created again");
    }
}

#[test]
fn create_is_unknown_once_the_znode_was_replaced() {
    let fixture = Fixture::new();
    fixture.lose_and(SimOperation::Create, Effect::After, |server| {
        server.delete("/a/b");
        server.create("/a/b", b"another's");
    });
    assert!(is_unknown(fixture.create("/a/b", b"mine", CreateMode::Persistent)));
}

#[test]
fn set_data_at_a_version_written_by_another_client_is_refused() {
    for data in [b"other", b"mine!"] {
        let fixture = Fixture::new();
        fixture.lose_and(SimOperation::SetData, Effect::Before, |server| server.set_data("/a", data));
        assert!(is_answer(fixture.zookeeper.set_data("/a", b"mine!", Some(0)), ZkError::BadVersion));
    }
}

#[test]
fn set_data_is_unknown_once_the_data_were_replaced() {
    for when in EFFECTS {
        for version in [None, Some(0)] {
            let fixture = Fixture::new();
            fixture.lose_and(SimOperation::SetData, when, |server| {
                server.set_data("/a", b"one");
                server.set_data("/a", b"two");
            });
            assert!(is_unknown(fixture.zookeeper.set_data("/a", b"mine", version)), "{when:?} {version:?}");
        }
    }
}

#[test]
fn set_data_is_unknown_once_the_znode_was_deleted() {
    for version in [None, Some(0)] {
        let fixture = Fixture::new();
        fixture.lose_and(SimOperation::SetData, Effect::After, |server| server.delete("/a"));
        assert!(is_unknown(fixture.zookeeper.set_data("/a", b"mine", version)), "{version:?}");
    }
}

#[test]
fn set_data_writes_once_when_the_znode_is_replaced_at_the_same_version() {
    let fixture = Fixture::new();
    fixture.lose_and(SimOperation::SetData, Effect::After, |server| {
        server.delete("/a");
        server.create("/a", b"another's");
    });
    assert!(is_unknown(fixture.zookeeper.set_data("/a", b"mine", Some(0))));
    assert_eq!(fixture.server.data("/a").unwrap(), b"another's");
}

#[test]
fn delete_is_unknown_once_another_client_has_replaced_the_znode() {
    for version in [None, Some(0), Some(1)] {
        for when in EFFECTS {
            let fixture = Fixture::new();
            if version == Some(1) {
                fixture.server.set_data("/a", b"older");
            }
            fixture.lose_and(SimOperation::Delete, when, move |server| {
                if when == Effect::Before {
                    server.delete("/a");
                }
                server.create("/a", b"another's");
            });
            assert!(is_unknown(fixture.zookeeper.delete("/a", version)), "{when:?} {version:?}");
            assert!(fixture.server.exists("/a"), "{when:?} {version:?}");
        }
    }
}

#[test]
fn delete_of_a_znode_changed_by_another_client_is_unknown() {
    let fixture = Fixture::new();
    fixture.lose_and(SimOperation::Delete, Effect::Before, |server| server.set_data("/a", b"other"));
    assert!(is_unknown(fixture.zookeeper.delete("/a", Some(0))));
    fixture.lose_and(SimOperation::Delete, Effect::Before, |server| server.create("/a/b", b""));
    assert!(is_unknown(fixture.zookeeper.delete("/a", None)));
}

#[test]
fn delete_succeeds_if_the_znode_is_deleted() {
    let fixture = Fixture::new();
    fixture.lose_and(SimOperation::Delete, Effect::Before, |server| server.delete("/a"));
    fixture.zookeeper.delete("/a", None).unwrap();
}

#[test]
fn delete_of_a_znode_that_had_children_is_unknown_once_deleted() {
    for when in EFFECTS {
        let fixture = Fixture::new();
        fixture.server.create("/a/b", b"");
        fixture.lose_and(SimOperation::Delete, when, |server| {
            server.delete("/a/b");
            server.delete("/a");
        });
        assert!(is_unknown(fixture.zookeeper.delete("/a", None)), "{when:?}");
    }
}

#[test]
fn delete_at_a_version_the_znode_did_not_have_is_unknown_once_deleted() {
    for when in EFFECTS {
        let fixture = Fixture::new();
        fixture.lose_and(SimOperation::Delete, when, |server| server.delete("/a"));
        assert!(is_unknown(fixture.zookeeper.delete("/a", Some(7))), "{when:?}");
    }
}

#[test]
fn set_data_at_a_version_replaced_before_the_call_is_refused() {
    let fixture = Fixture::new();
    fixture.server.set_data("/a", b"older");
    fixture.lose_and(SimOperation::SetData, Effect::Before, |server| {
        server.set_data("/a", b"one");
        server.set_data("/a", b"two");
    });
    assert!(is_answer(fixture.zookeeper.set_data("/a", b"mine", Some(0)), ZkError::BadVersion));
}

#[test]
fn plain_set_data_writes_identical_data() {
    for version in [None, Some(0)] {
        let fixture = Fixture::plain();
        fixture.lose(SimOperation::SetData, Effect::Before);
        fixture.zookeeper.set_data("/a", b"old", version).unwrap();
        assert_eq!(fixture.server.stat("/a").unwrap().version, 1, "{version:?}");
    }
}

#[test]
fn minus_one_is_any_version() {
    let fixture = Fixture::plain();
    fixture.lose(SimOperation::SetData, Effect::After);
    fixture.zookeeper.set_data("/a", b"new", Some(-1)).unwrap();
    assert_eq!(fixture.server.stat("/a").unwrap().version, 1);
}

#[test]
fn plain_create_does_not_claim_an_ephemeral_znode_of_another_session() {
    let fixture = Fixture::plain();
    let other = fixture.server.connect(LONG);
    let maker = Arc::clone(&other);
    fixture.lose_and(SimOperation::Create, Effect::Before, move |_| {
        maker.create("/a/b", b"mine", &Acl::open_unsafe(), CreateMode::Ephemeral).unwrap();
    });
    assert!(is_unknown(fixture.create("/a/b", b"mine", CreateMode::Ephemeral)));
    drop(other);
}
