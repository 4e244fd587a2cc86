use super::*;
use crate::client::Enqueued;
use crate::client::Names;
use SimOperation::{Create, Delete, Exists, GetChildren, GetData, SetData};

fn write(client: &SimulatedClient) -> Result<(), ZkError> {
    client.set_data("/a", b"", None).map(drop)
}

fn version(zookeeper: &SimulatedZooKeeper) -> i32 {
    zookeeper.stat("/a").unwrap().version
}

#[test]
fn fault_occurs_before_or_after_the_effect() {
    let (zookeeper, client, events) = connected();
    client.fail_next(SetData, Effect::Before, ZkError::ConnectionLoss);
    assert_eq!(write(&client), Err(ZkError::ConnectionLoss));
    assert_eq!(version(&zookeeper), 0);
    client.fail_next(SetData, Effect::After, ZkError::OperationTimeout);
    assert_eq!(write(&client), Err(ZkError::OperationTimeout));
    assert_eq!(version(&zookeeper), 1);
    assert_eq!(write(&client), Ok(()));
    assert_eq!(events.take(), []);
}

#[test]
fn faults_queue_up_for_one_operation_of_one_client() {
    let (zookeeper, client, _) = connected();
    let other = zookeeper.connect(TIMEOUT);
    client.fail_next(SetData, Effect::Before, ZkError::ConnectionLoss);
    client.fail_next(SetData, Effect::Before, ZkError::NoAuth);
    assert_eq!(client.pending_faults(), 2);
    assert_eq!(write(&other), Ok(()));
    assert!(client.exists("/a", false).is_ok());
    assert_eq!(write(&client), Err(ZkError::ConnectionLoss));
    assert_eq!(write(&client), Err(ZkError::NoAuth));
    assert_eq!(write(&client), Ok(()));
    assert_eq!(client.pending_faults(), 0);
}

#[test]
fn request_that_is_held_back_is_overtaken_by_later_ones() {
    let (zookeeper, client, _) = connected();
    client.hold_back_next(SetData);
    assert_eq!(client.set_data("/a", b"early", None), Err(ZkError::ConnectionLoss));
    client.set_data("/a", b"late", None).unwrap();
    assert_eq!(zookeeper.data("/a").unwrap(), b"late");
    let executed = || zookeeper.log().iter().map(|call| call.executed).collect::<Vec<_>>();
    assert_eq!(executed(), [false, true]);
    client.pass_on();
    client.pass_on();
    assert_eq!((zookeeper.data("/a").unwrap(), version(&zookeeper)), (b"early".to_vec(), 2));
    assert_eq!(executed(), [true, true]);
}

#[test]
fn request_that_is_held_back_ends_with_its_session() {
    let (zookeeper, client, _) = connected();
    client.hold_back_next(SetData);
    assert_eq!(write(&client), Err(ZkError::ConnectionLoss));
    client.expire();
    client.pass_on();
    assert_eq!(version(&zookeeper), 0);
}

#[test]
fn the_nth_call_fails() {
    let (_zookeeper, client, _) = connected();
    write(&client).unwrap();
    client.fail_nth(SetData, 2, Effect::Before, ZkError::NoAuth);
    client.fail_nth(SetData, 2, Effect::Before, ZkError::NoNode);
    client.fail_nth(SetData, 4, Effect::Before, ZkError::NotEmpty);
    // This applies to the first call that has no fault yet.
    client.fail_next(SetData, Effect::Before, ZkError::ConnectionLoss);
    client.fail_next(SetData, Effect::Before, ZkError::OperationTimeout);
    let outcomes: Vec<_> = (0..5).map(|_| write(&client)).collect();
    let failed = [ZkError::ConnectionLoss, ZkError::NoNode, ZkError::OperationTimeout, ZkError::NotEmpty];
    assert_eq!(outcomes[..4], failed.map(Err));
    assert_eq!(outcomes[4], Ok(()));
}

#[test]
fn a_fault_waits_for_a_call_with_contact() {
    let (_zookeeper, client, _) = connected();
    client.fail_next(SetData, Effect::Before, ZkError::NoAuth);
    client.before_next(SetData, || {});
    client.after_next(SetData, || {});
    client.disconnect();
    assert_eq!(write(&client), Err(ZkError::ConnectionLoss));
    assert_eq!(client.pending_faults(), 3);
    client.reconnect();
    assert_eq!(write(&client), Err(ZkError::NoAuth));
}

#[test]
fn cut_is_reported_before_the_call_fails() {
    for (when, executed) in [(Effect::Before, false), (Effect::After, true)] {
        let (zookeeper, client, events) = connected();
        client.cut_next(GetData, when);
        assert_eq!(client.get_data("/a", true).unwrap_err(), ZkError::ConnectionLoss);
        assert_eq!(events.take(), [ClientEvent::Disconnected]);
        assert_eq!(zookeeper.log()[0].executed, executed);
        assert_eq!(zookeeper.watch_count(), 0);
        assert_eq!(write(&client), Err(ZkError::ConnectionLoss));
        client.reconnect();
        assert_eq!(write(&client), Ok(()));
    }
}

