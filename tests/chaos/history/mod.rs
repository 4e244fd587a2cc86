//! The journals of all clients, parsed.

pub mod checker;
mod columns;
pub mod figures;
pub mod linear;
pub mod sight;
pub mod timeline;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::str::FromStr;

use self::sight::Sight;
use crate::plan::{CALLS, OF_FUTURES, has_tickets, uses_tls};

/// The thread that a hold or a wait belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Actor {
    pub client: usize,
    /// Counts the starts of the client.
    pub incarnation: u64,
    pub thread: usize,
}

/// A period in which a thread held a lock in one mode, from the first to the last sight of ownership.
#[derive(Clone, Debug)]
pub struct Hold {
    pub actor: Actor,
    pub lock: usize,
    /// When the thread began to wait; `None` if it was the lock's writer until then.
    pub waited_since: Option<u64>,
    /// The sequence number of the request's znode.
    pub sequence: i32,
    /// Whether others may hold the lock at the same time.
    pub shares: bool,
    pub first: Sight,
    pub last: Sight,
    pub end: HoldEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldEnd {
    Released {
        at: u64,
    },
    /// Its thread continued as a reader.
    Downgraded,
    Lost,
    /// Its process was killed.
    Cut,
}

#[derive(Clone, Debug)]
pub struct Wait {
    pub actor: Actor,
    /// One of the calls in the plan.
    pub call: String,
    pub lock: usize,
    pub began: u64,
    pub ended: u64,
    /// The time limit in milliseconds, if the call had one.
    pub time_limit: Option<u64>,
    pub outcome: Outcome,
}

impl Wait {
    pub fn is_of_a_future(&self) -> bool {
        self.call.ends_with(OF_FUTURES)
    }

    pub fn has_tickets(&self) -> bool {
        has_tickets(self.actor.client)
    }

    pub fn uses_tls(&self) -> bool {
        uses_tls(self.actor.client)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    Acquired,
    /// It was granted but lost before the first check.
    Unowned,
    GaveUp,
    Failed,
    /// Its process was killed.
    Cut,
}

/// A period in which a client's process did not run.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    pub client: usize,
    pub began: u64,
    pub ended: u64,
}

/// An owner's access to the state kept beside its lock.
#[derive(Clone, Debug)]
pub struct Access {
    pub actor: Actor,
    pub lock: usize,
    /// The sequence number of the owner's request.
    pub sequence: i32,
    pub is_write: bool,
    /// The transaction that wrote the state which the owner read or left.
    pub zxid: i64,
    /// The version of that state.
    pub version: i64,
    pub at: u64,
}

/// Everything in the clients' journals.
#[derive(Debug, Default)]
pub struct History {
    pub holds: Vec<Hold>,
    pub waits: Vec<Wait>,
    pub stalls: Vec<Stall>,
    pub accesses: Vec<Access>,
    /// How often each error of a wait or a connection attempt and each other remark occurred, by name.
    pub remarks: HashMap<String, usize>,
    /// Writes that the register refused although the sender owned the lock before and after, as far as it knew.
    pub believing: Vec<String>,
    pub late: usize,
    /// Violations that the clients themselves found.
    pub violations: Vec<String>,
    /// Panics in the crate or in the clients, and panics in the client library's threads that were contained.
    pub panics: Vec<String>,
    pub client_library_panics: Vec<String>,
}

impl History {
    pub fn read(dir: &Path) -> io::Result<History> {
        let mut history = History::default();
        let mut paths: Vec<_> = fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        for path in paths {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(name) = name.strip_prefix("client-").and_then(|name| name.strip_suffix(".log")) else {
                continue;
            };
            let Some((client, incarnation)) = name.split_once('.') else { continue };
            let (Ok(client), Ok(incarnation)) = (client.parse(), incarnation.parse()) else { continue };
            let sights = fs::read(path.with_extension("sights"))?;
            let mut reader = Reader { client, incarnation, history: &mut history, threads: HashMap::new() };
            let text = fs::read_to_string(&path)?;
            let mut time = 0;
            for line in text.lines().filter_map(Line::parse) {
                time = line.time;
                reader.take(&line);
            }
            reader.finish(time, &sights);
        }
        history.holds.sort_by_key(|hold| hold.first.before);
        history.waits.sort_by_key(|wait| wait.began);
        Ok(history)
    }

