//! Tests of revocation, step by step, on the fake server.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::{Revocation, Revoker};
use crate::client::{Acl, CreateMode, Permissions, Verbs};
use crate::error::{Operation, ZkError};
use crate::fake::{Effect, ReadChecks, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::locks::{MultiLock, ReadWriteLock};
use crate::recipe::NamingScheme;
use crate::recipe::path::ZNodePath;
use crate::session::Threads;
use crate::tests::{await_replacement, eventually, in_background, next, replacing_session_on};
use crate::time::{Job, Latch, Moment, Priority, Runtime};
use crate::{
    BlockingWriteLock, ErrorReason, LockError, LockGuard, LockListener, LockOptions, LossReason, RetryPolicy,
    Session, WriteLock,
};

const DIR: &str = "/locks/it";
const LONG: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Acquired,
    Asked,
    Released,
    Lost(LossReason),
}

struct RecordingListener(Sender<Call>);

impl LockListener for RecordingListener {
    fn lock_acquired(&self) {
        let _ = self.0.send(Call::Acquired);
    }
    fn lock_released(&self) {
        let _ = self.0.send(Call::Released);
    }
    fn lock_lost(&self, _lock: &WriteLock, reason: LossReason) {
        let _ = self.0.send(Call::Lost(reason));
    }
    fn revocation_requested(&self, _lock: &WriteLock) {
        let _ = self.0.send(Call::Asked);
    }
}

/// The threads of a session. After a wait with a deadline, the thread named [`REVOKING`] continues only when
/// the test permits it.
#[derive(Debug)]
struct Late {
    threads: Arc<Threads>,
    permitted: Receiver<Infallible>,
}

impl Runtime for Late {
    fn now(&self) -> Moment {
        self.threads.now()
    }

    fn submit(&self, priority: Priority, job: Job) {
        self.threads.submit(priority, job);
    }

    fn at(&self, moment: Moment, job: Job) {
        self.threads.at(moment, job);
    }

    fn spawn(&self, name: &'static str, body: Job) -> io::Result<()> {
        self.threads.spawn(name, body)
    }

    fn wait(&self, latches: &[&Latch], deadline: Option<Moment>) -> bool {
        let is_one_set = self.threads.wait(latches, deadline);
        if deadline.is_some() && thread::current().name() == Some(REVOKING) {
            let _ = self.permitted.recv();
        }
        is_one_set
    }

    fn shut_down(&self) {
        self.threads.shut_down();
    }
}

/// The name of the thread that calls the revoker.
const REVOKING: &str = "revoking";

#[test]
fn holder_keeps_its_time_when_the_session_of_the_revoker_is_replaced() {
    let fixture = Fixture::new();
    let guard = BlockingWriteLock::new(&fixture.session, DIR).unwrap().lock().unwrap();
    let (permission, permitted) = bounded(0);
    let runtime = move || {
        let (threads, permitted) = (Threads::start()?, permitted.clone());
        Ok(Arc::new(Late { threads, permitted }) as Arc<dyn Runtime>)
    };
    let (session, clients) = replacing_session_on(runtime, &fixture.zk, LONG);
    let (revoker, id, (sender, revoked)) = (Revoker::new(&session), guard.id().to_owned(), bounded(1));
    // This is the holder's own watch.
    eventually("one watch is set", || fixture.zk.watch_count() == 1);
    let revoke = move || drop(sender.send(revoker.force_revocation_after(&id, LONG)));
    thread::Builder::new().name(REVOKING.to_owned()).spawn(revoke).unwrap();
    eventually("the holder is asked and watched", || fixture.zk.watch_count() == 2);
    let lost = next(&clients);
    await_replacement(&session, || lost.expire());
    drop(permission);
    let revoked = next(&revoked);
    assert!(
        matches!(revoked, Err(ref error) if matches!(error.reason(), ErrorReason::SessionLost)),
        "{revoked:?}"
    );
    assert!(guard.is_owner());
}

/// A fake server, and a session that may hold locks.
struct Fixture {
    zk: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    session: Session,
}

impl Fixture {
    fn new() -> Fixture {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        let (client, session) = connect(&zk);
        Fixture { zk, client, session }
    }

    fn listening(&self) -> (WriteLock, Receiver<Call>) {
        self.listening_with(LockOptions::new())
    }

    fn listening_with(&self, options: LockOptions) -> (WriteLock, Receiver<Call>) {
        let (sender, calls) = unbounded();
        (WriteLock::with_options(&self.session, DIR, options, RecordingListener(sender)).unwrap(), calls)
    }

    fn guard(&self) -> LockGuard {
        BlockingWriteLock::new(&self.session, DIR).unwrap().lock().unwrap()
    }

