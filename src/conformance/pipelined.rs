//! Calls of a [`PipelinedClient`]: that each passes on its outcome, whatever happens meanwhile, and
//! when it must not wait.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::scene::{AT_ONCE, Outcome, Problem, Scene, Tested, done, refused, same};
use super::{Check, ensure, named};
use crate::client::{Acl, ClientEvent, CreateMode, Done, Enqueued, PipelinedClient, ZooKeeperClient};
use crate::error::{ZkError, ZkResult};
use crate::recipe::names::Names;

pub(super) const CHECKS: &[Check] = &[
    named!(pipelined_calls_return_what_the_others_do),
    named!(pipelined_calls_fail_as_the_server_refuses),
    named!(pipelined_create_and_list_includes_the_new_znode),
    named!(pipelined_calls_of_one_thread_take_effect_in_order),
    named!(pipelined_call_may_follow_from_an_outcome),
    named!(pipelined_outcome_is_passed_on_without_a_lock),
    named!(pipelined_call_does_not_wait_for_the_server),
    named!(pipelined_calls_end_with_contact),
    named!(pipelined_calls_end_with_the_session),
    named!(pipelined_calls_end_with_a_close),
    named!(pipelined_calls_end_with_their_client),
];

/// How many calls are under way at once, where a check needs several.
const ROUNDS: usize = 20;

fn open() -> Vec<Acl> {
    Acl::open_unsafe()
}

/// Opens a session whose client is pipelined.
fn connect(scene: &Scene<'_>) -> Outcome<Tested> {
    let client = scene.connect();
    if client.pipelined().is_none() {
        return Err(LACKING);
    }
    Ok(client)
}

const LACKING: Problem = Problem::Lacking("a pipelined client");

/// A call of any kind, by its name.
type Call = (&'static str, fn(&dyn PipelinedClient, &str, Done<()>));

const CALLS: [Call; 7] = [
    ("create", |client, path, done| client.create(path, b"", &open(), CreateMode::Ephemeral, ignoring(done))),
    ("create_and_list", |client, path, done| {
        client.create_and_list(path, "x-", b"", &open(), ignoring(done));
    }),
    ("delete", |client, path, done| client.delete(path, None, done)),
    ("exists", |client, path, done| client.exists(path, true, ignoring(done))),
    ("get_children", |client, path, done| client.get_children(path, true, ignoring(done))),
    ("get_data", |client, path, done| client.get_data(path, true, ignoring(done))),
    ("set_data", |client, path, done| client.set_data(path, b"", None, ignoring(done))),
];

/// Passes on whether the call has succeeded.
fn ignoring<T: 'static>(done: Done<()>) -> Done<T> {
    Done::new(move |outcome: ZkResult<T>| done.finish(outcome.map(drop)))
}

/// Makes a call and waits for its outcome.
fn outcome_of<T: Send + 'static>(
    client: &Tested,
    what: &str,
    call: impl FnOnce(&dyn PipelinedClient, Done<T>) + Send + 'static,
) -> Outcome<ZkResult<T>> {
    let (sender, outcome) = bounded(1);
    let done = Done::new(move |result| drop(sender.send(result)));
    client.in_time(what, move |client| client.pipelined().map(|client| call(client, done)))?;
    next(client, what, &outcome)
}

/// As [`outcome_of`], of a call that must succeed.
fn result_of<T: Send + 'static>(
    client: &Tested,
    what: &str,
    call: impl FnOnce(&dyn PipelinedClient, Done<T>) + Send + 'static,
) -> Outcome<T> {
    done(what, outcome_of(client, what, call)?)
}

fn next<T>(client: &Tested, what: &str, channel: &Receiver<T>) -> Outcome<T> {
    let deadline = client.events.deadline;
    let missing = |_| Problem::Violated(format!("{what} does not pass on its outcome within {deadline:?}"));
    channel.recv_timeout(deadline).map_err(missing)
}

/// The outcome of a call.
struct Ended {
    call: &'static str,
    result: ZkResult<()>,
    /// Whether a loss of contact was reported before.
    after_disconnect: bool,
}

