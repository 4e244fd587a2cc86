//! Checks of contact with the servers and of the end of the session.

use std::time::Instant;

use super::scene::{AT_ONCE, CALLS, Outcome, Scene, Tested, done, same};
use super::{Check, ensure, named};
use zookeeper_recipes_lock::client::seam::Names;
use zookeeper_recipes_lock::client::seam::{ClientEvent, Granted, Verbs, ZooKeeperClient};
use zookeeper_recipes_lock::client::{Acl, CreateMode};
use zookeeper_recipes_lock::client::{ZkError, ZkResult};

pub(super) const CHECKS: &[Check] = &[
    named!(connected_client_has_contact),
    named!(session_timeout_is_the_granted_one),
    named!(disconnect_is_reported_before_a_call_fails),
    named!(calls_without_contact_end_with_an_error),
    named!(session_goes_on_after_a_reconnect),
    named!(connected_reports_the_grant),
    named!(change_during_an_outage_is_noticed),
    named!(expired_session_is_reported_once),
    named!(expired_session_fails_every_call_at_once),
    named!(expiry_deletes_ephemeral_znodes_and_no_others),
    named!(close_is_idempotent_and_silent),
    named!(close_ends_the_session),
    named!(close_without_contact_returns),
];

fn create(client: &dyn ZooKeeperClient, path: &str) -> ZkResult<String> {
    client.create(path, b"", &Acl::open_unsafe(), CreateMode::Ephemeral)
}

fn is_lost(event: &ClientEvent) -> bool {
    *event == ClientEvent::SessionLost
}