    /// An owner sets its watch a moment after the acquisition.
    fn await_watches(&self, count: usize) {
        eventually("the watches are set", || self.zk.watch_count() == count);
    }

    fn looks(&self) -> usize {
        self.zk.calls(SimOperation::GetData)
    }
}

/// Waits until no request is registered with the session.
fn await_no_registration(session: &Session) {
    let registry = || session.core().census();
    eventually("no registration is left", || registry() == (0, 0));
}

fn connect(zk: &SimulatedZooKeeper) -> (Arc<SimulatedClient>, Session) {
    let client = zk.connect(LONG);
    let session = client.open_session().unwrap();
    (client, session)
}

/// Takes a lock away on another thread.
fn force(revoker: Revoker, path: &str) -> Receiver<Result<Revocation, LockError>> {
    let path = path.to_owned();
    in_background(move || revoker.force_revocation_after(&path, Duration::MAX))
}

/// A revoker on another session.
fn revoker(zk: &SimulatedZooKeeper) -> (Arc<SimulatedClient>, Revoker) {
    let (client, session) = connect(zk);
    let options = LockOptions::new().retry(RetryPolicy::linear(Duration::from_millis(1)));
    (client, Revoker::with_options(&session, options).unwrap())
}

// ---- the holder

#[test]
fn revocation_is_reported_once_per_acquisition() {
    let fixture = Fixture::new();
    let (lock, calls) = fixture.listening();
    for _ in 0..2 {
        assert!(lock.lock().unwrap());
        assert_eq!(next(&calls), Call::Acquired);
        let id = lock.id().unwrap();
        fixture.zk.set_data(&id, b"unlock");
        assert_eq!(next(&calls), Call::Asked);
        let looks = fixture.looks();
        fixture.zk.set_data(&id, b"unlock");
        eventually("the second message was read", || fixture.looks() > looks);
        assert!(lock.is_owner(), "the holder decides");
        lock.unlock().unwrap();
        assert_eq!(next(&calls), Call::Released);
    }
    assert!(calls.try_recv().is_err());
}

#[test]
fn only_data_written_by_others_requests_revocation() {
    let fixture = Fixture::new();
    let (lock, calls) = fixture.listening_with(LockOptions::new().data("unlock"));
    assert!(lock.lock().unwrap());
    assert_eq!(next(&calls), Call::Acquired);
    fixture.await_watches(1);
    let looks = fixture.looks();
    fixture.zk.set_data(&lock.id().unwrap(), b"unlocked");
    eventually("the other data was read", || fixture.looks() > looks);
    lock.unlock().unwrap();
    assert_eq!(next(&calls), Call::Released);
}

#[test]
fn revocation_of_a_waiter_is_reported_after_acquisition() {
    let fixture = Fixture::new();
    let ahead = fixture.zk.create_sequential(DIR, "x-other-lock-", None);
    let (lock, calls) = fixture.listening();
    assert!(!lock.lock().unwrap());
    fixture.zk.set_data(&lock.id().unwrap(), b"unlock");
    fixture.zk.delete(&ahead);
    assert_eq!((next(&calls), next(&calls)), (Call::Acquired, Call::Asked));
}

#[test]
fn revocation_during_an_outage_is_reported_after_the_reconnect() {
    let fixture = Fixture::new();
    let guard = fixture.guard();
    fixture.await_watches(1);
    fixture.client.disconnect();
    fixture.zk.set_data(guard.id(), b"unlock");
    fixture.client.reconnect();
    next(guard.revocation());
    assert!(guard.is_owner());
}

#[test]
fn no_revocation_is_reported_after_release() {
    let fixture = Fixture::new();
    let (lock, calls) = fixture.listening();
    assert!(lock.lock().unwrap());
    fixture.await_watches(1);
    let (looked, look) = unbounded();
    let lock = Arc::new(lock);
    let released = Arc::clone(&lock);
    fixture.client.after_next(SimOperation::GetData, move || {
        released.close();
        looked.send(()).unwrap();
    });
    fixture.zk.set_data(&lock.id().unwrap(), b"unlock");
    next(&look);
    assert_eq!((next(&calls), next(&calls)), (Call::Acquired, Call::Released));
    await_no_registration(&fixture.session);
    assert!(calls.try_recv().is_err());
}

