//! Tests of inspecting and cleaning up lock directories.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use zookeeper_recipes_lock::client::{Acl, CreateMode, Permissions};
use zookeeper_recipes_lock::locks::{NamedLocks, ReadWriteLock};
use zookeeper_recipes_lock::queue::{LeaderWatch, LockDirectory, LockInfo};
use zookeeper_recipes_lock::recipe::{LockKind, NamingScheme};
use zookeeper_recipes_lock::{
    BlockingWriteLock, ErrorReason, LockOptions, LossReason, Session, SessionState, Wait, WriteLock,
};

use crate::fixtures::{ErrorVariant, LONG, Observer, SHORT, connect, next, session, unique_dir};
use crate::support::relay::Relay;
use crate::support::server::{self, Server, ServerOptions};
use crate::support::wait::{deadline, eventually};

/// A lock directory, and a client that can write to it.
struct Fixture {
    session: Session,
    dir: String,
    directory: LockDirectory,
    observer: Observer,
}

impl Fixture {
    fn new(test: &str) -> Fixture {
        let session = session(server::shared());
        let dir = unique_dir(test);
        let directory = LockDirectory::new(&session, &dir).unwrap();
        Fixture { session, dir, directory, observer: Observer::at(server::shared()) }
    }

    fn lock(&self) -> WriteLock {
        WriteLock::new(&self.session, self.dir()).unwrap()
    }

    fn dir(&self) -> &str {
        &self.dir
    }

    fn create(&self, prefix: &str, data: &[u8], mode: CreateMode) -> String {
        self.observer.create_persistent(self.dir());
        self.create_with_acl(prefix, data, mode, &Acl::open_unsafe())
    }

    fn create_with_acl(&self, prefix: &str, data: &[u8], mode: CreateMode, acl: &[Acl]) -> String {
        self.observer.zk().create(&format!("{}/{prefix}", self.dir()), data, acl, mode).unwrap()
    }
}

fn paths(infos: &[LockInfo]) -> Vec<&str> {
    infos.iter().map(|request| request.path.as_str()).collect()
}

// ---- contenders

#[test]
fn contenders_of_all_kinds_are_in_one_queue() {
    let fixture = Fixture::new("contenders");
    let ours = fixture.lock();
    assert!(ours.lock().unwrap());
    let curator = fixture.create("_c_0b2e-__READ__", b"10.0.0.7", CreateMode::EphemeralSequential);
    let kazoo = fixture.create("00ff__lock__", b"\xff\n\x1b[2J", CreateMode::EphemeralSequential);
    let hbase = fixture.create("write-", b"", CreateMode::PersistentSequential);
    let queue_item = fixture.create("qn-", b"", CreateMode::PersistentSequential);
    fixture.create("config", b"", CreateMode::Persistent);

    let contenders = fixture.directory.contenders().unwrap();
    assert_eq!(paths(&contenders), [&ours.id().unwrap(), &curator, &kazoo, &hbase, &queue_item]);
    let kinds: Vec<LockKind> = contenders.iter().map(|request| request.kind).collect();
    use LockKind::{Exclusive, Other, Read, Write};
    assert_eq!(kinds, [Exclusive, Read, Exclusive, Write, Other]);
    assert!(contenders[0].data_lossy().ends_with(&format!("/{}", std::process::id())));
    assert_eq!(contenders[0].czxid, Some(ours.fencing_token().unwrap()));
    assert_eq!(contenders[1].data_lossy(), "10.0.0.7");
    assert!(!contenders[2].to_string().contains(char::is_control), "{}", contenders[2]);
    assert_ne!(contenders[0].ephemeral_owner, contenders[1].ephemeral_owner);
    assert_eq!((contenders[3].ephemeral_owner, contenders[3].is_persistent), (None, true));
    let age = SystemTime::now().duration_since(contenders[0].created.unwrap()).unwrap();
    assert!(age < deadline(), "{age:?}");
    assert_eq!(fixture.directory.current_owner().unwrap().as_ref(), contenders.first());
}

#[test]
fn many_contenders_are_listed_in_order() {
    let fixture = Fixture::new("thousand");
    let locks: Vec<WriteLock> = (0..1000)
        .map(|_| {
            let lock = fixture.lock();
            lock.lock().unwrap();
            lock
        })
        .collect();
    let contenders = fixture.directory.contenders().unwrap();
    let ids: Vec<String> = locks.iter().filter_map(|lock| lock.id()).collect();
    assert_eq!(paths(&contenders), ids);
}

