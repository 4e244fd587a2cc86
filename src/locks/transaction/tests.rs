//! Tests of transactions.

use std::error::Error;
use std::time::Duration;

use super::*;
use crate::client::Permissions;
use crate::fake::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::locks::{CohortLock, ReadWriteLock, WriteGuard};
use crate::{BlockingWriteLock, ErrorKind, ErrorReason, LockGuard, LossReason, Session};

const DIR: &str = "/locks/a";
const TIMEOUT: Duration = Duration::from_secs(30);

struct Held {
    zookeeper: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    guard: LockGuard,
}

fn connected() -> (SimulatedZooKeeper, Arc<SimulatedClient>, Session) {
    crate::tests::begin();
    let zookeeper = SimulatedZooKeeper::new();
    zookeeper.create("/report", b"old");
    let client = zookeeper.connect(TIMEOUT);
    let session = client.open_session().unwrap();
    (zookeeper, client, session)
}

fn held() -> Held {
    let (zookeeper, client, session) = connected();
    let guard = BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap();
    Held { zookeeper, client, guard }
}

fn report(zookeeper: &SimulatedZooKeeper) -> String {
    String::from_utf8(zookeeper.data("/report").unwrap()).unwrap()
}

#[test]
fn owner_changes_several_znodes_at_once() {
    let Held { zookeeper, guard, .. } = held();
    let outcomes = guard
        .commit(|changes| {
            changes.set_data("/report", "new").if_version(0).create("/made", "data").check("/locks")
        })
        .unwrap();
    let [OpOutcome::DataSet(stat), OpOutcome::Created(made), OpOutcome::Checked] = outcomes.as_slice() else {
        panic!("{outcomes:?}")
    };
    assert_eq!((stat.version, made.as_str()), (1, "/made"));
    assert_eq!(report(&zookeeper), "new");
    guard.commit(|changes| changes.delete("/made")).unwrap();
    assert!(!zookeeper.exists("/made"));
}

#[test]
fn owner_whose_znode_is_gone_changes_nothing_even_if_it_has_not_noticed() {
    let Held { zookeeper, client, guard } = held();
    let (server, znode) = (zookeeper.clone(), guard.id().to_owned());
    client.before_next(SimOperation::Transact, move || server.delete(&znode));
    let error = guard.commit(|changes| changes.set_data("/report", "new")).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NotOwner, "{error:?}");
    assert_eq!(report(&zookeeper), "old");
    assert_eq!(guard.loss(), Some(LossReason::NodeDeleted), "the owner has learned of it");
}

#[test]
fn owner_without_a_lease_asks_no_server() {
    let Held { zookeeper, client, guard } = held();
    client.expire();
    zookeeper.clear_log();
    let error = guard.commit(|changes| changes.set_data("/report", "new")).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NotOwner, "{error:?}");
    assert_eq!(zookeeper.calls(SimOperation::Transact), 0);
}

#[test]
fn operation_that_fails_is_named_and_undoes_the_others() {
    let Held { zookeeper, guard, .. } = held();
    let error = guard.commit(|changes| changes.set_data("/report", "new").delete("/missing")).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::Server(ZkError::NoNode), "{error:?}");
    assert_eq!(error.path(), Some("/missing"));
    assert_eq!(error.source().unwrap().to_string(), ZkError::NoNode.to_string());
    let error = guard.commit(|changes| changes.set_data("/report", "new").if_version(7)).unwrap_err();
    assert_eq!(error.source().unwrap().to_string(), ZkError::BadVersion.to_string());
    assert_eq!(report(&zookeeper), "old");
    assert!(guard.is_owner());
}

#[test]
fn transaction_that_cannot_be_right_is_refused() {
    let Held { zookeeper, guard, .. } = held();
    let own = guard.id().to_owned();
    let wrong: [fn(Transaction, &str) -> Transaction; 5] = [
        |changes, _| changes,
        |changes, _| changes.if_version(0).set_data("/report", "new"),
        |changes, _| changes.create("/made", "new").if_version(0),
        |changes, _| changes.set_data("/report", "new").if_version(-1),
        |changes, own| changes.set_data("/report", "new").delete(own),
    ];
    for change in wrong {
        let error = guard.commit(|changes| change(changes, &own)).unwrap_err();
        assert_eq!(error.reason(), ErrorReason::InvalidArgument, "{error:?}");
    }
    let error = guard.commit(|changes| changes.delete("report")).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::InvalidArgument, "{error:?}");
    assert_eq!(report(&zookeeper), "old");
}

