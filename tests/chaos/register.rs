//! What the locks protect: a register for each that refuses fencing tokens older than the newest it has seen.
//!
//! It listens on a Unix socket, which no fault between the clients and ZooKeeper concerns: a client that is cut off can
//! still write, and must be refused. Over the same socket the clients report to the conductor and take its orders.
//!
//! Each write brings the sequence number of its request, which is a fencing token within one directory, and the one of the
//! guard where there is a guard. Either being older than the newest is a reason to refuse; and since both must tell the same
//! story, a write that only one of them condemns is a finding.

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
    /// One of its threads holds on to a lock.
    clings: bool,
    settled: HashMap<usize, u64>,
    left: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Newest {
    sequence: i32,
    token: i64,
    client: Option<usize>,
    /// Until its owner says that it has let go, or that it has lost.
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
        let Ok(heard) = stream.try_clone() else { return };
        let mut caller = None;
        for line in BufReader::new(heard).lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            let answer = match words[..] {
                ["write", ..] => self.write(&words),
                ["done", lock, sequence] => self.take_back(lock.parse(), sequence.parse()),
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
        // A token is compared with the newest guard's, which may be older than the newest request.
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

    fn take_back(&self, lock: Result<usize, ParseIntError>, sequence: Result<i32, ParseIntError>) -> String {
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
        caller.clings = false;
        caller.line = stream.try_clone().ok();
        if let Some(line) = &mut caller.line {
            // A client that is gone again needs no answer.
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
            ["clings"] => caller.clings = true,
            ["left", ..] => caller.left = Some(words[1..].join(" ")),
            _ => {}
        }
        self.settled.notify_all();
    }

    /// Tells all clients, and those that come later, what to do.
    pub fn order(&self, order: &str) {
        let mut desk = self.desk.lock();
        desk.order = order.to_owned();
        for line in desk.clients.values_mut().filter_map(|caller| caller.line.as_mut()) {
            let _ = writeln!(line, "{order}"); // one that is gone hears it when it comes back
        }
    }

    /// Asks a client to hold on to the next lock that it holds, and waits until it does, or for so long.
    pub fn cling(&self, client: usize, limit: Duration) {
        self.tell(client, "cling");
        let clings = |desk: &mut Desk| desk.clients.get(&client).is_some_and(|caller| caller.clings);
        self.settled.wait_while_for(&mut self.desk.lock(), |desk| !clings(desk), limit);
    }

    /// Lets a client hold its locks as long as it likes again.
    pub fn ease(&self, client: usize) {
        self.tell(client, "ease");
    }

    fn tell(&self, client: usize, order: &str) {
        let mut desk = self.desk.lock();
        let Some(caller) = desk.clients.get_mut(&client) else { return };
        caller.clings = false;
        if let Some(line) = &mut caller.line {
            let _ = writeln!(line, "{order}"); // one that is gone holds nothing
        }
    }

    /// Waits until every thread has settled; returns those that have not within the time.
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

    /// Waits until every client has said what it left behind; returns what each said.
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

    /// The clients that hold a lock at this moment, as far as they have said.
    pub fn holders(&self) -> Vec<usize> {
        let desk = self.desk.lock();
        desk.newest.iter().filter(|newest| newest.held).filter_map(|newest| newest.client).collect()
    }

    /// How often each client was started.
    pub fn starts(&self) -> u64 {
        self.desk.lock().clients.values().map(|caller| caller.incarnation).sum()
    }

    /// The writes accepted and refused, and those that sequence number and fencing token judge differently.
    pub fn accounts(&self) -> (usize, usize, Vec<String>) {
        let desk = self.desk.lock();
        (desk.written, desk.refused, desk.contradictions.clone())
    }
}