#[test]
fn readers_own_together_up_to_the_first_writer() {
    for scheme in [NamingScheme::Recipe, NamingScheme::Curator, NamingScheme::Kazoo] {
        let fixture = Fixture::new("readers");
        let lock =
            ReadWriteLock::with_options(&fixture.session, fixture.dir(), LockOptions::new().naming(scheme))
                .unwrap();
        let owners = || LockInfo::owners(&fixture.directory.contenders().unwrap()).to_vec();
        let readers = [lock.read().unwrap(), lock.read().unwrap()];
        let requests = || fixture.directory.contenders().unwrap().len();
        thread::scope(|scope| {
            let writer = scope.spawn(|| lock.write().unwrap());
            eventually("the writer is in the queue", || requests() == 3);
            let late = scope.spawn(|| lock.read().unwrap());
            eventually("a reader is behind it", || requests() == 4);
            assert_eq!(paths(&owners()), [readers[0].id(), readers[1].id()], "{scheme:?}");
            assert!(owners().iter().all(|owner| owner.kind == LockKind::Read));
            drop(readers);
            let writer = writer.join().unwrap();
            assert_eq!(paths(&owners()), [writer.id()]);
            assert_eq!(requests(), 2);
            drop(writer);
            let late = late.join().unwrap();
            assert_eq!(paths(&owners()), [late.id()]);
        });
    }
}

#[test]
fn contenders_can_be_listed_while_the_queue_changes() {
    let fixture = Fixture::new("coming-and-going");
    let until = Instant::now() + Duration::from_secs(1);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let lock = BlockingWriteLock::new(&fixture.session, fixture.dir()).unwrap();
                while Instant::now() < until {
                    lock.lock().unwrap().unlock().unwrap();
                }
            });
        }
        while Instant::now() < until {
            let contenders = fixture.directory.contenders().unwrap();
            assert!(contenders.len() <= 4);
            let distinct: HashSet<_> = contenders.iter().map(|request| request.czxid).collect();
            assert_eq!(distinct.len(), contenders.len());
        }
    });
}

#[test]
fn request_without_read_permission_has_its_place_in_the_queue() {
    let fixture = Fixture::new("denied");
    let secret = [Acl::new(Permissions::DELETE, "world", "anyone")];
    let first = fixture.create("x-a-lock-", b"open", CreateMode::EphemeralSequential);
    let hidden = fixture.create_with_acl("x-b-lock-", b"secret", CreateMode::EphemeralSequential, &secret);
    let contenders = fixture.directory.contenders().unwrap();
    assert_eq!(paths(&contenders), [&first, &hidden]);
    assert_eq!(contenders[1].data, None);

    let closed = unique_dir("denied-directory");
    fixture.observer.create_persistent(closed.rsplit_once('/').unwrap().0);
    fixture.observer.zk().create(&closed, b"", &secret, CreateMode::Persistent).unwrap();
    let error = LockDirectory::new(&fixture.session, &closed).unwrap().contenders().unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains("READ"), "{error}");
}

// ---- cleanup

#[test]
fn reaping_deletes_persistent_requests_and_keeps_ephemeral_ones() {
    let fixture = Fixture::new("reaping");
    let owner = fixture.lock();
    assert!(owner.lock().unwrap());
    let left_over = fixture.create("x-old-lock-", b"", CreateMode::PersistentSequential);
    let hour = Duration::from_secs(3600);
    assert!(fixture.directory.reap_expired(hour).unwrap().is_empty(), "the request is too young to expire");
    assert_eq!(paths(&fixture.directory.reap_expired(Duration::ZERO).unwrap()), [left_over]);
    assert!(owner.is_owner());
    assert_eq!(fixture.directory.contenders().unwrap().len(), 1);
}

#[test]
fn owner_reaped_by_force_gets_the_loss() {
    let fixture = Fixture::new("reaping-by-force");
    let guard = BlockingWriteLock::new(&fixture.session, fixture.dir()).unwrap().lock().unwrap();
    let other = session(server::shared());
    let directory = LockDirectory::new(&other, fixture.dir()).unwrap().including_live_sessions(true);
    assert_eq!(paths(&directory.reap_expired(Duration::ZERO).unwrap()), [guard.id()]);
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
    assert!(!guard.is_owner());
}

#[test]
fn waiters_acquire_in_the_end_while_the_queue_is_reaped() {
    let fixture = Fixture::new("reaping-races");
    let forcing = fixture.directory.clone().including_live_sessions(true);
    let until = Instant::now() + Duration::from_secs(2);
    let successful = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let session = session(server::shared());
                let lock = BlockingWriteLock::new(&session, fixture.dir()).unwrap();
                let mut acquired = 0;
                while acquired == 0 || Instant::now() < until {
                    match lock.try_lock_for(deadline()) {
                        Ok(guard) => {
                            acquired += 1;
                            successful.fetch_add(usize::from(acquired == 1), Ordering::SeqCst);
                            drop(guard.expect("the lock could not be acquired"));
                        }
                        Err(error) if error.reason() == ErrorReason::NodeDeleted => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let reaped_until = Instant::now() + deadline();
        let have_all_acquired = || successful.load(Ordering::SeqCst) == 3;
        while Instant::now() < until || !have_all_acquired() {
            assert!(Instant::now() < reaped_until, "{successful:?} of three have acquired");
            forcing.reap_expired(Duration::ZERO).unwrap();
            // The server mostly refuses this. If it does not, the next request creates the directory again.
            forcing.remove_if_empty().unwrap();
        }
    });
    eventually("the queue is empty", || fixture.directory.contenders().unwrap().is_empty());
}

