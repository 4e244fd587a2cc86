//! [`Scene`]: a new znode for one check, and the sessions that use the znode.

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use super::{Fixture, Subject, ensure};
use zookeeper_recipes_lock::client::seam::{Call, ClientEvent, EventSink, Verbs, ZooKeeperClient};
use zookeeper_recipes_lock::client::{Acl, CreateMode};
use zookeeper_recipes_lock::client::{ZkError, ZkResult};

/// Why a check has not passed.
#[derive(Debug)]
#[allow(dead_code, reason = "shown in the report of a failure")]
pub(crate) enum Problem {
    /// The fixture or the servers lack this feature.
    Lacking(&'static str),
    Violated(String),
}

/// How long a call may take on a busy machine if it must not wait for a server.
pub(super) const AT_ONCE: Duration = Duration::from_secs(2);

pub(super) type Outcome<T = ()> = Result<T, Problem>;

/// Returns the value of a call that must succeed before the check can continue.
pub(super) fn done<T>(what: &str, result: ZkResult<T>) -> Outcome<T> {
    result.map_err(|error| Problem::Violated(format!("{what} fails: {error:?}")))
}

pub(super) fn same<T: PartialEq + Debug>(what: &str, found: T, expected: T) -> Outcome {
    ensure!(found == expected, "{what}: expected {expected:?}, found {found:?}");
    Ok(())
}

/// Fails unless the server refused the call with this error.
pub(super) fn refused<T: Debug>(what: &str, result: ZkResult<T>, expected: ZkError) -> Outcome {
    match result {
        Err(error) if error == expected => Ok(()),
        other => Err(Problem::Violated(format!("{what}: expected {expected:?}, found {other:?}"))),
    }
}

/// The name of a kind of call, and a function that builds such a call for a path.
type OfPath = (&'static str, fn(&str) -> Call);

pub(super) const CALLS: [OfPath; 7] = [
    ("create", |path| Call::create(path, [], Acl::open_unsafe(), CreateMode::Ephemeral).call),
    ("create_and_list", |path| Call::create_and_list(path, "x-", [], Acl::open_unsafe()).call),
    ("delete", |path| Call::delete(path, None).call),
    ("exists", |path| Call::exists(path, true).call),
    ("get_children", |path| Call::get_children(path, true).call),
    ("get_data", |path| Call::get_data(path, true).call),
    ("set_data", |path| Call::set_data(path, [], None).call),
];

pub(super) struct Scene<'a> {
    pub(super) fixture: &'a dyn Fixture,
    /// The session of another client, which suffers no faults.
    pub(super) other: Tested,
    dir: String,
}

impl Scene<'_> {
    pub(super) fn new(fixture: &dyn Fixture) -> Outcome<Scene<'_>> {
        let other = Tested::new(fixture.connect(), fixture.deadline())?;
        let dir = format!("/contract-{}", Uuid::new_v4());
        let created = other.create(&dir, b"", &Acl::open_unsafe(), CreateMode::Persistent);
        done("a create below the root", created)?;
        Ok(Scene { fixture, other, dir })
    }

    /// Returns the znode of this scene, which exists.
    pub(super) fn dir(&self) -> &str {
        &self.dir
    }

    /// Returns the path of a child of the scene's znode.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    /// Opens a session whose events are recorded.
    pub(super) fn connect(&self) -> Outcome<Tested> {
        Tested::new(self.fixture.connect(), self.deadline())
    }

    /// Opens a session below the scene's znode.
    pub(super) fn connect_below(&self) -> Outcome<Tested> {
        let subject = self.fixture.connect_below(&self.dir).ok_or(Problem::Lacking("a chroot"))?;
        Tested::new(subject, self.deadline())
    }

    pub(super) fn deadline(&self) -> Duration {
        self.fixture.deadline()
    }

    /// Creates a persistent znode through the other session.
    pub(super) fn given(&self, name: &str) -> Outcome<String> {
        self.other.make(&self.path(name))
    }

    /// Waits until the condition, which gets the other session, holds.
    pub(super) fn eventually(&self, what: &str, condition: impl Fn(&Tested) -> bool) -> Outcome {
        let until = Instant::now() + self.deadline();
        while !condition(&self.other) {
            ensure!(Instant::now() < until, "{what}: not within {:?}", self.deadline());
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        let dir = self.dir.clone();
        // May block forever if the client violates the contract.
        let _ = self.other.in_time("a deletion", move |client| delete_all(client, &dir));
    }
}

fn delete_all(client: &dyn ZooKeeperClient, path: &str) {
    for name in &client.get_children(path, false).unwrap_or_default() {
        delete_all(client, &format!("{path}/{name}"));
    }
    // Another session may have deleted the znode, or an ACL may forbid it.
    let _ = client.delete(path, None);
}

/// A session under test. Dropping it closes the session, except in
/// [`drop_without_close`](Tested::drop_without_close).
pub(super) struct Tested {
    subject: Arc<dyn Subject>,
    client: Arc<dyn ZooKeeperClient>,
    pub(super) events: Arc<Recorder>,
    /// The return value of `subscribe`.
    pub(super) has_contact: bool,
    is_abandoned: bool,
}

impl Tested {
    fn new(subject: Box<dyn Subject>, deadline: Duration) -> Outcome<Tested> {
        let client = subject.client();
        let events = Arc::new(Recorder::new(deadline));
        let has_contact = client.subscribe(events.sink());
        let subject = Arc::from(subject);
        Ok(Tested { subject, client, events, has_contact, is_abandoned: false })
    }

