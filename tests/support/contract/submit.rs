//! Checks of [submitted](ZooKeeperClient::submit) calls: each reports its outcome, whatever happens
//! meanwhile, and none blocks where it must not.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::scene::{AT_ONCE, CALLS, Outcome, Problem, Scene, Tested, done};
use super::{Check, ensure, named};
use zookeeper_recipes_lock::client::seam::{Ask, Call, ClientEvent, Done, ZooKeeperClient};
use zookeeper_recipes_lock::client::{Acl, CreateMode};
use zookeeper_recipes_lock::client::{ZkError, ZkResult};

pub(super) const CHECKS: &[Check] = &[
    named!(submitted_calls_of_one_thread_take_effect_in_order),
    named!(submitted_call_may_follow_from_an_outcome),
    named!(submitted_call_may_follow_from_an_event),
    named!(submitted_call_is_not_answered_on_the_spot),
    named!(submitted_outcome_is_passed_on_without_a_lock),
    named!(submitted_call_does_not_wait_for_the_server),
    named!(submitted_calls_end_with_contact),
    named!(submitted_calls_end_with_the_session),
    named!(submitted_calls_end_with_a_close),
    named!(submitted_calls_end_with_their_client),
];

/// How often a check repeats its calls.
const ROUNDS: usize = 20;

/// Returns a `Done` that reads the outcome with `read` and passes it to `then`.
fn done_of<T: 'static>(
    read: fn(zookeeper_recipes_lock::client::seam::Reply) -> ZkResult<T>,
    then: impl FnOnce(ZkResult<T>) + Send + 'static,
) -> Done {
    Done::new(move |outcome| then(outcome.and_then(read)))
}

/// Makes a call that must succeed and waits for its outcome.
fn result_of<T: Send + 'static>(client: &Tested, what: &str, ask: Ask<T>) -> Outcome<T> {
    let (sender, outcome) = bounded(1);
    let Ask { call, read } = ask;
    let send = done_of(read, move |result| drop(sender.send(result)));
    client.in_time(what, move |client| client.submit(call, send))?;
    done(what, next(client, what, &outcome)?)
}

fn next<T>(client: &Tested, what: &str, channel: &Receiver<T>) -> Outcome<T> {
    let deadline = client.events.deadline;
    let missing = |_| Problem::Violated(format!("{what} did not report its outcome within {deadline:?}"));
    channel.recv_timeout(deadline).map_err(missing)
}

/// A call that has ended, and its outcome.
struct Ended {
    call: &'static str,
    result: ZkResult<()>,
    /// Whether a loss of contact was reported before the call ended.
    after_disconnect: bool,
}

/// Many calls in flight, some of each kind.
struct UnderWay {
    count: usize,
    outcomes: Receiver<Ended>,
}

impl UnderWay {
    /// Makes each kind of call `times` times without waiting for outcomes.
    fn begin(scene: &Scene<'_>, client: &Tested, times: usize) -> Outcome<UnderWay> {
        let (sender, outcomes) = unbounded();
        let events = Arc::clone(&client.events);
        let calls: Vec<_> =
            CALLS.repeat(times).into_iter().map(|(name, call)| (name, call(&scene.path(name)))).collect();
        let count = calls.len();
        client.in_time("submit", move |client| {
            for (name, call) in calls {
                let (sender, events) = (sender.clone(), Arc::clone(&events));
                let done = Done::new(move |outcome| {
                    let after_disconnect = events.count(|event| *event == ClientEvent::Disconnected) > 0;
                    let result = outcome.map(drop);
                    let _ = sender.send(Ended { call: name, result, after_disconnect });
                });
                client.submit(call, done);
            }
        })?;
        Ok(UnderWay { count, outcomes })
    }

    /// Waits until each call has reported its outcome.
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
            "{missing} of {count} calls under way did not report their outcomes within {deadline:?}"
        )))
    }

    /// Like [`finish`](UnderWay::finish), and checks that each outcome is one of these errors.
    fn fail(self, scene: &Scene<'_>, when: &str, expected: &[ZkError]) -> Outcome<Vec<Ended>> {
        let ended = self.finish(scene)?;
        for Ended { call, result, .. } in &ended {
            let is_expected = matches!(result, Err(error) if expected.contains(error));
            ensure!(is_expected, "{call} {when}: expected one of {expected:?}, found {result:?}");
        }
        Ok(ended)
    }
}

