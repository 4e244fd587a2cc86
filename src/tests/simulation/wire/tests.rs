//! The machine and the simulated servers on a network without faults.

use std::sync::Arc;

use crossbeam_channel::bounded;
use parking_lot::Mutex;

use super::SimulatedConnection;
use super::stream::Transport;
use crate::client::Names;
use crate::client::{Acl, Call, ClientEvent, CreateMode, Done, Reply, Verbs, ZooKeeperClient};
use crate::error::{ZkError, ZkResult};
use crate::tests::simulation::clients::open_connection;
use crate::tests::simulation::profile::Profile;
use crate::tests::simulation::random::Random;
use crate::tests::simulation::world::World;

impl Verbs for SimulatedConnection {
    fn make(&self, call: Call) -> ZkResult<Reply> {
        let (sender, outcome) = bounded(1);
        self.submit(call, Done::new(move |result| drop(sender.send(result))));
        self.world.run_wire(self.client);
        outcome.try_recv().unwrap_or(Err(ZkError::SessionExpired))
    }
}

struct Fixture {
    world: Arc<World>,
    number: usize,
    connection: Arc<SimulatedConnection>,
    events: Arc<Mutex<Vec<ClientEvent>>>,
}

impl Fixture {
    fn new(seed: u64) -> Fixture {
        let mut random = Random::new(seed);
        let mut profile = Profile::draw(&mut random);
        profile.servers = 3;
        let world = World::new(profile, random, false);
        world.calm_down();
        let (number, connection) = open_connection(&world);
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        assert!(connection.subscribe(Arc::new(move |event| sink.lock().push(event))));
        Fixture { world, number, connection, events }
    }

    fn create(&self, path: &str) {
        let acl = Acl::open_unsafe();
        self.connection.create(path, b"data", &acl, CreateMode::Ephemeral).unwrap();
    }

    /// Takes all steps until only the connection's next ping is left to do.
    fn run(&self) {
        for _ in 0..20 {
            self.world.run_wire(self.number);
            let mut state = self.world.state();
            if state.clients[self.number].endpoint().unwrap().is_served() {
                break;
            }
            let next = state.next_wire_time(self.number, self.world.now()).unwrap();
            drop(state);
            self.world.set_now(next);
        }
        self.world.run_wire(self.number);
    }

    fn changes(&self) -> Vec<String> {
        let events = std::mem::take(&mut *self.events.lock());
        let path = |event| match event {
            ClientEvent::NodeChanged { path, .. } => Some(path),
            _ => None,
        };
        events.into_iter().filter_map(path).collect()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let failure = self.world.state().failure.clone();
        if !std::thread::panicking() {
            assert_eq!(failure, None);
        }
    }
}

#[test]
fn calls_are_answered_by_the_tree() {
    for seed in 0..20 {
        let fixture = Fixture::new(seed);
        let connection = &fixture.connection;
        fixture.create("/a");
        let (data, stat) = connection.get_data("/a", false).unwrap();
        assert_eq!((data.as_slice(), stat.version), (&b"data"[..], 0));
        assert_eq!(connection.set_data("/a", b"new", Some(0)).unwrap().version, 1);
        assert_eq!(connection.set_data("/a", b"newer", Some(0)), Err(ZkError::BadVersion));
        assert_eq!(connection.exists("/b", false), Ok(None));
        assert_eq!(connection.get_children("/", false), Ok(Names::from_iter(["a"])));
        assert_eq!(connection.delete("/a", None), Ok(()));
        assert_eq!(connection.delete("/a", None), Err(ZkError::NoNode));
        fixture.world.zookeeper.create("/dir", b"");
        let listed = connection.create_and_list("/dir", "x-", b"", &Acl::open_unsafe()).unwrap();
        assert_eq!(listed.path, "/dir/x-0000000000");
        assert_eq!(listed.children, Ok(Names::from_iter(["x-0000000000"])));
    }
}

#[test]
fn watch_fires_once_and_before_a_reply_that_shows_the_change() {
    let fixture = Fixture::new(1);
    fixture.create("/a");
    fixture.connection.get_data("/a", true).unwrap();
    fixture.world.zookeeper.set_data("/a", b"1");
    fixture.world.zookeeper.set_data("/a", b"2");
    assert_eq!(fixture.connection.get_data("/a", false).unwrap().0, b"2");
    assert_eq!(fixture.changes(), ["/a"]);
}

#[test]
fn watch_survives_a_reconnect_and_fires_for_what_happened_meanwhile() {
    for seed in 0..20 {
        let fixture = Fixture::new(seed);
        fixture.create("/a");
        fixture.create("/b");
        fixture.connection.get_data("/a", true).unwrap();
        fixture.connection.get_data("/b", true).unwrap();
        let cut = |transport: &mut Transport| transport.end_down();
        fixture.world.state().clients[fixture.number].endpoint().unwrap().transport.as_mut().map(cut);
        fixture.world.zookeeper.delete("/a");
        fixture.run();
        assert_eq!(fixture.changes(), ["/a"]);
        fixture.world.zookeeper.delete("/b");
        fixture.run();
        assert_eq!(fixture.changes(), ["/b"]);
        assert_eq!(fixture.world.zookeeper.watch_count(), 0);
    }
}

#[test]
fn close_ends_the_session_at_the_server() {
    let fixture = Fixture::new(1);
    fixture.create("/a");
    fixture.connection.close();
    assert!(!fixture.world.zookeeper.exists("/a"));
    assert!(fixture.world.zookeeper.sessions().is_empty());
    assert_eq!(fixture.connection.exists("/a", false), Err(ZkError::SessionExpired));
}