#[test]
fn revocation_is_reported_under_every_naming_scheme() {
    for scheme in [NamingScheme::Recipe, NamingScheme::Curator, NamingScheme::Kazoo] {
        let fixture = Fixture::new();
        let (_, revoker) = revoker(&fixture.zk);
        let lock =
            ReadWriteLock::with_options(&fixture.session, DIR, LockOptions::new().naming(scheme)).unwrap();
        let writing = lock.write().unwrap();
        revoker.request_revocation(writing.id()).unwrap();
        next(writing.revocation());
        let reading = writing.downgrade().unwrap();
        assert!(reading.revocation().is_empty(), "the writer was asked");
        revoker.request_revocation(reading.id()).unwrap();
        next(reading.revocation());
    }
}

#[test]
fn multi_guard_reports_revocations_on_one_channel() {
    let fixture = Fixture::new();
    let (_, revoker) = revoker(&fixture.zk);
    let guard = MultiLock::new(&fixture.session, ["/locks/a", "/locks/b"]).unwrap().lock().unwrap();
    for held in guard.guards() {
        revoker.request_revocation(held.id()).unwrap();
        next(guard.revocation());
    }
    assert!(guard.is_owner());
}

// ---- the revoker

#[test]
fn revoker_neither_asks_nor_deletes_other_znodes() {
    let zk = SimulatedZooKeeper::new();
    zk.create("/locks/orders", b"kept");
    zk.create("/locks/order-0000000007", b"kept");
    let (client, _session) = connect(&zk);
    client.create("/locks/member", b"kept", &Acl::open_unsafe(), CreateMode::Ephemeral).unwrap();
    let (_, revoker) = revoker(&zk);
    let revoke = |path| revoker.force_revocation_after(path, Duration::ZERO).unwrap_err();
    for path in ["/locks/orders", "/locks/order-0000000007", "/locks/member"] {
        let error = revoker.request_revocation(path).unwrap_err();
        assert_eq!(error.reason(), ErrorReason::NotALock, "{error}");
        assert!(revoke(path).reason() == ErrorReason::NotALock, "{path}");
        assert_eq!(zk.data(path).unwrap(), b"kept");
    }
    assert_eq!(revoke("/locks/x-gone-lock-0000000001").reason(), ErrorReason::NoSuchRequest);
    assert_eq!(revoke("locks/").reason(), ErrorReason::InvalidArgument);
}

#[test]
fn request_deleted_before_the_message_is_no_such_request() {
    let fixture = Fixture::new();
    let guard = fixture.guard();
    let (client, revoker) = revoker(&fixture.zk);
    let (gone, path) = (fixture.zk.clone(), guard.id().to_owned());
    client.after_next(SimOperation::Exists, move || gone.delete(&path));
    let error = revoker.request_revocation(guard.id()).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NoSuchRequest, "{error}");
}

#[test]
fn release_in_time_is_complied() {
    let fixture = Fixture::new();
    let guard = fixture.guard();
    let revoked = force(revoker(&fixture.zk).1, guard.id());
    next(guard.revocation());
    guard.unlock().unwrap();
    assert_eq!(next(&revoked).unwrap(), Revocation::Complied);
}

#[test]
fn holder_that_does_not_release_in_time_loses_the_lock() {
    let fixture = Fixture::new();
    let (lock, calls) = fixture.listening();
    assert!(lock.lock().unwrap());
    fixture.await_watches(1);
    let (_, revoker) = revoker(&fixture.zk);
    let revoked = revoker.force_revocation_after(&lock.id().unwrap(), Duration::from_millis(20)).unwrap();
    assert_eq!(revoked, Revocation::Forced);
    let first: Vec<Call> = (0..2).map(|_| next(&calls)).collect();
    // The holder may notice the deletion before the message.
    let last = if first[1] == Call::Asked { next(&calls) } else { first[1] };
    assert_eq!((first[0], last), (Call::Acquired, Call::Lost(LossReason::NodeDeleted)));
}

#[test]
fn write_before_the_deletion_does_not_prevent_it() {
    let fixture = Fixture::new();
    let guard = fixture.guard();
    let (client, revoker) = revoker(&fixture.zk);
    let (other, path) = (fixture.zk.clone(), guard.id().to_owned());
    client.before_next(SimOperation::Delete, move || other.set_data(&path, b"unlock"));
    assert_eq!(revoker.force_revocation_after(guard.id(), Duration::ZERO).unwrap(), Revocation::Forced);
    assert_eq!(fixture.zk.calls(SimOperation::Delete), 2);
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
}

#[test]
fn release_just_before_the_deletion_is_complied() {
    for step in [SimOperation::Exists, SimOperation::Delete] {
        let fixture = Fixture::new();
        let guard = fixture.guard();
        let (client, revoker) = revoker(&fixture.zk);
        let (gone, path, other_client) = (fixture.zk.clone(), guard.id().to_owned(), Arc::clone(&client));
        client.after_next(SimOperation::Exists, move || {
            other_client.before_next(step, move || gone.delete(&path));
        });
        let revoked = revoker.force_revocation_after(guard.id(), Duration::ZERO).unwrap();
        assert_eq!(revoked, Revocation::Complied, "{step:?}");
    }
}