/// Each call can succeed only after the one before it, and so can its reply.
fn submitted_calls_of_one_thread_take_effect_in_order(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.path("a"));
    let (sender, outcomes) = unbounded();
    client.in_time("submit", move |client| {
        for round in 0..ROUNDS {
            let calls = [
                ("create", Call::create(&*path, [], Acl::open_unsafe(), CreateMode::Persistent).call),
                ("set_data", Call::set_data(&*path, *b"1", Some(0)).call),
                ("delete", Call::delete(&*path, Some(1)).call),
            ];
            for (name, call) in calls {
                let sender = sender.clone();
                let done = Done::new(move |outcome| {
                    let _ = sender.send((round, name, outcome.map(drop)));
                });
                client.submit(call, done);
            }
        }
    })?;
    for number in 0..3 * ROUNDS {
        let (round, name, outcome) = next(&client, "a call", &outcomes)?;
        ensure!(
            outcome.is_ok(),
            "{name} of round {round} does not follow the call that it depends on: {outcome:?}"
        );
        let expected = (number / 3, ["create", "set_data", "delete"][number % 3]);
        ensure!((round, name) == expected, "the reply to {name} of round {round} is not in order");
    }
    Ok(())
}

fn submitted_call_may_follow_from_an_outcome(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    let (sender, outcome) = bounded(1);
    let (dir, tested) = (scene.dir().to_owned(), Arc::downgrade(&client.client()));
    client.in_time("submit", move |_| chain(&tested, dir, ROUNDS, sender))?;
    let last = next(&client, "a call from the continuation of another", &outcome)?;
    done("a call from the continuation of another", last)
}

/// Makes a call, then `left` more calls, each from the continuation of the call before it.
fn chain(client: &Weak<dyn ZooKeeperClient>, path: String, left: usize, last: Sender<ZkResult<()>>) {
    let Some(strong) = client.upgrade() else { return };
    let (client, Ask { call, read }) = (Weak::clone(client), Call::exists(&*path, false));
    let done = done_of(read, move |outcome| match outcome {
        Ok(_) if left > 0 => chain(&client, path, left - 1, last),
        outcome => drop(last.send(outcome.map(drop))),
    });
    strong.submit(call, done);
}

fn submitted_call_may_follow_from_an_event(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.given("a")?);
    let (sender, outcome) = unbounded();
    let (tested, record) = (Arc::downgrade(&client.client()), client.events.sink());
    client.subscribe(Arc::new(move |event| {
        if let (ClientEvent::NodeChanged { path, .. }, Some(client)) = (&event, tested.upgrade()) {
            let sender = sender.clone();
            client.submit(
                Call::exists(&**path, false).call,
                Done::new(move |outcome| drop(sender.send(outcome))),
            );
        }
        record(event);
    }));
    result_of(&client, "get_data", Call::get_data(&*path, true))?;
    result_of(&scene.other, "set_data", Call::set_data(&*path, *b"1", None))?;
    let from_sink = next(&client, "a call from the sink", &outcome)?;
    done("a call from the sink", from_sink).map(drop)
}

/// A reply must come from the server, so it arrives on another thread or after `submit` has returned.
fn submitted_call_is_not_answered_on_the_spot(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    let (sender, outcomes) = unbounded();
    let dir = scene.dir().to_owned();
    client.in_time("submit", move |client| {
        for _ in 0..ROUNDS {
            let (here, sender) = (thread::current().id(), sender.clone());
            let (submitting, is_submitted) = bounded::<()>(1);
            let done = Done::new(move |outcome| {
                let is_on_the_spot = thread::current().id() == here && is_submitted.is_empty();
                let _ = sender.send(outcome.is_ok() && is_on_the_spot);
            });
            client.submit(Call::exists(&*dir, false).call, done);
            let _ = submitting.send(());
        }
    })?;
    for _ in 0..ROUNDS {
        let is_on_the_spot = next(&client, "a call", &outcomes)?;
        ensure!(!is_on_the_spot, "a reply arrived before `submit` returned, on the same thread");
    }
    Ok(())
}

