//! Tests of read-write locks on a real server: readers share, writers exclude everyone else, and requests
//! keep their order.

mod faults;
mod names;

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::locks::{ReadGuard, ReadWriteLock, WriteGuard};
use zookeeper_recipes_lock::queue::LockDirectory;
use zookeeper_recipes_lock::{
    BlockingWriteLock, CancelToken, ErrorReason, LockError, LockGuard, LossReason, Session, Wait,
};

use crate::fixtures::{Observer, next, session, unique_dir};
use crate::support::server::{self, Server};
use crate::support::wait::{deadline, eventually, scaled};

fn lock_on(session: &Session, dir: &str) -> ReadWriteLock {
    ReadWriteLock::new(session, dir).unwrap()
}

/// Counts the readers and the writers that hold the lock.
#[derive(Default)]
struct Room {
    readers: AtomicUsize,
    writers: AtomicUsize,
    most_readers: AtomicUsize,
}

impl Room {
    fn read(&self) {
        let readers = self.readers.fetch_add(1, Ordering::SeqCst) + 1;
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a writer owns");
        self.most_readers.fetch_max(readers, Ordering::SeqCst);
        thread::yield_now();
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }

    fn write(&self) {
        assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0, "another writer owns");
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a reader owns");
        thread::yield_now();
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a reader has acquired");
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }
}

// ---- exclusion

#[test]
fn readers_share_and_writers_exclude_across_sessions() {
    let dir = unique_dir("mixed");
    let room = Room::default();
    thread::scope(|scope| {
        for number in 0..6 {
            let (dir, room) = (&dir, &room);
            scope.spawn(move || {
                let session = session(server::shared());
                let (shared, exclusive) =
                    (lock_on(&session, dir), BlockingWriteLock::new(&session, dir).unwrap());
                for round in 0..15 {
                    match (number + round) % 6 {
                        0 => {
                            let writing = shared.write().unwrap();
                            room.write();
                            let reading = writing.downgrade().unwrap();
                            room.read();
                            reading.unlock().unwrap();
                        }
                        1 => {
                            let _writing = shared.write().unwrap();
                            room.write();
                        }
                        2 => exclusive.with_lock(|_| room.write()).unwrap(),
                        _ => {
                            let reading = shared.read().unwrap();
                            assert!(reading.is_owner());
                            room.read();
                        }
                    }
                }
            });
        }
    });
    Observer::at(server::shared()).await_children(&dir, 0);
}

#[test]
fn many_readers_own_at_once() {
    let dir = unique_dir("hundred");
    let sessions = [(); 4].map(|()| session(server::shared()));
    let locks = sessions.each_ref().map(|session| lock_on(session, &dir));
    let guards: Vec<_> = (0..100).map(|number| locks[number % locks.len()].read().unwrap()).collect();
    assert!(guards.iter().all(|guard| guard.is_owner()));
    assert!(locks[0].try_write().unwrap().is_none());
    drop(guards);
    assert!(locks[0].try_write_for(deadline()).unwrap().is_some());
}

#[test]
fn try_methods_return_at_once() {
    let (ours, theirs) = (session(server::shared()), session(server::shared()));
    let dir = unique_dir("try-shared");
    let (ours, theirs) = (lock_on(&ours, &dir), lock_on(&theirs, &dir));
    let reading = ours.try_read().unwrap().expect("the lock is free");
    assert!(theirs.try_write().unwrap().is_none());
    let also = theirs.try_read().unwrap().expect("readers share");
    drop((reading, also));
    let writing = ours.try_write_for(deadline()).unwrap().expect("the readers have released");
    assert!(theirs.try_read().unwrap().is_none());
    assert!(theirs.try_write().unwrap().is_none());
    writing.unlock().unwrap();
    Observer::at(server::shared()).await_children(&dir, 0);
}

#[test]
fn readers_and_writers_time_out_and_are_cancelled() {
    let session = session(server::shared());
    let dir = unique_dir("impatient");
    let lock = lock_on(&session, &dir);
    let writing = lock.write().unwrap();
    let short = Duration::from_millis(200);
    let start = Instant::now();
    assert!(lock.try_read_for(short).unwrap().is_none());
    assert!(lock.try_read_for(start + 2 * short).unwrap().is_none());
    assert!(start.elapsed() >= 2 * short);
    let reading = writing.downgrade().unwrap();
    assert!(lock.try_write_for(short).unwrap().is_none());
    assert!(lock.try_write_for(Instant::now() + short).unwrap().is_none());
    assert!(start.elapsed() < scaled(Duration::from_secs(10)));

    let cancel = [CancelToken::new(), CancelToken::new()];
    let [of_writer, of_reader] = cancel.each_ref().map(|token| Wait::forever().cancelled_by(token));
    let observer = Observer::at(server::shared());
    observer.await_children(&dir, 1);
    thread::scope(|scope| {
        let writer = scope.spawn(|| lock.try_write_for(&of_writer).map(|guard| guard.is_some()));
        observer.await_children(&dir, 2);
        let reader = scope.spawn(|| lock.try_read_for(&of_reader).map(|guard| guard.is_some()));
        observer.await_children(&dir, 3);
        // Cancel the reader first: without the writer ahead, it might acquire the lock before it notices the
        // cancellation.
        cancel[1].cancel();
        assert!(matches!(reader.join().unwrap(), Err(ref error) if error.reason() == ErrorReason::Cancelled));
        cancel[0].cancel();
        assert!(matches!(writer.join().unwrap(), Err(ref error) if error.reason() == ErrorReason::Cancelled));
    });
    observer.await_children(&dir, 1);
    assert!(reading.is_owner());
}

