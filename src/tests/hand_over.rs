//! A test of what an owner reads if an event made it the owner and it then lost its server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::server::{Client, SESSION, Server, accepted, replied};
use crate::client::Names;
use crate::client::{Call, Reply, Stat};
use crate::data::RecoverableZooKeeper;
use crate::error::ZkError;
use crate::{BlockingWriteLock, RetryPolicy, Session};
use zookeeper_connection::codec::{EventKind, ReplyHeader, Request, WatchEvent};

const AHEAD: &str = "x-other-lock-0000000004";
const LONG: Duration = Duration::from_secs(30);
/// The transaction in which the former owner wrote `/state`, and the transaction in which its znode was
/// deleted.
const WRITTEN: i64 = 199;
const DELETED: i64 = 200;
/// A transaction before both.
const BEFORE: i64 = 150;

/// Acts as a server of an ensemble that has applied the transactions up to `applied`. With `event_zxid`, the
/// server deletes the znode ahead as soon as that znode is watched, then dies.
fn serve(client: &mut Client, mut applied: i64, own: &Mutex<String>, event_zxid: Option<i64>) {
    while let Some(frame) = client.read() {
        let (xid, request) = Request::decode(&frame).unwrap();
        let Request::Call(call) = request else {
            client.write(&replied(xid, &Reply::Done));
            continue;
        };
        let mut bytes = Vec::new();
        let stat = Stat { czxid: 5, ephemeral_owner: SESSION, ..Stat::default() };
        match &call {
            // A write passes through the leader, so a server that replies to it has applied everything before. The
            // first server dies as soon as it has reported the deletion, so all its replies come from before.
            Call::SetData { .. } => {
                if event_zxid.is_none() {
                    applied = DELETED + 1;
                }
                ReplyHeader { xid, zxid: applied, error: ZkError::NoNode.code() }.encode(&mut bytes);
            }
            Call::Create { path, mode, .. } if mode.is_sequential() => {
                let path = format!("{path}0000000005");
                *own.lock() = path.rsplit('/').next().unwrap().to_owned();
                Reply::Created { path, stat: Some(stat) }.encode(xid, applied, &mut bytes);
            }
            Call::GetChildren { .. } => {
                let names = [AHEAD.to_owned(), own.lock().clone()];
                Reply::Children(Names::from_iter(names)).encode(xid, applied, &mut bytes);
            }
            Call::GetData { path, .. } if &**path == "/state" => {
                let data = if applied >= WRITTEN { &b"new"[..] } else { b"old" };
                Reply::Data(data.to_vec(), stat).encode(xid, applied, &mut bytes);
            }
            Call::GetData { path, .. } => {
                Reply::Data(Vec::new(), stat).encode(xid, applied, &mut bytes);
                if let Some(zxid) = event_zxid.filter(|_| path.ends_with(AHEAD)) {
                    WatchEvent { kind: EventKind::Deleted, path }.encode(zxid, &mut bytes);
                    return client.write(&bytes);
                }
            }
            Call::Exists { .. } => Reply::Stat(stat).encode(xid, applied, &mut bytes),
            _ => Reply::Done.encode(xid, applied, &mut bytes),
        }
        client.write(&bytes);
    }
}

#[test]
fn owner_by_an_event_reads_what_its_predecessor_wrote_after_losing_its_server() {
    super::begin();
    for numbers_events in [true, false] {
        let (count, own) = (AtomicUsize::new(0), Mutex::new(String::new()));
        let server = Server::with(move |mut client| {
            let Some(request) = client.read_connect() else { return };
            let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
            let mut applied = BEFORE;
            if request.last_zxid > applied {
                // A server refuses a client that has seen a later transaction, until it has caught up. This one has.
                assert!(numbers_events, "the client cannot know a number that no server sent");
                applied = DELETED;
            }
            client.write(&accepted(request.timeout_ms, SESSION));
            let event_zxid = if numbers_events { DELETED } else { -1 };
            serve(&mut client, applied, &own, is_first.then_some(event_zxid));
        });
        let session = Session::builder(server.address()).session_timeout(LONG).connect().unwrap();
        let zookeeper = RecoverableZooKeeper::new(&session, RetryPolicy::constant(Duration::from_millis(10)));
        let guard = BlockingWriteLock::new(&session, "/lock").unwrap().lock().unwrap();
        let (data, _) = zookeeper.with_plain_data().get_data("/state").unwrap();
        assert!(guard.is_owner(), "the guard must own throughout");
        assert_eq!(String::from_utf8(data).unwrap(), "new", "numbers its events: {numbers_events}");
    }
}
