//! Tests of the watches on the leader and on the queue.

use super::*;
use crate::Wait;
use crate::client::Verbs;
use crate::queue::LeaderWatch;

// ---- the leader

fn leader(watch: &LeaderWatch) -> Option<String> {
    watch.leader().unwrap().map(|leader| leader.path.to_owned())
}

fn next_leader(watch: &LeaderWatch) -> Option<String> {
    next(watch.changes());
    leader(watch)
}

#[test]
fn leader_watch_reports_each_change_of_leader() {
    let fixture = Fixture::new();
    let watch = fixture.directory.watch_leader(Wait::forever()).unwrap();
    assert_eq!(leader(&watch), None);
    let first = fixture.zk.create_sequential(DIR, "x-lock-", Some(OTHER_SESSION));
    eventually("the first leads", || leader(&watch).as_ref() == Some(&first));
    let _ = watch.changes().try_recv();
    let second = fixture.zk.create_sequential(DIR, "x-lock-", Some(OTHER_SESSION));
    fixture.zk.delete(&first);
    assert_eq!(next_leader(&watch), Some(second.clone()));
    fixture.zk.delete(&second);
    assert_eq!(next_leader(&watch), None);
    let third = fixture.zk.create_sequential(DIR, "x-lock-", Some(OTHER_SESSION));
    assert_eq!(next_leader(&watch), Some(third.clone()));
    fixture.zk.set_data(&third, b"moved");
    next(watch.changes());
    assert_eq!(watch.leader().unwrap().unwrap().data_lossy(), "moved");
    fixture.zk.delete(&third);
    fixture.zk.delete(DIR);
    eventually("there is no leader", || leader(&watch).is_none());
    let fourth = fixture.zk.create_sequential(DIR, "x-lock-", Some(OTHER_SESSION));
    eventually("the fourth leads", || leader(&watch).as_ref() == Some(&fourth));
}

#[test]
fn requests_behind_the_leader_cause_no_calls() {
    let fixture = Fixture::with_directory();
    let first = fixture.request("x-lock-", b"");
    let watch = fixture.directory.watch_leader(Wait::forever()).unwrap();
    fixture.zk.clear_log();
    let behind: Vec<String> = (0..10).map(|_| fixture.request("x-lock-", b"")).collect();
    behind[..9].iter().for_each(|path| fixture.zk.delete(path));
    fixture.zk.delete(&first);
    assert_eq!(next_leader(&watch).as_ref(), behind.last());
    let read =
        [SimOperation::GetChildren, SimOperation::GetData].map(|operation| fixture.zk.calls(operation));
    assert_eq!(read, [1, 1], "one listing and one read for the change of leader");
}

#[test]
fn leader_deleted_during_the_look_is_not_returned() {
    for (operation, after) in
        [(SimOperation::GetChildren, true), (SimOperation::GetData, false), (SimOperation::GetData, true)]
    {
        let fixture = Fixture::with_directory();
        let [first, second] = [fixture.request("x-lock-", b""), fixture.request("x-lock-", b"")];
        let zk = fixture.zk.clone();
        let delete = move || zk.delete(&first);
        match after {
            true => fixture.client.after_next(operation, delete),
            false => fixture.client.before_next(operation, delete),
        }
        let watch = fixture.directory.watch_leader(Wait::forever()).unwrap();
        eventually("the second leads", || leader(&watch).as_ref() == Some(&second));
    }
}

#[test]
fn leader_that_joins_during_the_look_is_noticed() {
    // The leader joins between the listing and the watch on the directory, or on its creation if it is
    // missing.
    for (exists, operation) in [(true, SimOperation::GetChildren), (false, SimOperation::Exists)] {
        let fixture = Fixture::new();
        if exists {
            fixture.zk.create(DIR, b"");
        }
        let zk = fixture.zk.clone();
        let join = move || drop(zk.create_sequential(DIR, "x-lock-", Some(OTHER_SESSION)));
        match exists {
            true => fixture.client.after_next(operation, join),
            false => fixture.client.before_next(operation, join),
        }
        let watch = fixture.directory.watch_leader(Wait::forever()).unwrap();
        eventually("there is a leader", || leader(&watch).is_some());
    }
}

