//! Tests of creates that take effect after a search has failed to find their znodes. This happens with real servers.
//! The server of the lost connection is paused before it has read the create, and another server answers the search.
//! Then the session returns to the first server, which resumes. The leader learns that the session is on that server
//! before the create arrives, so it commits the create.

use super::*;
use crate::Candidate;
use crate::client::{self, CreateMode, Verbs};
use crate::locks::{ReadWriteLock, RunOnce, Semaphore};
use crate::tests::{await_replacement, replacing_session};

/// Creates the znode of this client's last create whose reply was lost.
fn pass_on(zk: &SimulatedZooKeeper, client: &SimulatedClient) -> String {
    let is_lost = |call: &&crate::fake::Call| {
        let is_create = call.session == client.session_id() && call.operation == SimOperation::Create;
        is_create && !matches!(call.outcome, Some(Ok(()) | Err(ZkError::NodeExists)))
    };
    let log = zk.log();
    let (dir, prefix) = log.iter().rfind(is_lost).unwrap().path.rsplit_once('/').unwrap();
    zk.create_sequential(dir, prefix, Some(client.session_id()))
}

fn withdrawn_request() -> (SimulatedZooKeeper, Fixture) {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    fixture.client.cut_next(SimOperation::Create, Effect::Before);
    assert!(fixture.blocking().lock().unwrap_err().is_connection_loss());
    fixture.client.reconnect();
    eventually("the search for it has ended", || fixture.session.core().census().0 == 0);
    (zk, fixture)
}

#[test]
fn late_create_of_a_withdrawn_request_is_undone_after_a_reconnect() {
    let (zk, fixture) = withdrawn_request();
    pass_on(&zk, &fixture.client);
    fixture.client.disconnect();
    fixture.client.reconnect();
    eventually("nothing is left", || zk.children(DIR).is_empty());
    assert!(fixture.blocking().try_lock_for(deadline()).unwrap().is_some());
}

#[test]
fn late_create_of_a_withdrawn_request_is_undone_although_nothing_happens() {
    let (zk, fixture) = withdrawn_request();
    pass_on(&zk, &fixture.client);
    eventually("nothing is left", || zk.children(DIR).is_empty());
    assert!(fixture.blocking().try_lock_for(deadline()).unwrap().is_some());
}