#[test]
fn transaction_that_servers_could_not_handle_is_refused() {
    let Held { zookeeper, guard, .. } = held();
    let error = guard.commit(|changes| changes.set_data("/report", vec![0; 1 << 20])).unwrap_err();
    assert_eq!((error.reason(), error.kind()), (ErrorReason::CallTooLong, ErrorKind::Permanent), "{error:?}");
    let message = error.to_string();
    for part in ["1047552", "jute.maxbuffer", "SessionBuilder::jute_max_buffer"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(report(&zookeeper), "old");
}

#[test]
fn lost_reply_is_an_unknown_outcome() {
    let Held { zookeeper, client, guard } = held();
    client.fail_next(SimOperation::Transact, Effect::After, ZkError::ConnectionLoss);
    let error = guard.commit(|changes| changes.set_data("/report", "new")).unwrap_err();
    assert!(error.is_connection_loss(), "{error:?}");
    assert_eq!(report(&zookeeper), "new");
    client.fail_next(SimOperation::Transact, Effect::After, ZkError::MarshallingError);
    let error = guard.commit(|changes| changes.set_data("/report", "newer")).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::OutcomeUnknown, "{error:?}");
}

#[test]
fn commit_that_a_server_passes_on_late_undoes_no_later_one() {
    let Held { zookeeper, client, guard } = held();
    for round in ["a", "b"] {
        client.hold_back_next(SimOperation::Transact);
        let error = guard.commit(|changes| changes.set_data("/report", "lost")).unwrap_err();
        assert!(error.is_connection_loss(), "{error:?}");
        guard.commit(|changes| changes.set_data("/report", round)).unwrap();
        client.pass_on();
        assert_eq!(report(&zookeeper), round);
    }
    assert!(guard.is_owner() && guard.revocation().is_empty());
    assert_eq!(zookeeper.stat(guard.id()).unwrap().version, 2);
}

/// A writer whose last commit is held back by a server.
fn writer_with_a_lost_commit() -> (SimulatedZooKeeper, Arc<SimulatedClient>, WriteGuard) {
    let (zookeeper, client, session) = connected();
    let writing = ReadWriteLock::new(&session, DIR).unwrap().write().unwrap();
    client.hold_back_next(SimOperation::Transact);
    let error = writing.commit(|changes| changes.set_data("/report", "lost")).unwrap_err();
    assert!(error.is_connection_loss(), "{error:?}");
    (zookeeper, client, writing)
}

#[test]
fn commit_that_a_server_passes_on_late_undoes_none_after_a_downgrade() {
    let (zookeeper, client, writing) = writer_with_a_lost_commit();
    // The writer's znode cannot be deleted, so the check in the lost transaction finds it.
    let no_delete = Permissions::READ | Permissions::WRITE | Permissions::CREATE;
    zookeeper.set_acl(DIR, &[Acl::new(no_delete, "world", "anyone")]);
    let writer = writing.id().to_owned();
    let reading = writing.downgrade().unwrap();
    reading.commit(|changes| changes.set_data("/report", "new")).unwrap();
    client.pass_on();
    assert!(zookeeper.exists(&writer));
    assert_eq!(report(&zookeeper), "new");
}

#[test]
fn writer_that_learns_of_its_deletion_while_it_rules_out_a_lost_commit_has_lost_the_lock() {
    let (zookeeper, client, writing) = writer_with_a_lost_commit();
    let (server, znode) = (zookeeper.clone(), writing.id().to_owned());
    client.before_next(SimOperation::GetData, move || server.delete(&znode));
    let failed = writing.downgrade().unwrap_err();
    assert_eq!(failed.error.reason(), ErrorReason::NotOwner, "{failed:?}");
    assert_eq!(failed.guard.loss(), Some(LossReason::NodeDeleted));
}

#[test]
fn downgrade_that_cannot_rule_out_a_lost_commit_fails() {
    let (zookeeper, _client, writing) = writer_with_a_lost_commit();
    zookeeper.set_acl(writing.id(), &[Acl::new(Permissions::READ, "world", "anyone")]);
    let failed = writing.downgrade().unwrap_err();
    assert!(failed.error.is_access_denied(), "{failed:?}");
    assert!(failed.guard.is_owner());
}