    /// Returns the holds of a lock, ordered by their start.
    pub fn holds_of(&self, lock: usize) -> Vec<&Hold> {
        self.holds.iter().filter(|hold| hold.lock == lock).collect()
    }

    /// Returns the holds that a request waited for.
    pub fn acquisitions(&self) -> impl Iterator<Item = &Hold> {
        self.holds.iter().filter(|hold| hold.waited_since.is_some())
    }

    /// Returns the number of acquisitions of each kind. If one is missing, the run proves less than it seems
    /// to.
    pub fn kinds(&self) -> Vec<(&'static str, usize)> {
        let by_call = |call: &'static str| (call, self.acquired(|wait| wait.call == call));
        let mut kinds: Vec<_> = CALLS.iter().copied().map(by_call).collect();
        kinds.extend([
            ("by futures", self.acquired(Wait::is_of_a_future)),
            ("with Kerberos", self.acquired(Wait::has_tickets)),
            ("by futures, with Kerberos", self.acquired(|wait| wait.is_of_a_future() && wait.has_tickets())),
            ("without Kerberos", self.acquired(|wait| !wait.has_tickets())),
            ("by TLS", self.acquired(Wait::uses_tls)),
            ("by TLS, with Kerberos", self.acquired(|wait| wait.uses_tls() && wait.has_tickets())),
            ("without TLS", self.acquired(|wait| !wait.uses_tls())),
        ]);
        kinds
    }

    /// Returns the number of acquisitions of one kind.
    pub fn acquired(&self, is_of_kind: impl Fn(&Wait) -> bool) -> usize {
        let acquired = self.waits.iter().filter(|wait| wait.outcome == Outcome::Acquired);
        acquired.filter(|wait| is_of_kind(wait)).count()
    }

    /// Returns the accesses to the state of a lock, ordered by the owners' requests.
    pub fn accesses_of(&self, lock: usize) -> Vec<&Access> {
        let mut accesses: Vec<_> = self.accesses.iter().filter(|access| access.lock == lock).collect();
        accesses.sort_by_key(|access| access.sequence);
        accesses
    }
}

/// A journal line: `time thread event key=value…`.
struct Line<'a> {
    time: u64,
    who: &'a str,
    event: &'a str,
    rest: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Line<'a>> {
        let mut words = line.splitn(4, ' ');
        let time = words.next()?.parse().ok()?;
        Some(Line { time, who: words.next()?, event: words.next()?, rest: words.next().unwrap_or_default() })
    }

    fn text(&self, key: &str) -> &'a str {
        let mut pairs = self.rest.split(' ').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map_or("", |(_, value)| value)
    }

    fn number<T: FromStr>(&self, key: &str) -> Option<T> {
        self.text(key).parse().ok()
    }

    fn sight(&self) -> Sight {
        let stamp = |key| self.number(key).unwrap_or_default();
        Sight { before: stamp("before"), after: stamp("after") }
    }
}

/// Follows the threads of one process.
struct Reader<'a> {
    client: usize,
    incarnation: u64,
    history: &'a mut History,
    threads: HashMap<usize, Thread>,
}

#[derive(Default)]
struct Thread {
    wait: Option<Wait>,
    hold: Option<(u64, Hold)>,
}