#[test]
fn later_request_of_the_same_name_is_not_deleted() {
    let fixture = Fixture::new();
    let session = Some(fixture.client.session_id());
    let first = fixture.zk.create_sequential(DIR, "write-", session);
    let (client, revoker) = revoker(&fixture.zk);
    let (zk, path) = (fixture.zk.clone(), first.clone());
    client.after_next(SimOperation::Exists, {
        let client = Arc::clone(&client);
        move || {
            client.before_next(SimOperation::Exists, move || {
                zk.delete(&path);
                zk.set_sequence(DIR, 0);
                assert_eq!(zk.create_sequential(DIR, "write-", session), path);
            });
        }
    });
    assert_eq!(revoker.force_revocation_after(&first, Duration::ZERO).unwrap(), Revocation::Complied);
    assert!(fixture.zk.exists(&first));
}

#[test]
fn revocation_survives_a_lost_reply_at_any_step() {
    for operation in
        [SimOperation::SetData, SimOperation::Exists, SimOperation::GetData, SimOperation::Delete]
    {
        for when in [Effect::Before, Effect::After] {
            let fixture = Fixture::new();
            let guard = fixture.guard();
            let (client, revoker) = revoker(&fixture.zk);
            client.fail_next(operation, when, ZkError::ConnectionLoss);
            let revoked = revoker.force_revocation_after(guard.id(), Duration::from_millis(20)).unwrap();
            assert_eq!(revoked, Revocation::Forced, "{operation:?} {when:?}");
            assert_eq!(client.pending_faults(), 0, "{operation:?} {when:?}");
            assert!(!fixture.zk.exists(guard.id()));
        }
    }
}

#[test]
fn holder_that_releases_before_the_message_is_repeated_has_complied() {
    for is_forced in [false, true] {
        let fixture = Fixture::new();
        let guard = fixture.guard();
        let (client, revoker) = revoker(&fixture.zk);
        let (gone, path, other_client) = (fixture.zk.clone(), guard.id().to_owned(), Arc::clone(&client));
        client.after_next(SimOperation::Exists, move || {
            other_client.fail_next(SimOperation::SetData, Effect::After, ZkError::ConnectionLoss);
            other_client.before_next(SimOperation::Exists, move || gone.delete(&path));
        });
        match is_forced {
            true => {
                let revoked = revoker.force_revocation_after(guard.id(), LONG).unwrap();
                assert_eq!(revoked, Revocation::Complied);
            }
            false => {
                let error = revoker.request_revocation(guard.id()).unwrap_err();
                assert_eq!(error.reason(), ErrorReason::NoSuchRequest, "{error}");
            }
        }
        assert_eq!(client.pending_faults(), 0);
    }
}

/// Only a lost reply to the deletion itself leaves open who has deleted the znode.
#[test]
fn release_before_a_deletion_was_sent_is_complied() {
    let fixture = Fixture::new();
    let guard = fixture.guard();
    let (client, revoker) = revoker(&fixture.zk);
    let (zk, path) = (fixture.zk.clone(), guard.id().to_owned());
    client.after_next(SimOperation::Exists, {
        let client = Arc::clone(&client);
        move || {
            // The second check precedes the deletion.
            client.before_next(SimOperation::Exists, move || zk.delete(&path));
            client.fail_next(SimOperation::Exists, Effect::Before, ZkError::ConnectionLoss);
        }
    });
    let revoked = revoker.force_revocation_after(guard.id(), Duration::ZERO);
    assert_eq!(revoked.unwrap(), Revocation::Complied);
    assert_eq!(client.pending_faults(), 0);
}

#[test]
fn release_while_the_revoker_is_disconnected_is_complied() {
    let fixture = Fixture::new();
    let guard = fixture.guard();
    let (client, revoker) = revoker(&fixture.zk);
    let revoked = force(revoker, guard.id());
    // One watch of the holder, and one of the revoker.
    fixture.await_watches(2);
    client.disconnect();
    drop(guard);
    eventually("the lock is released", || fixture.zk.children(DIR).is_empty());
    client.reconnect();
    assert_eq!(next(&revoked).unwrap(), Revocation::Complied);
}