#[test]
fn leader_without_read_permission_is_named_and_its_end_noticed() {
    for read_checks in [ReadChecks::ReadsOnly, ReadChecks::Events, ReadChecks::EventsAndExists] {
        let fixture = Fixture::with_directory();
        fixture.zk.set_read_checks(read_checks);
        let hidden = format!("{DIR}/x-a-lock-0000000000");
        fixture.zk.create_with_acl(&hidden, b"secret", &nobody_may_read());
        let next = fixture.zk.create_sequential(DIR, "x-lock-", Some(OTHER_SESSION));
        let watch = fixture.directory.watch_leader(Wait::forever()).unwrap();
        assert_eq!(leader(&watch), Some(hidden.clone()));
        assert_eq!(watch.leader().unwrap().unwrap().data, None);
        fixture.zk.delete(&hidden);
        eventually("the next leads", || leader(&watch).as_ref() == Some(&next));
    }
}

#[test]
fn change_of_leader_during_an_outage_is_noticed_after_it() {
    let fixture = Fixture::with_directory();
    let [first, second] = [fixture.request("x-lock-", b""), fixture.request("x-lock-", b"")];
    let watch = fixture.directory.watch_leader(Wait::forever()).unwrap();
    fixture.client.disconnect();
    fixture.zk.delete(&first);
    assert_eq!(leader(&watch), Some(first), "the last known leader");
    fixture.client.reconnect();
    assert_eq!(next_leader(&watch), Some(second));
}

// ---- the queue

#[test]
fn queue_watch_reports_each_join_and_leave() {
    let fixture = Fixture::new();
    let watch = fixture.directory.watch_queue(Wait::forever()).unwrap();
    assert!(watch.names().unwrap().is_empty());
    let requests: Vec<String> = (0..3).map(|_| fixture.request("x-lock-", b"")).collect();
    eventually("all have joined", || watch.names().unwrap().len() == 3);
    assert!(requests[0].ends_with(&watch.names().unwrap()[0]));
    let _ = watch.changes().try_recv();
    fixture.zk.delete(&requests[2]);
    next(watch.changes());
    assert_eq!(watch.names().unwrap().len(), 2);
    fixture.zk.delete(&requests[0]);
    fixture.zk.delete(&requests[1]);
    fixture.zk.delete(DIR);
    eventually("all have left", || watch.names().unwrap().is_empty());
    fixture.request("x-lock-", b"");
    eventually("one has joined", || watch.names().unwrap().len() == 1);
}

#[test]
fn directory_created_during_the_look_is_noticed() {
    let fixture = Fixture::new();
    let zk = fixture.zk.clone();
    let join = move || drop(zk.create_sequential(DIR, "x-lock-", Some(OTHER_SESSION)));
    fixture.client.before_next(SimOperation::Exists, join);
    let watch = fixture.directory.watch_queue(Wait::forever()).unwrap();
    assert_eq!(watch.names().unwrap().len(), 1);
}

#[test]
fn dropped_watches_leave_no_registration() {
    let fixture = Fixture::with_directory();
    let first = fixture.request("x-lock-", b"");
    for _ in 0..100 {
        drop((
            fixture.directory.watch_leader(Wait::forever()).unwrap(),
            fixture.directory.watch_queue(Wait::forever()).unwrap(),
        ));
    }
    let registry = fixture.session().core().census();
    assert!(registry == (0, 0), "{registry:?}");
    assert!(fixture.zk.watch_count() <= 2, "one watch per path and session");
    fixture.zk.clear_log();
    fixture.zk.delete(&first);
    fixture.client.get_children(DIR, false).unwrap();
    assert_eq!(fixture.zk.log().len(), 1, "a dropped watch makes no call");
}
