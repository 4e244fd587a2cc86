//! Tests of writers that become readers.

use super::waiting::Waiting;
use super::*;
use crate::error::ErrorReason;
use crate::fake::SequenceEnd;
use crate::locks::{DowngradeError, ReadGuard, ReadWriteLock, WriteGuard};

/// The calls of a downgrade, in order.
const DOWNGRADE_STEPS: [SimOperation; 3] = [SimOperation::Create, SimOperation::Exists, SimOperation::Delete];

/// A fixture whose writer owns the lock, and another fixture whose writer waits.
struct DowngradeFixture {
    zk: SimulatedZooKeeper,
    fixture: Fixture,
    waiting: Fixture,
    next: Waiting<WriteGuard>,
}

impl DowngradeFixture {
    fn new() -> (DowngradeFixture, WriteGuard) {
        DowngradeFixture::with(quick_retries())
    }

    fn with(options: LockOptions) -> (DowngradeFixture, WriteGuard) {
        let zk = SimulatedZooKeeper::new();
        let (fixture, waiting) = (Fixture::join(&zk), Fixture::join(&zk));
        let writer = ReadWriteLock::with_options(&fixture.session, DIR, options).unwrap().write().unwrap();
        let next = waiting.waiting_writer(&zk);
        (DowngradeFixture { zk, fixture, waiting, next }, writer)
    }

    /// Checks that the reader owns the lock alone, and that the next writer acquires it after the reader.
    fn assert_downgraded(&self, reader: ReadGuard) {
        assert!(reader.is_owner() && !self.next.is_owner());
        assert!(reader.id().starts_with(&format!("{DIR}/read-")));
        eventually("the writer's znode is gone", || self.zk.children(DIR).len() == 2);
        assert!(self.zk.exists(reader.id()));
        assert!(self.waiting.sharing().try_read().unwrap().is_none(), "behind the next writer");
        // Without contact, the deletion is pending.
        reader.unlock().unwrap();
        eventually("the next writer owns", || self.next.is_owner());
    }

    /// Checks that the lock is lost, that it leaves nothing behind, and that the next writer acquires the
    /// lock.
    fn assert_lost(&self, failed: DowngradeError) {
        let guard = failed.guard;
        assert!(!guard.is_owner());
        drop(guard);
        eventually("the next writer owns", || self.next.is_owner());
        eventually("nothing else is left", || self.zk.children(DIR).len() == 1);
    }
}

#[test]
fn downgraded_writer_owns_as_a_reader() {
    let zk = SimulatedZooKeeper::new();
    let (fixture, waiting) = (Fixture::join(&zk), Fixture::join(&zk));
    let lock = ReadWriteLock::with_options(&fixture.session, DIR, LockOptions::new().data("who")).unwrap();
    let writer = lock.write().unwrap();
    let writers_znode = writer.id().to_owned();
    let behind = waiting.waiting_reader(&zk);
    let reader = writer.downgrade().unwrap();
    assert!(reader.is_owner());
    eventually("readers behind it own, too", || behind.is_owner());
    eventually("the writer's znode is gone", || !zk.exists(&writers_znode));
    let number = |znode: &str| znode[znode.len() - 10..].to_owned();
    assert_eq!(number(reader.id()), number(&writers_znode));
    assert_eq!(zk.data(reader.id()).unwrap(), b"who");
    assert_eq!(zk.stat(reader.id()).unwrap().ephemeral_owner, fixture.client.session_id());
    assert!(waiting.sharing().try_write().unwrap().is_none());
}

#[test]
fn downgrade_makes_three_calls_and_sets_a_watch() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let writer = fixture.sharing().write().unwrap();
    eventually("the writer watches its znode", || zk.calls(SimOperation::GetData) == 1);
    zk.clear_log();
    let _reader = writer.downgrade().unwrap();
    eventually("the reader watches its znode", || zk.calls(SimOperation::GetData) == 1);
    eventually("the writer's znode is gone", || zk.children(DIR).len() == 1);
    assert_eq!(operations(&zk).len(), DOWNGRADE_STEPS.len() + 1, "{:?}", operations(&zk));
}

#[test]
fn downgrade_keeps_its_place_in_the_queue_at_every_step() {
    for step in DOWNGRADE_STEPS {
        for before in [true, false] {
            let (downgrade, writer) = DowngradeFixture::new();
            let (seen, looks) = unbounded();
            let zk = downgrade.zk.clone();
            let look = move || drop(seen.send(zk.children(DIR)));
            match before {
                true => downgrade.fixture.client.before_next(step, look),
                false => downgrade.fixture.client.after_next(step, look),
            }
            let reader = writer.downgrade().unwrap();
            let children = next(&looks);
            assert!(
                children.iter().any(|name| name.ends_with("-0000000000")),
                "{step:?} {before}: {children:?}"
            );
            downgrade.assert_downgraded(reader);
        }
    }
}

