//! Who holds a lock, and who waits.

use crossbeam_channel::{bounded, unbounded};
use zookeeper::ZkError;

use super::*;
use crate::directory::reading::READERS;
use crate::sim::Effect;
use crate::{BlockingWriteLock, LockKind, WriteLock};

// ---- contenders

#[test]
fn contenders_stand_in_the_order_of_the_queue_with_what_each_wrote() {
    let place = Place::with_directory();
    let first = place.request("z-lock-", b"host/1");
    let second = place.request("_c_a-__READ__", b"");
    let third = place.left_over("a__lock__");
    let contenders = place.contenders();
    assert_eq!(paths(&contenders), [&first, &second, &third]);
    assert_eq!(contenders[0].data(), Some(&b"host/1"[..]));
    assert_eq!(
        contenders.iter().map(LockInfo::kind).collect::<Vec<_>>(),
        [LockKind::Exclusive, LockKind::Read, LockKind::Exclusive]
    );
    let sessions: Vec<_> = contenders.iter().map(LockInfo::ephemeral_owner).collect();
    assert_eq!(sessions, [Some(STRANGER), Some(STRANGER), None]);
    assert_eq!(contenders[0].czxid(), place.zk.stat(&first).map(|stat| stat.czxid));
}

#[test]
fn contenders_are_the_locks_of_this_crate_with_the_data_set() {
    let place = Place::new();
    let locks: Vec<WriteLock> = (0..3).map(|_| WriteLock::new(place.session(), DIR, None).unwrap()).collect();
    locks[1].set_data(b"mine").unwrap();
    for lock in &locks {
        lock.lock().unwrap();
    }
    let ids: Vec<String> = locks.iter().filter_map(WriteLock::id).collect();
    let contenders = place.contenders();
    assert_eq!(paths(&contenders), ids);
    assert_eq!(contenders[1].data_lossy(), "mine");
    assert!(contenders[0].data_lossy().ends_with(&format!("/{}", std::process::id())));
    assert_eq!(contenders[0].ephemeral_owner(), Some(place.client.session_id()));
}

#[test]
fn a_directory_that_is_missing_empty_or_of_others_has_no_contenders() {
    let place = Place::new();
    assert!(place.contenders().is_empty());
    place.zk.create(DIR, b"");
    assert!(place.contenders().is_empty());
    place.zk.create(&format!("{DIR}/config"), b"");
    place.zk.create(&format!("{DIR}/x-3"), b"");
    assert!(place.contenders().is_empty());
    assert_eq!(place.directory.current_owner().unwrap(), None);
    assert!(place.directory.current_owners().unwrap().is_empty());
}

#[test]
fn a_request_that_goes_between_the_listing_and_its_reading_is_left_out() {
    let place = Place::with_directory();
    let requests: Vec<String> = (0..3).map(|_| place.request("x-lock-", b"")).collect();
    let (zk, gone) = (place.zk.clone(), requests[1].clone());
    place.client.after_next(SimOperation::GetChildren, move || zk.delete(&gone));
    assert_eq!(paths(&place.contenders()), [&requests[0], &requests[2]]);
}

#[test]
fn a_visitor_sees_each_request_in_the_order_of_the_queue() {
    let place = Place::with_directory();
    for data in [b"a", b"b", b"c"] {
        place.request("x-lock-", data);
    }
    let mut seen = Vec::new();
    place.directory.visit(|request| seen.push(request.data_lossy().into_owned())).unwrap();
    assert_eq!(seen, ["a", "b", "c"]);
}

#[test]
fn a_request_that_may_not_be_read_has_its_name_alone() {
    for read_checks in [ReadChecks::ReadsOnly, ReadChecks::Events, ReadChecks::EventsAndExists] {
        let place = Place::with_directory();
        place.zk.set_read_checks(read_checks);
        place.request("x-a-lock-", b"open");
        place.zk.create_with_acl(&format!("{DIR}/x-b-lock-0000000001"), b"secret", &nobody_may_read());
        let contenders = place.contenders();
        assert_eq!(names(&contenders), ["x-a-lock-0000000000", "x-b-lock-0000000001"]);
        assert_eq!(contenders[1].data(), None);
        let is_known = read_checks != ReadChecks::EventsAndExists;
        assert_eq!(contenders[1].czxid().is_some(), is_known, "{read_checks:?}");
        assert!(contenders[1].to_string().contains("READ denied"));
    }
}

#[test]
fn a_directory_that_may_not_be_read_is_an_error_that_names_the_permission() {
    let place = Place::new();
    place.zk.create_with_acl(DIR, b"", &nobody_may_read());
    let errors = [
        place.directory.contenders().unwrap_err(),
        place.directory.current_owner().unwrap_err(),
        place.directory.current_owners().unwrap_err(),
        place.directory.reap_all().unwrap_err(),
        place.directory.remove_if_empty().unwrap_err(),
        place.directory.watch_leader().unwrap_err(),
        place.directory.watch_queue().unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_access_denied() && error.to_string().contains("READ"), "{error}");
    }
}