#[test]
fn only_an_empty_directory_is_removed() {
    let fixture = Fixture::new("idle");
    assert!(!fixture.directory.remove_if_empty().unwrap(), "a missing directory cannot be removed");
    let lock = fixture.lock();
    assert!(lock.lock().unwrap());
    assert!(!fixture.directory.remove_if_empty().unwrap());
    lock.unlock().unwrap();
    assert!(fixture.directory.remove_if_empty().unwrap());
    assert!(!fixture.observer.exists(fixture.dir()));
    assert!(lock.lock().unwrap(), "the directory must be created again");

    let precious = unique_dir("precious");
    fixture.observer.create_persistent(&precious);
    fixture.observer.zk().set_data(&precious, b"data").unwrap();
    let error = LockDirectory::new(&fixture.session, &precious).unwrap().remove_if_empty().unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NotALock, "{error}");
    assert!(fixture.observer.exists(&precious));
}

#[test]
fn container_is_a_lock_directory() {
    let fixture = Fixture::new("container");
    fixture.observer.create_persistent(fixture.dir().rsplit_once('/').unwrap().0);
    fixture.observer.zk().create(fixture.dir(), b"", &Acl::open_unsafe(), CreateMode::Container).unwrap();
    let lock = fixture.lock();
    assert!(lock.lock().unwrap());
    assert_eq!(fixture.directory.contenders().unwrap().len(), 1);
    lock.unlock().unwrap();
    assert!(fixture.directory.remove_if_empty().unwrap());
}

// ---- the leader

fn leader(watch: &LeaderWatch) -> Option<String> {
    watch.leader().unwrap().map(|leader| leader.path.to_owned())
}

fn await_leader(watch: &LeaderWatch, expected: Option<String>) {
    eventually(&format!("{expected:?} leads"), || leader(watch) == expected);
}

#[test]
fn leader_watch_reports_each_change_of_leader() {
    let fixture = Fixture::new("leader");
    let watch = fixture.directory.watch_leader(Wait::forever()).unwrap();
    assert_eq!(leader(&watch), None);
    let candidates = [session(server::shared()), session(server::shared())];
    let options = LockOptions::new().data("node-a:8080");
    let [first, second] = candidates
        .each_ref()
        .map(|session| WriteLock::with_options(session, fixture.dir(), options.clone(), ()).unwrap());
    assert!(first.lock().unwrap());
    await_leader(&watch, first.id());
    assert_eq!(watch.leader().unwrap().unwrap().data_lossy(), "node-a:8080");
    assert!(!second.lock().unwrap());
    // End the leader's session without unlocking first.
    let second_id = second.id();
    candidates[0].close();
    await_leader(&watch, second_id);
    second.unlock().unwrap();
    await_leader(&watch, None);
    assert!(fixture.directory.remove_if_empty().unwrap());
    assert!(second.lock().unwrap());
    await_leader(&watch, second.id());
}

#[test]
fn change_of_leader_during_an_outage_is_noticed_after_it() {
    let fixture = Fixture::new("leader-outage");
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), LONG);
    let [first, second] = [fixture.lock(), fixture.lock()];
    assert!(first.lock().unwrap() && !second.lock().unwrap());
    let watch = LockDirectory::new(&far, fixture.dir()).unwrap().watch_leader(Wait::forever()).unwrap();
    assert_eq!(leader(&watch), first.id());
    relay.refuse();
    eventually("the outage is noticed", || far.state() == SessionState::Suspended);
    first.unlock().unwrap();
    relay.restore();
    await_leader(&watch, second.id());
    // The watch on the new connection must work, too.
    second.unlock().unwrap();
    await_leader(&watch, None);
}

#[test]
fn watch_fails_after_its_session_ended() {
    let fixture = Fixture::new("leader-lost");
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), SHORT);
    let directory = LockDirectory::new(&far, fixture.dir()).unwrap();
    let (leader, queue) =
        (directory.watch_leader(Wait::forever()).unwrap(), directory.watch_queue(Wait::forever()).unwrap());
    relay.swallow();
    for changes in [leader.changes(), queue.changes()] {
        assert_eq!(changes.recv_timeout(deadline()), Ok(()));
        assert!(changes.recv_timeout(deadline()).is_err_and(|error| error.is_disconnected()));
    }
    assert!(leader.leader().unwrap_err().is_session_lost());
    assert!(queue.names().unwrap_err().is_session_lost());
}