#[test]
fn invalid_path_is_refused() {
    let session = session(server::shared());
    let error = ReadWriteLock::new(&session, "/a//b").unwrap_err();
    assert_eq!(error.reason(), ErrorReason::InvalidArgument, "{error}");
}

// ---- order

/// A reader or a writer in the queue, as a task that the test polls.
struct Waiting {
    reads: bool,
    task: RefCell<Task>,
}

type Acquiring = Pin<Box<dyn Future<Output = Result<Guard, LockError>>>>;

enum Task {
    Waits(Acquiring),
    Owns(Guard),
    Released,
}

enum Guard {
    Read(ReadGuard),
    Write(WriteGuard),
}

impl Guard {
    fn lock(&self) -> &LockGuard {
        match self {
            Guard::Read(guard) => guard,
            Guard::Write(guard) => guard,
        }
    }
}

impl Waiting {
    /// Joins the queue. Returns once the request is in the queue.
    fn join(lock: &ReadWriteLock, reads: bool) -> Waiting {
        let directory = LockDirectory::new(lock.session(), lock.dir()).unwrap();
        let requests = || directory.contenders().unwrap().len();
        let before = requests();
        let acquiring: Acquiring = if reads {
            let reading = lock.read_async();
            Box::pin(async { reading.await.map(Guard::Read) })
        } else {
            let writing = lock.write_async();
            Box::pin(async { writing.await.map(Guard::Write) })
        };
        let waiting = Waiting { reads, task: RefCell::new(Task::Waits(acquiring)) };
        assert!(!waiting.is_owner(), "a request behind another one must not own");
        eventually("the request is in the queue", || requests() == before + 1);
        waiting
    }

    fn is_owner(&self) -> bool {
        let mut task = self.task.borrow_mut();
        if let Task::Waits(acquiring) = &mut *task {
            if let Poll::Ready(acquired) = acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                *task = Task::Owns(acquired.unwrap());
            }
        }
        matches!(&*task, Task::Owns(guard) if guard.lock().is_owner())
    }

    fn await_acquired(&self) {
        eventually("the request owns the lock", || self.is_owner());
    }

    fn unlock(&self) {
        match self.task.replace(Task::Released) {
            Task::Owns(Guard::Read(guard)) => guard.unlock().unwrap(),
            Task::Owns(Guard::Write(guard)) => guard.unlock().unwrap(),
            Task::Waits(_) | Task::Released => panic!("the task does not own the lock"),
        };
    }

    fn fencing_token(&self) -> i64 {
        match &*self.task.borrow() {
            Task::Owns(guard) => guard.lock().fencing_token().unwrap(),
            Task::Waits(_) | Task::Released => panic!("the task does not own the lock"),
        }
    }
}

#[test]
fn readers_and_writers_acquire_in_the_order_of_their_requests() {
    let dir = unique_dir("fifo-shared");
    let sessions = [(); 3].map(|()| session(server::shared()));
    let locks = sessions.each_ref().map(|session| lock_on(session, &dir));
    let first = locks[0].write().unwrap();
    let kinds = [true, true, false, true, false, false, true, true, true, false];
    let queue: Vec<Waiting> =
        kinds.iter().enumerate().map(|(number, reads)| Waiting::join(&locks[number % 3], *reads)).collect();
    assert!(!queue.iter().any(Waiting::is_owner));
    first.unlock().unwrap();
    for owners in queue.chunk_by(|one, other| one.reads && other.reads) {
        owners.iter().for_each(Waiting::await_acquired);
        let count = queue.iter().filter(|waiting| waiting.is_owner()).count();
        assert_eq!(count, owners.len(), "there must be no other owner");
        owners.iter().for_each(Waiting::unlock);
    }
    Observer::at(server::shared()).await_children(&dir, 0);
}

