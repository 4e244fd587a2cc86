//! What the locks protect: one register for each lock. It refuses fencing tokens older than the newest it has
//! seen.
//!
//! It listens on a Unix socket, which the faults between the clients and ZooKeeper do not affect: a client that
//! is cut off can still write, and must be refused. Over the same socket the clients report to the conductor
//! and receive its orders.
//!
//! Each write carries the sequence number of its request, which is a fencing token within one directory, and the
//! fencing token of the guard, if there is a guard. The register refuses a write if either is older than the newest one
//! seen. The two tokens contradict each other, which is a finding, if a write is refused only because of the guard's
//! token, or if a later request has the same guard's token as an earlier one.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::num::ParseIntError;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::plan::LOCKS;

#[derive(Debug)]
pub struct Register {
    desk: Mutex<Desk>,
    settled: Condvar,
}

#[derive(Debug)]
struct Desk {
    order: String,
    clients: HashMap<usize, Caller>,
    newest: [Newest; LOCKS.len()],
    written: usize,
    refused: usize,
    contradictions: Vec<String>,
}

/// A client, with the round in which each of its threads has settled.
#[derive(Debug, Default)]
struct Caller {
    incarnation: u64,
    line: Option<UnixStream>,
    /// Whether one of its threads is prolonging its hold.
    prolongs: bool,
    settled: HashMap<usize, u64>,
    left: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Newest {
    sequence: i32,
    token: i64,
    client: Option<usize>,
    /// Whether the lock is held; true until its owner reports a release or a loss.
    held: bool,
}

impl Register {
    /// Listens on the socket until the process ends.
    pub fn open(socket: &Path) -> Arc<Register> {
        let listener = UnixListener::bind(socket).expect("the socket is new");
        let desk = Desk {
            order: "contend".to_owned(),
            clients: HashMap::new(),
            newest: [Newest { sequence: -1, token: -1, client: None, held: false }; LOCKS.len()],
            written: 0,
            refused: 0,
            contradictions: Vec::new(),
        };
        let register = Arc::new(Register { desk: Mutex::new(desk), settled: Condvar::new() });
        let accepting = Arc::clone(&register);
        thread::spawn(move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                let register = Arc::clone(&accepting);
                thread::spawn(move || register.serve(stream));
            }
        });
        register
    }

    fn serve(&self, mut stream: UnixStream) {
        let Ok(input) = stream.try_clone() else { return };
        let mut caller = None;
        for line in BufReader::new(input).lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            let answer = match words[..] {
                ["write", ..] => self.write(&words),
                ["done", lock, sequence] => self.record_release(lock.parse(), sequence.parse()),
                ["client", index, _pid] => {
                    let Ok(index) = index.parse() else { return };
                    caller = Some(index);
                    self.welcome(index, &stream);
                    continue;
                }
                _ => {
                    if let Some(index) = caller {
                        self.note(index, &words);
                    }
                    continue;
                }
            };
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn write(&self, words: &[&str]) -> String {
        let number = |place: usize| words.get(place).and_then(|word| word.parse::<i64>().ok());
        let (Some(lock), Some(sequence), Some(client)) = (number(1), number(2), number(4)) else {
            return "refused malformed\n".to_owned();
        };
        let (lock, sequence, client) = (lock as usize, sequence as i32, client as usize);
        let mut desk = self.desk.lock();
        let newest = desk.newest[lock];
        let by_sequence = sequence < newest.sequence;
        let by_token = number(3).is_some_and(|token| token < newest.token);
        let is_new = sequence > newest.sequence;
        // A token is compared with that of the newest guard, which may be older than the newest request.
        if by_token && !by_sequence || is_new && number(3).is_some_and(|token| token == newest.token) {
            desk.contradictions.push(format!("write {words:?} after {newest:?}"));
        }
        if by_sequence || by_token {
            desk.refused += 1;
            return format!(
                "refused newest={} by=client-{}\n",
                newest.sequence,
                newest.client.unwrap_or_default()
            );
        }
        desk.written += 1;
        let token = number(3).unwrap_or(newest.token).max(newest.token);
        desk.newest[lock] = Newest { sequence, token, client: Some(client), held: true };
        "ok\n".to_owned()
    }

    fn record_release(
        &self,
        lock: Result<usize, ParseIntError>,
        sequence: Result<i32, ParseIntError>,
    ) -> String {
        if let (Ok(lock), Ok(sequence)) = (lock, sequence) {
            let newest = &mut self.desk.lock().newest[lock];
            newest.held &= newest.sequence != sequence;
        }
        "ok\n".to_owned()
    }

    fn welcome(&self, index: usize, stream: &UnixStream) {
        let mut desk = self.desk.lock();
        let order = desk.order.clone();
        let caller = desk.clients.entry(index).or_default();
        caller.incarnation += 1;
        caller.settled.clear();
        caller.prolongs = false;
        caller.line = stream.try_clone().ok();
        if let Some(line) = &mut caller.line {
            // A client that has ended needs no answer.
            let _ = write!(line, "{}\n{order}\n", caller.incarnation);
        }
    }

    fn note(&self, index: usize, words: &[&str]) {
        let mut desk = self.desk.lock();
        let caller = desk.clients.entry(index).or_default();
        match *words {
            ["settled", round, thread] => {
                if let (Ok(round), Ok(thread)) = (round.parse(), thread.parse()) {
                    caller.settled.insert(thread, round);
                }
            }
            ["prolongs"] => caller.prolongs = true,
            ["left", ..] => caller.left = Some(words[1..].join(" ")),
            _ => {}
        }
        self.settled.notify_all();
    }

    /// Sends an order to all current clients, and to those that connect later.
    pub fn order(&self, order: &str) {
        let mut desk = self.desk.lock();
        desk.order = order.to_owned();
        for line in desk.clients.values_mut().filter_map(|caller| caller.line.as_mut()) {
            let _ = writeln!(line, "{order}"); // an ended client gets it when it restarts
        }
    }

    /// Asks a client to prolong its next hold. Waits until it does, up to this limit.
    pub fn prolong(&self, client: usize, limit: Duration) {
        self.send(client, "prolong");
        let prolongs = |desk: &mut Desk| desk.clients.get(&client).is_some_and(|caller| caller.prolongs);
        self.settled.wait_while_for(&mut self.desk.lock(), |desk| !prolongs(desk), limit);
    }

    /// Ends the prolonged holds of a client.
    pub fn end_prolonging(&self, client: usize) {
        self.send(client, "end_prolonging");
    }

    fn send(&self, client: usize, order: &str) {
        let mut desk = self.desk.lock();
        let Some(caller) = desk.clients.get_mut(&client) else { return };
        caller.prolongs = false;
        if let Some(line) = &mut caller.line {
            let _ = writeln!(line, "{order}"); // an ended client holds nothing
        }
    }

    /// Waits until every thread has settled. Returns the threads that have not done so in time.
    pub fn await_settled(
        &self,
        round: u64,
        clients: usize,
        threads: usize,
        limit: Duration,
    ) -> Vec<(usize, usize)> {
        let mut desk = self.desk.lock();
        let missing = |desk: &Desk| -> Vec<(usize, usize)> {
            let all = (0..clients).flat_map(|client| (0..threads).map(move |thread| (client, thread)));
            let settled = |(client, thread): &(usize, usize)| {
                desk.clients.get(client).is_some_and(|caller| caller.settled.get(thread) == Some(&round))
            };
            all.filter(|who| !settled(who)).collect()
        };
        self.settled.wait_while_for(&mut desk, |desk| !missing(desk).is_empty(), limit);
        missing(&desk)
    }

    /// Waits until every client has reported what it left behind. Returns the reports.
    pub fn await_left(&self, clients: usize, limit: Duration) -> Vec<Option<String>> {
        let mut desk = self.desk.lock();
        let said = |desk: &Desk| -> Vec<Option<String>> {
            (0..clients)
                .map(|client| desk.clients.get(&client).and_then(|caller| caller.left.clone()))
                .collect()
        };
        self.settled.wait_while_for(&mut desk, |desk| said(desk).iter().any(Option::is_none), limit);
        said(&desk)
    }

    /// Returns the clients that hold a lock now, according to their reports.
    pub fn holders(&self) -> Vec<usize> {
        let desk = self.desk.lock();
        desk.newest.iter().filter(|newest| newest.held).filter_map(|newest| newest.client).collect()
    }

    /// Returns how many times clients were started.
    pub fn starts(&self) -> u64 {
        self.desk.lock().clients.values().map(|caller| caller.incarnation).sum()
    }

    /// Returns the numbers of accepted and refused writes, and the writes for which sequence number and fencing
    /// token disagree.
    pub fn accounts(&self) -> (usize, usize, Vec<String>) {
        let desk = self.desk.lock();
        (desk.written, desk.refused, desk.contradictions.clone())
    }
}
