//! Tests of trackers of one znode, on the fake server.

use std::sync::Arc;
use std::time::Duration;

use super::{Look, Subject, Tracking, View};
use crate::client::{Acl, CreateMode, Permissions, Verbs};
use crate::data::{NodeTracker, RecoverableZooKeeper};
use crate::error::ZkError;
use crate::fake::{Effect, ReadChecks, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::queue::LockDirectory;
use crate::recipe::path::ZNodePath;
use crate::session::OnNewSession;
use crate::tests::{deadline, eventually, in_background, next, replacing_session, session_by_factory};
use crate::{CancelToken, ErrorReason, LockError, RetryPolicy, Session, Wait};

const PATH: &str = "/config/limit";
const LONG: Duration = Duration::from_secs(30);

fn connected() -> (SimulatedZooKeeper, Arc<SimulatedClient>, Session) {
    let zk = SimulatedZooKeeper::new();
    let client = zk.connect(LONG);
    let session = client.open_session().unwrap();
    (zk, client, session)
}

fn tracker(session: &Session) -> NodeTracker {
    NodeTracker::start(session, PATH, Wait::forever()).unwrap()
}

fn seen(tracker: &NodeTracker) -> Option<String> {
    tracker.current().unwrap().map(|node| String::from_utf8_lossy(&node.data).into_owned())
}

fn next_seen(tracker: &NodeTracker) -> Option<String> {
    next(tracker.changes());
    seen(tracker)
}

#[test]
fn tracker_reports_creation_change_and_deletion() {
    let (zk, _client, session) = connected();
    let tracker = tracker(&session);
    assert_eq!(seen(&tracker), None);
    for round in ["first", "second"] {
        zk.create(PATH, round.as_bytes());
        assert_eq!(next_seen(&tracker).as_deref(), Some(round));
        zk.set_data(PATH, b"changed");
        assert_eq!(next_seen(&tracker).as_deref(), Some("changed"));
        zk.delete(PATH);
        assert_eq!(next_seen(&tracker), None);
    }
    assert!(tracker.changes().is_empty());
}

#[test]
fn tracker_continues_after_a_panic_of_the_client() {
    let (zk, client, session) = connected();
    zk.create(PATH, b"first");
    let tracker = tracker(&session);
    // `resume_unwind` skips the panic hook, which would print the panic.
    client.before_next(SimOperation::GetData, || {
        std::panic::resume_unwind(Box::new("a client panics on purpose"));
    });
    zk.set_data(PATH, b"second");
    assert_eq!(next_seen(&tracker).as_deref(), Some("second"));
}

#[test]
fn new_tracker_knows_an_existing_znode() {
    let (zk, client, session) = connected();
    zk.create(PATH, b"\xff10");
    zk.clear_log();
    let tracker = tracker(&session);
    let node = tracker.current().unwrap().unwrap();
    assert_eq!(*node.data, *b"\xff10");
    assert_eq!(node.stat.czxid, zk.stat(PATH).unwrap().czxid);
    assert!(tracker.changes().is_empty(), "the first value is not a change");
    assert_eq!(zk.calls(SimOperation::GetData), 1);
    // A change of the znode's children does not count.
    zk.create(&format!("{PATH}/child"), b"");
    client.exists(PATH, false).unwrap();
    assert_eq!(zk.calls(SimOperation::GetData), 1);
}

#[test]
fn data_includes_the_mark_and_unmarked_data_does_not() {
    let (zk, _client, session) = connected();
    let writer = RecoverableZooKeeper::new(&session, RetryPolicy::default());
    zk.create("/config", b"");
    writer.create(PATH, b"10", &Acl::open_unsafe(), CreateMode::Persistent).unwrap();
    let node = tracker(&session).current().unwrap().unwrap();
    assert_eq!(*node.data, *zk.data(PATH).unwrap());
    assert_eq!(node.unmarked_data(), b"10");
    zk.set_data(PATH, b"11");
    let node = tracker(&session).current().unwrap().unwrap();
    assert_eq!((&*node.data, node.unmarked_data()), (&b"11"[..], &b"11"[..]));
}

#[test]
fn znode_created_or_deleted_during_the_look_is_noticed() {
    for operation in [SimOperation::GetData, SimOperation::Exists] {
        for (after, deleted_again) in [(false, false), (true, false), (false, true), (true, true)] {
            let (zk, client, session) = connected();
            let other = zk.clone();
            let act = move || {
                other.create(PATH, b"new");
                if deleted_again {
                    other.delete(PATH);
                }
            };
            match after {
                true => client.after_next(operation, act),
                false => client.before_next(operation, act),
            }
            let tracker = tracker(&session);
            let expected = (!deleted_again).then_some("new");
            let what = format!("{operation:?} after={after} deleted={deleted_again}");
            eventually(&what, || seen(&tracker).as_deref() == expected);
        }
    }
}

#[test]
fn change_during_an_outage_is_noticed_after_it() {
    let (zk, client, session) = connected();
    zk.create(PATH, b"old");
    let tracker = tracker(&session);
    client.disconnect();
    zk.set_data(PATH, b"new");
    assert_eq!(seen(&tracker).as_deref(), Some("old"), "the last known value");
    client.reconnect();
    assert_eq!(next_seen(&tracker).as_deref(), Some("new"));
    client.disconnect();
    zk.delete(PATH);
    client.reconnect();
    assert_eq!(next_seen(&tracker), None);
    zk.create(PATH, b"again");
    assert_eq!(next_seen(&tracker).as_deref(), Some("again"));
    client.disconnect();
    zk.delete(PATH);
    zk.create(PATH, b"another");
    client.reconnect();
    assert_eq!(next_seen(&tracker).as_deref(), Some("another"));
}

#[test]
fn failed_look_is_retried() {
    for operation in [SimOperation::GetData, SimOperation::Exists] {
        for when in [Effect::Before, Effect::After] {
            let (zk, client, session) = connected();
            let tracker = tracker(&session);
            client.fail_next(operation, when, ZkError::ConnectionLoss);
            zk.create(PATH, b"1");
            eventually("its creation is noticed", || seen(&tracker).as_deref() == Some("1"));
            zk.delete(PATH);
            eventually("its deletion is noticed", || seen(&tracker).is_none());
            assert_eq!(client.pending_faults(), 0);
        }
    }
}

#[test]
fn tracker_started_during_an_outage_waits_for_its_end() {
    let (zk, client, session) = connected();
    zk.create(PATH, b"1");
    client.disconnect();
    let tracking = in_background(move || tracker(&session));
    eventually("the tracker has tried to read", || zk.calls(SimOperation::GetData) > 0);
    client.reconnect();
    assert_eq!(seen(&next(&tracking)).as_deref(), Some("1"));
}

// ---- waits

#[test]
fn wait_ends_on_creation_deletion_or_timeout() {
    let (zk, _client, session) = connected();
    let tracker = Arc::new(tracker(&session));
    assert!(tracker.wait_deleted(Duration::ZERO).unwrap());
    assert_eq!(tracker.wait_available(Duration::from_millis(1)).unwrap(), None);
    let of_thread = Arc::clone(&tracker);
    let waiting = in_background(move || of_thread.wait_available(Duration::MAX).unwrap());
    zk.create(PATH, b"1");
    assert_eq!(*next(&waiting).unwrap().data, *b"1");
    assert!(!tracker.wait_deleted(Duration::from_millis(1)).unwrap());
    let waiting = in_background(move || tracker.wait_deleted(Duration::MAX).unwrap());
    zk.set_data(PATH, b"2");
    zk.delete(PATH);
    assert!(next(&waiting));
}

#[test]
fn wait_is_cancelled_by_another_thread() {
    let (_zk, _client, session) = connected();
    let tracker = tracker(&session);
    let cancel = CancelToken::new();
    let wait = Wait::forever().cancelled_by(&cancel);
    let waiting = in_background(move || tracker.wait_available(&wait));
    cancel.cancel();
    assert!(matches!(next(&waiting), Err(ref error) if error.reason() == ErrorReason::Cancelled));
}

#[test]
fn session_end_ends_every_wait_and_disconnects_the_channel() {
    for closes in [false, true] {
        let (_zk, client, session) = connected();
        let tracker = Arc::new(tracker(&session));
        let is_expected = if closes { LockError::is_closed } else { LockError::is_session_lost };
        let of_thread = Arc::clone(&tracker);
        let waiting = in_background(move || of_thread.wait_available(Duration::MAX));
        if closes {
            session.close()
        } else {
            client.expire()
        }
        assert!(is_expected(&next(&waiting).unwrap_err()));
        assert!(is_expected(&tracker.current().unwrap_err()));
        next(tracker.changes());
        let end = tracker.changes().recv_timeout(deadline());
        assert!(end.is_err_and(|error| error.is_disconnected()), "one message, then the end");
        assert!(is_expected(&NodeTracker::start(&session, PATH, Wait::forever()).unwrap_err()));
        assert!(session.core().census().0 == 0);
    }
}

#[test]
fn stuck_first_look_ends_with_the_session() {
    let zk = SimulatedZooKeeper::new();
    let client = zk.connect(Duration::from_secs(3));
    let session = client.open_session().unwrap();
    client.swallow_next(SimOperation::GetData, Effect::Before);
    assert!(NodeTracker::start(&session, PATH, Wait::forever()).unwrap_err().is_session_lost());
    client.release();
}

// ---- denied permissions

#[test]
fn znode_without_read_permission_is_an_error_until_granted() {
    let (zk, _client, session) = connected();
    // This server reports the creation even though the client may not read the new znode.
    zk.set_read_checks(ReadChecks::ReadsOnly);
    let secret = [Acl::new(Permissions::DELETE, "world", "anyone")];
    zk.create_with_acl(PATH, b"secret", &secret);
    let error = NodeTracker::start(&session, PATH, Wait::forever()).unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains(PATH), "{error}");
    zk.delete(PATH);
    let tracker = tracker(&session);
    zk.create_with_acl(PATH, b"secret", &secret);
    eventually("the read is refused", || tracker.current().is_err_and(|error| error.is_access_denied()));
    assert!(tracker.wait_available(deadline()).unwrap_err().is_access_denied());
    zk.delete(PATH);
    zk.create(PATH, b"public");
    eventually("the znode is read", || tracker.current().is_ok_and(|node| node.is_some()));
    let error = NodeTracker::start(&session, "config", Wait::forever()).unwrap_err();
    assert!(error.is_invalid_argument(), "{error}");
}

