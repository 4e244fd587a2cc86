//! Tests of attempts, and of the delays between them.

use super::*;
use crate::error::{ErrorKind, ErrorReason};
use crate::locks::MultiLock;
use crate::time::Runtime;

const HOUR: Duration = Duration::from_secs(3600);

fn with_retry(session: &Session, policy: RetryPolicy) -> ProtocolSupport {
    ProtocolSupport::with_options(session, LockOptions::new().retry(policy)).unwrap()
}

#[test]
fn operation_is_tried_ten_times_and_returns_the_first_error() {
    let zk = SimulatedZooKeeper::new();
    let support = with_retry(&Fixture::join(&zk).session, RetryPolicy::linear(Duration::from_micros(1)));
    let mut attempts = 0;
    let error = support
        .retry_operation(|| {
            attempts += 1;
            Err::<(), _>(LockError::from_client("test", format!("/{attempts}"), ZkError::ConnectionLoss))
        })
        .unwrap_err();
    assert_eq!(attempts, 10);
    assert_eq!((error.reason(), error.path()), (ErrorReason::ConnectionLoss, Some("/1")), "{error}");
}

#[test]
fn successful_or_refused_operation_is_not_retried() {
    let zk = SimulatedZooKeeper::new();
    let support = ProtocolSupport::new(&Fixture::join(&zk).session);
    assert_eq!(support.retry_operation(|| Ok(7)).unwrap(), 7);
    let refusals = [
        LockError::from_client("test", "/", ZkError::SessionExpired),
        LockError::from_client("test", "/", ZkError::NoNode),
    ];
    for refusal in refusals {
        let mut refusal = Some(refusal);
        assert!(support.retry_operation(|| Err::<(), _>(refusal.take().unwrap())).is_err());
    }
}

#[test]
fn close_interrupts_the_delay_before_the_next_attempt() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let policy = RetryPolicy::linear(HOUR);
    let support = Arc::new(with_retry(&fixture.session, policy));
    let (tried, attempts) = unbounded();
    let of_thread = Arc::clone(&support);
    let retrying = in_background(move || {
        of_thread.retry_operation(|| {
            tried.send(()).unwrap();
            Err::<(), _>(LockError::from_client("test", "/", ZkError::ConnectionLoss))
        })
    });
    // The second attempt is immediate. The third waits for the delay.
    next(&attempts);
    next(&attempts);
    support.close();
    assert!(next(&retrying).unwrap_err().is_closed());
}

#[test]
fn lock_retries_by_its_policy() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    let policies = [
        (RetryPolicy::constant(Duration::from_millis(1)).with_attempts(3), 3),
        (RetryPolicy::linear(HOUR).with_jitter().with_total_time(Duration::from_secs(60)), 2),
        (RetryPolicy::exponential(HOUR, Duration::MAX).with_total_time(Duration::from_secs(60)), 1),
    ];
    for (policy, attempts) in policies {
        let options = LockOptions::new().retry(policy);
        let lock = BlockingWriteLock::with_options(&fixture.session, DIR, options).unwrap();
        for _ in 0..attempts {
            fixture.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
        }
        assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Retry, "{policy:?}");
        assert_eq!(fixture.client.pending_faults(), 0, "{policy:?}");
        drop(lock.lock().unwrap());
    }
}

#[test]
fn total_time_counts_from_the_first_failure() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    for _ in 0..500 {
        fixture.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    }
    let policy = RetryPolicy::constant(Duration::from_millis(10)).with_attempts(u32::MAX);
    let options = LockOptions::new().retry(policy.with_total_time(Duration::from_millis(100)));
    let lock = BlockingWriteLock::with_options(&fixture.session, DIR, options).unwrap();
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Retry);
    assert!(fixture.client.pending_faults() >= 500 - 11);
}

#[test]
fn path_is_ensured_despite_a_lost_reply() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let support = with_retry(&fixture.session, RetryPolicy::linear(Duration::from_millis(1)));
    for when in [Effect::Before, Effect::After] {
        fixture.client.fail_next(SimOperation::Create, when, ZkError::ConnectionLoss);
        support.ensure_path_exists(&format!("/a/{when:?}/b")).unwrap();
        assert!(zk.exists(&format!("/a/{when:?}/b")));
    }
}

