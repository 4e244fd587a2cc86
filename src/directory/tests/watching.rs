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
    let place = Place::new();
    let watch = place.directory.watch_leader().unwrap();
    assert_eq!(leader(&watch), None);
    let first = place.zk.create_sequential(DIR, "x-lock-", Some(STRANGER));
    eventually("the first leads", || leader(&watch).as_ref() == Some(&first));
    let _ = watch.changes().try_recv();
    let second = place.zk.create_sequential(DIR, "x-lock-", Some(STRANGER));
    place.zk.delete(&first);
    assert_eq!(next_leader(&watch), Some(second.clone()));
    place.zk.delete(&second);
    assert_eq!(next_leader(&watch), None);
    let third = place.zk.create_sequential(DIR, "x-lock-", Some(STRANGER));
    assert_eq!(next_leader(&watch), Some(third.clone()));
    place.zk.set_data(&third, b"moved");
    next(watch.changes());
    assert_eq!(watch.leader().unwrap().unwrap().data_lossy(), "moved");
    place.zk.delete(&third);
    place.zk.delete(DIR);
    eventually("nobody leads", || leader(&watch).is_none());
    let fourth = place.zk.create_sequential(DIR, "x-lock-", Some(STRANGER));
    eventually("the fourth leads", || leader(&watch).as_ref() == Some(&fourth));
}

#[test]
fn those_who_join_and_leave_behind_the_leader_cost_a_follower_nothing() {
    let place = Place::with_directory();
    let first = place.request("x-lock-", b"");
    let watch = place.directory.watch_leader().unwrap();
    place.zk.clear_log();
    let behind: Vec<String> = (0..10).map(|_| place.request("x-lock-", b"")).collect();
    behind[..9].iter().for_each(|path| place.zk.delete(path));
    place.zk.delete(&first);
    assert_eq!(next_leader(&watch).as_ref(), behind.last());
    let read = [SimOperation::GetChildren, SimOperation::GetData].map(|operation| place.zk.calls(operation));
    assert_eq!(read, [1, 1], "one look for one change of leader");
}

#[test]
fn a_leader_that_goes_while_it_is_looked_at_is_not_shown() {
    for (operation, after) in
        [(SimOperation::GetChildren, true), (SimOperation::GetData, false), (SimOperation::GetData, true)]
    {
        let place = Place::with_directory();
        let [first, second] = [place.request("x-lock-", b""), place.request("x-lock-", b"")];
        let zk = place.zk.clone();
        let delete = move || zk.delete(&first);
        match after {
            true => place.client.after_next(operation, delete),
            false => place.client.before_next(operation, delete),
        }
        let watch = place.directory.watch_leader().unwrap();
        eventually("the second leads", || leader(&watch).as_ref() == Some(&second));
    }
}

#[test]
fn a_leader_that_comes_while_an_empty_directory_is_looked_at_is_seen() {
    // Between the listing and the watch: of the directory, or of its creation.
    for (exists, operation) in [(true, SimOperation::GetChildren), (false, SimOperation::Exists)] {
        let place = Place::new();
        if exists {
            place.zk.create(DIR, b"");
        }
        let zk = place.zk.clone();
        let join = move || drop(zk.create_sequential(DIR, "x-lock-", Some(STRANGER)));
        match exists {
            true => place.client.after_next(operation, join),
            false => place.client.before_next(operation, join),
        }
        let watch = place.directory.watch_leader().unwrap();
        eventually("somebody leads", || leader(&watch).is_some());
    }
}

#[test]
fn a_leader_that_may_not_be_read_is_known_by_name_and_its_end_is_noticed() {
    for read_checks in [ReadChecks::ReadsOnly, ReadChecks::Events, ReadChecks::EventsAndExists] {
        let place = Place::with_directory();
        place.zk.set_read_checks(read_checks);
        let hidden = format!("{DIR}/x-a-lock-0000000000");
        place.zk.create_with_acl(&hidden, b"secret", &nobody_may_read());
        let next = place.zk.create_sequential(DIR, "x-lock-", Some(STRANGER));
        let watch = place.directory.watch_leader().unwrap();
        assert_eq!(leader(&watch), Some(hidden.clone()));
        assert_eq!(watch.leader().unwrap().unwrap().data(), None);
        place.zk.delete(&hidden);
        eventually("the next leads", || leader(&watch).as_ref() == Some(&next));
    }
}

#[test]
fn a_change_of_leader_during_an_outage_is_seen_after_it() {
    let place = Place::with_directory();
    let [first, second] = [place.request("x-lock-", b""), place.request("x-lock-", b"")];
    let watch = place.directory.watch_leader().unwrap();
    place.client.disconnect();
    place.zk.delete(&first);
    assert_eq!(leader(&watch), Some(first), "what was seen last");
    place.client.reconnect();
    assert_eq!(next_leader(&watch), Some(second));
}

// ---- the queue

#[test]
fn an_onlooker_learns_of_everybody_who_comes_and_goes() {
    let place = Place::new();
    let watch = place.directory.watch_queue().unwrap();
    assert_eq!(watch.dir(), DIR);
    assert!(watch.names().unwrap().is_empty());
    let requests: Vec<String> = (0..3).map(|_| place.request("x-lock-", b"")).collect();
    eventually("all have come", || watch.names().unwrap().len() == 3);
    assert!(requests[0].ends_with(&watch.names().unwrap()[0]));
    let _ = watch.changes().try_recv();
    place.zk.delete(&requests[2]);
    next(watch.changes());
    assert_eq!(watch.names().unwrap().len(), 2);
    place.zk.delete(&requests[0]);
    place.zk.delete(&requests[1]);
    place.zk.delete(DIR);
    eventually("all have gone", || watch.names().unwrap().is_empty());
    place.request("x-lock-", b"");
    eventually("one has come", || watch.names().unwrap().len() == 1);
}

#[test]
fn a_directory_that_comes_while_it_is_looked_at_is_seen() {
    let place = Place::new();
    let zk = place.zk.clone();
    let join = move || drop(zk.create_sequential(DIR, "x-lock-", Some(STRANGER)));
    place.client.before_next(SimOperation::Exists, join);
    let watch = place.directory.watch_queue().unwrap();
    assert_eq!(watch.names().unwrap().len(), 1);
}

#[test]
fn watches_that_are_dropped_leave_nobody_to_be_woken() {
    let place = Place::with_directory();
    let first = place.request("x-lock-", b"");
    for _ in 0..100 {
        drop((place.directory.watch_leader().unwrap(), place.directory.watch_queue().unwrap()));
    }
    let participants = format!("{:?}", place.session().core().participants());
    assert!(participants.contains("all: 0, watched_paths: 0"), "{participants}");
    assert!(place.zk.watch_count() <= 2, "one watch for a path and a session");
    place.zk.clear_log();
    place.zk.delete(&first);
    place.client.get_children(DIR, false).unwrap();
    assert_eq!(place.zk.log().len(), 1, "nobody looks any more");
}
