//! Tests of random interleavings. The calls, replies and events of a few connections move one at a time, in
//! any order that keeps the order of each connection, while other clients join, leave, write and delete.
//!
//! The [oracle] knows the queue at each moment, including requests whose znodes other clients have deleted.
//! `INTERLEAVINGS=<number>` sets the number of runs, and `INTERLEAVINGS_SEED=<seed>` sets the first seed.

mod oracle;

use std::collections::BTreeSet;

use super::*;
use crate::client::CreateMode;
use crate::recipe::access::Access;
use crate::recipe::naming_scheme::NamingScheme;
use crate::recipe::path::ZNodePath;
use crate::recipe::session_tag::SessionTag;
use crate::request::{Observer, Request, RequestEvent, RequestSpec};
use crate::tests::simulation::random::Random;
use crate::tests::{ManualRuntime, SteppedClient, open_client_on_manual_runtime};

/// The number of runs, unless the environment sets another number.
const RUNS: u64 = 100;
const ACTIONS: usize = 600;
/// The maximum number of our requests in the queue.
const MOST: usize = 6;

struct Client {
    simulated: Arc<SimulatedClient>,
    stepped: Arc<SteppedClient>,
    runtime: Arc<ManualRuntime>,
    session: Session,
}

impl Client {
    fn new(zk: &SimulatedZooKeeper) -> Client {
        let simulated = zk.connect(LONG);
        let stepped = SteppedClient::new(Arc::clone(&simulated));
        let (runtime, session) = open_client_on_manual_runtime(stepped.clone());
        stepped.step_by_step();
        Client { simulated, stepped, runtime, session }
    }
}

struct Nobody;

impl Observer for Nobody {
    fn post(&self, _event: &RequestEvent) {}
}

struct OurRequest {
    request: Arc<Request>,
    /// By this, the names of the request's znodes are recognized.
    number: (SessionTag, u64),
    is_withdrawn: bool,
}