#[test]
fn a_thousand_contenders_are_read_in_order_and_leave_workers_for_others() {
    let place = Place::with_directory();
    let requests: Vec<String> =
        (0..1000).map(|number| place.request(&format!("x-{}-lock-", number % 7), b"")).collect();
    let lock = BlockingWriteLock::new(place.session(), "/locks/other", None).unwrap();
    // As many readers as there may be are held up, each in a call.
    let (go, held_up) = bounded::<()>(0);
    let (began, reading) = unbounded();
    for _ in 0..READERS {
        let (held_up, began) = (held_up.clone(), began.clone());
        place.client.before_next(SimOperation::GetData, move || {
            began.send(()).unwrap();
            let _ = held_up.recv();
        });
    }
    let directory = place.directory.clone();
    let contenders = in_background(move || directory.contenders().unwrap());
    for _ in 0..READERS {
        next(&reading);
    }
    lock.lock().unwrap().unlock().unwrap();
    drop(go);
    assert_eq!(paths(&next(&contenders)), requests);
    assert_eq!(place.zk.calls(SimOperation::GetData), 1000);
}

#[test]
fn a_call_whose_connection_is_lost_fails_and_the_next_succeeds() {
    for (operation, when) in [
        (SimOperation::GetChildren, Effect::Before),
        (SimOperation::GetChildren, Effect::After),
        (SimOperation::GetData, Effect::Before),
        (SimOperation::GetData, Effect::After),
    ] {
        let place = Place::with_directory();
        (0..100).for_each(|_| drop(place.request("x-lock-", b"")));
        place.client.fail_next(operation, when, ZkError::ConnectionLoss);
        let error = place.directory.contenders().unwrap_err();
        assert!(error.is_connection_loss(), "{error}");
        assert_eq!(place.contenders().len(), 100);
    }
}

#[test]
fn a_session_that_ends_ends_every_call() {
    for operation in [SimOperation::GetChildren, SimOperation::GetData, SimOperation::Delete] {
        let place = Place::with_directory();
        (0..100).for_each(|_| drop(place.left_over("x-lock-")));
        let expiring = Arc::clone(&place.client);
        place.client.before_next(operation, move || expiring.expire());
        let error = place.directory.reap_all().unwrap_err();
        assert!(error.is_session_lost(), "{operation:?}: {error}");
        assert!(place.directory.contenders().unwrap_err().is_session_lost());
    }
    let place = Place::with_directory();
    place.session().close();
    assert!(place.directory.contenders().unwrap_err().is_closed());
    assert!(place.directory.remove_if_empty().unwrap_err().is_closed());
}

#[test]
fn a_call_that_is_stuck_ends_with_the_session() {
    let zk = SimulatedZooKeeper::new();
    let client = zk.connect(Duration::from_millis(600));
    let session = Session::from_client(client.clone()).unwrap();
    let directory = LockDirectory::new(&session, DIR).unwrap();
    (0..100).for_each(|_| drop(zk.create_sequential(DIR, "x-lock-", None)));
    client.swallow_next(SimOperation::GetData, Effect::After);
    let error = directory.contenders().unwrap_err();
    assert!(error.is_session_lost(), "{error}");
    client.release();
}

// ---- owners

#[test]
fn the_first_request_that_is_still_there_is_the_owner() {
    let place = Place::with_directory();
    let requests: Vec<String> = (0..50).map(|_| place.request("x-lock-", b"")).collect();
    place.zk.clear_log();
    assert_eq!(place.directory.current_owner().unwrap().unwrap().path(), requests[0]);
    assert_eq!(place.zk.calls(SimOperation::GetData), 1, "nobody else is read");
    let (zk, gone) = (place.zk.clone(), requests.clone());
    place.client.after_next(SimOperation::GetChildren, move || {
        gone[..2].iter().for_each(|path| zk.delete(path));
    });
    assert_eq!(place.directory.current_owner().unwrap().unwrap().path(), requests[2]);
}

#[test]
fn readers_before_the_first_writer_own_together() {
    let place = Place::with_directory();
    let readers = [place.request("read-a-", b""), place.request("_c_b-__READ__", b"")];
    place.request("write-c-", b"");
    place.request("read-d-", b"");
    assert_eq!(paths(&place.directory.current_owners().unwrap()), readers);
    let contenders = place.contenders();
    assert_eq!(paths(LockInfo::owners(&contenders)), readers);
}

#[test]
fn owners_that_go_while_they_are_read_make_room_for_the_next() {
    let place = Place::with_directory();
    let writer = place.request("write-a-", b"");
    let readers = [place.request("read-b-", b""), place.request("read-c-", b"")];
    place.request("write-d-", b"");
    assert_eq!(paths(&place.directory.current_owners().unwrap()), [&writer]);
    let zk = place.zk.clone();
    place.client.before_next(SimOperation::GetData, move || zk.delete(&writer));
    assert_eq!(paths(&place.directory.current_owners().unwrap()), readers);
}
