//! Tests of contenders and owners.

use super::*;
use crate::Wait;
use crate::error::ZkError;
use crate::fake::Effect;
use crate::queue::reading::AT_ONCE;
use crate::recipe::LockKind;
use crate::tests::{Request, SteppedClient, open_client};
use crate::{LockOptions, WriteLock};

// ---- contenders

fn owners(fixture: &Fixture) -> Vec<LockInfo> {
    LockInfo::owners(&fixture.directory.contenders().unwrap()).to_vec()
}

#[test]
fn contenders_are_in_queue_order_with_their_data() {
    let fixture = Fixture::with_directory();
    let first = fixture.request("z-lock-", b"host/1");
    let second = fixture.request("_c_a-__READ__", b"");
    let third = fixture.persistent_request("a__lock__");
    let contenders = fixture.contenders();
    assert_eq!(paths(&contenders), [&first, &second, &third]);
    assert_eq!(contenders[0].data.as_deref(), Some(&b"host/1"[..]));
    assert_eq!(
        contenders.iter().map(|request| request.kind).collect::<Vec<_>>(),
        [LockKind::Exclusive, LockKind::Read, LockKind::Exclusive]
    );
    let sessions: Vec<_> = contenders.iter().map(|request| request.ephemeral_owner).collect();
    assert_eq!(sessions, [Some(OTHER_SESSION), Some(OTHER_SESSION), None]);
    assert_eq!(contenders[0].czxid, fixture.zk.stat(&first).map(|stat| stat.czxid));
}

#[test]
fn contenders_of_this_crate_have_the_data_option() {
    let fixture = Fixture::new();
    let new_lock = |options| WriteLock::with_options(fixture.session(), DIR, options, ()).unwrap();
    let locks = [LockOptions::new(), LockOptions::new().data("mine"), LockOptions::new()].map(new_lock);
    for lock in &locks {
        lock.lock().unwrap();
    }
    let ids: Vec<String> = locks.iter().filter_map(|lock| lock.id()).collect();
    let contenders = fixture.contenders();
    assert_eq!(paths(&contenders), ids);
    assert_eq!(contenders[1].data_lossy(), "mine");
    assert!(contenders[0].data_lossy().ends_with(&format!("/{}", std::process::id())));
    assert_eq!(contenders[0].ephemeral_owner, Some(fixture.client.session_id()));
}

#[test]
fn directory_that_is_named_as_a_request_is_none() {
    let fixture = Fixture::with_directory();
    let directory = format!("{DIR}/0000000000");
    fixture.zk.create(&format!("{directory}/child"), b"");
    assert!(fixture.contenders().is_empty());
    assert_eq!(fixture.directory.current_owner().unwrap(), None);
    let watch = fixture.directory.watch_leader(LONG).unwrap();
    assert_eq!(watch.leader().unwrap(), None);
    let first = fixture.request("z-lock-", b"");
    assert_eq!(paths(&fixture.contenders()), [&first]);
    assert_eq!(paths(&owners(&fixture)), [&first]);
    eventually("the watch finds it", || watch.leader().unwrap().is_some_and(|leader| leader.path == first));
    fixture.zk.delete(&first);
    eventually("the watch finds nobody", || watch.leader().unwrap().is_none());
    assert!(fixture.forcing().reap_expired(Duration::ZERO).unwrap().is_empty());
    // Without READ on the znode, its metadata is enough, on servers that show it.
    fixture.zk.set_read_checks(ReadChecks::Events);
    fixture.zk.set_acl(&directory, &nobody_may_read());
    assert!(fixture.contenders().is_empty());
    assert_eq!(fixture.directory.current_owner().unwrap(), None);
    let watch = fixture.directory.watch_leader(LONG).unwrap();
    assert_eq!(watch.leader().unwrap(), None);
    assert!(WriteLock::new(fixture.session(), DIR).unwrap().lock().unwrap(), "the lock passes it over");
}

/// Between the listing and the reads, the owner becomes a reader, or another request joins and the owner leaves.
#[test]
fn waiter_is_not_taken_for_an_owner_whose_znode_has_just_changed() {
    for name in ["read-a-0000000000", "x-b-lock-0000000002"] {
        for is_owner_asked in [true, false] {
            let fixture = Fixture::with_directory();
            let owner = fixture.request("write-a-", b"");
            let rest =
                if name.starts_with('x') { Vec::new() } else { vec![fixture.request("write-b-", b"")] };
            let (zk, gone, next) = (fixture.zk.clone(), owner, format!("{DIR}/{name}"));
            let created = next.clone();
            fixture.client.after_next(SimOperation::GetChildren, move || {
                zk.create(&created, b"");
                zk.delete(&gone);
            });
            if is_owner_asked {
                assert_eq!(fixture.directory.current_owner().unwrap().unwrap().path, next);
            } else {
                let contenders = fixture.contenders();
                assert_eq!(paths(LockInfo::owners(&contenders)), [&next]);
                assert_eq!(contenders.len(), 1 + rest.len());
            }
        }
    }
}

