//! Tests of replies and events that cross calls on the wire.

use super::*;
use crate::client::{Op, Verbs};
use crate::tests::{Request, SteppedClient, open_client};

/// A waiter behind some requests of other clients. Its connection moves messages only on command.
struct Crossing {
    zk: SimulatedZooKeeper,
    client: Arc<SteppedClient>,
    session: Session,
    ahead: Vec<String>,
    lock: WriteLock,
    calls: Receiver<Call>,
}

impl Crossing {
    fn behind(count: usize) -> Crossing {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        let simulated = zk.connect(LONG);
        let client = SteppedClient::new(simulated.clone());
        let session = open_client(client.clone()).unwrap();
        let ahead = (0..count).map(|_| zk.create_sequential(DIR, "x-other-lock-", None)).collect();
        let fixture = Fixture { client: simulated, session: session.clone() };
        let (lock, calls) = fixture.listening();
        assert!(!lock.lock().unwrap());
        client.step_by_step();
        Crossing { zk, client, session, ahead, lock, calls }
    }

    fn id(&self) -> String {
        self.lock.id().unwrap()
    }

    /// Delivers this many replies and events.
    fn deliver(&self, count: usize) {
        (0..count).for_each(|_| assert!(self.client.deliver()));
    }
}

/// A reply to an earlier read of a znode must not remove the watch of a later read.
#[test]
fn look_at_the_second_request_outlasts_a_look_at_it_as_the_nearest() {
    let crossing = Crossing::behind(3);
    let [third, second, nearest] = &crossing.ahead[..] else { panic!("three are ahead") };
    crossing.zk.delete(second);
    crossing.deliver(1);
    // Now the waiter asks for another listing.
    crossing.session.core().look_routinely();
    crossing.client.serve_until(Request::List);
    crossing.zk.delete(nearest);
    // In the first listing, the third request is the second one ahead, so the waiter looks at it.
    crossing.deliver(1);
    crossing.client.serve_until(Request::List);
    // After the event, and in the other listing, the third request is the nearest one, so the waiter looks at
    // it again.
    crossing.deliver(2);
    crossing.client.move_all();
    crossing.client.hurry();
    crossing.zk.delete(third);
    assert!(crossing.lock.is_owner());
}

#[test]
fn waiter_whose_own_look_is_repeated_does_not_own_without_its_znode() {
    let crossing = Crossing::behind(2);
    let [second, nearest] = &crossing.ahead[..] else { panic!("two are ahead") };
    crossing.zk.delete(second);
    crossing.zk.set_data(&crossing.id(), b"changed");
    crossing.deliver(2);
    crossing.client.serve_until(Request::List);
    crossing.zk.set_data(nearest, b"unlock");
    crossing.deliver(1);
    crossing.client.serve_until(Request::List);
    crossing.deliver(2);
    crossing.client.move_all();
    crossing.client.hurry();
    crossing.zk.delete(&crossing.id());
    crossing.zk.delete(nearest);
    assert!(!crossing.lock.is_owner());
    assert_eq!(next(&crossing.calls), Call::Dropped(LossReason::NodeDeleted));
}

#[test]
fn owner_whose_znode_is_deleted_with_its_predecessor_loses_the_lock_by_the_event() {
    let crossing = Crossing::behind(1);
    let delete = |path: &str| Op::Delete { path: path.into(), version: None };
    let admin = crossing.zk.connect(LONG);
    admin.transact(&[delete(&crossing.ahead[0]), delete(&crossing.id())]).unwrap();
    crossing.deliver(2);
    assert!(!crossing.lock.is_owner());
    assert_eq!(next(&crossing.calls), Call::Acquired);
    assert_eq!(next(&crossing.calls), Call::Lost(LossReason::NodeDeleted));
}

#[test]
fn waiter_that_gives_up_while_it_lists_leaves_no_watch() {
    let crossing = Crossing::behind(2);
    assert_eq!(crossing.zk.watch_count(), 3);
    crossing.zk.delete(&crossing.ahead[1]);
    crossing.deliver(1);
    let Crossing { zk, client, lock, .. } = crossing;
    let given_up = in_background(move || lock.unlock());
    eventually("the waiter has given up", || client.requests() > 1);
    client.hurry();
    next(&given_up).unwrap();
    eventually("no watch is left", || zk.watch_count() == 0);
}

#[test]
fn event_of_the_predecessor_during_the_look_at_its_own_znode_counts_afterwards() {
    let crossing = Crossing::behind(2);
    crossing.zk.delete(&crossing.ahead[0]);
    crossing.deliver(1);
    crossing.zk.set_data(&crossing.id(), b"changed");
    crossing.client.serve_until(Request::List);
    // The listing and the event of the waiter's znode arrive, so the waiter looks at its znode again.
    crossing.deliver(2);
    crossing.zk.delete(&crossing.ahead[1]);
    crossing.deliver(1);
    assert!(!crossing.lock.is_owner());
    crossing.client.hurry();
    assert!(crossing.lock.is_owner());
}