/// Another thread makes a call while a continuation runs.
fn submitted_outcome_is_passed_on_without_a_lock(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    let (sender, outcome) = bounded(1);
    let (dir, tested, deadline) = (scene.dir().to_owned(), client.client(), scene.deadline());
    client.in_time("submit", move |client| {
        let path = dir.clone();
        let done = Done::new(move |_| {
            let (begun, has_begun) = bounded(1);
            thread::spawn(move || {
                tested.submit(Call::exists(&*path, false).call, Done::new(|_| {}));
                tested.remove_watches(&path);
                let _ = begun.send(());
            });
            let _ = sender.send(has_begun.recv_timeout(deadline / 2).is_ok());
        });
        client.submit(Call::exists(&*dir, false).call, done);
    })?;
    let others_proceed = next(&client, "exists", &outcome)?;
    ensure!(others_proceed, "other threads could not make calls while a continuation ran");
    Ok(())
}

fn submitted_call_does_not_wait_for_the_server(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    ensure_stalled(&client)?;
    let begun = Instant::now();
    let calls = UnderWay::begin(scene, &client, ROUNDS)?;
    let time = begun.elapsed();
    ensure!(time < AT_ONCE, "{} unanswered calls took {time:?}", calls.count);
    client.disconnect()?;
    let expected = [ZkError::ConnectionLoss, ZkError::SessionExpired];
    calls.fail(scene, "without an answer", &expected).map(drop)
}

fn ensure_stalled(client: &Tested) -> Outcome {
    if client.stall() { Ok(()) } else { Err(Problem::Lacking("a way to stall a connection")) }
}

fn submitted_calls_end_with_contact(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    // Without a stall, some calls are answered.
    let _ = client.stall();
    let calls = UnderWay::begin(scene, &client, ROUNDS)?;
    client.disconnect()?;
    for Ended { call, result, after_disconnect } in calls.finish(scene)? {
        let is_reported = after_disconnect || result != Err(ZkError::ConnectionLoss);
        ensure!(is_reported, "{call} failed with ConnectionLoss before the loss of contact was reported");
    }
    client.events.await_disconnected()?;
    let calls = UnderWay::begin(scene, &client, 1)?;
    calls.fail(scene, "without contact", &[ZkError::ConnectionLoss, ZkError::SessionExpired])?;
    client.reconnect();
    client.events.await_contact()?;
    if client.events.count(|event| *event == ClientEvent::SessionLost) > 0 {
        // The client may give up the session if it reports that.
        return Ok(());
    }
    result_of(&client, "exists after the reconnect", Call::exists(scene.dir(), false)).map(drop)
}

fn submitted_calls_end_with_the_session(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    let _ = client.stall();
    let calls = UnderWay::begin(scene, &client, ROUNDS)?;
    client.expire()?;
    calls.finish(scene)?;
    client.events.await_event("the end of the session", |event| *event == ClientEvent::SessionLost)?;
    let begun = Instant::now();
    let calls = UnderWay::begin(scene, &client, 1)?;
    calls.fail(scene, "on an expired session", &[ZkError::SessionExpired])?;
    let time = begun.elapsed();
    ensure!(time < AT_ONCE, "calls on an expired session took {time:?}");
    Ok(())
}

fn submitted_calls_end_with_a_close(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    let calls = UnderWay::begin(scene, &client, ROUNDS)?;
    client.in_time("close", |client| client.close())?;
    calls.finish(scene)?;
    let calls = UnderWay::begin(scene, &client, 1)?;
    calls.fail(scene, "after the close", &[ZkError::SessionExpired]).map(drop)
}

fn submitted_calls_end_with_their_client(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    let _ = client.stall();
    let calls = UnderWay::begin(scene, &client, ROUNDS)?;
    client.drop_without_close();
    calls.finish(scene).map(drop)
}