#[test]
fn dropped_watches_leave_only_the_owners_watch() {
    let server = Server::start();
    let session = session(&server);
    let directory = LockDirectory::new(&session, "/locks/dropped").unwrap();
    let lock = WriteLock::new(&session, "/locks/dropped").unwrap();
    assert!(lock.lock().unwrap());
    for _ in 0..100 {
        drop((
            directory.watch_leader(Wait::forever()).unwrap(),
            directory.watch_queue(Wait::forever()).unwrap(),
        ));
    }
    // Only the owner's watch on its own znode remains.
    eventually("their watches are removed", || server.watch_count() <= 1);
    lock.unlock().unwrap();
    eventually("no watch is left", || server.watch_count() == 0);
}

/// Starts a server that looks for empty containers at this interval.
fn tidy_server(interval_ms: u32) -> Server {
    let jvm_flags = vec![format!("-Dznode.container.checkIntervalMs={interval_ms}")];
    Server::with(ServerOptions { jvm_flags, ..ServerOptions::default() })
}

#[test]
fn directories_of_many_locks_disappear_and_come_back() {
    let server = tidy_server(50);
    let session = session(&server);
    let observer = Observer::at(&server);
    let locks = NamedLocks::new(&session, "/locks").unwrap();
    for _ in 0..2 {
        for name in 0..50 {
            locks.get(&name.to_string()).unwrap().lock().unwrap().unlock().unwrap();
        }
        eventually("the directories are gone", || observer.children("/locks").is_empty());
    }
}

#[test]
fn directory_that_is_no_container_stays() {
    let server = tidy_server(50);
    let session = session(&server);
    let observer = Observer::at(&server);
    let lock = |dir: &str, options| BlockingWriteLock::with_options(&session, dir, options).unwrap();
    for options in [LockOptions::new().container(false), LockOptions::new().naming(NamingScheme::Kazoo)] {
        lock("/locks/stays", options).lock().unwrap().unlock().unwrap();
        lock("/locks/goes", LockOptions::new()).lock().unwrap().unlock().unwrap();
        eventually("the container is gone", || !observer.exists("/locks/goes"));
        assert!(observer.exists("/locks/stays"));
        observer.delete("/locks/stays");
    }
}

/// Any step of an acquisition may find the directory deleted.
#[test]
fn locks_exclude_each_other_in_a_directory_that_disappears_all_the_time() {
    let server = tidy_server(1);
    let sessions = [session(&server), session(&server)];
    let (inside, turns) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for session in &sessions {
            let (inside, turns) = (&inside, &turns);
            scope.spawn(move || {
                let lock = BlockingWriteLock::new(session, "/locks/brief").unwrap();
                for _ in 0..200 {
                    let guard = lock.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two owners at once");
                    assert!(guard.is_owner());
                    turns.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().unwrap();
                }
            });
        }
    });
    assert_eq!(turns.load(Ordering::SeqCst), 400);
}

#[test]
fn directory_of_another_lock_is_no_request() {
    let fixture = Fixture::new("nested");
    let inner = format!("{}/0000000003", fixture.dir());
    let lock_at = |dir: &str| BlockingWriteLock::new(&fixture.session, dir).unwrap();
    let held = lock_at(&inner).lock().unwrap();
    let outer = lock_at(fixture.dir());
    // Try twice: first while the inner directory has a request, then while it is an empty container.
    outer.try_lock().unwrap().expect("nobody else is in the queue").unlock().unwrap();
    held.unlock().unwrap();
    assert!(fixture.observer.exists(&inner));
    let guard = outer.try_lock().unwrap().expect("nobody else is in the queue");
    let contenders = fixture.directory.contenders().unwrap();
    assert_eq!(contenders.iter().map(|request| request.path.as_str()).collect::<Vec<_>>(), [guard.id()]);
}

#[test]
fn named_lock_whose_name_looks_like_a_request_has_a_directory_that_does_not() {
    let fixture = Fixture::new("named-orders");
    let orders = NamedLocks::new(&fixture.session, fixture.dir()).unwrap();
    let _order = orders.get("0000000003").unwrap().lock().unwrap();
    let all = BlockingWriteLock::new(&fixture.session, fixture.dir()).unwrap();
    assert!(all.try_lock().unwrap().is_some());
    assert!(orders.get("0000000003").unwrap().try_lock().unwrap().is_none());
}
