//! An operation under the lock, with a fencing token that protects the resource it writes to.
//!
//! `with_lock` takes the lock, runs a closure and releases the lock, even after a panic. A lock alone cannot
//! stop a holder that was paused, lost the lock without noticing, and continues to write. So the holder sends
//! its fencing token with every write, and the resource refuses a token that is smaller than the largest it
//! has seen.
//!
//! ```text
//! cargo run --example with_lock -- 127.0.0.1:2181
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;
use std::{env, iter};

use env_logger::{Builder, Env};
use zookeeper_recipes_lock::{BlockingWriteLock, Session};

const USAGE: &str = "usage: with_lock [CONNECT]

Runs two operations under a lock. A late write is refused because of its fencing token.

CONNECT names the servers: host:port,...[/chroot]; default: ZK_CONNECT, or 127.0.0.1:2181";

fn main() -> ExitCode {
    Builder::from_env(Env::default().default_filter_or("warn")).init();
    let connect = env::args().nth(1).or_else(|| env::var("ZK_CONNECT").ok());
    if matches!(connect.as_deref(), Some("--help" | "-h")) {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match run(connect.as_deref().unwrap_or("127.0.0.1:2181")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("with_lock: {error}");
            for cause in iter::successors(error.source(), |&cause| cause.source()) {
                eprintln!("because: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(connect: &str) -> Result<(), Box<dyn Error>> {
    let session = Session::connect(connect, Duration::from_secs(10))?;
    let lock = BlockingWriteLock::new(&session, "/examples/with_lock")?;
    let mut report = Report::default();

    // The closure returns a `Result` too, so both `with_lock` and the closure can fail.
    let first = lock.with_lock(|guard| guard.fencing_token())??;
    println!("the first holder has token {first}, and is interrupted before it writes");

    lock.with_lock(|guard| -> Result<(), Box<dyn Error>> {
        let second = guard.fencing_token()?;
        println!("the second holder has token {second}");
        report.write(second, "second")
    })??;

    match report.write(first, "first") {
        Err(refusal) => println!("the first holder comes back too late: {refusal}"),
        Ok(()) => return Err("the report accepted a write of a former holder".into()),
    }
    println!("the report says: {}", report.text);
    session.close();
    Ok(())
}

/// The protected resource. It stands for a file store, a database or another service.
#[derive(Default)]
struct Report {
    text: String,
    largest_token: i64,
}

impl Report {
    fn write(&mut self, token: i64, text: &str) -> Result<(), Box<dyn Error>> {
        if token < self.largest_token {
            return Err(format!("token {token} is refused: {} has written", self.largest_token).into());
        }
        self.largest_token = token;
        self.text = text.to_owned();
        Ok(())
    }
}
