//! Tests of the small [model](super::server) against the simulated server, which is tested against real
//! servers. Both get the same random history, and must show the same results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::server::{Answer, DIR, Item, Sent, Server, Watch, Wire, watch_at};
use crate::client::{Acl, Call, CreateMode, KEEP_ALIVE_PATH, Reply, Stat};
use crate::engine::CallId;
use crate::error::{ZkError, ZkResult};
use crate::fake::{Fired, ServedConnection, SimulatedZooKeeper};
use crate::tests::simulation::random::Random;
use zookeeper_connection::codec::EventKind;

const HISTORIES: u64 = 300;
const STEPS: usize = 150;
const SESSIONS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Call(Call),
    RemoveWatch(String),
    /// A step of a client that belongs to none of the sessions.
    Delete(String),
    Touch(String),
    /// The connection is lost, this step happens, and the session sets its watches again on the next
    /// connection.
    Reconnect(Box<Step>),
    Expire,
}

/// What a session sees. Transactions are numbered as in the small model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shown {
    Event(Watch, bool),
    Answer(Result<Fields, i32>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Fields {
    path: String,
    /// The transactions that created and last changed the znode, its version, and its owner.
    stat: Option<(i64, i64, i32, i64)>,
    names: Vec<String>,
}

type ByThem = BTreeMap<usize, Vec<Shown>>;

struct Beside {
    random: Random,
    small: Server,
    zookeeper: SimulatedZooKeeper,
    sessions: Vec<i64>,
    /// `None` for a session that has ended.
    connections: Vec<Option<ServedConnection>>,
    last_number: i64,
    /// The transactions of the simulated server, with their numbers in the small model.
    transactions: BTreeMap<i64, i64>,
}

#[test]
fn small_model_shows_what_the_simulated_server_shows() {
    for seed in 0..HISTORIES {
        let mut beside = Beside::new(seed);
        let mut steps = Vec::new();
        for number in 0..STEPS {
            let Some((session, step)) = beside.draw(number) else { continue };
            steps.push((session, step.clone()));
            let watches = beside.small.links[session].watches.clone();
            let again = Again { watches, since: beside.zookeeper.last_zxid() };
            let small = beside.small(session, &step);
            let simulated = beside.simulated(session, &step, &again);
            beside.note_transaction();
            assert_eq!(
                small, simulated,
                "left: small model, right: simulated server; seed {seed}: {steps:#?}"
            );
        }
    }
}

impl Beside {
    fn new(seed: u64) -> Beside {
        let zookeeper = SimulatedZooKeeper::new();
        zookeeper.create(DIR, b"");
        let connect = |_| zookeeper.connect(Duration::from_secs(9)).session_id();
        let mut beside = Beside {
            random: Random::new(seed),
            small: Server::new(SESSIONS, true, false),
            sessions: (0..SESSIONS).map(connect).collect(),
            zookeeper,
            connections: Vec::new(),
            last_number: 0,
            transactions: BTreeMap::new(),
        };
        beside.connections = (0..SESSIONS).map(|session| Some(beside.open(session))).collect();
        beside
    }

    fn open(&mut self, session: usize) -> ServedConnection {
        self.last_number += 1;
        ServedConnection::open(&self.zookeeper, self.last_number, self.sessions[session])
    }

    /// Draws the next step. Returns `None` if the session has ended.
    fn draw(&mut self, number: usize) -> Option<(usize, Step)> {
        let session = self.random.index(SESSIONS);
        self.connections[session].as_ref()?;
        let step = match self.random.below(60) {
            0 => Step::Expire,
            1..=3 => Step::Reconnect(Box::new(self.draw_change(number))),
            4..=8 => self.draw_change(number),
            9..=14 => Step::RemoveWatch(self.path()),
            _ => Step::Call(self.draw_call(number)),
        };
        Some((session, step))
    }

    fn draw_change(&mut self, number: usize) -> Step {
        let names: Vec<&String> = self.small.tree.znodes.keys().collect();
        match names.is_empty() {
            true => Step::Call(self.draw_call(number)),
            false => {
                let name = names[self.random.index(names.len())].clone();
                if self.random.one_in(2) { Step::Delete(name) } else { Step::Touch(name) }
            }
        }
    }

    fn draw_call(&mut self, number: usize) -> Call {
        let prefix = format!("x-{number}-lock-");
        let acl: Arc<[Acl]> = Acl::open_unsafe().into();
        let watch = self.random.one_in(2);
        match self.random.below(7) {
            0 => Call::create_and_list(DIR, prefix, Vec::new(), acl).call,
            1 => {
                Call::create(format!("{DIR}/{prefix}"), Vec::new(), acl, CreateMode::EphemeralSequential).call
            }
            2 => Call::delete(self.path(), None).call,
            3 => Call::exists(self.path(), false).call,
            4 => Call::get_data(self.path(), watch).call,
            5 => Call::get_children(DIR, watch).call,
            _ => Call::set_data(KEEP_ALIVE_PATH, Vec::new(), Some(i32::MIN)).call,
        }
    }

    /// Draws the path of a request's znode, which may not exist.
    fn path(&mut self) -> String {
        let names: Vec<&String> = self.small.tree.znodes.keys().collect();
        let name =
            names.get(self.random.index(names.len() + 1)).map_or("x-none-lock-0000000000", |name| name);
        format!("{DIR}/{name}")
    }

    // ---- the small model

    fn small(&mut self, session: usize, step: &Step) -> ByThem {
        let sent = self.do_small(session, step);
        let mut by_them = ByThem::new();
        for (session, item) in sent {
            let shown = match item {
                Item::Event { watch, is_deleted, .. } => Shown::Event(watch, is_deleted),
                Item::Reply { answer, .. } => Shown::Answer(answer.map(fields_of).map_err(ZkError::code)),
            };
            by_them.entry(session).or_default().push(shown);
        }
        in_order(by_them, step)
    }

    fn do_small(&mut self, session: usize, step: &Step) -> Sent {
        match step {
            Step::Call(call) => {
                let (mut sent, left) = self.small.take(session, Wire::Call(CallId(0), call.clone()));
                sent.extend(left.into_iter().flat_map(|list| self.small.take(session, list).0));
                sent
            }
            Step::RemoveWatch(path) => self.small.take(session, Wire::RemoveWatch(path.clone())).0,
            Step::Delete(name) => self.small.delete(name),
            Step::Touch(name) => self.small.touch(name),
            Step::Expire => self.small.expire(session),
            Step::Reconnect(meanwhile) => {
                let watches = self.small.links[session].watches.clone();
                let since = self.small.tree.zxid;
                self.small.disconnect(session);
                let mut sent = self.meanwhile_small(session, meanwhile);
                sent.extend(self.small.connect(session, false, &watches, since));
                sent
            }
        }
    }

    /// Takes a step while the connection is lost. A write belongs to the previous connection, so nobody gets its reply.
    fn meanwhile_small(&mut self, session: usize, step: &Step) -> Sent {
        match step {
            Step::Call(call) if call.is_write() => self.small.take_late(session, call),
            Step::Call(_) => Sent::new(),
            other => self.do_small(session, other),
        }
    }

    // ---- the simulated server

    fn simulated(&mut self, session: usize, step: &Step, again: &Again) -> ByThem {
        let shown = self.do_simulated(session, step, again);
        let mut by_them = ByThem::new();
        for (number, connection) in self.connections.iter().enumerate() {
            while let Some(event) = connection.as_ref().and_then(ServedConnection::take_event) {
                by_them.entry(number).or_default().push(event_of(&event));
            }
        }
        if !shown.is_empty() {
            by_them.entry(session).or_default().extend(shown);
        }
        in_order(by_them, step)
    }

    fn do_simulated(&mut self, session: usize, step: &Step, again: &Again) -> Vec<Shown> {
        let path = |name: &str| format!("{DIR}/{name}");
        match step {
            Step::Call(call) => {
                let answer = self.answer(session, call);
                vec![Shown::Answer(answer.map_err(ZkError::code))]
            }
            Step::RemoveWatch(path) => {
                // Nobody gets the reply.
                let _ = self.connection(session).remove_watches(path);
                Vec::new()
            }
            Step::Delete(name) => {
                self.zookeeper.delete(&path(name));
                Vec::new()
            }
            Step::Touch(name) => {
                self.zookeeper.set_data(&path(name), b"");
                Vec::new()
            }
            Step::Expire => {
                self.connections[session] = None;
                self.zookeeper.expire_session(self.sessions[session]);
                Vec::new()
            }
            Step::Reconnect(meanwhile) => {
                self.connections[session] = None;
                self.meanwhile_simulated(session, meanwhile, again);
                let connection = self.open(session);
                let fired = again.set(&connection);
                self.connections[session] = Some(connection);
                fired
            }
        }
    }

    fn meanwhile_simulated(&mut self, session: usize, step: &Step, again: &Again) {
        match step {
            Step::Call(call) if call.is_write() => {
                self.connections[session] = Some(self.open(session));
                let _ = self.answer(session, call);
                self.connections[session] = None;
            }
            Step::Call(_) => {}
            other => drop(self.do_simulated(session, other, again)),
        }
    }

    fn connection(&self, session: usize) -> &ServedConnection {
        self.connections[session].as_ref().unwrap()
    }

    fn answer(&mut self, session: usize, call: &Call) -> ZkResult<Fields> {
        let connection = self.connection(session);
        let replies = match call {
            Call::CreateAndList { dir, prefix, data, acl } => {
                let (path, mode) = (format!("{dir}/{prefix}"), CreateMode::EphemeralSequential);
                let create = Call::create(path, Arc::clone(data), Arc::clone(acl), mode).call;
                let list = Call::get_children(Arc::clone(dir), false).call;
                vec![connection.write(&create)?, connection.read(&list, None)?]
            }
            call if call.is_write() => vec![connection.write(call)?],
            call => vec![connection.read(call, None)?],
        };
        self.note_transaction();
        let mut fields = Fields::default();
        for reply in replies {
            match reply {
                Reply::Created { path, stat } => {
                    (fields.path, fields.stat) = (path, stat.map(|stat| self.numbers_of(&stat)))
                }
                Reply::Found(stat) => fields.stat = stat.map(|stat| self.numbers_of(&stat)),
                Reply::Stat(stat) | Reply::Data(_, stat) => fields.stat = Some(self.numbers_of(&stat)),
                Reply::Children(names) => fields.names = sorted(names.iter()),
                Reply::Done | Reply::Enqueued(_) | Reply::Multi(_) => {}
            }
        }
        Ok(fields)
    }

    /// Notes which transaction of the small model corresponds to the last one of the simulated server.
    fn note_transaction(&mut self) {
        self.transactions.insert(self.zookeeper.last_zxid(), self.small.tree.zxid);
    }

    fn numbers_of(&self, stat: &Stat) -> (i64, i64, i32, i64) {
        let transaction = |zxid: i64| self.transactions.get(&zxid).copied().unwrap_or(-1);
        let owner = self.sessions.iter().position(|session| *session == stat.ephemeral_owner);
        let owner = owner.map_or(0, |number| number as i64 + 1);
        (transaction(stat.czxid), transaction(stat.mzxid), stat.version, owner)
    }
}

/// The watches that a client sets again on its next connection.
struct Again {
    watches: BTreeSet<Watch>,
    since: i64,
}

impl Again {
    fn set(&self, connection: &ServedConnection) -> Vec<Shown> {
        let data = |watch: &Watch| matches!(watch, Watch::Data(_));
        let (data, children): (Vec<&Watch>, Vec<&Watch>) = self.watches.iter().partition(|watch| data(watch));
        let paths =
            |watches: Vec<&Watch>| watches.iter().map(|watch| watch.path().into()).collect::<Vec<_>>();
        let fired = connection.set_watches(self.since, [&paths(data), &[], &paths(children)], None);
        fired.iter().map(event_of).collect()
    }
}

fn event_of(event: &Fired) -> Shown {
    let watch = watch_at(&event.path);
    let is_deleted = event.kind == EventKind::Deleted && watch != Watch::Children;
    Shown::Event(watch, is_deleted)
}

fn fields_of(answer: Answer) -> Fields {
    let numbers = |stat: Stat| Some((stat.czxid, stat.mzxid, stat.version, stat.ephemeral_owner));
    match answer {
        Answer::Created(path, stat) => Fields { path, stat: numbers(stat), ..Fields::default() },
        Answer::Enqueued(path, stat, names) => {
            Fields { path, stat: numbers(stat), names: sorted(names.unwrap_or_default().iter()) }
        }
        Answer::Done | Answer::Found(None) => Fields::default(),
        Answer::Found(Some(stat)) | Answer::Data(stat) => Fields { stat: numbers(stat), ..Fields::default() },
        Answer::Children(names) => Fields { names: sorted(names.iter()), ..Fields::default() },
    }
}

fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

/// Sorts what has no defined order: the events of one transaction that deletes several znodes, and the events of
/// watches that are set again.
fn in_order(mut by_them: ByThem, step: &Step) -> ByThem {
    if matches!(step, Step::Expire | Step::Reconnect(_)) {
        by_them.values_mut().for_each(|shown| shown.sort());
    }
    by_them
}
