//! Compares the simulated server with real servers. The same random history of requests runs on both, and
//! both must show the same results in the same order.
//!
//! This ensures that the model of the server, on which the simulation relies, behaves as real servers do, not as its
//! authors believe they do. Only one request, or one burst of requests from one client, is in flight at a time, so the
//! expected results are determined, except for the order of some events. On an ensemble, a write that changes nothing
//! precedes each request or burst, so the server has applied what other clients did before.

// Each test prints what it has compared.
#![allow(clippy::print_stdout)]

mod history;
mod model;
mod real;
mod seen;

use std::collections::{BTreeSet, VecDeque};
use std::env;
use std::time::{Duration, Instant};

use self::history::{CONTAINER, CREDENTIAL, ROOT};
use self::model::ModelConnection;
use self::real::{RealConnection, RealSession};
use self::seen::{Numbers, Seen};
use crate::client::{Acl, Call, CreateMode, Op, Permissions, Reply};
use crate::error::ZkError;
use crate::fake::{ReadChecks, SimulatedZooKeeper};
use crate::tests::counts::Counts;
use crate::tests::deadline;
use crate::tests::simulation::random::Random;
use zookeeper_connection::codec::{Control, EventKind, Request};
use zookeeper_test_server::{ServerOptions, TestEnsemble, TestServer};

/// The number of requests that each test makes, unless the environment sets another number.
const CALLS: usize = 4_000;
const CALLS_VARIABLE: &str = "DIFFERENTIAL_CALLS";
const SEED_VARIABLE: &str = "DIFFERENTIAL_SEED";

/// The timeout of sessions that are meant to expire. Sessions with the long timeout never expire, however
/// slow the machine is.
const SHORT: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(40);

/// Makes a server use Netty. The others use Java's own sockets.
const NETTY: &str = "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory";

/// How many of the last steps are shown when the two servers differ.
const SHOWN: usize = 40;

#[test]
fn simulated_server_answers_as_a_real_one() {
    crate::tests::begin_without_a_limit();
    for options in [options(), options().jvm_flag(NETTY)] {
        let server = TestServer::start_with(&options).unwrap();
        Comparison::new(vec![server.connect_string()]).run(calls() / 2);
    }
}

#[test]
fn simulated_server_answers_as_a_real_ensemble() {
    crate::tests::begin_without_a_limit();
    let ensemble = TestEnsemble::start_with(3, &options()).unwrap();
    let servers = (0..3).map(|index| ensemble.server(index).connect_string());
    Comparison::new(servers.collect()).run(calls());
}

fn options() -> ServerOptions {
    let checks = "-Dznode.container.checkIntervalMs=200";
    ServerOptions::new().session_timeouts(SHORT, LONG).jvm_flag(checks)
}

fn calls() -> usize {
    setting(CALLS_VARIABLE).map_or(CALLS, |calls| calls as usize)
}

/// Returns a number from the environment.
fn setting(name: &str) -> Option<u64> {
    env::var(name)
        .ok()
        .map(|value| value.parse().unwrap_or_else(|_| panic!("{name} must be a number: {value}")))
}

/// A client: its session, and its connections to the real server and to the model.
struct Client {
    session: RealSession,
    model_session: i64,
    timeout: Duration,
    /// The last transaction of the model that the client has seen.
    model_zxid: i64,
    connection: Option<(RealConnection, ModelConnection)>,
    is_authenticated: bool,
    watches: Watches,
}

/// A client's watches: those set since the last event on each path.
#[derive(Default)]
struct Watches {
    data: BTreeSet<String>,
    existence: BTreeSet<String>,
    children: BTreeSet<String>,
}