struct Rig {
    random: Random,
    zk: SimulatedZooKeeper,
    clients: Vec<Client>,
    ours: Vec<OurRequest>,
    /// The names of our requests that other clients deleted while a request ahead excluded them.
    deleted_behind: BTreeSet<String>,
    /// The names of our requests that other clients deleted while nobody was ahead.
    deleted_first: BTreeSet<String>,
    trace: Vec<String>,
    /// Whether readers take part.
    shares: bool,
    /// Whether connections are cut.
    cuts: bool,
    /// Whether clients pass on some outcomes late: after the outcomes of later calls, and after the events of
    /// watches that the later calls set.
    is_late: bool,
    was_cut: bool,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let mut random = Random::new(seed);
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        let clients = (0..1 + random.index(3)).map(|_| Client::new(&zk)).collect();
        let (shares, cuts, is_late) = (random.one_in(3), random.one_in(2), random.one_in(2));
        Rig {
            random,
            zk,
            clients,
            ours: Vec::new(),
            deleted_behind: BTreeSet::new(),
            deleted_first: BTreeSet::new(),
            trace: Vec::new(),
            shares,
            cuts,
            is_late,
            was_cut: false,
        }
    }

    fn note(&mut self, line: String) {
        self.trace.push(line);
    }

    fn act(&mut self) {
        let client = self.random.index(self.clients.len());
        match self.random.below(100) {
            0..34 if self.is_late && self.random.one_in(3) => {
                if self.clients[client].stepped.hold_back() {
                    self.note(format!("client {client} holds an outcome back"));
                }
            }
            0..34 if self.is_late && self.random.one_in(6) => {
                if self.clients[client].stepped.deliver_late() {
                    self.note(format!("client {client} passes on a late outcome"));
                }
            }
            0..34 => {
                if self.clients[client].stepped.deliver() {
                    self.note(format!("client {client} handles a reply or an event"));
                }
            }
            34..37 if self.is_late => self.other_revokes(),
            34..64 => {
                if let Some(kind) = self.clients[client].stepped.serve() {
                    self.note(format!("the server handles a request of client {client}: {kind:?}"));
                }
            }
            64..70 => self.other_joins(),
            70..78 => self.other_deletes_one(),
            78..80 => self.other_deletes_backwards(),
            80..84 => self.other_writes(),
            84..86 => {
                self.note(format!("client {client} looks routinely"));
                self.clients[client].session.core().look_routinely();
            }
            86..92 => self.join(client),
            92..95 => self.withdraw(),
            95..97 if self.cuts => self.cut(client),
            97 if self.random.one_in(3) => self.other_deletes_all(),
            97 if self.cuts => self.cut_in_a_call(client),
            97..99 => {
                self.note(format!("client {client} reconnects"));
                self.clients[client].simulated.reconnect();
            }
            _ => self.other_downgrades(),
        }
    }

    // ---- our requests

    fn join(&mut self, client: usize) {
        let waiting = |ours: &&OurRequest| !ours.is_withdrawn && !ours.request.has_ended();
        if self.ours.iter().filter(waiting).count() >= MOST {
            return;
        }
        let scheme = NamingScheme::Recipe;
        let access = match self.random.below(if self.shares { 5 } else { 3 }) {
            3 => Access::Write(scheme),
            4 => Access::Read(scheme),
            _ => Access::Exclusive(scheme),
        };
        let session = &self.clients[client].session;
        let spec = RequestSpec {
            dir: ZNodePath::parse(DIR).unwrap(),
            data: Arc::from(&b"me"[..]),
            acl: Acl::open_unsafe().to_vec().into(),
            retry: RetryPolicy::constant(Duration::from_millis(1)).with_attempts(1000),
            access,
            directory_mode: CreateMode::Persistent,
            max_hold: None,
        };
        let request = Request::new(session.core(), &spec, Arc::new(Nobody));
        let prefix = request.core.znode_prefix(access, request.seat.id);
        let line = format!("request {} joins on client {client}: {prefix}", self.ours.len());
        let number = SessionTag::read(&(prefix + "0000000000")).unwrap();
        self.note(line);
        request.start();
        self.ours.push(OurRequest { request, number, is_withdrawn: false });
    }

    fn withdraw(&mut self) {
        let waiting: Vec<usize> = (0..self.ours.len()).filter(|at| !self.ours[*at].is_withdrawn).collect();
        if !waiting.is_empty() {
            let at = waiting[self.random.index(waiting.len())];
            self.note(format!("request {at} is withdrawn"));
            self.ours[at].is_withdrawn = true;
            self.ours[at].request.withdraw();
        }
    }

    // ---- connections

    fn cut(&mut self, client: usize) {
        self.was_cut = true;
        self.note(format!("client {client} is cut"));
        self.clients[client].simulated.disconnect();
        if self.random.one_in(2) {
            self.note(format!("client {client} reconnects"));
            self.clients[client].simulated.reconnect();
        }
    }

    fn cut_in_a_call(&mut self, client: usize) {
        let operation = STEPS[self.random.index(STEPS.len())];
        let when = if self.random.one_in(2) { Effect::Before } else { Effect::After };
        self.was_cut = true;
        self.note(format!("client {client} will be cut at {operation:?}, {when:?}"));
        self.clients[client].simulated.cut_next(operation, when);
    }

    /// Lets everything arrive, and lets time pass.
    fn calm(&mut self) {
        self.note("calm".to_owned());
        for _ in 0..12 {
            for client in &self.clients {
                client.simulated.reconnect();
                client.stepped.move_all();
            }
            for client in &self.clients {
                client.runtime.advance(Duration::from_millis(250));
            }
        }
    }

    // ---- other clients

    fn other_joins(&mut self) {
        let prefix = match self.random.below(if self.shares { 5 } else { 3 }) {
            3 => "write-other-",
            4 => "read-other-",
            _ => "x-other-lock-",
        };
        let path = self.zk.create_sequential(DIR, prefix, Some(7));
        self.note(format!("another client joins: {path}"));
    }

    /// Deletes a request, as another client: often one at the head of the queue, seldom one of ours.
    fn other_deletes_one(&mut self) {
        let queue = self.queue();
        if queue.is_empty() {
            return;
        }
        let end = if self.random.one_in(2) { queue.len().min(2) } else { queue.len() };
        let name = queue[self.random.index(end)].clone();
        if !self.is_ours(&name) || self.random.one_in(3) {
            self.other_deletes(&name);
        }
    }

    /// Deletes the first two requests, as another client, beginning with the second. Does nothing unless the second is
    /// ours and the first is not.
    fn other_deletes_backwards(&mut self) {
        let queue = self.queue();
        let [first, second, ..] = queue.as_slice() else { return };
        if self.is_ours(second) && !self.is_ours(first) {
            self.other_deletes(second);
            self.other_deletes(first);
        }
    }

    /// Acts as another client: writes the second request, then deletes both the first and the second.
    /// Meanwhile the server handles nothing but listings, and the clients pass on what they have held back.
    fn other_revokes(&mut self) {
        let queue = self.queue();
        let Some(second) = queue.get(1).filter(|second| self.is_ours(second)) else { return };
        self.note(format!("another client revokes {second} while looks are late"));
        self.zk.set_data(&format!("{DIR}/{second}"), b"unlock");
        for Client { stepped, .. } in &self.clients {
            while stepped.deliver() || stepped.serve_listing() {}
            while stepped.deliver_late() {}
        }
        self.other_deletes_backwards();
        for Client { stepped, .. } in &self.clients {
            while stepped.deliver() {}
        }
    }

    fn other_deletes(&mut self, name: &str) {
        if self.is_ours(name) {
            let is_behind = self.ahead_of(name, &self.queue()).is_some();
            self.deleted_behind.remove(name);
            self.deleted_first.remove(name);
            let deleted = if is_behind { &mut self.deleted_behind } else { &mut self.deleted_first };
            deleted.insert(name.to_owned());
        }
        self.note(format!("another client deletes {name}"));
        self.zk.delete(&format!("{DIR}/{name}"));
    }

    fn other_deletes_all(&mut self) {
        self.note("another client deletes the directory".to_owned());
        loop {
            let queue = self.queue();
            if queue.is_empty() {
                break;
            }
            let name = queue[self.random.index(queue.len())].clone();
            self.other_deletes(&name);
        }
        if self.zk.exists(DIR) {
            self.zk.delete(DIR);
        }
    }

    fn other_writes(&mut self) {
        let queue = self.queue();
        if !queue.is_empty() {
            let end = if self.random.one_in(2) { queue.len().min(2) } else { queue.len() };
            let name = &queue[self.random.index(end)];
            self.note(format!("another client writes {name}"));
            self.zk.set_data(&format!("{DIR}/{name}"), b"unlock");
        }
    }

    /// Turns a writer at the head into a reader with its number.
    fn other_downgrades(&mut self) {
        let first = self.queue().into_iter().next();
        if let Some(writer) = first.filter(|name| name.starts_with("write-other-")) {
            self.note(format!("another client downgrades {writer}"));
            self.zk.create(&format!("{DIR}/{}", writer.replace("write-", "read-")), b"");
            self.zk.delete(&format!("{DIR}/{writer}"));
        }
    }
}