#[test]
fn release_without_an_event_is_complied() {
    for read_checks in [ReadChecks::ReadsOnly, ReadChecks::Events] {
        let fixture = Fixture::new();
        fixture.zk.set_read_checks(read_checks);
        let no_read = Acl::new(Permissions::DELETE | Permissions::WRITE, "world", "anyone");
        let guard = BlockingWriteLock::with_options(&fixture.session, DIR, LockOptions::new().acl([no_read]))
            .unwrap()
            .lock()
            .unwrap();
        let (_, revoker) = revoker(&fixture.zk);
        fixture.zk.clear_log();
        let revoked = force(revoker, guard.id());
        eventually("the znode was read", || fixture.looks() > 0);
        drop(guard);
        assert_eq!(next(&revoked).unwrap(), Revocation::Complied, "{read_checks:?}");
    }
}

#[test]
fn revoker_fails_at_once_when_its_session_ends() {
    let fixture = Fixture::new();
    let guard = fixture.guard();
    let (client, session) = connect(&fixture.zk);
    let revoked = force(Revoker::new(&session), guard.id());
    fixture.await_watches(2);
    client.expire();
    let error = next(&revoked).unwrap_err();
    assert!(error.is_session_lost(), "{error}");
    await_no_registration(&session);
    assert!(guard.is_owner());
}

#[test]
fn holder_gets_the_message_of_its_library_and_takes_up_both() {
    for (scheme, message) in [
        (NamingScheme::Recipe, &b"unlock"[..]),
        (NamingScheme::Curator, b"__REVOKE__"),
        (NamingScheme::Kazoo, b"unlock"),
    ] {
        let fixture = Fixture::new();
        let options = LockOptions::new().naming(scheme);
        let lock = BlockingWriteLock::with_options(&fixture.session, DIR, options).unwrap();
        let guard = lock.lock().unwrap();
        Revoker::new(&fixture.session).request_revocation(guard.id()).unwrap();
        assert_eq!(fixture.zk.data(guard.id()).unwrap(), message, "{scheme:?}");
        next(guard.revocation());
        drop(guard);
        for asked in [&b"unlock"[..], b"__REVOKE__"] {
            let guard = lock.lock().unwrap();
            fixture.zk.set_data(guard.id(), asked);
            next(guard.revocation());
            assert!(guard.is_owner());
            drop(guard);
        }
    }
}

#[test]
fn holder_of_a_permit_is_asked_for_it() {
    let fixture = Fixture::new();
    let permit = crate::locks::Semaphore::new(&fixture.session, DIR, 1).unwrap().acquire().unwrap();
    assert!(permit.revocation().is_empty());
    Revoker::new(&fixture.session).request_revocation(permit.id()).unwrap();
    next(permit.revocation());
    assert!(permit.is_owner());
}

// ---- servers that have diverged from the others

#[test]
fn request_that_only_the_connected_server_shows_is_not_said_to_be_gone() {
    let fixture = Fixture::new();
    let guard = fixture.guard();
    let (client, revoker) = revoker(&fixture.zk);
    client.keep_showing(guard.id());
    fixture.zk.delete(guard.id());
    let asked = revoker.request_revocation(guard.id()).unwrap_err();
    let forced = revoker.force_revocation_after(guard.id(), Duration::ZERO).unwrap_err();
    for error in [asked, forced] {
        assert_eq!(error.reason(), ErrorReason::ServerDiverged, "{error}");
        assert_eq!(error.path(), Some(guard.id()));
    }
}

#[test]
fn request_that_only_the_connected_server_shows_after_the_grace_is_not_said_to_be_gone() {
    let fixture = Fixture::new();
    let guard = fixture.guard();
    let (client, revoker) = revoker(&fixture.zk);
    client.keep_showing(guard.id());
    let (gone, path) = (fixture.zk.clone(), guard.id().to_owned());
    client.before_next(SimOperation::Delete, move || gone.delete(&path));
    let error = revoker.force_revocation_after(guard.id(), Duration::ZERO).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::ServerDiverged, "{error}");
    assert_eq!(client.pending_faults(), 0);
}

#[test]
fn server_that_lags_behind_or_shows_a_new_znode_of_the_same_name_has_not_diverged() {
    for is_new in [false, true] {
        let fixture = Fixture::new();
        let guard = fixture.guard();
        let (client, revoker) = revoker(&fixture.zk);
        let (path, czxid) =
            (ZNodePath::parse(guard.id()).unwrap(), fixture.zk.stat(guard.id()).unwrap().czxid);
        if !is_new {
            client.lag_until_next_write();
        }
        fixture.zk.delete(guard.id());
        if is_new {
            fixture.zk.create(guard.id(), b"");
        }
        revoker.support.session().core().check_gone(Operation::REVOKE, &path, czxid).unwrap();
    }
}