#[test]
fn failed_call_at_any_step_of_a_downgrade_leaves_no_trace() {
    for step in DOWNGRADE_STEPS {
        for when in [Effect::Before, Effect::After] {
            for cut in [true, false] {
                let (downgrade, writer) = DowngradeFixture::with(patient_retries());
                let _reconnecting = downgrade.fixture.reconnect_on_loss();
                match cut {
                    true => downgrade.fixture.client.cut_next(step, when),
                    false => downgrade.fixture.client.fail_next(step, when, ZkError::ConnectionLoss),
                }
                let reader = writer.downgrade().unwrap();
                downgrade.assert_downgraded(reader);
                assert_eq!(
                    downgrade.fixture.client.pending_faults(),
                    0,
                    "the fault occurred: {step:?} {when:?}"
                );
            }
        }
    }
}

#[test]
fn downgrade_reads_the_writers_znode_again_after_a_reconnect() {
    let (downgrade, writer) = DowngradeFixture::new();
    let client = Arc::clone(&downgrade.fixture.client);
    downgrade.fixture.client.before_next(SimOperation::Exists, move || {
        client.disconnect();
        client.reconnect();
    });
    downgrade.zk.clear_log();
    let reader = writer.downgrade().unwrap();
    assert_eq!(downgrade.zk.calls(SimOperation::Exists), 2);
    downgrade.assert_downgraded(reader);
}

#[test]
fn failed_downgrade_keeps_the_writer() {
    let (downgrade, writer) = DowngradeFixture::new();
    for _ in 0..10 {
        downgrade.fixture.client.fail_next(SimOperation::Exists, Effect::Before, ZkError::ConnectionLoss);
    }
    let failed = writer.downgrade().unwrap_err();
    assert!(failed.error.is_connection_loss(), "{failed}");
    assert_eq!(downgrade.fixture.client.pending_faults(), 0, "ten attempts");
    let writer = failed.guard;
    assert!(writer.is_owner() && !downgrade.next.is_owner());
    eventually("the reader's znode is gone", || downgrade.zk.children(DIR).len() == 2);
    assert!(downgrade.zk.exists(writer.id()));
    downgrade.assert_downgraded(writer.downgrade().unwrap());
}

#[test]
fn refused_downgrade_names_the_permission_and_keeps_the_writer() {
    for (step, permission) in [(SimOperation::Create, "CREATE"), (SimOperation::Exists, "READ")] {
        let (downgrade, writer) = DowngradeFixture::new();
        downgrade.fixture.client.fail_next(step, Effect::Before, ZkError::NoAuth);
        let failed = writer.downgrade().unwrap_err();
        assert!(failed.error.is_access_denied() && failed.to_string().contains(permission), "{failed}");
        let writer = failed.guard;
        assert!(writer.is_owner());
        writer.unlock().unwrap();
        eventually("the next writer owns", || downgrade.next.is_owner());
    }
}

#[test]
fn dropped_downgrade_error_releases_the_lock() {
    let (downgrade, writer) = DowngradeFixture::new();
    downgrade.fixture.client.fail_next(SimOperation::Create, Effect::Before, ZkError::NoAuth);
    let pass_on = || -> Result<ReadGuard, LockError> { Ok(writer.downgrade()?) };
    assert!(pass_on().unwrap_err().is_access_denied());
    eventually("the next writer owns", || downgrade.next.is_owner());
}

#[test]
fn downgrade_fails_after_external_delete() {
    for step in [SimOperation::Create, SimOperation::Exists] {
        let (downgrade, writer) = DowngradeFixture::new();
        let (zk, znode) = (downgrade.zk.clone(), writer.id().to_owned());
        let next = Arc::new(downgrade.next);
        let of_step = Arc::clone(&next);
        downgrade.fixture.client.before_next(step, move || {
            zk.delete(&znode);
            // At the later step, the reader's znode is ahead of the next writer.
            if step == SimOperation::Create {
                eventually("the next writer owns", || of_step.is_owner());
            }
        });
        let failed = writer.downgrade().unwrap_err();
        assert_eq!(failed.error.reason(), ErrorReason::NotOwner, "{step:?}: {failed}");
        let next = Arc::into_inner(next).unwrap();
        DowngradeFixture { next, ..downgrade }.assert_lost(failed);
    }
}