#[test]
fn missing_empty_or_unrelated_directory_has_no_contenders() {
    let fixture = Fixture::new();
    assert!(fixture.contenders().is_empty());
    fixture.zk.create(DIR, b"");
    assert!(fixture.contenders().is_empty());
    fixture.zk.create(&format!("{DIR}/config"), b"");
    fixture.zk.create(&format!("{DIR}/x-3"), b"");
    assert!(fixture.contenders().is_empty());
    assert_eq!(fixture.directory.current_owner().unwrap(), None);
    assert!(owners(&fixture).is_empty());
}

#[test]
fn request_deleted_after_the_listing_is_left_out() {
    let fixture = Fixture::with_directory();
    let requests: Vec<String> = (0..3).map(|_| fixture.request("x-lock-", b"")).collect();
    let (zk, gone) = (fixture.zk.clone(), requests[1].clone());
    fixture.client.after_next(SimOperation::GetChildren, move || zk.delete(&gone));
    assert_eq!(paths(&fixture.contenders()), [&requests[0], &requests[2]]);
}

#[test]
fn request_without_read_permission_has_only_its_name() {
    for read_checks in [ReadChecks::ReadsOnly, ReadChecks::Events, ReadChecks::EventsAndExists] {
        let fixture = Fixture::with_directory();
        fixture.zk.set_read_checks(read_checks);
        fixture.request("x-a-lock-", b"open");
        fixture.zk.create_with_acl(&format!("{DIR}/x-b-lock-0000000001"), b"secret", &nobody_may_read());
        let contenders = fixture.contenders();
        assert_eq!(names(&contenders), ["x-a-lock-0000000000", "x-b-lock-0000000001"]);
        assert_eq!(contenders[1].data, None);
        let is_known = read_checks != ReadChecks::EventsAndExists;
        assert_eq!(contenders[1].czxid.is_some(), is_known, "{read_checks:?}");
        assert!(contenders[1].to_string().contains("READ denied"));
    }
}

#[test]
fn directory_without_read_permission_is_an_error_that_names_it() {
    let fixture = Fixture::new();
    fixture.zk.create_with_acl(DIR, b"", &nobody_may_read());
    let errors = [
        fixture.directory.contenders().unwrap_err(),
        fixture.directory.current_owner().unwrap_err(),
        fixture.directory.reap_expired(Duration::ZERO).unwrap_err(),
        fixture.directory.remove_if_empty().unwrap_err(),
        fixture.directory.watch_leader(Wait::forever()).unwrap_err(),
        fixture.directory.watch_queue(Wait::forever()).unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_access_denied() && error.to_string().contains("READ"), "{error}");
    }
}

#[test]
fn reading_many_contenders_keeps_their_order_and_reads_each_once() {
    let fixture = Fixture::with_directory();
    let requests: Vec<String> =
        (0..1000).map(|number| fixture.request(&format!("x-{}-lock-", number % 7), b"")).collect();
    assert_eq!(paths(&fixture.contenders()), requests);
    assert_eq!(fixture.zk.calls(SimOperation::GetData), 1000);
}

#[test]
fn reading_many_contenders_never_makes_more_calls_at_once_than_it_may() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    (0..40).for_each(|_| drop(zk.create_sequential(DIR, "x-other-lock-", None)));
    let client = SteppedClient::new(zk.connect(LONG));
    let session = open_client(client.clone()).unwrap();
    let directory = LockDirectory::new(&session, DIR).unwrap();
    client.step_by_step();
    let contenders = in_background(move || directory.contenders().unwrap().len());
    eventually("the directory is listed", || client.requests() == 1);
    client.serve_until(Request::List);
    client.deliver();
    // As long as requests are left to read, each answer makes room for one more call.
    for _ in AT_ONCE..40 {
        eventually("all calls that may be made at once are made", || client.requests() >= AT_ONCE);
        assert_eq!(client.requests(), AT_ONCE);
        client.serve_until(Request::Other);
        client.deliver();
    }
    client.hurry();
    assert_eq!(next(&contenders), 40);
}