#[test]
fn commits_without_a_lost_one_cost_one_call_each() {
    let Held { zookeeper, guard, .. } = held();
    zookeeper.clear_log();
    for _ in 0..2 {
        guard.commit(|changes| changes.set_data("/report", "new")).unwrap();
    }
    assert_eq!(zookeeper.calls(SimOperation::Transact), 2);
    assert_eq!(zookeeper.stat(guard.id()).unwrap().version, 0);
}

#[test]
fn request_for_the_lock_disturbs_no_commit() {
    let Held { zookeeper, client, guard } = held();
    let (server, znode) = (zookeeper.clone(), guard.id().to_owned());
    client.before_next(SimOperation::Transact, move || server.set_data(&znode, b"unlock"));
    guard.commit(|changes| changes.set_data("/report", "new")).unwrap();
    client.hold_back_next(SimOperation::Transact);
    guard.commit(|changes| changes.set_data("/report", "lost")).unwrap_err();
    guard.commit(|changes| changes.set_data("/report", "newer")).unwrap();
    client.pass_on();
    assert_eq!(report(&zookeeper), "newer");
    assert_eq!(zookeeper.data(guard.id()).unwrap(), b"unlock");
}

#[test]
fn lagging_server_hides_no_request_for_the_lock_from_a_commit() {
    let Held { zookeeper, client, guard } = held();
    client.hold_back_next(SimOperation::Transact);
    guard.commit(|changes| changes.set_data("/report", "lost")).unwrap_err();
    client.lag_until_next_write();
    zookeeper.set_data(guard.id(), b"unlock");
    guard.commit(|changes| changes.set_data("/report", "new")).unwrap();
    client.pass_on();
    assert_eq!(report(&zookeeper), "new");
    assert_eq!(zookeeper.data(guard.id()).unwrap(), b"unlock");
}

#[test]
fn owner_that_may_not_write_its_znode_commits_nothing_after_a_lost_commit() {
    let Held { zookeeper, client, guard } = held();
    let read = [Acl::new(Permissions::READ, "world", "anyone")];
    zookeeper.set_acl(guard.id(), &read);
    guard.commit(|changes| changes.set_data("/report", "new")).unwrap();
    client.hold_back_next(SimOperation::Transact);
    guard.commit(|changes| changes.set_data("/report", "lost")).unwrap_err();
    let error = guard.commit(|changes| changes.set_data("/report", "newer")).unwrap_err();
    assert!(error.is_access_denied(), "{error:?}");
    assert_eq!(report(&zookeeper), "new");
}

#[test]
fn own_data_that_read_like_a_request_for_the_lock_do_not_become_one() {
    let (zookeeper, client, session) = connected();
    let options = crate::LockOptions::new().data("unlock");
    let lock = BlockingWriteLock::with_options(&session, DIR, options).unwrap();
    let guard = lock.lock().unwrap();
    client.hold_back_next(SimOperation::Transact);
    guard.commit(|changes| changes.create("/made", "lost")).unwrap_err();
    guard.commit(|changes| changes.create("/made", "new")).unwrap();
    assert_eq!(zookeeper.data(guard.id()).unwrap(), b"");
}

#[test]
fn commit_to_a_znode_that_was_created_again_ends() {
    let Held { zookeeper, client, guard } = held();
    client.hold_back_next(SimOperation::Transact);
    guard.commit(|changes| changes.set_data("/report", "lost")).unwrap_err();
    guard.commit(|changes| changes.set_data("/report", "new")).unwrap();
    let (server, znode) = (zookeeper.clone(), guard.id().to_owned());
    client.before_next(SimOperation::Transact, move || {
        server.delete(&znode);
        server.create(&znode, b"");
    });
    let error = guard.commit(|changes| changes.set_data("/report", "newer")).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NotOwner, "{error:?}");
    assert_eq!((guard.loss(), &*report(&zookeeper)), (Some(LossReason::NodeDeleted), "new"));
}

