//! Locks and unlocks with the crate `zookeeper-client`, on commands from standard input, which
//! `benches/compare/peer.rs` describes. Each thread of the other programs is a task here. The crate's guard has
//! no other end than being dropped, which deletes the znode in the background.

use std::io::stdin;
use std::time::Duration;

use tokio::runtime::Runtime;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

#[path = "../../../compare/tasks.rs"]
mod tasks;

const SESSION_TIMEOUT: Duration = Duration::from_secs(60);

/// A lock, as the program of one task.
#[derive(Clone)]
struct Lock {
    client: Client,
    dir: String,
}

impl Lock {
    async fn cycle(self) {
        let prefix = LockPrefix::new_curator(&self.dir, "lock-").expect("the name is valid");
        let parents = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents);
        let options = options.expect("the mode is that of a directory");
        drop(self.client.lock(prefix, b"", options).await.expect("its turn comes"));
    }
}

fn main() {
    let runtime = Runtime::new().expect("threads can be started");
    let mut locks: Vec<Lock> = Vec::new();
    for line in stdin().lines() {
        let line = line.expect("the pipe works");
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["prepare", layout, count, servers, dir] => {
                let count = count.parse().expect("a number");
                locks = runtime.block_on(prepare(layout, count, servers, dir));
                println!("ready");
            }
            ["run", seconds] => {
                let length = Duration::from_secs_f64(seconds.parse().expect("a number"));
                let cycles = locks.clone().into_iter().map(|lock| move || lock.clone().cycle());
                let (done, took) = runtime.block_on(tasks::run(cycles, length));
                println!("{done} {} 0", took.as_secs_f64());
            }
            ["end"] => {
                locks.clear();
                println!("ended");
            }
            _ => panic!("no such command: {line}"),
        }
    }
}

async fn prepare(layout: &str, count: usize, servers: &str, dir: &str) -> Vec<Lock> {
    let mut locks: Vec<Lock> = Vec::new();
    for number in 0..count {
        let client = match locks.last() {
            Some(last) if layout != "sessions" => last.client.clone(),
            _ => connect(servers).await,
        };
        let dir = if layout == "directories" { format!("{dir}-{number}") } else { dir.to_owned() };
        locks.push(Lock { client, dir });
    }
    locks
}

async fn connect(servers: &str) -> Client {
    let connector = Client::connector().with_session_timeout(SESSION_TIMEOUT);
    connector.connect(servers).await.expect("the server is up")
}
