//! Our contenders: one process with a thread for each contender and a single session, so locks also pass
//! between requests of one session. Arguments: the servers, the referee's port, the session timeout in
//! milliseconds, and a PAIR:NAME for each thread.

use std::any::Any;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use parking_lot::Mutex;
use zookeeper_recipes_lock::locks::{CohortLock, CohortOptions, ReadWriteLock, Semaphore};
use zookeeper_recipes_lock::recipe::NamingScheme;
use zookeeper_recipes_lock::{
    BlockingWriteLock, Candidate, LockError, LockListener, LockOptions, LossReason, Session, WriteLock,
};

use crate::pairs::{Ours, Pair};

/// The pause after an error, before the next round.
const PAUSE: Duration = Duration::from_millis(100);

/// How many times a contender tries to lock without waiting before it waits.
const ATTEMPTS: usize = 5;

/// How long a candidate may take to step down.
const STEP_DOWN: Duration = Duration::from_secs(30);

/// Acquires the lock in a mode, shows the hold to the referee, and releases.
type Round = Box<dyn FnMut(&str) -> Result<(), LockError>>;

pub fn run(arguments: &[String]) {
    env_logger::Builder::new().filter_level(log::LevelFilter::Warn).init();
    let [servers, port, timeout, contenders @ ..] = arguments else { panic!("too few arguments") };
    let port: u16 = port.parse().expect("a port");
    let timeout = Duration::from_millis(timeout.parse().expect("a number"));
    let builder = Session::builder(servers).session_timeout(timeout).replace_lost_sessions(true);
    let session = builder.connect().expect("a session can be opened");
    thread::scope(|scope| {
        for contender in contenders {
            let (pair, name) = contender.split_once(':').expect("PAIR:NAME");
            let session = session.clone();
            scope.spawn(move || contend(session, port, Pair::named(pair), name));
        }
    });
}

fn contend(session: Session, port: u16, pair: &'static Pair, name: &str) {
    let referee = Arc::new(Referee::connect(port));
    let (_, index) = name.split_once('-').expect("SIDE-INDEX");
    let index: usize = index.parse().expect("a number");
    let mut round = match pair.ours {
        Ours::ReadWrite => read_write(&session, pair, pair.schemes[index], &referee),
        Ours::Election => election(session, pair, pair.schemes[index], &referee),
        Ours::Exclusive => exclusive(&session, pair, index, &referee),
        Ours::Semaphore => semaphore(&session, pair, &referee),
    };
    referee.ask(&format!("hello {} {name}", pair.name));
    loop {
        let mode = referee.ask("next");
        if mode == "stop" {
            return;
        }
        if let Err(error) = round(&mode) {
            eprintln!("{name} of {}: {error}", pair.name);
            thread::sleep(PAUSE);
        }
    }
}

/// Returns the options of our locks.
pub fn options(pair: &Pair, scheme: NamingScheme) -> LockOptions {
    let options = LockOptions::new().naming(scheme);
    if pair.needs_persistent_directory() { options.container(false) } else { options }
}

fn new_semaphore(session: &Session, pair: &Pair) -> Semaphore {
    let permits = u32::try_from(pair.permits()).expect("there are few");
    Semaphore::new(session, &pair.dir(), permits).expect("the path is valid")
}

/// Holds the write lock of a pair's directory, or all permits. This creates the directory.
pub fn found(session: &Session, pair: &Pair) -> Result<Box<dyn Any>, LockError> {
    let (dir, options) = (pair.dir(), options(pair, pair.schemes[0]));
    match pair.ours {
        Ours::ReadWrite => Ok(Box::new(ReadWriteLock::with_options(session, &dir, options)?.write()?)),
        Ours::Semaphore => {
            let semaphore = new_semaphore(session, pair);
            let permits = (0..pair.permits()).map(|_| semaphore.acquire()).collect::<Result<Vec<_>, _>>()?;
            Ok(Box::new(permits))
        }
        _ => Ok(Box::new(BlockingWriteLock::with_options(session, &dir, options)?.lock()?)),
    }
}

