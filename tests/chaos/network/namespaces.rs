//! A network namespace for each client. `network.sh` creates them and also removes them, however this process
//! ends.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chaos/network.sh");

/// The packets to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Requests,
    Replies,
    Both,
}

#[derive(Debug)]
pub struct Namespaces {
    names: Vec<String>,
    outsides: Vec<IpAddr>,
    script: Mutex<Script>,
}

#[derive(Debug)]
struct Script {
    child: Child,
    /// The script's input. Closing it triggers the cleanup.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Namespaces {
    /// Creates a namespace for each client. Returns `None` if the machine does not permit it.
    pub fn make(clients: usize) -> Option<Arc<Namespaces>> {
        let child = Command::new(SCRIPT)
            .args([std::process::id().to_string(), clients.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut child = child.ok()?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let mut script = Script { child, orders, answers: BufReader::new(answers?) };
        let (mut names, mut outsides) = (Vec::new(), Vec::new());
        for _ in 0..clients {
            let line = script.answer()?;
            let (name, outside) = line.split_once(' ')?;
            names.push(name.to_owned());
            outsides.push(outside.parse().ok()?);
        }
        Some(Arc::new(Namespaces { names, outsides, script: Mutex::new(script) }))
    }

    pub fn name_of(&self, client: usize) -> &str {
        &self.names[client]
    }

    /// Returns the machine's address as the client sees it.
    pub fn outside_of(&self, client: usize) -> IpAddr {
        self.outsides[client]
    }

    pub fn drop_packets(&self, client: usize, direction: Direction) {
        let what = match direction {
            Direction::Requests => "requests",
            Direction::Replies => "replies",
            Direction::Both => "both",
        };
        self.order(&format!("drop {client} {what}"));
    }

    pub fn restore(&self, client: usize) {
        self.order(&format!("restore {client}"));
    }

    fn order(&self, order: &str) {
        let mut script = self.script.lock();
        let orders = script.orders.as_mut().expect("the input exists until the drop");
        writeln!(orders, "{order}").expect("the script listens");
        assert_eq!(script.answer().as_deref(), Some("ok"), "{order}");
    }
}

impl Script {
    fn answer(&mut self) -> Option<String> {
        let mut line = String::new();
        let bytes = self.answers.read_line(&mut line).ok()?;
        (bytes > 0).then(|| line.trim().to_owned())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait(); // it fails only after another wait
    }
}
