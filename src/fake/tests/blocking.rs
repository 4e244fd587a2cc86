use crossbeam_channel::{Receiver, bounded, unbounded};

use super::*;
use ClientEvent::{Disconnected, SessionLost};

/// Calls `exists` on another thread and returns once the call is in progress.
fn start_exists(
    zookeeper: &SimulatedZooKeeper,
    client: &Arc<SimulatedClient>,
) -> Receiver<Result<bool, ZkError>> {
    let (calls, client) = (zookeeper.log().len(), Arc::clone(client));
    let call = in_background(move || client.exists("/late", true).map(|stat| stat.is_some()));
    eventually("the call is made", || zookeeper.log().len() > calls);
    call
}

#[test]
fn swallowed_call_is_executed_at_release() {
    let (zookeeper, client, _) = connected();
    client.swallow();
    let call = start_exists(&zookeeper, &client);
    zookeeper.create("/late", b"");
    client.release();
    assert_eq!(next(&call), Ok(true));
}

#[test]
fn swallowed_reply_arrives_at_release() {
    let (zookeeper, client, _) = connected();
    client.swallow_next(SimOperation::Exists, Effect::After);
    let call = start_exists(&zookeeper, &client);
    eventually("the server has executed it", || zookeeper.log()[0].executed);
    zookeeper.create("/late", b"");
    assert_eq!(zookeeper.log()[0].outcome, None);
    client.release();
    assert_eq!(next(&call), Ok(false));
}

#[test]
fn swallowing_can_start_with_a_request() {
    let (zookeeper, client, _) = connected();
    client.swallow_next(SimOperation::Exists, Effect::Before);
    assert!(client.get_data("/a", false).is_ok());
    let call = start_exists(&zookeeper, &client);
    eventually("the call has reached its fault", || client.pending_faults() == 0);
    zookeeper.create("/late", b"");
    client.release();
    assert_eq!(next(&call), Ok(true));
}

#[test]
fn disconnect_loses_a_swallowed_reply() {
    let (zookeeper, client, _) = connected();
    client.swallow_next(SimOperation::Exists, Effect::After);
    let call = start_exists(&zookeeper, &client);
    eventually("the server has executed it", || zookeeper.log()[0].executed);
    client.disconnect();
    client.reconnect();
    assert_eq!(next(&call), Err(ZkError::ConnectionLoss));
}

#[test]
fn disconnect_fails_swallowed_calls_without_effect() {
    let (zookeeper, client, events) = connected();
    client.swallow();
    let call = start_exists(&zookeeper, &client);
    client.disconnect();
    assert_eq!(next(&call), Err(ZkError::ConnectionLoss));
    assert_eq!(events.take(), [Disconnected]);
    assert!(!zookeeper.log()[0].executed);
    client.swallow();
    client.reconnect();
    assert_eq!(client.exists("/late", false).map(drop), Ok(()));
}

#[test]
fn swallowed_events_arrive_at_release() {
    let (zookeeper, client, events) = connected();
    client.exists("/a", true).unwrap();
    client.exists("/b", true).unwrap();
    client.swallow();
    zookeeper.delete("/a");
    zookeeper.create("/b", b"");
    assert_eq!(events.take(), []);
    client.release();
    client.release();
    assert_eq!(events.take(), [deleted("/a"), changed("/b")]);
}

#[test]
fn swallowed_events_are_lost_with_the_connection() {
    let (zookeeper, client, events) = connected();
    client.exists("/a", true).unwrap();
    client.swallow();
    zookeeper.delete("/a");
    client.disconnect();
    client.reconnect();
    client.release();
    assert_eq!(events.take(), [Disconnected, contact()]);
}

#[test]
fn expiry_while_swallowed_is_reported_at_release() {
    let (zookeeper, client, events) = connected();
    ephemeral(&client, "/e");
    client.swallow();
    client.expire();
    assert!(!zookeeper.exists("/e"));
    assert_eq!(events.take(), []);
    zookeeper.clear_log();
    let call = start_exists(&zookeeper, &client);
    assert_eq!(zookeeper.log()[0].outcome, None);
    client.release();
    assert_eq!(next(&call), Err(ZkError::SessionExpired));
    assert_eq!(events.take(), [SessionLost]);
}

#[test]
fn close_can_be_swallowed() {
    let (zookeeper, client, _) = connected();
    client.swallow();
    let this = Arc::clone(&client);
    let close = in_background(move || this.close());
    eventually("close is called", || zookeeper.calls(SimOperation::Close) == 1);
    assert_eq!(zookeeper.sessions(), [client.session_id()]);
    client.release();
    next(&close);
    assert!(zookeeper.sessions().is_empty());
}

/// `Disconnected` must be delivered, on whichever thread, before any call fails because of it.
#[test]
fn disconnected_event_precedes_the_calls_that_it_fails() {
    let (zookeeper, client, _) = connected();
    let order = Arc::new(Mutex::new(Vec::new()));
    let (arrive, arrived) = unbounded();
    let (let_go, gate) = bounded::<()>(0);
    let sink_order = Arc::clone(&order);
    client.subscribe(Arc::new(move |event| {
        arrive.send(()).unwrap();
        let _ = gate.recv_timeout(deadline());
        sink_order.lock().push(format!("{event:?}"));
    }));
    let this = Arc::clone(&client);
    let disconnect = in_background(move || this.disconnect());
    next(&arrived);
    let (this, call_order) = (Arc::clone(&client), Arc::clone(&order));
    let call = in_background(move || {
        assert_eq!(this.exists("/a", false).unwrap_err(), ZkError::ConnectionLoss);
        call_order.lock().push("call failed".to_owned());
    });
    eventually("the call fails", || zookeeper.log().iter().any(|call| call.outcome.is_some()));
    drop(let_go);
    next(&disconnect);
    next(&call);
    assert_eq!(*order.lock(), ["Disconnected", "call failed"]);
}