#[test]
fn call_fails_on_connection_loss_and_the_next_succeeds() {
    for (operation, when) in [
        (SimOperation::GetChildren, Effect::Before),
        (SimOperation::GetChildren, Effect::After),
        (SimOperation::GetData, Effect::Before),
        (SimOperation::GetData, Effect::After),
    ] {
        let fixture = Fixture::with_directory();
        (0..100).for_each(|_| drop(fixture.request("x-lock-", b"")));
        fixture.client.fail_next(operation, when, ZkError::ConnectionLoss);
        let error = fixture.directory.contenders().unwrap_err();
        assert!(error.is_connection_loss(), "{error}");
        assert_eq!(fixture.contenders().len(), 100);
    }
}

#[test]
fn every_call_fails_when_the_session_ends() {
    for operation in [SimOperation::GetChildren, SimOperation::GetData, SimOperation::Delete] {
        let fixture = Fixture::with_directory();
        (0..100).for_each(|_| drop(fixture.persistent_request("x-lock-")));
        let expiring = Arc::clone(&fixture.client);
        fixture.client.before_next(operation, move || expiring.expire());
        let error = fixture.directory.reap_expired(Duration::ZERO).unwrap_err();
        assert!(error.is_session_lost(), "{operation:?}: {error}");
        assert!(fixture.directory.contenders().unwrap_err().is_session_lost());
    }
    let fixture = Fixture::with_directory();
    fixture.session().close();
    assert!(fixture.directory.contenders().unwrap_err().is_closed());
    assert!(fixture.directory.remove_if_empty().unwrap_err().is_closed());
}

#[test]
fn stuck_call_ends_with_the_session() {
    let zk = SimulatedZooKeeper::new();
    let client = zk.connect(Duration::from_secs(3));
    let session = client.open_session().unwrap();
    let directory = LockDirectory::new(&session, DIR).unwrap();
    (0..100).for_each(|_| drop(zk.create_sequential(DIR, "x-lock-", None)));
    client.swallow_next(SimOperation::GetData, Effect::After);
    let error = directory.contenders().unwrap_err();
    assert!(error.is_session_lost(), "{error}");
    client.release();
}

// ---- owners

#[test]
fn the_first_existing_request_is_the_owner() {
    let fixture = Fixture::with_directory();
    let requests: Vec<String> = (0..50).map(|_| fixture.request("x-lock-", b"")).collect();
    fixture.zk.clear_log();
    assert_eq!(fixture.directory.current_owner().unwrap().unwrap().path, requests[0]);
    assert_eq!(fixture.zk.calls(SimOperation::GetData), 1, "no other request is read");
    let (zk, gone) = (fixture.zk.clone(), requests.clone());
    fixture.client.after_next(SimOperation::GetChildren, move || {
        gone[..2].iter().for_each(|path| zk.delete(path));
    });
    assert_eq!(fixture.directory.current_owner().unwrap().unwrap().path, requests[2]);
}

#[test]
fn readers_before_the_first_writer_own_together() {
    let fixture = Fixture::with_directory();
    let readers = [fixture.request("read-a-", b""), fixture.request("_c_b-__READ__", b"")];
    fixture.request("write-c-", b"");
    fixture.request("read-d-", b"");
    assert_eq!(paths(&owners(&fixture)), readers);
    let contenders = fixture.contenders();
    assert_eq!(paths(LockInfo::owners(&contenders)), readers);
}

#[test]
fn owners_deleted_while_read_are_replaced_by_the_next() {
    let fixture = Fixture::with_directory();
    let writer = fixture.request("write-a-", b"");
    let readers = [fixture.request("read-b-", b""), fixture.request("read-c-", b"")];
    fixture.request("write-d-", b"");
    assert_eq!(paths(&owners(&fixture)), [&writer]);
    let zk = fixture.zk.clone();
    fixture.client.before_next(SimOperation::GetData, move || zk.delete(&writer));
    assert_eq!(paths(&owners(&fixture)), readers);
}

#[test]
fn lock_beside_a_semaphore_is_a_mixture() {
    let fixture = Fixture::with_directory();
    for dir in ["leases", "locks"] {
        fixture.zk.create(&format!("{DIR}/{dir}"), b"");
    }
    assert_eq!(fixture.directory.mixed_names().unwrap(), None, "a semaphore alone");
    let request = fixture.request("x-0b2e-lock-", b"");
    let warning = fixture.directory.mixed_names().unwrap().unwrap();
    let name = request.rsplit('/').next().unwrap();
    assert!(warning.starts_with(&format!("a semaphore (leases) and a lock ({name})")), "{warning}");
}