    pub(super) fn client(&self) -> Arc<dyn ZooKeeperClient> {
        Arc::clone(&self.client)
    }

    pub(super) fn session_id(&self) -> Option<i64> {
        self.subject.session_id()
    }

    pub(super) fn disconnect(&self) -> Outcome {
        let cut = self.subject.disconnect();
        if cut { Ok(()) } else { Err(Problem::Lacking("a way to disconnect a client")) }
    }

    /// Stalls the connection. Returns whether the fixture can do that.
    pub(super) fn stall(&self) -> bool {
        self.subject.stall()
    }

    pub(super) fn reconnect(&self) {
        self.subject.reconnect();
    }

    pub(super) fn expire(&self) -> Outcome {
        let ended = self.subject.expire();
        if ended { Ok(()) } else { Err(Problem::Lacking("a way to end a session on the server")) }
    }

    /// Creates a persistent znode.
    pub(super) fn make(&self, path: &str) -> Outcome<String> {
        done("create", self.create(path, b"", &Acl::open_unsafe(), CreateMode::Persistent))
    }

    /// Creates an ephemeral znode.
    pub(super) fn make_ephemeral(&self, path: &str) -> Outcome<String> {
        done("create", self.create(path, b"", &Acl::open_unsafe(), CreateMode::Ephemeral))
    }

    /// Makes a call on another thread, because it may block forever.
    pub(super) fn in_time<T: Send + 'static>(
        &self,
        what: &str,
        call: impl FnOnce(&dyn ZooKeeperClient) -> T + Send + 'static,
    ) -> Outcome<T> {
        let (sender, outcome) = bounded(1);
        let client = self.client();
        thread::spawn(move || drop(sender.send(call(&*client))));
        let deadline = self.events.deadline;
        let late = |_| Problem::Violated(format!("{what} did not return within {deadline:?}"));
        outcome.recv_timeout(deadline).map_err(late)
    }

    /// Drops the client without closing it.
    pub(super) fn drop_without_close(mut self) {
        self.is_abandoned = true;
    }

    /// Waits until the events of all earlier changes have arrived, by waiting for one more event: a session's
    /// events arrive in order.
    pub(super) fn fence(&self, scene: &Scene<'_>) -> Outcome {
        let path = scene.given(&format!("fence-{}", Uuid::new_v4()))?;
        done("get_data", self.get_data(&path, true))?;
        done("delete", scene.other.delete(&path, None))?;
        self.events.await_change(&path)
    }
}

impl Deref for Tested {
    type Target = dyn ZooKeeperClient;

    fn deref(&self) -> &(dyn ZooKeeperClient + 'static) {
        &*self.client
    }
}

impl Drop for Tested {
    fn drop(&mut self) {
        if !self.is_abandoned {
            let (subject, client) = (Arc::clone(&self.subject), self.client());
            // May block forever if the client violates the contract.
            let _ = thread::Builder::new().spawn(move || {
                subject.reconnect();
                client.close();
            });
        }
    }
}

/// The events of a session.
pub(super) struct Recorder {
    events: Mutex<Vec<ClientEvent>>,
    changed: Condvar,
    pub(super) deadline: Duration,
}

impl Recorder {
    fn new(deadline: Duration) -> Recorder {
        Recorder { events: Mutex::default(), changed: Condvar::new(), deadline }
    }

    pub(super) fn sink(self: &Arc<Self>) -> EventSink {
        let recorder = Arc::clone(self);
        Arc::new(move |event| {
            recorder.events.lock().push(event);
            recorder.changed.notify_all();
        })
    }

    pub(super) fn all(&self) -> Vec<ClientEvent> {
        self.events.lock().clone()
    }

    /// Returns how many events so far match.
    pub(super) fn count(&self, is_such: impl Fn(&ClientEvent) -> bool) -> usize {
        self.events.lock().iter().filter(|event| is_such(event)).count()
    }

    /// Returns how often a watch on this path has fired.
    pub(super) fn changes(&self, path: &str) -> usize {
        self.count(|event| is_change(event, path))
    }

    /// Waits for an event that matches. An event that has already arrived counts, too.
    pub(super) fn await_event(&self, what: &str, is_such: impl Fn(&ClientEvent) -> bool) -> Outcome {
        let until = Instant::now() + self.deadline;
        let mut events = self.events.lock();
        while !events.iter().any(&is_such) {
            if self.changed.wait_until(&mut events, until).timed_out() {
                let problem = format!("{what} was not reported within {:?}: {events:?}", self.deadline);
                return Err(Problem::Violated(problem));
            }
        }
        Ok(())
    }

    /// Waits for the event of a watch on this path.
    pub(super) fn await_change(&self, path: &str) -> Outcome {
        self.await_event(&format!("a change of '{path}'"), |event| is_change(event, path))
    }

    pub(super) fn await_disconnected(&self) -> Outcome {
        self.await_event("the loss of contact", |event| *event == ClientEvent::Disconnected)
    }

    /// Waits until contact is regained after a disconnect. The end of the session counts, too.
    pub(super) fn await_contact(&self) -> Outcome {
        self.await_event("the next contact", |event| {
            matches!(event, ClientEvent::Connected(_) | ClientEvent::SessionLost)
        })
    }
}

fn is_change(event: &ClientEvent, expected: &str) -> bool {
    matches!(event, ClientEvent::NodeChanged { path, .. } if path == expected)
}