#[test]
fn closure_before_the_effect_may_call_everything() {
    let (zookeeper, client, events) = connected();
    let (server, this) = (zookeeper.clone(), Arc::clone(&client));
    client.before_next(GetData, move || {
        assert_eq!(this.get_children("/", false).unwrap(), Names::from_iter(["a"]));
        assert!(this.exists("/a", true).unwrap().is_some());
        this.before_next(Exists, || {});
        server.delete("/a");
    });
    assert_eq!(client.get_data("/a", true).unwrap_err(), ZkError::NoNode);
    assert_eq!(events.take(), [deleted("/a")]);
    assert_eq!(client.pending_faults(), 1);
}

#[test]
fn closure_after_the_effect_runs_before_the_reply() {
    let (zookeeper, client, events) = connected();
    let server = zookeeper.clone();
    client.after_next(GetData, move || {
        assert_eq!(server.watch_count(), 1);
        assert_eq!(server.log()[0].outcome, None);
        server.delete("/a");
    });
    assert_eq!(client.get_data("/a", true).unwrap().0, b"data");
    assert_eq!(events.take(), [deleted("/a")]);
}

#[test]
fn each_closure_runs_in_one_call() {
    let (_zookeeper, client, _) = connected();
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let order = Arc::clone(&order);
        move || order.lock().push(name)
    };
    client.before_next(SetData, note("before 1"));
    client.before_next(SetData, note("before 2"));
    client.after_next(SetData, note("after 2"));
    // The first call has no effect, so the closure that runs after an effect waits for the second call.
    client.fail_next(SetData, Effect::Before, ZkError::ConnectionLoss);
    assert!(write(&client).is_err());
    assert_eq!(*order.lock(), ["before 1"]);
    write(&client).unwrap();
    assert_eq!(*order.lock(), ["before 1", "before 2", "after 2"]);
    write(&client).unwrap();
    assert_eq!(order.lock().len(), 3);
}

#[test]
fn cut_in_a_closure_before_the_effect_prevents_it() {
    let (zookeeper, client, _) = connected();
    let this = Arc::clone(&client);
    client.before_next(SetData, move || this.disconnect());
    assert_eq!(write(&client), Err(ZkError::ConnectionLoss));
    assert_eq!(version(&zookeeper), 0);
}

#[test]
fn contact_ended_in_a_closure_after_the_effect_loses_the_reply() {
    type Verb = fn(&SimulatedClient);
    let endings: [(Verb, ZkError); 4] = [
        (|client| client.disconnect(), ZkError::ConnectionLoss),
        (|client| client.expire(), ZkError::SessionExpired),
        (|client| client.expire_silently(), ZkError::ConnectionLoss),
        (
            |client| {
                client.disconnect();
                client.reconnect();
            },
            ZkError::ConnectionLoss,
        ),
    ];
    for (end, error) in endings {
        let (zookeeper, client, _) = connected();
        let this = Arc::clone(&client);
        client.after_next(SetData, move || end(&this));
        assert_eq!(write(&client), Err(error));
        assert_eq!(version(&zookeeper), 1);
    }
}

#[test]
fn reply_is_delivered_before_the_close_of_its_client() {
    let (zookeeper, client, _) = connected();
    let this = Arc::clone(&client);
    client.after_next(SetData, move || this.close());
    assert_eq!(write(&client), Ok(()));
    assert!(zookeeper.sessions().is_empty());
}

#[test]
fn every_call_is_logged() {
    let (zookeeper, client, _) = connected();
    let session = client.session_id();
    let Enqueued { path, children: listed, .. } =
        client.create_and_list("/a", "x-", b"", &Acl::open_unsafe()).unwrap();
    assert_eq!(listed.unwrap(), Names::from_iter(["x-0000000000"]));
    client.exists("/b", true).unwrap();
    assert_eq!(client.delete("/b", None), Err(ZkError::NoNode));
    client.cut_next(Delete, Effect::Before);
    assert_eq!(client.delete(&path, None), Err(ZkError::ConnectionLoss));
    let log: Vec<_> = zookeeper
        .log()
        .into_iter()
        .map(|call| {
            assert_eq!(call.session, session);
            (call.operation, call.path, call.watch, call.executed, call.outcome.unwrap())
        })
        .collect();
    let expected = [
        (Create, "/a/x-", false, true, Ok(())),
        (GetChildren, "/a", false, true, Ok(())),
        (Exists, "/b", true, true, Ok(())),
        (Delete, "/b", false, true, Err(ZkError::NoNode)),
        (Delete, &*path, false, false, Err(ZkError::ConnectionLoss)),
    ];
    assert_eq!(log, expected.map(|(a, path, b, c, d)| (a, path.to_owned(), b, c, d)));
    assert_eq!((zookeeper.calls(Delete), zookeeper.calls(GetData)), (2, 0));
}

#[test]
fn clearing_the_log_forgets_running_calls() {
    let (zookeeper, client, _) = connected();
    client.exists("/a", false).unwrap();
    zookeeper.clear_log();
    let (server, other) = (zookeeper.clone(), zookeeper.connect(TIMEOUT));
    client.after_next(SetData, move || {
        server.clear_log();
        other.exists("/missing/", false).unwrap_err();
    });
    write(&client).unwrap();
    let log = zookeeper.log();
    assert_eq!(log.len(), 1);
    assert_eq!(log[0].outcome, Some(Err(ZkError::BadArguments)));
}

#[test]
fn debug_output_names_the_session() {
    let (zookeeper, client, _) = connected();
    client.before_next(SetData, || {});
    assert!(format!("{client:?}").contains(&client.session_id().to_string()));
    assert_eq!(format!("{zookeeper:?}"), "SimulatedZooKeeper { .. }");
}