impl Reader<'_> {
    fn take(&mut self, line: &Line<'_>) {
        match line.event {
            "panic" => self.take_panic(line),
            "stalled" => {
                let began = line.number("since").unwrap_or(line.time);
                self.history.stalls.push(Stall { client: self.client, began, ended: line.time });
            }
            "violation" => self.history.violations.push(self.describe(line)),
            "refused" if line.text("believed") == "1" => self.history.believing.push(self.describe(line)),
            "refused" => self.history.late += 1,
            "connected" | "authenticated" | "closed" => self.remark(line.event.to_owned()),
            "reported" => self.remark(format!("lost {}", line.text("reason"))),
            "unreachable" | "no-token" | "no-downgrade" | "no-state" => {
                self.remark(format!("{} {}", line.event, line.text("error")));
            }
            _ => {}
        }
        let Ok(thread) = line.who.parse() else { return };
        let actor = Actor { client: self.client, incarnation: self.incarnation, thread };
        let state = self.threads.entry(thread).or_default();
        match line.event {
            "wait" => {
                let lock = line.number("lock").unwrap_or_default();
                let time_limit = line.number("time_limit");
                let how = line.text("how");
                let call = how.strip_prefix("try-").unwrap_or(how);
                let call = call.strip_suffix("-for").unwrap_or(call).to_owned();
                let (began, ended, outcome) = (line.time, line.time, Outcome::Cut);
                state.wait = Some(Wait { actor, call, lock, began, ended, time_limit, outcome });
            }
            "acquired" => {
                let lock = line.number("lock").unwrap_or_default();
                let waited_since = state.wait.as_ref().map(|wait| wait.began);
                let (sequence, first) = (line.number("sequence").unwrap_or_default(), line.sight());
                let (shares, last, end) = (line.text("shares") == "1", first, HoldEnd::Cut);
                let hold = Hold { actor, lock, waited_since, sequence, shares, first, last, end };
                state.hold = line.number("hold").map(|number| (number, hold));
                self.end_wait(thread, line.time, Outcome::Acquired);
            }
            "read-state" | "wrote-state" => {
                let lock = line.number("lock").unwrap_or_default();
                let (sequence, zxid) = (line.number("sequence"), line.number("zxid"));
                let version = line.number("version").unwrap_or_default();
                let (is_write, at) = (line.event == "wrote-state", line.time);
                if let (Some(sequence), Some(zxid)) = (sequence, zxid) {
                    self.history.accesses.push(Access { actor, lock, sequence, is_write, zxid, version, at });
                }
            }
            "released" => self.end_hold(thread, line, HoldEnd::Released { at: line.time }),
            "downgraded" => self.end_hold(thread, line, HoldEnd::Downgraded),
            "lost" => self.end_hold(thread, line, HoldEnd::Lost),
            "unowned" => self.end_wait(thread, line.time, Outcome::Unowned),
            "gave-up" => self.end_wait(thread, line.time, Outcome::GaveUp),
            "failed" => {
                self.remark(format!("failed {}", line.text("error")));
                self.end_wait(thread, line.time, Outcome::Failed);
            }
            _ => {}
        }
    }

    fn take_panic(&mut self, line: &Line<'_>) {
        let thread = line.text("thread");
        let ours = ["zk-", "chaos-", "main"].iter().any(|prefix| thread.starts_with(prefix));
        let ours = ours || line.text("place").starts_with("src/");
        let panic = self.describe(line);
        if ours { &mut self.history.panics } else { &mut self.history.client_library_panics }.push(panic);
    }

    fn remark(&mut self, what: String) {
        *self.history.remarks.entry(what).or_default() += 1;
    }

    fn describe(&self, line: &Line<'_>) -> String {
        let Line { time, who, event, rest } = line;
        format!("client {}.{} thread {who} at {time}: {event} {rest}", self.client, self.incarnation)
    }

    fn end_wait(&mut self, thread: usize, time: u64, outcome: Outcome) {
        if let Some(wait) = self.threads.get_mut(&thread).and_then(|state| state.wait.take()) {
            self.history.waits.push(Wait { ended: time, outcome, ..wait });
        }
    }

    fn end_hold(&mut self, thread: usize, line: &Line<'_>, end: HoldEnd) {
        if let Some((_, hold)) = self.threads.get_mut(&thread).and_then(|state| state.hold.take()) {
            self.history.holds.push(Hold { last: line.sight(), end, ..hold });
        }
    }

    /// Ends everything that was in progress when the process was killed. The last sight is in a separate file.
    fn finish(mut self, time: u64, sights: &[u8]) {
        for (thread, state) in std::mem::take(&mut self.threads) {
            if let Some(wait) = state.wait {
                self.history.waits.push(Wait { ended: time.max(wait.began), ..wait });
            }
            if let Some((number, mut hold)) = state.hold {
                let place = thread * Sight::SIZE;
                let kept = sights.get(place..place + Sight::SIZE).and_then(Sight::from_bytes);
                if let Some((_, last)) = kept.filter(|(of, _)| *of == number) {
                    hold.last = last;
                }
                self.history.holds.push(hold);
            }
        }
    }
}