/// Runs a seed. Returns the violated promise, if any, and the rig.
fn run(seed: u64) -> (Result<(), String>, Rig) {
    let mut rig = Rig::new(seed);
    let outcome = rig.run();
    (outcome, rig)
}

impl Rig {
    fn run(&mut self) -> Result<(), String> {
        for _ in 0..ACTIONS {
            self.act();
            self.check_owners()?;
            if self.random.one_in(400) {
                self.calm();
                self.check_at_rest()?;
            }
        }
        self.calm();
        self.check_at_rest()?;
        for ours in &mut self.ours {
            ours.is_withdrawn = true;
            ours.request.withdraw();
        }
        self.calm();
        self.check_nothing_left()
    }
}

#[test]
fn only_the_first_owns_in_any_interleaving_and_everybody_learns_its_place() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("INTERLEAVINGS_SEED").unwrap_or(1);
    for seed in first..first + number("INTERLEAVINGS").unwrap_or(RUNS) {
        let (outcome, rig) = run(seed);
        if let Err(violation) = outcome {
            let last = &rig.trace[rig.trace.len().saturating_sub(100)..];
            panic!("{}\n\nseed {seed}: {violation}\nINTERLEAVINGS_SEED={seed} repeats it", last.join("\n"));
        }
    }
}