/// Many calls under way, of each kind.
struct UnderWay {
    count: usize,
    outcomes: Receiver<Ended>,
}

impl UnderWay {
    /// Makes each call so many times, without waiting for any outcome.
    fn begin(scene: &Scene<'_>, client: &Tested, times: usize) -> Outcome<UnderWay> {
        let (sender, outcomes) = unbounded();
        let events = Arc::clone(&client.events);
        let calls = CALLS.repeat(times);
        let count = calls.len();
        let calls = calls.into_iter().map(|(name, call)| (name, call, scene.path(name))).collect::<Vec<_>>();
        client.in_time("a pipelined call", move |client| {
            let Some(client) = client.pipelined() else { return };
            for (name, call, path) in calls {
                let (sender, events) = (sender.clone(), Arc::clone(&events));
                call(
                    client,
                    &path,
                    Done::new(move |result| {
                        let after_disconnect = events.count(|event| *event == ClientEvent::Disconnected) > 0;
                        let _ = sender.send(Ended { call: name, result, after_disconnect });
                    }),
                );
            }
        })?;
        Ok(UnderWay { count, outcomes })
    }

    /// Waits until each call has passed on its outcome.
    fn finish(self, scene: &Scene<'_>) -> Outcome<Vec<Ended>> {
        let until = Instant::now() + scene.deadline();
        let mut ended = Vec::new();
        while let Ok(outcome) = self.outcomes.recv_deadline(until) {
            ended.push(outcome);
            if ended.len() == self.count {
                return Ok(ended);
            }
        }
        let (count, missing, deadline) = (self.count, self.count - ended.len(), scene.deadline());
        Err(Problem::Violated(format!(
            "{missing} of {count} calls under way do not pass on their outcomes within {deadline:?}"
        )))
    }

    /// As [`finish`](UnderWay::finish), where each outcome must be such an error.
    fn fail(self, scene: &Scene<'_>, when: &str, expected: &[ZkError]) -> Outcome<Vec<Ended>> {
        let ended = self.finish(scene)?;
        for Ended { call, result, .. } in &ended {
            let is_expected = matches!(result, Err(error) if expected.contains(error));
            ensure!(is_expected, "{call} {when}: {result:?}, not one of {expected:?}");
        }
        Ok(ended)
    }
}

fn pipelined_calls_return_what_the_others_do(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (connect(scene)?, scene.path("a"));
    let at = path.clone();
    let create = move |client: &dyn PipelinedClient, done| {
        client.create(&at, b"data", &open(), CreateMode::Persistent, done);
    };
    let (created, stat) = result_of(&client, "create", create)?;
    same("the path of a new znode", created, path.clone())?;
    let expected = done("get_data", client.get_data(&path, false))?;
    same("the returned metadata of a new znode", stat.unwrap_or(expected.1), expected.1)?;
    let at = path.clone();
    let found = result_of(&client, "get_data", move |client, done| client.get_data(&at, false, done))?;
    same("what get_data returns", found, expected.clone())?;
    let at = path.clone();
    let found = result_of(&client, "exists", move |client, done| client.exists(&at, false, done))?;
    same("what exists returns", found, Some(expected.1))?;
    let at = path.clone();
    let stat =
        result_of(&client, "set_data", move |client, done| client.set_data(&at, b"new", Some(0), done))?;
    same("the data after set_data", client.get_data(&path, false), Ok((b"new".to_vec(), stat)))?;
    let dir = scene.dir().to_owned();
    let names =
        result_of(&client, "get_children", move |client, done| client.get_children(&dir, false, done))?;
    same("what get_children returns", names, Names::from_iter(["a"]))?;
    let at = path.clone();
    result_of(&client, "delete", move |client, done| client.delete(&at, Some(1), done))?;
    same("exists for a deleted znode", client.exists(&path, false), Ok(None))
}