// ---- resources

#[test]
fn trackers_dropped_at_any_moment_leave_no_registration() {
    let (zk, client, session) = connected();
    for round in 0..100 {
        let tracker = tracker(&session);
        match round % 2 {
            0 => zk.create(PATH, b""),
            _ => zk.delete(PATH),
        }
        drop(tracker);
    }
    drop(tracker(&session));
    eventually("no look is under way", || {
        zk.log().iter().all(|call| call.outcome.is_some()) && zk.watch_count() <= 1
    });
    let registry = session.core().census();
    assert!(registry == (0, 0), "{registry:?}");
    zk.clear_log();
    zk.create(PATH, b"");
    client.exists(PATH, false).unwrap();
    assert_eq!(zk.log().len(), 1, "no tracker looks again");
}

#[test]
fn tracker_keeps_its_session_open_until_dropped() {
    let (zk, _client, session) = connected();
    let tracker = tracker(&session);
    drop(session);
    zk.create(PATH, b"1");
    assert_eq!(next_seen(&tracker).as_deref(), Some("1"));
    drop(tracker);
    eventually("the session is closed", || zk.sessions().is_empty());
}

// ---- sessions that are replaced

#[test]
fn tracker_survives_the_replacement_of_its_session() {
    let zk = SimulatedZooKeeper::new();
    zk.create(PATH, b"0");
    let (session, clients) = replacing_session(&zk, LONG);
    let tracker = tracker(&session);
    for round in ["1", "2", "3"] {
        let client = next(&clients);
        client.disconnect();
        zk.set_data(PATH, round.as_bytes());
        client.expire();
        client.report_expiry();
        assert_eq!(next_seen(&tracker).as_deref(), Some(round), "the loss is not reported");
    }
    session.close();
    assert!(tracker.wait_deleted(Duration::MAX).unwrap_err().is_closed());
    assert!(tracker.changes().recv_timeout(deadline()).is_ok());
    assert!(tracker.changes().recv_timeout(deadline()).is_err_and(|error| error.is_disconnected()));
}

