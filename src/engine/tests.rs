//! The engine, input by input.

use super::*;

fn path(text: &str) -> ZNodePath {
    ZNodePath::parse(text).unwrap()
}

fn ids<const N: usize>(engine: &mut Engine) -> [ParticipantId; N] {
    std::array::from_fn(|_| engine.new_id())
}

#[test]
fn those_who_watch_a_path_are_woken_once_in_the_order_in_which_they_came() {
    let mut engine = Engine::default();
    let [a, b, c] = ids(&mut engine);
    let znode = path("/lock/x-0000000001");
    [b, a, b, c].into_iter().for_each(|id| engine.watch(&znode, id));
    engine.unwatch(&znode, c);
    assert_eq!(engine.fired(&znode), [b, a]);
    assert_eq!(engine.fired(&znode), []);
    assert!(!engine.is_watched(&znode) && engine.watched_paths() == 0);
}

#[test]
fn request_waits_without_a_watch_for_the_nearest_of_its_session_that_stays() {
    let mut engine = Engine::default();
    let [waiter] = ids(&mut engine);
    let [first, second, third] = [1, 2, 3].map(|number| path(&format!("/lock/x-000000000{number}")));
    [&first, &second, &third].into_iter().for_each(|znode| engine.joined(znode));
    assert!(engine.is_in_queue(&path("/lock")));
    assert_eq!(engine.watch_before(&third, waiter), Some(second.clone()));
    engine.leaves(&second);
    assert_eq!(engine.watch_before(&third, waiter), None, "its deletion may fail");
    assert!(engine.watch_leaving(&second, waiter) && !engine.watch_own(&second, waiter));
    engine.owns(&first);
    let deleted = engine.deleted(&second);
    assert_eq!(deleted, Deleted { has_owned: false, wakes: vec![waiter] });
    assert!(engine.watch_own(&first, waiter) && engine.has_owned(&first));
    assert_eq!(engine.deleted(&first), Deleted { has_owned: true, wakes: vec![waiter] });
    engine.leaves(&third);
    assert!(!engine.is_in_queue(&path("/lock")));
}

#[test]
fn those_who_wait_for_a_refused_deletion_are_woken_once() {
    let mut engine = Engine::default();
    let [waiter] = ids(&mut engine);
    let znode = path("/lock/x-0000000001");
    engine.joined(&znode);
    engine.leaves(&znode);
    assert!(engine.watch_leaving(&znode, waiter));
    assert_eq!(engine.deletion_refused(&znode), [waiter]);
    assert!(!engine.watch_leaving(&znode, waiter), "it needs a watch");
    engine.watch(&znode, waiter);
    assert_eq!(engine.deletion_refused(&znode), [], "it has one");
    assert_eq!(engine.deleted(&znode).wakes, [waiter]);
}

#[test]
fn numbers_of_a_directory_that_was_created_anew_do_not_hide_the_old_ones() {
    let mut engine = Engine::default();
    let [waiter] = ids(&mut engine);
    let [old, new] = ["a", "b"].map(|guid| path(&format!("/lock/x-{guid}-lock-0000000000")));
    engine.joined(&old);
    engine.leaves(&old);
    engine.joined(&new);
    assert!(engine.watch_own(&new, waiter));
    assert!(!engine.deleted(&old).has_owned && engine.is_in_queue(&path("/lock")));
    assert_eq!(engine.own_with_prefix(&path("/lock"), "x-b"), [new]);
}

#[test]
fn numbers_without_an_order_are_left_to_watches() {
    let mut engine = Engine::default();
    let [waiter] = ids(&mut engine);
    let last = path("/lock/x-2147483647");
    engine.joined(&last);
    assert!(!engine.watch_own(&last, waiter) && !engine.is_in_queue(&path("/lock")));
}

#[test]
fn one_listing_at_a_time_serves_all_who_had_asked_when_it_was_sent() {
    let mut engine = Engine::default();
    let [a, b, c, d] = ids(&mut engine);
    let dir = path("/lock");
    engine.share_next(&dir, a);
    assert_eq!(engine.ask(&dir, b), [a, b]);
    assert_eq!(engine.ask(&dir, c), [], "it may be outdated for this one");
    engine.share_next(&dir, d);
    assert_eq!(engine.listed(&dir), [c, d]);
    assert_eq!(engine.ask(&dir, a), []);
    engine.forget_reader(&dir, a);
    assert_eq!(engine.listed(&dir), [], "nobody needs another one");
    assert_eq!(engine.ask(&dir, a), [a]);
    assert_eq!(engine.listed(&dir), []);
    engine.share_next(&dir, b);
    assert_eq!(engine.readers(&dir), 1);
    engine.forget_reader(&dir, b);
    assert_eq!(engine, Engine { last: 4, ..Engine::default() }, "nothing is left");
}