/// The directory, the number of the create that is lost, and the code that makes the creates.
type Hold = (&'static str, u64, fn(&Session));

#[test]
fn late_create_of_a_request_that_was_made_again_and_released_is_undone() {
    const ACQUIRE: fn(&Session) = |session| drop(Semaphore::new(session, DIR, 1).unwrap().acquire().unwrap());
    let holds: [Hold; 7] = [
        (DIR, 1, |session| drop(BlockingWriteLock::new(session, DIR).unwrap().lock().unwrap())),
        (DIR, 1, |session| drop(ReadWriteLock::new(session, DIR).unwrap().read().unwrap())),
        (DIR, 1, |session| drop(ReadWriteLock::new(session, DIR).unwrap().write().unwrap())),
        ("/locks/it/locks", 1, ACQUIRE),
        ("/locks/it/leases", 2, ACQUIRE),
        (DIR, 1, |session| {
            let (leads, led) = unbounded();
            let election = BlockingWriteLock::new(session, DIR).unwrap();
            let candidate = Candidate::start(election, move |_| Ok(leads.send(())?)).unwrap();
            next(&led);
            drop(candidate);
        }),
        ("/locks/it/job", 1, |session| {
            let jobs = RunOnce::new(session, DIR).unwrap();
            let _ = jobs.run("job", |_| Ok::<_, std::convert::Infallible>(())).unwrap();
        }),
    ];
    for (dir, lost, hold) in holds {
        let zk = SimulatedZooKeeper::new();
        for dir in [DIR, "/locks/it/locks", "/locks/it/leases", "/locks/it/job"] {
            zk.create(dir, b"");
        }
        let fixture = Fixture::join(&zk);
        fixture.client.fail_nth(SimOperation::Create, lost, Effect::Before, ZkError::ConnectionLoss);
        hold(&fixture.session);
        let requests = || {
            zk.children(dir).iter().filter(|name| name.ends_with(|end: char| end.is_ascii_digit())).count()
        };
        eventually("the request is released", || requests() == 0);
        assert!(pass_on(&zk, &fixture.client).starts_with(dir));
        eventually("nothing is left", || requests() == 0);
    }
}

#[test]
fn late_create_of_a_request_that_waits_or_owns_is_undone_behind_it() {
    for owns in [true, false] {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        let (fixture, other) = (Fixture::join(&zk), Fixture::join(&zk));
        let ahead = (!owns).then(|| other.blocking().lock().unwrap());
        fixture.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
        let (lock, calls) = fixture.listening();
        assert_eq!(lock.lock().unwrap(), owns);
        let own = lock.id().unwrap();
        let late = pass_on(&zk, &fixture.client);
        let (behind, of_behind) = other.listening();
        assert!(!behind.lock().unwrap());
        eventually("the late znode is gone", || !zk.exists(&late));
        assert!(zk.exists(&own) && lock.is_owner() == owns);
        drop(ahead);
        assert_eq!(next(&calls), Call::Acquired);
        lock.unlock().unwrap();
        assert_eq!(next(&of_behind), Call::Acquired);
    }
}

#[test]
fn readers_znode_that_is_created_after_a_failed_downgrade_blocks_nobody() {
    let zk = SimulatedZooKeeper::new();
    let (fixture, waiting) = (Fixture::join(&zk), Fixture::join(&zk));
    let writer = fixture.sharing().write().unwrap();
    let next_writer = waiting.waiting_writer(&zk);
    fixture.client.cut_next(SimOperation::Create, Effect::Before);
    let failed = writer.downgrade().unwrap_err();
    fixture.client.reconnect();
    create_late_reader(&zk, &fixture.client);
    drop(failed.guard);
    eventually("the next writer owns", || next_writer.is_owner());
    eventually("the reader's znode is gone", || zk.children(DIR).len() == 1);
}

#[test]
fn readers_znode_that_is_created_again_after_its_release_blocks_nobody() {
    let zk = SimulatedZooKeeper::new();
    let (fixture, waiting) = (Fixture::join(&zk), Fixture::join(&zk));
    let writer = fixture.sharing().write().unwrap();
    let next_writer = waiting.waiting_writer(&zk);
    fixture.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    let reader = writer.downgrade().unwrap();
    assert!(reader.is_owner() && !next_writer.is_owner());
    reader.unlock().unwrap();
    eventually("the next writer owns", || next_writer.is_owner());
    // The late reader has the sequence number of the former writer, so it is ahead of all requests that have joined
    // since.
    create_late_reader(&zk, &fixture.client);
    eventually("the reader's znode is gone", || zk.children(DIR).len() == 1);
    assert!(next_writer.is_owner());
    eventually("nothing is registered", || fixture.session.core().census().0 == 0);
}

/// Creates the reader's znode whose create was lost.
fn create_late_reader(zk: &SimulatedZooKeeper, client: &SimulatedClient) {
    let is_lost = |call: &&crate::fake::Call| {
        call.operation == SimOperation::Create && call.path.contains("/read-") && !call.executed
    };
    let log = zk.log();
    let reader = &log.iter().find(is_lost).unwrap().path;
    // An ephemeral znode belongs to the session that creates it, so the lock's own client must create this one.
    client.create(reader, b"", &client::Acl::open_unsafe(), CreateMode::Ephemeral).unwrap();
}

#[test]
fn late_create_of_a_former_session_that_lives_on_is_undone_by_the_next() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let (session, clients) = replacing_session(&zk, LONG);
    let client = next(&clients);
    let gives_up = Arc::clone(&client);
    client.before_next(SimOperation::Create, move || gives_up.give_up());
    client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    await_replacement(&session, || {
        let lock = BlockingWriteLock::new(&session, DIR).unwrap();
        assert!(lock.try_lock().unwrap_err().is_session_lost());
    });
    eventually("the next session has searched", || session.core().census().0 == 0);
    assert!(zk.sessions().contains(&client.session_id()));
    pass_on(&zk, &client);
    eventually("nothing is left", || zk.children(DIR).is_empty());
    assert!(
        zk.sessions().contains(&client.session_id()),
        "the server did not delete the znode with its session"
    );
}