#[test]
fn path_is_ensured_although_the_new_parent_is_deleted_again_before_its_child_is_created() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let support = ProtocolSupport::new(&fixture.session);
    // The first two creates are those of the znode, which is refused, and of its parent.
    (0..2).for_each(|_| fixture.client.before_next(SimOperation::Create, || {}));
    let other = zk.clone();
    fixture.client.before_next(SimOperation::Create, move || other.delete("/a"));
    support.ensure_path_exists("/a/b").unwrap();
    assert!(zk.exists("/a/b") && fixture.client.pending_faults() == 0);
}

#[test]
fn error_of_an_applications_operation_that_does_not_start_names_no_path() {
    let zk = SimulatedZooKeeper::new();
    let support = ProtocolSupport::new(&Fixture::join(&zk).session);
    support.close();
    let error = support.retry_operation(|| Ok(())).unwrap_err();
    assert_eq!((error.reason(), error.operation(), error.path()), (ErrorReason::Closed, Some("retry"), None));
    assert!(error.to_string().starts_with("retry: closed"), "{error}");
}

#[test]
fn close_ends_a_try_lock_whose_create_is_retried() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let options = LockOptions::new().retry(RetryPolicy::constant(HOUR));
    let lock = Arc::new(BlockingWriteLock::with_options(&fixture.session, DIR, options).unwrap());
    fixture.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    let of_thread = Arc::clone(&lock);
    let trying = in_background(move || of_thread.try_lock().map(drop));
    eventually("the create has failed", || fixture.client.pending_faults() == 0);
    lock.close();
    assert!(next(&trying).unwrap_err().is_closed());
}

#[test]
fn loss_of_an_earlier_lock_ends_a_try_lock_whose_create_is_retried() {
    let zk = SimulatedZooKeeper::new();
    let dirs = ["/locks/a", "/locks/b"];
    dirs.iter().for_each(|dir| zk.create(dir, b""));
    let fixture = Fixture::join(&zk);
    let options = LockOptions::new().retry(RetryPolicy::constant(HOUR));
    let lock = MultiLock::with_options(&fixture.session, dirs, options).unwrap();
    fixture.client.fail_nth(SimOperation::Create, 2, Effect::Before, ZkError::ConnectionLoss);
    let trying = in_background(move || lock.try_lock().map(drop));
    eventually("the second create has failed", || fixture.client.pending_faults() == 0);
    eventually("the owner watches its znode", || zk.watch_count() == 1);
    zk.delete(&format!("{}/{}", dirs[0], zk.children(dirs[0])[0]));
    let error = next(&trying).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NodeDeleted, "{error}");
}

#[test]
fn attempts_that_fail_on_the_spot_are_made_at_intervals() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let (client, runtime, session) = open_on_manual_runtime(&zk, LONG);
    for _ in 0..100 {
        client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    }
    let retry = RetryPolicy::constant(Duration::ZERO).with_attempts(u32::MAX);
    let lock = WriteLock::with_options(&session, DIR, LockOptions::new().retry(retry), ()).unwrap();
    let begun = runtime.elapsed();
    assert!(lock.lock().unwrap());
    // The second attempt is made at once.
    assert_eq!(runtime.elapsed() - begun, Duration::from_millis(99));
}

#[test]
fn delay_counts_from_an_attempt_that_a_reconnect_has_brought_forward() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let (client, runtime, session) = open_on_manual_runtime(&zk, LONG);
    for _ in 0..2 {
        client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    }
    let delay = Duration::from_secs(10);
    let reconnected = delay - Duration::from_millis(100);
    let flap = move || {
        client.disconnect();
        client.reconnect();
    };
    runtime.at(runtime.now().after(reconnected), Box::new(flap));
    let options = LockOptions::new().retry(RetryPolicy::constant(delay));
    let begun = runtime.elapsed();
    let _guard = BlockingWriteLock::with_options(&session, DIR, options).unwrap().lock().unwrap();
    assert_eq!(runtime.elapsed() - begun, reconnected + delay);
}
