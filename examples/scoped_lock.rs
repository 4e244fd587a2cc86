//! Guards in scoped threads: four threads share one session and one lock to increment a counter.
//!
//! Each thread reads the counter, pauses and writes it back. Without the lock, increments would be lost. If you run the
//! program twice at the same time, the threads of both processes take turns.
//!
//! ```text
//! cargo run --example scoped_lock -- 127.0.0.1:2181
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, iter, panic, thread};

use env_logger::{Builder, Env};
use zookeeper_recipes_lock::{BlockingWriteLock, LockError, Session};

const THREADS: u32 = 4;
const ROUNDS: u32 = 3;

const USAGE: &str = "usage: scoped_lock [CONNECT]

Four threads take turns under one lock to increment a counter.

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
            eprintln!("scoped_lock: {error}");
            for cause in iter::successors(error.source(), |&cause| cause.source()) {
                eprintln!("because: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(connect: &str) -> Result<(), Box<dyn Error>> {
    let session = Session::connect(connect, Duration::from_secs(10))?;
    let lock = BlockingWriteLock::new(&session, "/examples/scoped_lock")?;
    let counter = AtomicU32::new(0);

    let (lock, counter) = (&lock, &counter);
    thread::scope(|scope| {
        let threads: Vec<_> =
            (1..=THREADS).map(|n| scope.spawn(move || take_turns(n, lock, counter))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
    })?;

    // A dropped guard deletes its znode in the background. Closing the session waits until the znode is
    // deleted.
    session.close();

    let (counted, right) = (counter.load(Ordering::Relaxed), THREADS * ROUNDS);
    println!("counted to {counted}");
    if counted == right { Ok(()) } else { Err(format!("{right} expected").into()) }
}

fn take_turns(thread: u32, lock: &BlockingWriteLock, counter: &AtomicU32) -> Result<(), LockError> {
    for _ in 0..ROUNDS {
        let guard = lock.lock()?;
        let before = counter.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(10));
        counter.store(before + 1, Ordering::Relaxed);
        println!("{:>2} by thread {thread}, holding {}", before + 1, guard.id());
    } // The guard is dropped here, which releases the lock.
    Ok(())
}