#[test]
fn token_of_a_znode_that_is_gone_is_a_loss() {
    let (zookeeper, client, session) = connected();
    client.hide_stats();
    let guard = BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap();
    let (server, znode) = (zookeeper.clone(), guard.id().to_owned());
    client.before_next(SimOperation::Exists, move || server.delete(&znode));
    let error = guard.fencing_token().unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NotOwner, "{error:?}");
    assert_eq!(guard.loss(), Some(LossReason::NodeDeleted), "the owner has learned of it");
}

#[test]
fn lost_commit_of_a_thread_takes_no_effect_during_the_turn_of_another() {
    let (zookeeper, client, session) = connected();
    let lock = CohortLock::new(&session, DIR).unwrap();
    let guard = lock.lock().unwrap();
    client.hold_back_next(SimOperation::Transact);
    guard.commit(|changes| changes.set_data("/report", "lost")).unwrap_err();
    guard.unlock().unwrap();
    let next = lock.lock().unwrap();
    client.pass_on();
    assert!(next.is_owner());
    assert_eq!(report(&zookeeper), "old");
}

#[test]
fn cohort_guard_commits_only_during_its_turn() {
    let Held { zookeeper, client, guard } = held();
    drop(guard);
    let session = zookeeper.connect(TIMEOUT).open_session().unwrap();
    drop(client);
    let lock = CohortLock::new(&session, "/locks/b").unwrap();
    let guard = lock.lock().unwrap();
    guard.commit(|changes| changes.set_data("/report", "new")).unwrap();
    zookeeper.delete(guard.id());
    let error = guard.commit(|changes| changes.set_data("/report", "newer")).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NotOwner, "{error:?}");
    assert_eq!(report(&zookeeper), "new");
}

#[test]
fn dry_run_finds_what_would_fail_and_leaves_nothing() {
    let (zookeeper, client, session) = connected();
    zookeeper.create("/queue", b"");
    let before = zookeeper.stat("/queue").unwrap();
    let made = |acl: &[Acl], mode| Transaction::default().create_with("/queue/a", "data", acl, mode);
    for mode in [CreateMode::Ephemeral, CreateMode::EphemeralSequential, CreateMode::Persistent] {
        made(&Acl::open_unsafe(), mode).dry_run(&session).unwrap();
    }
    made(&Acl::open_unsafe(), CreateMode::Ephemeral).delete("/queue/a").dry_run(&session).unwrap();
    Transaction::default().create("/b", "").create("/b/c", "").dry_run(&session).unwrap();
    assert_eq!(zookeeper.stat("/queue").unwrap(), before, "not even the counter has changed");
    assert!(zookeeper.children("/queue").is_empty() && !zookeeper.exists("/b"));

    let refusal = |changes: Transaction| changes.dry_run(&session).unwrap_err().to_string();
    let refused = refusal(Transaction::default().create("/b", "").create("/missing/c", ""));
    assert!(refused.contains("create '/missing/c'") && refused.contains("does not exist"), "{refused}");
    let refused = refusal(Transaction::default().set_data("/report", "new").if_version(7));
    assert!(refused.contains("set the data of '/report'"), "{refused}");
    assert!(refusal(Transaction::default()).contains("it is empty"));
    assert_eq!(report(&zookeeper), "old");

    client.disconnect();
    let error = Transaction::default().delete("/report").dry_run(&session).unwrap_err();
    assert!(error.is_connection_loss(), "{error}");
    session.close();
    let error = Transaction::default().delete("/report").dry_run(&session).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::Closed, "{error}");
}

#[test]
fn dry_run_tells_a_denied_create_from_a_denied_delete() {
    let (zookeeper, _client, session) = connected();
    let (create, delete) = (Permissions::CREATE, Permissions::DELETE);
    for (dir, missing, granted) in [("/no-create", create, delete), ("/no-delete", delete, create)] {
        zookeeper.create(dir, b"");
        zookeeper.set_acl(dir, &[Acl::new(granted, "world", "anyone")]);
        let path = format!("{dir}/a");
        let creation = Transaction::default().create(&path, "");
        let (created, deleted) =
            (creation.dry_run(&session), creation.clone().delete(&path).dry_run(&session));
        assert_eq!(created.is_err(), missing == create, "{created:?}");
        let error = deleted.unwrap_err();
        assert_eq!(error.reason(), ErrorReason::AccessDenied);
        let named = if missing == create { "CREATE" } else { "DELETE" };
        assert!(error.to_string().contains(named), "{error}");
    }
}