#[test]
fn late_answer_of_a_lost_session_is_ignored() {
    let zk = SimulatedZooKeeper::new();
    zk.create(PATH, b"old");
    let (session, clients) = replacing_session(&zk, Duration::from_secs(3));
    let tracker = tracker(&session);
    let (first, core) = (next(&clients), Arc::downgrade(&session.core()));
    first.swallow_next(SimOperation::GetData, Effect::After);
    zk.set_data(PATH, b"read, but never received");
    eventually("the data is read", || first.pending_faults() == 0);
    zk.set_data(PATH, b"new");
    assert_eq!(next_seen(&tracker).as_deref(), Some("new"), "on the next session");
    first.release();
    eventually("the late answer has arrived", || core.strong_count() == 0);
    assert_eq!(seen(&tracker).as_deref(), Some("new"));
}

#[test]
fn close_during_replacement_ends_every_wait() {
    let zk = SimulatedZooKeeper::new();
    let first = zk.connect(LONG);
    let client = std::sync::Mutex::new(Some(Arc::clone(&first)));
    // The factory makes no second client.
    let session = session_by_factory(move || match client.lock().unwrap().take() {
        Some(client) => Ok(client),
        None => Err(LockError::from_client("connect", "", ZkError::SessionExpired)),
    })
    .unwrap();
    let tracker = tracker(&session);
    first.expire();
    eventually("the loss is noticed", || session.state() == crate::SessionState::Lost);
    let waiting = in_background(move || tracker.wait_available(Duration::MAX));
    session.close();
    assert!(next(&waiting).unwrap_err().is_closed());
    assert!(NodeTracker::start(&session, PATH, Wait::forever()).unwrap_err().is_closed());
}