#[test]
fn release_of_a_writer_wakes_only_the_readers_behind_it() {
    let server = Server::start();
    let (holder, waiting) = (session(&server), session(&server));
    let dir = unique_dir("woken");
    let writing = lock_on(&holder, &dir).write().unwrap();
    let id = writing.id().to_owned();
    let lock = lock_on(&waiting, &dir);
    let readers: Vec<_> = (0..20).map(|_| Waiting::join(&lock, true)).collect();
    let writer = Waiting::join(&lock, false);
    let last = Waiting::join(&lock, true);
    let watched = || -> Vec<String> {
        let paths = server.four_letter("wchp");
        paths.lines().filter(|line| line.starts_with(&dir)).map(str::to_owned).collect()
    };
    // Three znodes are watched: the holder's, by the holder and the readers behind it; the last reader's
    // before the writer; and the writer's. The directory is not watched.
    eventually("each request waits for the one ahead", || watched().len() == 3);
    assert!(watched().contains(&id) && !watched().contains(&dir), "{:?}", watched());
    writing.unlock().unwrap();
    readers.iter().for_each(Waiting::await_acquired);
    assert!(!writer.is_owner() && !last.is_owner());
    assert!(!watched().contains(&id));
    readers.iter().for_each(Waiting::unlock);
    writer.await_acquired();
    assert!(!last.is_owner());
    writer.unlock();
    last.await_acquired();
}

#[test]
fn stream_of_readers_does_not_starve_a_writer() {
    let dir = unique_dir("readers-stream");
    let sessions = [(); 2].map(|()| session(server::shared()));
    let (readers, writers) = (lock_on(&sessions[0], &dir), lock_on(&sessions[1], &dir));
    let stop = AtomicBool::new(false);
    let reads = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut held = readers.read().unwrap();
                while !stop.load(Ordering::SeqCst) {
                    // Make the next request before the previous one ends.
                    let next = readers.try_read_for(Duration::from_millis(50)).unwrap();
                    drop(held);
                    reads.fetch_add(1, Ordering::SeqCst);
                    held = match next {
                        Some(next) => next,
                        None => readers.read().unwrap(),
                    };
                }
            });
        }
        eventually("there are readers", || reads.load(Ordering::SeqCst) > 10);
        let writing = (0..5).map(|_| writers.try_write_for(deadline()));
        let written = writing.filter(|writing| matches!(writing, Ok(Some(_)))).count();
        stop.store(true, Ordering::SeqCst);
        assert_eq!(written, 5);
    });
}

#[test]
fn stream_of_writers_does_not_starve_a_reader() {
    let dir = unique_dir("writers-stream");
    let sessions = [(); 2].map(|()| session(server::shared()));
    let (writers, readers) = (lock_on(&sessions[0], &dir), lock_on(&sessions[1], &dir));
    let stop = AtomicBool::new(false);
    let writes = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    writers.write().unwrap().unlock().unwrap();
                    writes.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        eventually("there are writers", || writes.load(Ordering::SeqCst) > 10);
        let reading = (0..5).map(|_| readers.try_read_for(deadline()));
        let read = reading.filter(|reading| matches!(reading, Ok(Some(_)))).count();
        stop.store(true, Ordering::SeqCst);
        assert_eq!(read, 5);
    });
}

// ---- downgrades

#[test]
fn downgrade_admits_the_readers_behind_and_no_writer() {
    let dir = unique_dir("downgrade");
    let (ours, theirs) = (session(server::shared()), session(server::shared()));
    let (ours, theirs) = (lock_on(&ours, &dir), lock_on(&theirs, &dir));
    let writing = ours.write().unwrap();
    let token = writing.fencing_token().unwrap();
    let reader = Waiting::join(&theirs, true);
    let writer = Waiting::join(&theirs, false);
    let last = Waiting::join(&theirs, true);
    let reading = writing.downgrade().unwrap();
    assert!(reading.is_owner());
    reader.await_acquired();
    assert!(!writer.is_owner() && !last.is_owner());
    assert_eq!(reading.fencing_token().unwrap(), token);
    reader.unlock();
    assert!(!writer.is_owner());
    reading.unlock().unwrap();
    writer.await_acquired();
    assert!(writer.fencing_token() > token);
    writer.unlock();
    last.await_acquired();
}

#[test]
fn downgrade_fails_when_the_writers_znode_is_gone() {
    let dir = unique_dir("downgrade-deleted");
    let session = session(server::shared());
    let observer = Observer::at(server::shared());
    let writing = lock_on(&session, &dir).write().unwrap();
    observer.delete(writing.id());
    let failed = writing.downgrade().unwrap_err();
    assert_eq!(failed.error.reason(), ErrorReason::NotOwner, "{failed}");
    let guard = failed.guard;
    assert!(!guard.is_owner());
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
    observer.await_children(&dir, 0);
}