impl Watches {
    fn note(&mut self, requests: &[Request<'_>], seen: &[Seen]) {
        let mut requests = requests.iter();
        for one in seen {
            match one {
                Seen::Event(kind, path) => self.handle_event(*kind, path),
                Seen::Reply(reply) => self.handle_reply(requests.next(), reply),
                Seen::End | Seen::Silence => {}
            }
        }
    }

    fn handle_event(&mut self, kind: EventKind, path: &str) {
        if kind != EventKind::ChildrenChanged {
            self.data.remove(path);
            self.existence.remove(path);
        }
        if matches!(kind, EventKind::ChildrenChanged | EventKind::Deleted) {
            self.children.remove(path);
        }
    }

    fn handle_reply(&mut self, request: Option<&Request<'_>>, reply: &Result<Reply, ZkError>) {
        match (request, reply) {
            (Some(Request::Call(call)), Ok(reply)) => {
                let Some(path) = call.watched_path() else { return };
                let set = match reply {
                    Reply::Found(None) => &mut self.existence,
                    Reply::Children(_) => &mut self.children,
                    _ => &mut self.data,
                };
                set.insert(path.to_string());
            }
            (Some(Request::Control(Control::RemoveWatches { path })), Ok(_)) => {
                let path: &str = path;
                self.data.remove(path);
                self.existence.remove(path);
                self.children.remove(path);
            }
            _ => {}
        }
    }

    fn to_set_again(&self, relative_zxid: i64) -> Request<'static> {
        let list = |paths: &BTreeSet<String>| paths.iter().map(|path| path.clone().into()).collect();
        let (data, exist, child) = (list(&self.data), list(&self.existence), list(&self.children));
        Request::Control(Control::SetWatches { relative_zxid, data, exist, child })
    }
}

struct Comparison {
    servers: Vec<String>,
    zookeeper: SimulatedZooKeeper,
    clients: Vec<Client>,
    numbers: Numbers,
    random: Random,
    seed: u64,
    /// The paths of the sequential znodes that were created most recently.
    known: Vec<String>,
    steps: VecDeque<String>,
    calls: usize,
    /// What the real servers have done.
    done: Counts,
}

impl Comparison {
    fn new(servers: Vec<String>) -> Comparison {
        let seed = setting(SEED_VARIABLE).unwrap_or_else(rand_seed);
        let mut comparison = Comparison {
            servers,
            zookeeper: SimulatedZooKeeper::new(),
            clients: Vec::new(),
            numbers: Numbers::default(),
            random: Random::new(seed),
            seed,
            known: Vec::new(),
            steps: VecDeque::new(),
            calls: 0,
            done: Counts::new("differential"),
        };
        comparison.zookeeper.set_read_checks(read_checks(&comparison.servers[0]));
        for _ in 0..2 + comparison.random.index(3) {
            let client = comparison.open(LONG);
            comparison.clients.push(client);
        }
        comparison.make(0, &[create(ROOT, CreateMode::Persistent)]);
        comparison
    }

    fn run(mut self, calls: usize) {
        let begun = Instant::now();
        while self.calls < calls {
            self.step();
        }
        for client in 0..self.clients.len() {
            self.make(client, &[Request::Control(Control::Ping)]);
        }
        self.compare_all_that_is_left();
        print!("{}", self.done.report());
        println!(
            "differential: {} calls of {} clients on {} servers in {:.1?}, seed {}",
            self.calls,
            self.clients.len(),
            self.servers.len(),
            begun.elapsed(),
            self.seed
        );
    }

    fn step(&mut self) {
        let client = self.random.index(self.clients.len());
        match self.random.below(1000) {
            0 if self.random.one_in(2) => self.expire(client),
            1 => self.let_a_container_go(client),
            2..=9 => self.close(client),
            10..=29 => self.reconnect(client),
            30..=32 => self.authenticate(client),
            33 => self.use_a_wrong_password(client),
            _ => {
                let length = if self.random.one_in(4) { 1 + self.random.below(6) } else { 1 };
                let known = std::mem::take(&mut self.known);
                let requests: Vec<_> =
                    (0..length).map(|_| history::request(&mut self.random, &known)).collect();
                self.known = known;
                self.make(client, &requests);
            }
        }
        self.keep_alive();
    }