#[test]
fn start_of_tracking_times_out_and_is_cancelled() {
    let (zk, client, session) = connected();
    client.disconnect();
    let short = Wait::timeout(Duration::from_millis(20));
    assert!(NodeTracker::start(&session, PATH, &short).unwrap_err().is_connection_loss());
    let dir = LockDirectory::new(&session, "/locks").unwrap();
    assert!(dir.watch_leader(&short).unwrap_err().is_connection_loss());
    let cancel = CancelToken::new();
    cancel.cancel();
    let error = dir.watch_queue(Wait::forever().cancelled_by(&cancel)).unwrap_err();
    assert_eq!((error.reason(), error.path()), (ErrorReason::Cancelled, Some("/locks")), "{error}");
    client.reconnect();
    let tracker = NodeTracker::start(&session, PATH, deadline()).unwrap();
    zk.create(PATH, b"1");
    assert_eq!(next_seen(&tracker).as_deref(), Some("1"));
}

/// The data of one znode.
struct Data(ZNodePath);

impl Subject for Data {
    type Value = Option<Vec<u8>>;

    fn path(&self) -> &ZNodePath {
        &self.0
    }

    fn look(self: &Arc<Self>) -> Look<Option<Vec<u8>>> {
        let data = Arc::clone(self);
        Look::data(&self.0, move |seen| match seen {
            Ok((data, _)) => Look::Seen(Some(data)),
            Err(ZkError::NoNode) => Look::absence(&data.0, None),
            Err(error) => Look::Failed(error),
        })
    }
}

#[test]
fn news_of_the_session_on_which_the_tracking_began_changes_nothing() {
    let (zk, _client, session) = connected();
    let data = Data(ZNodePath::parse(PATH).unwrap());
    let tracking = Tracking::start(&session, data, &Wait::forever()).unwrap();
    tracking.inner.new_session();
    zk.create(PATH, b"new");
    next(tracking.changes());
    assert_eq!(tracking.current().unwrap().as_deref(), Some(&b"new"[..]));
}

#[test]
fn what_a_lost_session_sees_after_its_replacement_changes_nothing() {
    let zk = SimulatedZooKeeper::new();
    let (session, clients) = replacing_session(&zk, LONG);
    let data = Data(ZNodePath::parse(PATH).unwrap());
    let tracking = Tracking::start(&session, data, &Wait::forever()).unwrap();
    let (first, lost) = (next(&clients), session.core());
    first.disconnect();
    zk.create(PATH, b"new");
    first.expire();
    first.report_expiry();
    next(tracking.changes());
    assert!(!tracking.inner.show(&lost, View::Seen(None)));
    assert_eq!(tracking.current().unwrap().as_deref(), Some(&b"new"[..]));
    assert!(tracking.inner.show(&session.core(), View::Seen(None)));
}
