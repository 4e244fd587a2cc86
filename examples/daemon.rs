//! A daemon whose threads share one session. Each thread works on one item after another. No two threads, of
//! any process, work on the same item at once.
//!
//! A lost session is replaced, so the threads can share the session and its locks for as long as the process
//! runs. SIGTERM and ctrl-c end all waits and then the process, which leaves no znode of a request behind.
//!
//! ```text
//! cargo run --example daemon -- 127.0.0.1:2181
//! ```

use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use env_logger::{Builder, Env};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use zookeeper_recipes_lock::locks::NamedLocks;
use zookeeper_recipes_lock::{CancelToken, ErrorKind, ErrorReason, LockError, LockGuard, Session, Wait};

const THREADS: u64 = 4;
const ITEMS: u64 = 10;
const PAUSE: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    Builder::from_env(Env::default().default_filter_or("warn")).init();
    let servers = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:2181".to_owned());
    let shutdown = CancelToken::new();
    let on_signal = shutdown.clone();
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || signals.forever().take(1).for_each(|_| on_signal.cancel()));

    let wait = Wait::forever().cancelled_by(&shutdown);
    let builder = Session::builder(&*servers).replace_lost_sessions(true).wait_for_server(wait);
    let session = match builder.connect() {
        Err(error) if error.reason() == ErrorReason::Cancelled => return Ok(()),
        session => session?,
    };
    let locks = NamedLocks::new(&session, "/example/items")?;
    let ended: Vec<_> = thread::scope(|scope| {
        let start = |thread| {
            let (locks, shutdown) = (&locks, &shutdown);
            scope.spawn(move || {
                // However one thread ends, the others end, too.
                let _end = EndsAll(shutdown);
                work(thread, locks, shutdown).inspect_err(|error| eprintln!("{thread}: {error}"))
            })
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    session.close();
    // The exit code tells the service manager whether to start the daemon again.
    Ok(ended.into_iter().try_for_each(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic)))?)
}

/// Ends the daemon when it is dropped, even by a panic.
struct EndsAll<'a>(&'a CancelToken);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Works on the items in turn until shutdown.
fn work(thread: u64, locks: &NamedLocks, shutdown: &CancelToken) -> Result<(), LockError> {
    for turn in 0.. {
        let item = format!("item {}", (thread + turn) % ITEMS);
        let wait = Wait::forever().cancelled_by(shutdown);
        match locks.get(&item)?.try_lock_for(wait) {
            Ok(Some(guard)) => handle(thread, &item, &guard),
            Ok(None) => return Ok(()),
            Err(error) if error.reason() == ErrorReason::Cancelled => return Ok(()),
            // For example, another client has deleted the request. Go on with the next item.
            Err(error) if error.kind() != ErrorKind::Permanent => eprintln!("{thread}: {error}"),
            Err(error) => return Err(error),
        }
        thread::sleep(PAUSE / 10);
    }
    Ok(())
}

/// Works on an item in small steps. Only the owner of the item may take a step.
fn handle(thread: u64, item: &str, guard: &LockGuard) {
    for step in 1..=3 {
        if !guard.is_owner() {
            println!("{thread}: {item} is lost at step {step}: {:?}", guard.loss());
            return;
        }
        thread::sleep(PAUSE / 20);
    }
    println!("{thread}: {item} is done");
}