    /// Makes requests on both servers and compares what both show.
    fn make(&mut self, client: usize, requests: &[Request<'_>]) -> Vec<Seen> {
        if self.servers.len() > 1 {
            self.make_now(client, &[nothing()]);
        }
        self.make_now(client, requests)
    }

    fn make_now(&mut self, number: usize, requests: &[Request<'_>]) -> Vec<Seen> {
        self.calls += requests.len();
        let client = &mut self.clients[number];
        let (real, model) = client.connection.as_mut().expect("the client is connected");
        let of_real = real.make(requests, &mut client.session);
        let of_model = model.make(requests);
        client.model_zxid = self.zookeeper.last_zxid();
        client.watches.note(requests, &of_real);
        self.note(format!("client {number}: {}", describe(requests)));
        self.compare(&of_real, &of_model);
        for one in &of_real {
            if let Seen::Reply(Ok(Reply::Created { path, .. })) = one {
                self.learn(path);
            }
        }
        of_real
    }

    fn learn(&mut self, path: &str) {
        if path.contains("/n-") {
            self.known.push(path.to_owned());
            if self.known.len() > 12 {
                self.known.remove(0);
            }
        }
    }

    fn compare(&mut self, real: &[Seen], model: &[Seen]) {
        real.iter().filter_map(Seen::name).for_each(|name| self.done.add(name));
        if let Err(what) = self.numbers.compare(real, model) {
            self.fail(&format!("{what}\nreal:  {real:?}\nmodel: {model:?}"));
        }
    }

    fn note(&mut self, step: String) {
        self.steps.push_back(step);
        if self.steps.len() > SHOWN {
            self.steps.pop_front();
        }
    }

    fn fail(&self, what: &str) -> ! {
        let steps: Vec<&str> = self.steps.iter().map(String::as_str).collect();
        panic!("seed {}, after {} calls\n{}\n{what}", self.seed, self.calls, steps.join("\n"));
    }

    // ---- sessions

    fn server(&mut self) -> String {
        let index = self.random.index(self.servers.len());
        self.servers[index].clone()
    }

    fn open(&mut self, timeout: Duration) -> Client {
        let server = self.server();
        let mut session = RealSession::none();
        let real = RealConnection::open(&server, &mut session, timeout).expect("a new session");
        let model_session = self.zookeeper.connect(timeout).session_id();
        let model = ModelConnection::open(&self.zookeeper, model_session).expect("a new session");
        self.numbers.session(session.id, model_session);
        Client {
            session,
            model_session,
            timeout,
            model_zxid: 0,
            connection: Some((real, model)),
            is_authenticated: false,
            watches: Watches::default(),
        }
    }

    fn open_again(&mut self, number: usize, timeout: Duration) {
        self.clients[number] = self.open(timeout);
        self.note(format!("client {number}: a new session"));
    }

    /// Resumes the session on a new connection and sets its watches again.
    fn reconnect(&mut self, number: usize) {
        let client = &mut self.clients[number];
        client.connection = None;
        let known = (client.session.zxid, client.model_zxid);
        self.note(format!("client {number}: reconnects"));
        for _ in 0..self.random.below(4) {
            let other = self.random.index(self.clients.len());
            if other != number {
                let known = self.known.clone();
                let request = history::request(&mut self.random, &known);
                self.make(other, &[request]);
            }
        }
        let server = self.server();
        let client = &mut self.clients[number];
        let real = RealConnection::open(&server, &mut client.session, client.timeout);
        let model = ModelConnection::open(&self.zookeeper, client.model_session);
        let (Some(real), Some(model)) = (real, model) else { self.fail("a session is gone") };
        client.connection = Some((real, model));
        self.done.add("session-resumed");
        if std::mem::take(&mut client.is_authenticated) {
            self.authenticate(number);
        }
        self.set_watches(number, known);
    }

    /// Sets the watches again. The server keeps its watches in sets, so the events arrive in no particular
    /// order.
    fn set_watches(&mut self, number: usize, (real_zxid, model_zxid): (i64, i64)) {
        if self.servers.len() > 1 {
            self.make_now(number, &[nothing()]);
        }
        let client = &mut self.clients[number];
        let for_real = client.watches.to_set_again(real_zxid);
        let for_model = client.watches.to_set_again(model_zxid);
        let (real, model) = client.connection.as_mut().expect("the client is connected");
        let of_real = real.make(&[for_real], &mut client.session);
        let of_model = model.make(&[for_model]);
        client.watches.note(&[Request::Control(Control::Ping)], &of_real);
        self.note(format!("client {number}: sets its watches again"));
        self.compare(&sorted(of_real), &sorted(of_model));
    }

    /// Presents a credential. A server answers this outside its pipeline of requests, so with Netty the answer may
    /// overtake events; the write before it brings those.
    fn authenticate(&mut self, number: usize) {
        let (scheme, auth) = CREDENTIAL;
        let credential = Control::Auth { scheme: scheme.into(), auth: auth.as_bytes().into() };
        self.make_now(number, &[nothing()]);
        self.make_now(number, &[Request::Control(credential)]);
        self.clients[number].is_authenticated = true;
    }

    /// Tries a wrong password. The server refuses the password, and may even close the session's connection
    /// before it checks the password.
    fn use_a_wrong_password(&mut self, number: usize) {
        let (server, client) = (self.server(), &self.clients[number]);
        let mut session = client.session.with_a_wrong_password();
        assert!(RealConnection::open(&server, &mut session, client.timeout).is_none());
        self.done.add("password-refused");
        self.reconnect(number);
    }

    fn close(&mut self, number: usize) {
        self.end_session(number);
        self.open_again(number, LONG);
    }

    fn end_session(&mut self, number: usize) {
        if self.servers.len() > 1 {
            self.make_now(number, &[nothing()]);
        }
        self.make_in_any_order(number, &Request::Control(Control::Close));
        self.done.add("session-closed");
        self.handle_session_end(number);
    }

    /// Opens a short session for the client and lets it expire.
    fn expire(&mut self, number: usize) {
        self.end_session(number);
        self.open_again(number, SHORT);
        for _ in 0..10 {
            let known = self.known.clone();
            let request = history::request(&mut self.random, &known);
            self.make(number, &[request]);
        }
        let marker = format!("/marker-{}", self.calls);
        self.make(number, &[create(&marker, CreateMode::Ephemeral)]);
        self.clients[number].connection = None;
        self.await_the_end_of(&marker);
        self.zookeeper.expire_session(self.clients[number].model_session);
        self.note(format!("client {number}: its session has expired"));
        self.done.add("session-expired");
        self.handle_session_end(number);
        self.open_again(number, LONG);
    }

    /// Records the end of a session. Its znodes were deleted in one transaction, in no particular order.
    fn handle_session_end(&mut self, number: usize) {
        self.clients[number].connection = None;
        for other in (0..self.clients.len()).filter(|other| *other != number) {
            self.make_in_any_order(other, &nothing());
        }
        self.is_refused(number);
    }

    /// Makes a request. The events that precede its reply may come in any order.
    fn make_in_any_order(&mut self, number: usize, request: &Request<'_>) {
        self.calls += 1;
        let client = &mut self.clients[number];
        let Some((real, model)) = &mut client.connection else { return };
        let of_real = real.make(std::slice::from_ref(request), &mut client.session);
        let of_model = model.make(std::slice::from_ref(request));
        client.model_zxid = self.zookeeper.last_zxid();
        client.watches.note(std::slice::from_ref(request), &of_real);
        self.note(format!("client {number}: {}", describe(std::slice::from_ref(request))));
        self.compare(&sorted(of_real), &sorted(of_model));
    }

    fn is_refused(&mut self, number: usize) {
        let server = self.server();
        let client = &mut self.clients[number];
        let real = RealConnection::open(&server, &mut client.session, client.timeout).is_none();
        let model = ModelConnection::open(&self.zookeeper, client.model_session).is_none();
        assert!(real && model, "real {real}, model {model}");
    }

    /// Creates a container with a child, deletes the child, and waits until the real server has deleted the container.
    fn let_a_container_go(&mut self, number: usize) {
        let child = format!("{CONTAINER}/child");
        let seen = self.make(
            number,
            &[
                create(CONTAINER, CreateMode::Container),
                create(&child, CreateMode::Persistent),
                Request::Call(Call::delete(child.as_str(), None).call),
            ],
        );
        let is_done = seen.iter().all(|one| !matches!(one, Seen::Reply(Err(_))));
        if is_done {
            self.await_the_end_of(CONTAINER);
            self.zookeeper.delete(CONTAINER);
            self.note("the container is gone".to_owned());
            self.done.add("container-deleted");
        }
    }

    /// Waits until the real server has deleted a znode. The requests for this are not compared.
    fn await_the_end_of(&mut self, path: &str) {
        let server = self.server();
        let mut session = RealSession::none();
        let mut observer = RealConnection::open(&server, &mut session, LONG).expect("a new session");
        let until = Instant::now() + deadline();
        let exists = Request::Call(Call::exists(path, false).call);
        while observer.make(&[nothing(), exists.clone()], &mut session).last()
            != Some(&Seen::Reply(Ok(Reply::Found(None))))
        {
            assert!(Instant::now() < until, "{path} is not deleted");
            for client in &mut self.clients {
                if let Some((real, _)) = &mut client.connection {
                    // Keep the connection alive: replacing it here would lose events.
                    real.keep_alive();
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        observer.make(&[Request::Control(Control::Close)], &mut session);
    }

    /// Pings on behalf of clients that have not had a turn for a long time.
    fn keep_alive(&mut self) {
        for client in &mut self.clients {
            if let Some((real, _)) = &mut client.connection {
                real.keep_alive();
            }
        }
    }

    // ---- the end

    /// Compares [`ROOT`] and everything below it on the two servers.
    fn compare_all_that_is_left(&mut self) {
        self.authenticate(0);
        let mut paths = vec![ROOT.to_owned()];
        while let Some(path) = paths.pop() {
            let reads = [
                Call::exists(path.as_str(), false).call,
                Call::get_data(path.as_str(), false).call,
                Call::get_children(path.as_str(), false).call,
            ];
            let reads = reads.map(Request::Call);
            let seen = self.make(0, &reads);
            if let Some(Seen::Reply(Ok(Reply::Children(names)))) = seen.last() {
                paths.extend(names.iter().map(|name| format!("{path}/{name}")));
            }
        }
    }
}

/// Finds out which operations require READ on this release of the server. The releases before 3.8.4, except that of
/// Debian, do not check events, and differ from the model.
fn read_checks(server: &str) -> ReadChecks {
    let mut session = RealSession::none();
    let mut connection = RealConnection::open(server, &mut session, SHORT).expect("a new session");
    let unreadable = [Acl::new(Permissions::WRITE, "world", "anyone")];
    let requests = [
        Request::Call(Call::create("/unreadable", [], unreadable, CreateMode::Persistent).call),
        Request::Call(Call::exists("/unreadable", false).call),
        Request::Call(Call::delete("/unreadable", None).call),
    ];
    let seen = connection.make(&requests, &mut session);
    match seen.get(1) {
        Some(Seen::Reply(Err(ZkError::NoAuth))) => ReadChecks::EventsAndExists,
        Some(Seen::Reply(Ok(Reply::Found(Some(_))))) => ReadChecks::Events,
        _ => panic!("unexpected: {seen:?}"),
    }
}

fn create(path: &str, mode: CreateMode) -> Request<'static> {
    Request::Call(Call::create(path, [], Acl::open_unsafe(), mode).call)
}

/// Returns a write that changes nothing but passes through the leader.
fn nothing() -> Request<'static> {
    Request::Call(Call::set_data("/none", [], Some(i32::MIN)).call)
}

fn sorted(mut seen: Vec<Seen>) -> Vec<Seen> {
    seen.sort_by_key(|one| match one {
        Seen::Event(_, path) => (0, path.clone()),
        _ => (1, String::new()),
    });
    seen
}

fn describe(requests: &[Request<'_>]) -> String {
    let step = |step: &Op| match step {
        Op::Create { path, mode, acl, .. } => format!("Create({path:?}) {mode:?} {acl:?}"),
        Op::Delete { path, version } => format!("Delete({path:?}) at {version:?}"),
        Op::SetData { path, version, .. } => format!("SetData({path:?}) at {version:?}"),
        Op::Check { path, version } => format!("Check({path:?}) at {version:?}"),
    };
    let one = |request: &Request<'_>| match request {
        Request::Call(Call::Multi(steps)) => {
            format!("Multi({})", steps.iter().map(step).collect::<Vec<_>>().join(", "))
        }
        Request::Call(Call::Create { mode, acl, .. }) => format!("{request:?} {mode:?} {acl:?}"),
        Request::Call(Call::Delete { version, .. } | Call::SetData { version, .. }) => {
            format!("{request:?} at {version:?}")
        }
        Request::Call(call) if call.watched_path().is_some() => format!("{request:?} and watch"),
        _ => format!("{request:?}"),
    };
    requests.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn rand_seed() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