fn pipelined_calls_fail_as_the_server_refuses(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (connect(scene)?, scene.given("a")?);
    for (name, call) in CALLS {
        let missing = scene.path("no/child");
        let outcome = outcome_of(&client, name, move |client, done| call(client, &missing, done))?;
        let expected = if name == "exists" { Ok(()) } else { Err(ZkError::NoNode) };
        same(&format!("{name} of a missing znode"), outcome, expected)?;
    }
    let at = path.clone();
    let delete = outcome_of(&client, "delete", move |client, done| client.delete(&at, Some(7), done))?;
    refused("a delete at another version", delete, ZkError::BadVersion)?;
    let set_data = move |client: &dyn PipelinedClient, done| client.set_data(&path, b"", Some(7), done);
    refused("set_data at another version", outcome_of(&client, "set_data", set_data)?, ZkError::BadVersion)
}

fn pipelined_create_and_list_includes_the_new_znode(scene: &Scene<'_>) -> Outcome {
    let client = connect(scene)?;
    for count in 1..=3 {
        let dir = scene.dir().to_owned();
        let call = move |client: &dyn PipelinedClient, done| {
            client.create_and_list(&dir, "x-lock-", b"me", &open(), done);
        };
        let Enqueued { path, stat: returned, children } = result_of(&client, "create_and_list", call)?;
        let name = path.strip_prefix(&format!("{}/", scene.dir())).unwrap_or_default().to_owned();
        ensure!(name.starts_with("x-lock-") && name.len() == 17, "the new znode is '{path}'");
        let listed = done("the listing", children)?;
        ensure!(listed.contains(&name), "'{name}' is not in the listing after its creation: {listed:?}");
        same("the length of the listing", listed.len(), count)?;
        let (data, stat) = done("get_data", client.get_data(&path, false))?;
        same("the data of the new znode", data, b"me".to_vec())?;
        ensure!(stat.session().is_some(), "the new znode is not ephemeral: {stat:?}");
        same("the returned metadata", returned.unwrap_or(stat), stat)?;
    }
    Ok(())
}

/// Each call succeeds only after the one before.
fn pipelined_calls_of_one_thread_take_effect_in_order(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (connect(scene)?, scene.path("a"));
    let (sender, outcomes) = unbounded();
    client.in_time("a pipelined call", move |client| {
        let Some(client) = client.pipelined() else { return };
        for round in 0..ROUNDS {
            let done = |name: &'static str| {
                let sender = sender.clone();
                Done::new(move |outcome| {
                    let _ = sender.send((round, name, outcome));
                })
            };
            client.create(&path, b"", &open(), CreateMode::Persistent, ignoring(done("create")));
            client.set_data(&path, b"1", Some(0), ignoring(done("set_data")));
            client.delete(&path, Some(1), done("delete"));
        }
    })?;
    for _ in 0..3 * ROUNDS {
        let (round, name, outcome) = next(&client, "a call", &outcomes)?;
        ensure!(outcome.is_ok(), "{name} of round {round}, made after the call before it: {outcome:?}");
    }
    Ok(())
}

fn pipelined_call_may_follow_from_an_outcome(scene: &Scene<'_>) -> Outcome {
    let client = connect(scene)?;
    let (sender, outcome) = bounded(1);
    let (dir, tested) = (scene.dir().to_owned(), Arc::downgrade(&client.client()));
    client.in_time("a pipelined call", move |_| chain(&tested, dir, ROUNDS, sender))?;
    let last = next(&client, "a call from the continuation of another", &outcome)?;
    done("a call from the continuation of another", last)
}

/// Makes so many calls, each but the first from the continuation of another.
fn chain(client: &Weak<dyn ZooKeeperClient>, path: String, left: usize, last: Sender<ZkResult<()>>) {
    let Some(strong) = client.upgrade() else { return };
    let Some(pipelined) = strong.pipelined() else { return };
    let (client, at) = (Weak::clone(client), path.clone());
    let done = Done::new(move |outcome: ZkResult<_>| match outcome {
        Ok(_) if left > 0 => chain(&client, path, left - 1, last),
        outcome => drop(last.send(outcome.map(drop))),
    });
    pipelined.exists(&at, false, done);
}