#[test]
fn downgrade_fails_when_the_session_ends_at_any_step() {
    for step in [SimOperation::Create, SimOperation::Exists] {
        for before in [true, false] {
            let (downgrade, writer) = DowngradeFixture::new();
            let expiring = Arc::clone(&downgrade.fixture.client);
            match before {
                true => downgrade.fixture.client.before_next(step, move || expiring.expire()),
                false => downgrade.fixture.client.after_next(step, move || expiring.expire()),
            }
            let failed = writer.downgrade().unwrap_err();
            let is_loss = matches!(failed.error.reason(), ErrorReason::SessionLost | ErrorReason::NotOwner);
            assert!(is_loss, "{step:?} {before}: {failed}");
            downgrade.assert_lost(failed);
        }
    }
}

#[test]
fn stuck_downgrade_ends_with_the_session() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join_for(&zk, Duration::from_secs(3));
    let writer = fixture.sharing().write().unwrap();
    fixture.client.swallow_next(SimOperation::Create, Effect::After);
    let failed = writer.downgrade().unwrap_err();
    assert!(failed.error.is_session_lost(), "{failed}");
    fixture.client.release();
}

#[test]
fn loss_of_a_downgraded_reader_is_reported() {
    let (downgrade, writer) = DowngradeFixture::new();
    let reader = writer.downgrade().unwrap();
    downgrade.fixture.client.disconnect();
    assert!(reader.is_owner(), "the lease continues");
    downgrade.fixture.client.reconnect();
    eventually("the session is connected", || downgrade.fixture.session.state() == SessionState::Connected);
    assert!(reader.is_owner());
    downgrade.zk.delete(reader.id());
    assert_eq!(next(reader.lost()), LossReason::NodeDeleted);
    assert!(!reader.is_owner());
    assert!(matches!(reader.unlock(), Err(ref error) if error.reason() == ErrorReason::NodeDeleted));
    eventually("the next writer owns", || downgrade.next.is_owner());
}

#[test]
fn downgraded_reader_keeps_the_writers_fencing_token() {
    let (downgrade, writer) = DowngradeFixture::new();
    let token = downgrade.zk.stat(writer.id()).unwrap().czxid;
    let reader = writer.downgrade().unwrap();
    assert_eq!(reader.fencing_token().unwrap(), token, "the token is the writer's");
    reader.unlock().unwrap();
    let next = downgrade.next.outcome().unwrap();
    assert!(next.fencing_token().unwrap() > token, "its znode is older than the reader's");
}

/// If the create of the first attempt takes effect late, after the directory was created anew, its znode must not pass
/// for the reader's.
#[test]
fn attempts_to_downgrade_have_different_names() {
    for effect in [Effect::Before, Effect::After] {
        let (downgrade, writer) = DowngradeFixture::new();
        downgrade.fixture.client.fail_next(SimOperation::Create, effect, ZkError::ConnectionLoss);
        let reader = writer.downgrade().unwrap();
        let log = downgrade.zk.log();
        let creates = log.iter().filter(|call| call.operation == SimOperation::Create);
        let creates: Vec<&str> =
            creates.map(|call| &*call.path).filter(|path| path.contains("/read-")).collect();
        let [first, second] = creates[..] else { panic!("{creates:?}") };
        assert_eq!(reader.id(), second);
        assert_ne!(first, second);
        eventually("the znode of the first attempt is gone", || !downgrade.zk.exists(first));
        assert!(reader.is_owner());
    }
}

#[test]
fn downgrade_works_at_the_end_of_the_counter() {
    for end in [SequenceEnd::Wraps, SequenceEnd::Sticks, SequenceEnd::Mixes] {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        zk.set_sequence(DIR, i32::MAX);
        zk.set_sequence_end(end);
        let fixture = Fixture::join(&zk);
        let reader = fixture.sharing().write().unwrap().downgrade().unwrap();
        assert!(reader.is_owner() && reader.id().ends_with("-2147483647"));
        fixture.client.disconnect();
        fixture.client.reconnect();
        eventually("the session is connected", || fixture.session.state() == SessionState::Connected);
        assert!(reader.is_owner());
        reader.unlock().unwrap();
    }
}

#[test]
fn downgrades_leave_no_registration() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let lock = fixture.sharing();
    for _ in 0..50 {
        lock.write().unwrap().downgrade().unwrap().unlock().unwrap();
    }
    eventually("no znode is left", || zk.children(DIR).is_empty());
    eventually("no registration is left", || fixture.session.core().census().0 == 0);
    assert_eq!(fixture.session.core().census(), (0, 0));
}
