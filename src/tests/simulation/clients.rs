//! Opens sessions, including those that replace lost ones.

use crate::error::Result;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::application::{self, CLIENT_DROP, ClientWithDrop, FACTORY, FACTORY_DROP, Value};
use super::baton::{Wait, pause, role};
use super::link::{Drift, Heard, Link};
use super::locks::new_lock;
use super::profile::session_timeout;
use super::random::Random;
use super::runtime::SimulatedRuntime;
use super::scheduler::DIRS;
use super::wire::SimulatedConnection;
use super::world::{ClientState, World};
use crate::client::ZooKeeperClient;
use crate::session::{Core, Factory, FirstContact};
use crate::time::{Moment, Runtime};
use crate::{CancelToken, LockError, Session};

/// A client without a session yet.
struct NewClient {
    number: usize,
    timeout: Duration,
}

impl NewClient {
    fn connect(&self, world: &Arc<World>) -> Result<Arc<dyn ZooKeeperClient>> {
        let connection = SimulatedConnection::new(world, self.number);
        connection.wait_for_contact()?;
        Ok(connection)
    }
}

pub(super) fn open_client_later(world: &Arc<World>) {
    let may = world.state().clients.len() < world.profile.clients + world.profile.later_clients;
    if may {
        open_client(world);
    }
}

/// Opens a session, and creates some locks with a listener on it.
pub(super) fn open_client(world: &Arc<World>) {
    let replaces = world.profile.replaces && world.state().random.one_in(2);
    let (number, session) = if replaces {
        let number = world.state().clients.len();
        (number, Session::open_replaced(factory(world, number)).expect("there is contact"))
    } else {
        let (runtime, new) = new_client(world, true, None);
        let contact = FirstContact::by(world.now(), new.timeout, "the simulation");
        let session = Session::open(new.connect(world), runtime, Some(world.now()), contact);
        (new.number, session.expect("there is contact"))
    };
    {
        let mut state = world.state();
        let client = &mut state.clients[number];
        client.opening = false;
        client.core = Arc::downgrade(&session.core());
        client.session = Some(session.clone());
        let timeout = client.session_timeout;
        drop(state);
        let kind = if replaces { "that is replaced when it is lost" } else { "" };
        world.note(format!("client {number} opens a session of {timeout:?} {kind}"));
    }
    if world.profile.misbehaves {
        let is_first = session.set_event_hook(application::hook(world));
        assert!(is_first, "the session has no hook yet");
    }
    for _ in 0..world.profile.locks_per_client {
        let dir = {
            let mut state = world.state();
            DIRS[state.random.index(world.profile.dirs)]
        };
        new_lock(world, number, &session, dir);
    }
}

/// Returns a factory of clients for the sessions of a process. While faults occur, it may fail or take its
/// time.
fn factory(world: &Arc<World>, process: usize) -> Factory {
    let newest = Arc::new(Mutex::new(None));
    let (of_runtime, made) = (Arc::clone(world), Arc::clone(&newest));
    let runtime = move || -> Result<Arc<dyn Runtime>> {
        let is_first = role().is_none();
        if !is_first && of_runtime.in_trouble() && of_runtime.state().random.one_in(3) {
            of_runtime.note("no new session is opened");
            return Err(LockError::no_server("the simulation", Duration::ZERO));
        }
        let (runtime, new) = new_client(&of_runtime, is_first, Some(process));
        *made.lock() = Some(new);
        Ok(runtime)
    };
    let value = Value::new(world, FACTORY_DROP);
    let world = Arc::clone(world);
    let client = move |_: &Arc<dyn Runtime>, _: &CancelToken| {
        let _ = &value;
        // Proof: the runtime is made before the client.
        let new = newest.lock().take().expect("the runtime comes first");
        if role().is_some() {
            world.note(format!("client {} opens another session of {:?}", new.number, new.timeout));
        }
        // The session begins before the client knows of it.
        pause(Wait::Turn);
        if role().is_some() {
            application::run(&world, FACTORY);
        }
        let client = new.connect(&world)?;
        Ok(Arc::new(ClientWithDrop { client, _value: Value::new(&world, CLIENT_DROP) })
            as Arc<dyn ZooKeeperClient>)
    };
    Factory::new(runtime, client)
}