/// While a continuation runs, another thread makes a call.
fn pipelined_outcome_is_passed_on_without_a_lock(scene: &Scene<'_>) -> Outcome {
    let client = connect(scene)?;
    let (sender, outcome) = bounded(1);
    let (dir, tested, deadline) = (scene.dir().to_owned(), client.client(), scene.deadline());
    client.in_time("a pipelined call", move |client| {
        let Some(client) = client.pipelined() else { return };
        let path = dir.clone();
        let done = Done::new(move |_| {
            let (begun, has_begun) = bounded(1);
            thread::spawn(move || {
                let Some(client) = tested.pipelined() else { return };
                client.exists(&path, false, Done::new(|_| {}));
                tested.remove_watches(&path, &|| true);
                let _ = begun.send(());
            });
            let _ = sender.send(has_begun.recv_timeout(deadline / 2).is_ok());
        });
        client.exists(&dir, false, done);
    })?;
    let others_proceed = next(&client, "exists", &outcome)?;
    ensure!(others_proceed, "other threads cannot make calls while a continuation runs");
    Ok(())
}

fn pipelined_call_does_not_wait_for_the_server(scene: &Scene<'_>) -> Outcome {
    let client = connect(scene)?;
    ensure_stalled(&client)?;
    let begun = Instant::now();
    let calls = UnderWay::begin(scene, &client, ROUNDS)?;
    let time = begun.elapsed();
    ensure!(time < AT_ONCE, "{} calls without an answer take {time:?}", calls.count);
    client.disconnect()?;
    let expected = [ZkError::ConnectionLoss, ZkError::SessionExpired];
    calls.fail(scene, "without an answer", &expected).map(drop)
}

fn ensure_stalled(client: &Tested) -> Outcome {
    if client.stall() { Ok(()) } else { Err(Problem::Lacking("a way to stall a connection")) }
}

fn pipelined_calls_end_with_contact(scene: &Scene<'_>) -> Outcome {
    let client = connect(scene)?;
    // Without it, some calls are answered.
    let _ = client.stall();
    let calls = UnderWay::begin(scene, &client, ROUNDS)?;
    client.disconnect()?;
    for Ended { call, result, after_disconnect } in calls.finish(scene)? {
        let is_reported = after_disconnect || result != Err(ZkError::ConnectionLoss);
        ensure!(is_reported, "{call} fails with ConnectionLoss before the loss of contact is reported");
    }
    client.events.await_disconnected()?;
    let calls = UnderWay::begin(scene, &client, 1)?;
    calls.fail(scene, "without contact", &[ZkError::ConnectionLoss, ZkError::SessionExpired])?;
    client.reconnect();
    client.events.await_contact()?;
    if client.events.count(|event| *event == ClientEvent::SessionLost) > 0 {
        // It may give the session up, and reports that.
        return Ok(());
    }
    let dir = scene.dir().to_owned();
    result_of(&client, "exists after the reconnect", move |client, done| client.exists(&dir, false, done))
        .map(drop)
}

fn pipelined_calls_end_with_the_session(scene: &Scene<'_>) -> Outcome {
    let client = connect(scene)?;
    let _ = client.stall();
    let calls = UnderWay::begin(scene, &client, ROUNDS)?;
    client.expire()?;
    calls.finish(scene)?;
    client.events.await_event("the end of the session", |event| *event == ClientEvent::SessionLost)?;
    let begun = Instant::now();
    let calls = UnderWay::begin(scene, &client, 1)?;
    calls.fail(scene, "on an expired session", &[ZkError::SessionExpired])?;
    let time = begun.elapsed();
    ensure!(time < AT_ONCE, "calls on an expired session take {time:?}");
    Ok(())
}

fn pipelined_calls_end_with_a_close(scene: &Scene<'_>) -> Outcome {
    let client = connect(scene)?;
    let calls = UnderWay::begin(scene, &client, ROUNDS)?;
    client.in_time("close", |client| client.close())?;
    calls.finish(scene)?;
    let calls = UnderWay::begin(scene, &client, 1)?;
    calls.fail(scene, "after the close", &[ZkError::SessionExpired]).map(drop)
}

fn pipelined_calls_end_with_their_client(scene: &Scene<'_>) -> Outcome {
    let client = connect(scene)?;
    let _ = client.stall();
    let calls = UnderWay::begin(scene, &client, ROUNDS)?;
    client.drop_without_close();
    calls.finish(scene).map(drop)
}