/// Checks that the changes of contact so far alternate, and that nothing follows the loss of the session.
fn check_order(client: &Tested) -> Outcome {
    let events = client.events.all();
    // A client that starts without contact may not know yet whether it has contact.
    let mut has_contact = client.has_contact.then_some(true);
    for (position, event) in events.iter().enumerate() {
        match event {
            ClientEvent::Connected(_) => {
                ensure!(has_contact != Some(true), "Connected without a preceding Disconnected: {events:?}");
                has_contact = Some(true);
            }
            ClientEvent::Disconnected => {
                ensure!(has_contact != Some(false), "Disconnected without a preceding Connected: {events:?}");
                has_contact = Some(false);
            }
            ClientEvent::SessionLost => {
                ensure!(position + 1 == events.len(), "an event follows SessionLost: {events:?}");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Waits until contact is regained. Returns `false` if the client gave up its session instead.
fn comes_back(client: &Tested) -> Outcome<bool> {
    client.events.await_contact()?;
    check_order(client)?;
    Ok(client.events.count(is_lost) == 0)
}

fn connected_client_has_contact(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    // A client that wraps a handle already in use may not learn that it has contact until the first reply.
    done("exists", client.exists(scene.dir(), false))?;
    let is_connected = |event: &ClientEvent| matches!(event, ClientEvent::Connected(_));
    let reported = usize::from(client.has_contact) + client.events.count(is_connected);
    same("how often `subscribe` or an event reports contact", reported, 1)
}

fn session_timeout_is_the_granted_one(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    let Granted { session_timeout, report_delay, .. } = client.granted();
    ensure!(!session_timeout.is_zero(), "the session timeout is zero");
    if let Some(granted) = scene.fixture.session_timeout() {
        same("the session timeout", session_timeout, granted)?;
    }
    let longest = Granted::new(session_timeout).report_delay;
    ensure!(report_delay <= longest, "the report delay {report_delay:?} exceeds {longest:?}");
    Ok(())
}

fn disconnect_is_reported_before_a_call_fails(scene: &Scene<'_>) -> Outcome {
    let (client, dir) = (scene.connect()?, scene.dir().to_owned());
    done("exists", client.exists(&dir, false))?;
    client.disconnect()?;
    let events = std::sync::Arc::clone(&client.events);
    let until = Instant::now() + scene.deadline();
    let (result, events) = client.in_time("a call without contact", move |client| {
        loop {
            match client.get_data(&dir, false) {
                Ok(_) if Instant::now() < until => {}
                result => return (result.map(drop), events.all()),
            }
        }
    })?;
    same("a call without contact", result, Err(ZkError::ConnectionLoss))?;
    let is_reported = events.contains(&ClientEvent::Disconnected);
    ensure!(is_reported, "no Disconnected is reported before a call fails with ConnectionLoss: {events:?}");
    check_order(&client)
}

fn calls_without_contact_end_with_an_error(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    client.disconnect()?;
    client.events.await_disconnected()?;
    for (name, call) in CALLS {
        let path = scene.path(name);
        let result = client.in_time(name, move |client| client.make(call(&path)).map(drop))?;
        let is_loss = matches!(result, Err(ZkError::ConnectionLoss | ZkError::SessionExpired));
        ensure!(is_loss, "{name} without contact: {result:?}");
    }
    let children = done("get_children", scene.other.get_children(scene.dir(), false))?;
    same("znodes made without contact", children, Names::default())
}

fn session_goes_on_after_a_reconnect(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.path("e"));
    client.make_ephemeral(&path)?;
    let before = done("exists", client.exists(&path, false))?;
    client.disconnect()?;
    client.events.await_disconnected()?;
    client.reconnect();
    if !comes_back(&client)? {
        // The client may give up the session if it reports that.
        return Ok(());
    }
    let after = done("exists after the reconnect", client.exists(&path, false))?;
    same("the ephemeral znode after the reconnect", after, before)?;
    done("create after the reconnect", create(&*client, &scene.path("f")))?;
    let owner = |name: &str| scene.other.exists(&scene.path(name), false).ok().flatten();
    let owners = [owner("e"), owner("f")].map(|stat| stat.map(|stat| stat.ephemeral_owner));
    ensure!(
        owners[0].is_some() && owners[0] == owners[1],
        "the session differs after a reconnect: {owners:x?}"
    );
    Ok(())
}

fn connected_reports_the_grant(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    client.disconnect()?;
    client.events.await_disconnected()?;
    client.reconnect();
    if !comes_back(&client)? {
        return Ok(());
    }
    let granted = client.events.all().into_iter().find_map(|event| match event {
        ClientEvent::Connected(granted) => Some(granted.session_timeout),
        _ => None,
    });
    same("the reported session timeout", granted, Some(client.granted().session_timeout))?;
    match scene.fixture.session_timeout() {
        Some(known) => same("the session timeout after a reconnect", client.granted().session_timeout, known),
        None => Ok(()),
    }
}

fn change_during_an_outage_is_noticed(scene: &Scene<'_>) -> Outcome {
    let (client, watched) = (scene.connect()?, scene.given("a")?);
    done("get_data", client.get_data(&watched, true))?;
    client.disconnect()?;
    client.events.await_disconnected()?;
    done("set_data", scene.other.set_data(&watched, b"1", None))?;
    client.reconnect();
    if !comes_back(&client)? {
        return Ok(());
    }
    // `Disconnected` was reported, so a reader must read again, whether or not the event arrives.
    let (data, _) = done("get_data", client.get_data(&watched, true))?;
    same("the data read after the reconnect", data, b"1".to_vec())?;
    let before = client.events.changes(&watched);
    done("delete", scene.other.delete(&watched, None))?;
    let fires = |events: &super::scene::Recorder| events.changes(&watched) > before;
    scene.eventually("a watch set after the reconnect fires", |_| fires(&client.events))
}

fn expired_session_is_reported_once(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    done("exists", client.exists(scene.dir(), true))?;
    client.expire()?;
    client.events.await_event("the end of the session", is_lost)?;
    done("set_data", scene.other.set_data(scene.dir(), b"1", None))?;
    let _ = client.in_time("exists", |client| client.exists("/", false))?;
    check_order(&client)?;
    same("how often the end is reported", client.events.count(is_lost), 1)
}

fn expired_session_fails_every_call_at_once(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    client.expire()?;
    client.events.await_event("the end of the session", is_lost)?;
    for (name, call) in CALLS {
        let (begun, path) = (Instant::now(), scene.path(name));
        let result = client.in_time(name, move |client| client.make(call(&path)).map(drop))?;
        same(&format!("{name} on an expired session"), result, Err(ZkError::SessionExpired))?;
        let time = begun.elapsed();
        ensure!(time < AT_ONCE, "{name} on an expired session takes {time:?}");
    }
    let children = done("get_children", scene.other.get_children(scene.dir(), false))?;
    same("znodes made on an expired session", children, Names::default())?;
    client.in_time("close", |client| client.close())
}

fn expiry_deletes_ephemeral_znodes_and_no_others(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    let (ephemeral, persistent) = (scene.path("e"), scene.path("p"));
    client.make_ephemeral(&ephemeral)?;
    client.make(&persistent)?;
    client.expire()?;
    let is_gone = |other: &Tested| other.exists(&ephemeral, false) == Ok(None);
    scene.eventually("the ephemeral znode is deleted", is_gone)?;
    let kept = done("exists", scene.other.exists(&persistent, false))?;
    ensure!(kept.is_some(), "a persistent znode was deleted with the session");
    Ok(())
}

fn close_is_idempotent_and_silent(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.given("a")?);
    done("get_data", client.get_data(&path, true))?;
    client.in_time("close", |client| client.close())?;
    let before = client.events.all();
    client.in_time("the second close", |client| client.close())?;
    for (name, call) in CALLS {
        let path = scene.path(name);
        let result = client.in_time(name, move |client| client.make(call(&path)).map(drop))?;
        same(&format!("{name} after the close"), result, Err(ZkError::SessionExpired))?;
    }
    done("set_data", scene.other.set_data(&path, b"1", None))?;
    let _ = client.disconnect();
    client.reconnect();
    // By the time another session has received the event of a later change, this session would have received its own.
    let witness = scene.connect()?;
    witness.fence(scene)?;
    same("the events after the close", client.events.all(), before)
}

fn close_ends_the_session(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.path("e"));
    client.make_ephemeral(&path)?;
    client.in_time("close", |client| client.close())?;
    same("the ephemeral znode of a closed session", done("exists", scene.other.exists(&path, false))?, None)
}

fn close_without_contact_returns(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    client.disconnect()?;
    client.events.await_disconnected()?;
    let before = client.events.count(|_| true);
    client.in_time("close without contact", |client| client.close())?;
    client.reconnect();
    let result = client.in_time("exists", |client| client.exists("/", false))?;
    same("exists after the close", result, Err(ZkError::SessionExpired))?;
    same("events after the close", client.events.count(|_| true), before)
}
