//! Who leads, and who comes and goes.

use super::*;
use crate::client::ZooKeeperClient;
use crate::directory::LeaderWatch;

// ---- the leader

fn leader(watch: &LeaderWatch) -> Option<String> {
    watch.leader().unwrap().map(|leader| leader.path().to_owned())
}

fn next_leader(watch: &LeaderWatch) -> Option<String> {
    next(watch.changes());
    leader(watch)
}

#[test]
fn a_follower_learns_who_leads_and_when_it_changes() {
    let fixture = Fixture::new();
    let watch = fixture.directory.watch_leader().unwrap();
    assert_eq!(leader(&watch), None);
    let first = fixture.zk.create_sequential(DIR, "x-lock-", Some(STRANGER));
    eventually("the first leads", || leader(&watch).as_ref() == Some(&first));
    let _ = watch.changes().try_recv();
    let second = fixture.zk.create_sequential(DIR, "x-lock-", Some(STRANGER));
    fixture.zk.delete(&first);
    assert_eq!(next_leader(&watch), Some(second.clone()));
    fixture.zk.delete(&second);
    assert_eq!(next_leader(&watch), None);
    let third = fixture.zk.create_sequential(DIR, "x-lock-", Some(STRANGER));
    assert_eq!(next_leader(&watch), Some(third.clone()));
    fixture.zk.set_data(&third, b"moved");
    next(watch.changes());
    assert_eq!(watch.leader().unwrap().unwrap().data_lossy(), "moved");
    fixture.zk.delete(&third);
    fixture.zk.delete(DIR);
    eventually("nobody leads", || leader(&watch).is_none());
    let fourth = fixture.zk.create_sequential(DIR, "x-lock-", Some(STRANGER));
    eventually("the fourth leads", || leader(&watch).as_ref() == Some(&fourth));
}

#[test]
fn those_who_join_and_leave_behind_the_leader_cost_a_follower_nothing() {
    let fixture = Fixture::with_directory();
    let first = fixture.request("x-lock-", b"");
    let watch = fixture.directory.watch_leader().unwrap();
    fixture.zk.clear_log();
    let behind: Vec<String> = (0..10).map(|_| fixture.request("x-lock-", b"")).collect();
    behind[..9].iter().for_each(|path| fixture.zk.delete(path));
    fixture.zk.delete(&first);
    assert_eq!(next_leader(&watch).as_ref(), behind.last());
    let read =
        [SimOperation::GetChildren, SimOperation::GetData].map(|operation| fixture.zk.calls(operation));
    assert_eq!(read, [1, 1], "one look for one change of leader");
}

#[test]
fn a_leader_that_goes_while_it_is_looked_at_is_not_shown() {
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
        let watch = fixture.directory.watch_leader().unwrap();
        eventually("the second leads", || leader(&watch).as_ref() == Some(&second));
    }
}

#[test]
fn a_leader_that_comes_while_an_empty_directory_is_looked_at_is_seen() {
    // Between the listing and the watch: of the directory, or of its creation.
    for (exists, operation) in [(true, SimOperation::GetChildren), (false, SimOperation::Exists)] {
        let fixture = Fixture::new();
        if exists {
            fixture.zk.create(DIR, b"");
        }
        let zk = fixture.zk.clone();
        let join = move || drop(zk.create_sequential(DIR, "x-lock-", Some(STRANGER)));
        match exists {
            true => fixture.client.after_next(operation, join),
            false => fixture.client.before_next(operation, join),
        }
        let watch = fixture.directory.watch_leader().unwrap();
        eventually("somebody leads", || leader(&watch).is_some());
    }
}

#[test]
fn a_leader_that_may_not_be_read_is_known_by_name_and_its_end_is_noticed() {
    for read_checks in [ReadChecks::ReadsOnly, ReadChecks::Events, ReadChecks::EventsAndExists] {
        let fixture = Fixture::with_directory();
        fixture.zk.set_read_checks(read_checks);
        let hidden = format!("{DIR}/x-a-lock-0000000000");
        fixture.zk.create_with_acl(&hidden, b"secret", &nobody_may_read());
        let next = fixture.zk.create_sequential(DIR, "x-lock-", Some(STRANGER));
        let watch = fixture.directory.watch_leader().unwrap();
        assert_eq!(leader(&watch), Some(hidden.clone()));
        assert_eq!(watch.leader().unwrap().unwrap().data(), None);
        fixture.zk.delete(&hidden);
        eventually("the next leads", || leader(&watch).as_ref() == Some(&next));
    }
}

#[test]
fn a_change_of_leader_during_an_outage_is_seen_after_it() {
    let fixture = Fixture::with_directory();
    let [first, second] = [fixture.request("x-lock-", b""), fixture.request("x-lock-", b"")];
    let watch = fixture.directory.watch_leader().unwrap();
    fixture.client.disconnect();
    fixture.zk.delete(&first);
    assert_eq!(leader(&watch), Some(first), "what was seen last");
    fixture.client.reconnect();
    assert_eq!(next_leader(&watch), Some(second));
}

// ---- the queue

#[test]
fn an_onlooker_learns_of_everybody_who_comes_and_goes() {
    let fixture = Fixture::new();
    let watch = fixture.directory.watch_queue().unwrap();
    assert!(watch.names().unwrap().is_empty());
    let requests: Vec<String> = (0..3).map(|_| fixture.request("x-lock-", b"")).collect();
    eventually("all have come", || watch.names().unwrap().len() == 3);
    assert!(requests[0].ends_with(&watch.names().unwrap()[0]));
    let _ = watch.changes().try_recv();
    fixture.zk.delete(&requests[2]);
    next(watch.changes());
    assert_eq!(watch.names().unwrap().len(), 2);
    fixture.zk.delete(&requests[0]);
    fixture.zk.delete(&requests[1]);
    fixture.zk.delete(DIR);
    eventually("all have gone", || watch.names().unwrap().is_empty());
    fixture.request("x-lock-", b"");
    eventually("one has come", || watch.names().unwrap().len() == 1);
}

#[test]
fn a_directory_that_comes_while_it_is_looked_at_is_seen() {
    let fixture = Fixture::new();
    let zk = fixture.zk.clone();
    let join = move || drop(zk.create_sequential(DIR, "x-lock-", Some(STRANGER)));
    fixture.client.before_next(SimOperation::Exists, join);
    let watch = fixture.directory.watch_queue().unwrap();
    assert_eq!(watch.names().unwrap().len(), 1);
}

#[test]
fn watches_that_are_dropped_leave_nobody_to_be_woken() {
    let fixture = Fixture::with_directory();
    let first = fixture.request("x-lock-", b"");
    for _ in 0..100 {
        drop((fixture.directory.watch_leader().unwrap(), fixture.directory.watch_queue().unwrap()));
    }
    let participants = format!("{:?}", fixture.session().core().registry());
    assert!(participants.contains("all: 0, watched_paths: 0"), "{participants}");
    assert!(fixture.zk.watch_count() <= 2, "one watch for a path and a session");
    fixture.zk.clear_log();
    fixture.zk.delete(&first);
    fixture.client.get_children(DIR, false).unwrap();
    assert_eq!(fixture.zk.log().len(), 1, "nobody looks any more");
}
