//! The referee: a TCP port to which each contender connects.
//!
//! | question | answer |
//! |---|---|
//! | `hello PAIR NAME` | `ok`; the first question on a connection |
//! | `next` | `read` or `write`, when the contender may begin its next round, or `stop` |
//! | `enter`, once it holds the lock | `ok`, after a moment |
//! | `leave`, before it releases | `ok` |
//! | `missed`: the library missed a release and was woken by hand | `ok` |
//!
//! When the connection of a contender ends, the contender was killed, and its hold ends.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::pairs::{CONTENDERS, Expected, Pair};

/// How long a contender holds.
const HOLD: Duration = Duration::from_millis(2);

/// How long a contender holds where overlaps are expected: long enough to make some certain.
const LONG_HOLD: Duration = Duration::from_millis(25);

pub struct Referee {
    state: Mutex<State>,
    changed: Condvar,
    port: u16,
}

#[derive(Default)]
struct State {
    connections: u64,
    is_over: bool,
    pairs: BTreeMap<&'static str, Course>,
}

/// The course of a pair's rounds.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// The number of rounds that may begin.
    quota: usize,
    begun: usize,
    /// The current connection of each contender.
    connected: HashMap<String, u64>,
    /// The connections that are in a round, with their contenders.
    busy: HashMap<u64, String>,
    holders: Vec<Holder>,
    /// The number of finished rounds of each contender.
    pub rounds: BTreeMap<String, usize>,
    pub overlaps: usize,
    pub first_overlap: Option<String>,
    pub missed: usize,
    /// The contenders whose last connection ended during a round.
    cut_off: HashSet<String>,
    /// How often a reader of one side entered while a reader of the other side was in, or one side took a permit while
    /// the other side held one.
    pub shared: usize,
}

#[derive(Clone, Debug)]
struct Holder {
    connection: u64,
    name: String,
    reads: bool,
}

impl Course {
    /// Returns whether this contender, which is not connected, was in a round when its connection ended.
    pub fn was_cut_off(&self, name: &str) -> bool {
        self.cut_off.contains(name) || self.is_busy(name)
    }

    fn is_busy(&self, name: &str) -> bool {
        self.busy.values().any(|busy| busy == name)
    }
}

impl Referee {
    pub fn open(pairs: &[&'static Pair]) -> Arc<Referee> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let port = listener.local_addr().expect("the listener is bound").port();
        let pairs = pairs.iter().map(|pair| (pair.name, Course::default())).collect();
        let state = Mutex::new(State { pairs, ..State::default() });
        let referee = Arc::new(Referee { state, changed: Condvar::new(), port });
        let accepting = Arc::clone(&referee);
        thread::spawn(move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                let referee = Arc::clone(&accepting);
                thread::spawn(move || referee.serve(stream));
            }
        });
        referee
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn course(&self, pair: &Pair) -> Course {
        self.state.lock().pairs[pair.name].clone()
    }

    /// Allows each pair this many more rounds.
    pub fn allow(&self, rounds: usize) {
        for course in self.state.lock().pairs.values_mut() {
            course.quota = course.begun + rounds;
        }
        self.changed.notify_all();
    }

    /// Tells all contenders to end.
    pub fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Waits until all contenders of all pairs are connected.
    pub fn await_contenders(&self, limit: Duration) -> Result<(), String> {
        self.wait("connects", limit, |course| {
            (course.connected.len() < 2 * CONTENDERS)
                .then(|| format!("only {:?} are connected", course.connected.keys()))
        })
    }

    /// Waits until every round that was allowed has ended.
    pub fn await_rounds(&self, limit: Duration) -> Result<(), String> {
        self.wait("ends its rounds", limit, |course| {
            (course.begun < course.quota || !course.busy.is_empty()).then(|| {
                format!("{} of {} begun, {:?} in a round", course.begun, course.quota, course.busy.values())
            })
        })
    }

    /// Waits until half of the allowed rounds have begun in one of these pairs and its named contender is in a
    /// round. Gives up after the limit.
    pub fn await_middle(&self, names: &[(&str, String)], rounds: usize, limit: Duration) {
        let end = Instant::now() + limit;
        let mut state = self.state.lock();
        loop {
            let is_half = names.iter().any(|(pair, name)| {
                let course = &state.pairs[pair];
                course.begun + rounds / 2 >= course.quota && course.is_busy(name)
            });
            if is_half {
                return;
            }
            if self.changed.wait_until(&mut state, end).timed_out() {
                return;
            }
        }
    }

    /// Waits until no pair has a complaint.
    fn wait(
        &self,
        what: &str,
        limit: Duration,
        complaint: impl Fn(&Course) -> Option<String>,
    ) -> Result<(), String> {
        let end = Instant::now() + limit;
        let mut state = self.state.lock();
        loop {
            let complaints: Vec<String> = state
                .pairs
                .iter()
                .filter_map(|(pair, course)| Some(format!("{pair}: {}", complaint(course)?)))
                .collect();
            if complaints.is_empty() {
                return Ok(());
            }
            if self.changed.wait_until(&mut state, end).timed_out() {
                return Err(format!("not everybody {what} within {limit:?}: {}", complaints.join("; ")));
            }
        }
    }