fn exclusive(session: &Session, pair: &Pair, index: usize, referee: &Arc<Referee>) -> Round {
    let (dir, options) = (pair.dir(), options(pair, pair.schemes[index]));
    let referee = Arc::clone(referee);
    match index {
        0 => {
            let lock = BlockingWriteLock::with_options(session, &dir, options).expect("the path is valid");
            Box::new(move |_| {
                // The waiters behind these short-lived requests must not lose track of them.
                let tried = (0..ATTEMPTS).find_map(|_| lock.try_lock().transpose());
                let guard = tried.unwrap_or_else(|| lock.lock())?;
                referee.hold(guard.is_owner());
                guard.unlock().map(drop)
            })
        }
        1 => {
            let (sender, acquired) = unbounded();
            let lock = WriteLock::with_options(session, &dir, options, Notify(sender)).expect("a valid path");
            Box::new(move |_| {
                lock.lock()?;
                acquired.recv().expect("the lock has the sender");
                referee.hold(lock.is_owner());
                lock.unlock().map(drop)
            })
        }
        _ => {
            let lock = CohortLock::with_options(session, &dir, options, CohortOptions::new());
            let lock = lock.expect("the path is valid");
            Box::new(move |_| {
                let guard = lock.lock()?;
                referee.hold(guard.is_owner());
                guard.unlock().map(drop)
            })
        }
    }
}

fn semaphore(session: &Session, pair: &Pair, referee: &Arc<Referee>) -> Round {
    let semaphore = new_semaphore(session, pair);
    let referee = Arc::clone(referee);
    Box::new(move |_| {
        let tried = semaphore.try_acquire()?;
        let permit = tried.map_or_else(|| semaphore.acquire(), Ok)?;
        referee.hold(permit.is_owner());
        permit.release().map(drop)
    })
}

struct Notify(Sender<()>);

impl LockListener for Notify {
    fn lock_acquired(&self) {
        let _ = self.0.send(());
    }
    fn lock_released(&self) {}
    fn lock_lost(&self, _lock: &WriteLock, reason: LossReason) {
        eprintln!("a lock with a listener is lost: {reason}");
    }
}

fn read_write(session: &Session, pair: &Pair, scheme: NamingScheme, referee: &Arc<Referee>) -> Round {
    let lock = ReadWriteLock::with_options(session, &pair.dir(), options(pair, scheme))
        .expect("the scheme has readers");
    let referee = Arc::clone(referee);
    Box::new(move |mode| match mode {
        "read" => {
            let guard = lock.read()?;
            referee.hold(guard.is_owner());
            guard.unlock().map(drop)
        }
        _ => {
            let guard = lock.write()?;
            referee.hold(guard.is_owner());
            guard.unlock().map(drop)
        }
    })
}

/// Runs a new candidate for each round: a lasting candidate would join at most once a second.
fn election(session: Session, pair: &'static Pair, scheme: NamingScheme, referee: &Arc<Referee>) -> Round {
    let referee = Arc::clone(referee);
    Box::new(move |_| {
        let lock = BlockingWriteLock::with_options(&session, &pair.dir(), options(pair, scheme))?;
        let (leads, led) = unbounded();
        let referee = Arc::clone(&referee);
        let candidate = Candidate::start(lock, move |leadership| {
            referee.hold(leadership.is_owner());
            let _ = leads.send(());
            let _ = leadership.wait(STEP_DOWN);
            Ok(())
        })?;
        let _ = led.recv();
        candidate.stop();
        assert!(candidate.wait(STEP_DOWN), "a stopped candidate must end");
        Ok(())
    })
}

/// The connection to the referee.
struct Referee {
    line: Mutex<(BufReader<TcpStream>, TcpStream)>,
}

impl Referee {
    fn connect(port: u16) -> Referee {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the referee listens");
        stream.set_nodelay(true).expect("it is a TCP socket");
        let input = BufReader::new(stream.try_clone().expect("there are enough descriptors"));
        Referee { line: Mutex::new((input, stream)) }
    }

    /// Asks the referee. If the referee has ended, ends the process.
    fn ask(&self, question: &str) -> String {
        let mut line = self.line.lock();
        let mut answer = String::new();
        let asked = line.1.write_all(format!("{question}\n").as_bytes());
        if asked.and_then(|()| line.0.read_line(&mut answer)).unwrap_or_default() == 0 {
            std::process::exit(0);
        }
        answer.trim().to_owned()
    }

    /// Shows a hold to the referee, unless the lock was lost before.
    fn hold(&self, is_owner: bool) {
        if is_owner {
            self.ask("enter");
            self.ask("leave");
        }
    }
}