/// Opens a connection for tests that do not use a session of the library. The calling thread may use it.
pub(super) fn open_connection(world: &Arc<World>) -> (usize, Arc<SimulatedConnection>) {
    let (_, new) = new_client(world, true, None);
    (new.number, SimulatedConnection::new(world, new.number))
}

fn new_client(
    world: &Arc<World>,
    opening: bool,
    process: Option<usize>,
) -> (Arc<SimulatedRuntime>, NewClient) {
    let number = world.state().clients.len();
    let runtime = Arc::new(SimulatedRuntime { world: Arc::clone(world), client: number });
    let new = add_client(world, Arc::downgrade(&runtime), opening);
    world.state().clients[number].process = process.unwrap_or(number);
    (runtime, new)
}

fn add_client(world: &Arc<World>, runtime: Weak<SimulatedRuntime>, opening: bool) -> NewClient {
    let mut state = world.state();
    let timeout = session_timeout(&mut state.random);
    // Drawn from a copy of the generator, so the rest of the run does not change.
    let drift = Drift::draw(&mut Random::new(!state.random.clone().next()));
    let link = Link {
        partitioned: false,
        cut_off_until: Moment::from_nanos(0),
        stall: None,
        slow_until: Moment::from_nanos(0),
        heard: Heard::new(
            world.now(),
            timeout,
            draw_tick(world, &mut state.random, timeout),
            // Whether the server is an observer. Observers do not die after a stall.
            state.random.one_in(if world.profile.faults.stalls { 8 } else { 2 }),
            drift,
        ),
    };
    let client = ClientState {
        process: state.clients.len(),
        session_id: 0,
        wire: None,
        session_timeout: timeout,
        created_timeout: timeout,
        known_timeout: timeout,
        session: None,
        core: Weak::new(),
        runtime,
        opening,
        jobs: VecDeque::new(),
        callbacks: VecDeque::new(),
        to_spawn: VecDeque::new(),
        timers: Vec::new(),
        shut_down: false,
        at_work: 0,
        most_workers: state.random.of(&[2, 3, 16]),
        link,
        owns_since: None,
        paused_until: Moment::from_nanos(0),
        suspensions: 0,
        long_delays: 0,
        writes_to_fail: 0,
        denied_until: Moment::from_nanos(0),
    };
    state.clients.push(client);
    NewClient { number: state.clients.len() - 1, timeout }
}

/// Draws a tick.
///
/// A server dies after a stall only if its client still owns a lock, and a stall lasts for up to four ticks. With a tick
/// of a tenth of the session timeout T, an owner survives such a stall by default (F is 0.56 T), and a keep-alive falls
/// due in a stall of three ticks or more (D is 0.3 T). With a tick of T/4, one falls due in every stall (D is 0.7
/// ticks), but an owner survives only about two ticks (F is 0.52 T).
fn draw_tick(world: &World, random: &mut Random, timeout: Duration) -> Duration {
    match world.profile.faults.stalls {
        // The part of a lease that remains after the report delay must be long compared to a window.
        _ if world.profile.is_narrow => timeout / 10,
        true => random.of(&[timeout / 4, timeout / 10, timeout / 10, timeout / 10]),
        false => random.of(&[timeout / 2, timeout / 2, timeout / 4, timeout / 10]),
    }
}

impl World {
    /// Records which clients have taken the place of lost ones.
    pub(super) fn note_replacements(&self) {
        let sessions: Vec<Session> = {
            let state = self.state();
            let sessions = state.clients.iter().filter_map(|client| client.session.as_ref());
            sessions.filter(|session| session.replacement().is_some()).cloned().collect()
        };
        for session in sessions {
            self.note_core(&session.core());
        }
    }

    /// Returns the client that uses this core.
    pub(super) fn client_of(&self, core: &Arc<Core>) -> Option<usize> {
        let runtime: *const () = Arc::as_ptr(core.runtime()).cast();
        let state = self.state();
        state.clients.iter().position(|client| client.runtime.as_ptr().cast::<()>() == runtime)
    }

    fn note_core(&self, core: &Arc<Core>) {
        let runtime: *const () = Arc::as_ptr(core.runtime()).cast();
        let mut state = self.state();
        let of_core = |client: &&mut ClientState| client.runtime.as_ptr().cast::<()>() == runtime;
        if let Some(client) = state.clients.iter_mut().find(of_core) {
            client.core = Arc::downgrade(core);
        }
    }
}