    fn serve(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut output = stream.try_clone().expect("there are enough descriptors");
        let mut lines = BufReader::new(stream).lines().map_while(io::Result::ok);
        let Some(hello) = lines.next() else { return };
        let words: Vec<&str> = hello.split(' ').collect();
        let ["hello", pair, name] = words[..] else { panic!("a contender begins with {hello:?}") };
        let pair = Pair::named(pair);
        let connection = self.connect(pair, name);
        let mut answer = |text: &str| output.write_all(format!("{text}\n").as_bytes());
        let mut reads = false;
        let mut answered = answer("ok");
        while answered.is_ok() {
            let Some(question) = lines.next() else { break };
            answered = match question.as_str() {
                "next" => match self.begin(pair, name, connection) {
                    Some(mode) => {
                        reads = mode == "read";
                        answer(mode)
                    }
                    None => answer("stop"),
                },
                "enter" => {
                    self.enter(pair, Holder { connection, name: name.to_owned(), reads });
                    thread::sleep(if pair.expected == Expected::Overlaps { LONG_HOLD } else { HOLD });
                    answer("ok")
                }
                "leave" => {
                    self.leave(pair, name, connection);
                    answer("ok")
                }
                "missed" => {
                    self.with(pair, |course| course.missed += 1);
                    answer("ok")
                }
                other => panic!("a contender asks {other:?}"),
            };
        }
        self.disconnect(pair, name, connection);
    }

    fn with<T>(&self, pair: &Pair, act: impl FnOnce(&mut Course) -> T) -> T {
        let mut state = self.state.lock();
        let result = act(state.pairs.get_mut(pair.name).expect("the pair takes part"));
        drop(state);
        self.changed.notify_all();
        result
    }

    fn connect(&self, pair: &Pair, name: &str) -> u64 {
        let connection = {
            let mut state = self.state.lock();
            state.connections += 1;
            state.connections
        };
        self.with(pair, |course| {
            course.connected.insert(name.to_owned(), connection);
            course.cut_off.remove(name);
            course.rounds.entry(name.to_owned()).or_default();
        });
        connection
    }

    fn disconnect(&self, pair: &Pair, name: &str, connection: u64) {
        self.with(pair, |course| {
            if course.busy.remove(&connection).is_some() {
                course.cut_off.insert(name.to_owned());
            }
            course.holders.retain(|holder| holder.connection != connection);
            if course.connected.get(name) == Some(&connection) {
                course.connected.remove(name);
            }
        });
    }

    /// Waits until the contender may begin a round, which ends its previous one. Returns the mode.
    fn begin(&self, pair: &Pair, name: &str, connection: u64) -> Option<&'static str> {
        let mut state = self.state.lock();
        loop {
            let is_over = state.is_over;
            let course = state.pairs.get_mut(pair.name).expect("the pair takes part");
            course.busy.remove(&connection);
            if is_over || course.connected.get(name) != Some(&connection) {
                return None;
            }
            if course.begun < course.quota {
                course.begun += 1;
                course.busy.insert(connection, name.to_owned());
                // Each contender reads in two rounds of three, and they do not all write at the same time.
                let done = course.rounds.get(name).copied().unwrap_or_default();
                let writes = !pair.reads(side(name)) || (done + course.begun) % 3 == 0;
                drop(state);
                self.changed.notify_all();
                return Some(if writes { "write" } else { "read" });
            }
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
    }

    fn enter(&self, pair: &Pair, holder: Holder) {
        self.with(pair, |course| {
            let excluded: Vec<&str> = course
                .holders
                .iter()
                .filter(|other| !(other.reads && holder.reads))
                .map(|other| other.name.as_str())
                .collect();
            if excluded.len() >= pair.permits() {
                course.overlaps += 1;
                let what = format!("{} entered while {} held the lock", holder.name, excluded.join(", "));
                course.first_overlap.get_or_insert(what);
            }
            let sides: HashSet<&str> = course.holders.iter().map(|other| side(&other.name)).collect();
            let shares = holder.reads || pair.permits() > 1;
            course.shared += usize::from(shares && sides.iter().any(|other| *other != side(&holder.name)));
            course.holders.push(holder);
        });
    }

    fn leave(&self, pair: &Pair, name: &str, connection: u64) {
        self.with(pair, |course| {
            course.holders.retain(|holder| holder.connection != connection);
            *course.rounds.entry(name.to_owned()).or_default() += 1;
        });
    }
}

/// Returns `ours` or `theirs`.
fn side(name: &str) -> &str {
    name.split('-').next().unwrap_or_default()
}
