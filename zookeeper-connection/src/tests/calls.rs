//! Calls and their replies.

use std::convert::Infallible;
use std::io::Read;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::bounded;

use super::server::{Client, Seen, Server, answer, refused, replied};
use super::*;
use crate::Names;
use crate::codec::{EventKind, OpCode, Request, WatchEvent};
use crate::error::ZkError;
use crate::tests::{eventually, next};
use crate::{Acl, CreateMode, Credential, Done, Enqueued, Op, OpOutcome, Reply, Transacted};
use crate::{Call, Verbs};

#[test]
fn each_call_returns_its_reply() {
    let server = Server::start();
    let connection = connect(&server.address());
    let acl = Acl::open_unsafe();
    assert_eq!(connection.create("/a", b"x", &acl, CreateMode::Persistent).unwrap(), "/a");
    let sequential = connection.create("/a-", b"", &acl, CreateMode::EphemeralSequential).unwrap();
    assert_eq!(sequential, "/a-0000000003");
    assert_eq!(connection.exists("/a", true).unwrap().unwrap().czxid, 5);
    assert_eq!(connection.get_children("/a", true).unwrap(), Names::from_iter(["child of /a"]));
    assert_eq!(connection.get_data("/a", true).unwrap().0, b"data");
    assert_eq!(connection.set_data("/a", b"y", Some(3)).unwrap().czxid, 5);
    connection.delete("/a", None).unwrap();
}

#[test]
fn error_of_the_server_is_the_error_of_the_call() {
    let server = Server::with(|mut client| client.serve_by(|xid, _| refused(xid, ZkError::NoNode)));
    let connection = connect(&server.address());
    assert_eq!(connection.exists("/a", false), Ok(None));
    assert_eq!(connection.delete("/a", None), Err(ZkError::NoNode));
    assert_eq!(connection.create_and_list("/a", "x-", b"", &[]), Err(ZkError::NoNode));
}

/// A server before 3.5, which answers an unknown operation with an error, and closes the connection.
fn serve_as_before_3_5(client: &mut Client) {
    if client.accept().is_none() {
        return;
    }
    while let Some(frame) = client.read() {
        let (xid, request) = Request::decode(&frame).unwrap();
        let number = i32::from_be_bytes(frame[4..8].try_into().unwrap());
        if [OpCode::Create2.number(), OpCode::CreateContainer.number()].contains(&number) {
            client.write(&refused(xid, ZkError::Unimplemented));
            return;
        }
        let bytes = match request {
            Request::Call(Call::Create { path, .. }) => {
                replied(xid, &Reply::Created { path: format!("{path}0000000003"), stat: None })
            }
            request => answer(xid, &request),
        };
        client.write(&bytes);
    }
}

#[test]
fn znodes_are_created_on_servers_before_3_5_after_one_lost_connection() {
    let server = Server::with(|mut client| serve_as_before_3_5(&mut client));
    let connection = connect(&server.address());
    let acl = Acl::open_unsafe();
    let sequential = || connection.create("/a-", b"", &acl, CreateMode::EphemeralSequential);
    assert_eq!(sequential(), Err(ZkError::ConnectionLoss));
    assert_eq!(sequential().unwrap(), "/a-0000000003");
    let enqueued = connection.create_and_list("/dir", "x-", b"", &acl).unwrap();
    let expected = Enqueued::new("/dir/x-0000000003".to_owned(), Ok(Names::from_iter(["child of /dir"])));
    assert_eq!(enqueued, expected, "there is no metadata");
    let container = connection.create("/c", b"", &acl, CreateMode::Container);
    assert_eq!(container, Err(ZkError::Unimplemented));
}

/// The connection's thread may be busy with the outcome of another call.
#[test]
fn call_is_sent_by_the_calling_thread() {
    let server = Server::start();
    let connection = connect(&server.address());
    let (sender, is_busy) = bounded(1);
    let (release, released) = bounded::<Infallible>(0);
    let keep_busy = Done::new(move |_| {
        sender.send(()).unwrap();
        let _ = released.recv();
    });
    connection.submit(Call::exists("/a", false).call, keep_busy);
    next(&is_busy);
    connection.submit(Call::exists("/b", false).call, Done::new(|_| ()));
    let exists = Seen::Request("Exists(\"/b\")".to_owned());
    eventually("the second call arrives", || server.seen.try_iter().any(|seen| seen == exists));
    drop(release);
}

#[test]
fn create_and_list_are_sent_in_one_write() {
    let (lengths, reads) = bounded(10);
    let server = Server::with(move |mut client| {
        if client.accept().is_none() {
            return;
        }
        let mut buffer = vec![0; 4096];
        while let Ok(count @ 1..) = client.stream.read(&mut buffer) {
            lengths.send(count).unwrap();
            let mut frames = crate::codec::Frames::new(4096);
            frames.push(&buffer[..count]);
            while let Some(frame) = frames.next_frame().unwrap() {
                let (xid, request) = Request::decode(frame).unwrap();
                let bytes = answer(xid, &request);
                client.write(&bytes);
            }
        }
    });
    let connection = connect(&server.address());
    let Enqueued { path, children: listed, .. } =
        connection.create_and_list("/dir", "x-", b"me", &Acl::open_unsafe()).unwrap();
    assert_eq!((path.as_str(), listed.unwrap()), ("/dir/x-0000000003", Names::from_iter(["child of /dir"])));
    next(&reads);
    assert!(reads.try_recv().is_err(), "there was one read");
}

#[test]
fn chroot_is_added_to_requests_and_removed_from_replies_and_events() {
    let server = Server::with(|mut client| {
        client.serve_by(|xid, request| {
            let mut bytes = answer(xid, request);
            if matches!(request, Request::Call(Call::Exists { .. })) {
                for path in ["/zookeeper/x", "/zoo", "/other", "/zoo/dir/x"] {
                    WatchEvent { kind: EventKind::Deleted, path }.encode(9, &mut bytes);
                }
            }
            bytes
        });
    });
    let connection = connect(&format!("{}/zoo", server.address()));
    let events = events_of(&connection);
    let acl = Acl::open_unsafe();
    assert_eq!(connection.get_children("/", false).unwrap(), Names::from_iter(["child of /zoo"]));
    assert_eq!(
        connection.create("/a-", b"", &acl, CreateMode::PersistentSequential).unwrap(),
        "/a-0000000003"
    );
    let Enqueued { path, children: listed, .. } =
        connection.create_and_list("/dir", "x-", b"", &acl).unwrap();
    assert_eq!(
        (path.as_str(), listed.unwrap()),
        ("/dir/x-0000000003", Names::from_iter(["child of /zoo/dir"]))
    );
    connection.exists("/dir/x", true).unwrap();
    let deleted = |path: &str| ClientEvent::NodeChanged { path: path.to_owned(), is_deleted: true };
    let mut changes = events.iter().filter(|event| !is_connected(event));
    assert_eq!([changes.next(), changes.next()], [Some(deleted("/")), Some(deleted("/dir/x"))]);
}

/// Returns calls of each kind with a path that would leave the chroot, or would not name what the call is about.
fn calls_with_bad_paths() -> Vec<Call> {
    let bad = |path: &str| {
        let (acl, path_of_step) = (Acl::open_unsafe(), path.to_owned());
        let good = Op::Check { path: "/a".to_owned(), version: None };
        [
            Call::create(path, [], acl.clone(), CreateMode::Persistent).call,
            Call::create_and_list(path, "x-", [], acl).call,
            Call::delete(path, None).call,
            Call::exists(path, true).call,
            Call::get_data(path, false).call,
            Call::get_children(path, false).call,
            Call::set_data(path, [], None).call,
            Call::multi([good, Op::Delete { path: path_of_step, version: None }]).call,
        ]
    };
    let mut calls: Vec<Call> = ["", "lication", "lication/x", "./x"].into_iter().flat_map(bad).collect();
    calls.extend(["/", "x/y", "../x"].map(|prefix| Call::create_and_list("/a", prefix, [], []).call));
    calls
}

#[test]
fn path_that_may_lead_out_of_the_chroot_is_refused_before_it_is_sent() {
    for chroot in ["", "/app"] {
        let server = Server::start();
        let connection = connect(&format!("{}{chroot}", server.address()));
        for call in calls_with_bad_paths() {
            assert_eq!(connection.make(call.clone()), Err(ZkError::BadArguments), "{call:?}");
            let at_root = connection.call_at_root(call.clone(), None);
            assert_eq!(at_root, Err(ZkError::BadArguments), "{call:?}");
        }
        connection.exists("/last", false).unwrap();
        let mut seen = server.seen.iter().skip_while(|seen| !matches!(seen, Seen::Request(_)));
        assert_eq!(seen.next(), Some(Seen::Request(format!("Exists(\"{chroot}/last\")"))));
    }
}

#[test]
fn watch_outside_the_chroot_is_not_removed_by_a_path_without_a_slash() {
    let server = Server::start();
    let connection = connect(&format!("{}/app", server.address()));
    connection.call_at_root(Call::exists("/application", true).call, None).unwrap();
    connection.remove_watches("lication");
    connection.exists("/last", false).unwrap();
    let requests = server.seen.iter().filter(|seen| matches!(seen, Seen::Request(_)));
    let expected = ["/application", "/app/last"].map(|path| Seen::Request(format!("Exists({path:?})")));
    assert!(requests.take(2).eq(expected));
}

/// The sequence number is appended to the path, so the path must keep its last slash.
#[test]
fn sequential_znodes_are_created_below_the_root_of_the_chroot() {
    let server = Server::start();
    for chroot in ["", "/app"] {
        let connection = connect(&format!("{}{chroot}", server.address()));
        let acl = Acl::open_unsafe();
        let created = connection.create("/", b"", &acl, CreateMode::PersistentSequential).unwrap();
        assert_eq!(created, "/0000000003");
        let enqueued = connection.create_and_list("/", "x-", b"", &acl).unwrap();
        assert_eq!(enqueued.path, "/x-0000000003");
        let parent = if chroot.is_empty() { "/" } else { chroot };
        assert_eq!(enqueued.children, Ok(Names::from_iter([format!("child of {parent}")])));
    }
}

#[test]
fn call_that_may_be_too_long_for_the_servers_is_refused_before_it_is_sent() {
    let server = Server::start();
    for jute_max_buffer in [8192, 4 << 20] {
        let servers = ConnectString::parse(&format!("{}/app", server.address())).unwrap();
        let mut options = ConnectionOptions::new(Duration::from_secs(30));
        let credential = |auth: &str| Credential { scheme: "digest".to_owned(), auth: auth.into() };
        options.credentials = vec![credential("user:secret"), credential("another:secret")];
        options.jute_max_buffer = jute_max_buffer;
        let connection = Connection::connect(&servers, &options, None).unwrap();
        let bound = connection.max_buffer.clone();
        let expected = options.max_buffer().with_chroot("/app".len());
        assert_eq!(bound, expected, "the connection knows its identities and its chroot");

        let rest = bound.bytes(&Call::set_data("/a", [], None).call);
        let longest = vec![0; jute_max_buffer - 1024 - rest];
        connection.set_data("/a", &longest, None).unwrap();
        let refused = connection.set_data("/a", &[&longest[..], &[0]].concat(), None).unwrap_err();
        let limit = jute_max_buffer - 1024;
        assert_eq!(refused, ZkError::CallTooLong { bytes: limit + 1, limit });

        let for_creator = vec![Acl::creator_all()[0].clone(); jute_max_buffer / 100];
        let refused = connection.create("/a", b"", &for_creator, CreateMode::Persistent).unwrap_err();
        assert!(matches!(refused, ZkError::CallTooLong { .. }), "each entry stands for two: {refused:?}");
        connection.get_data("/a", false).unwrap();
    }
}

#[test]
fn requests_of_many_threads_are_answered_while_the_socket_is_full() {
    let server = Server::with(|mut client| {
        client.serve_by(|xid, request| match request {
            // The reply, and an event about as long as the request.
            Request::Call(Call::SetData { data, .. }) => {
                let path = "x".repeat(data.len());
                let mut bytes = answer(xid, request);
                WatchEvent { kind: EventKind::Created, path: &path }.encode(9, &mut bytes);
                bytes
            }
            request => answer(xid, request),
        });
    });
    let connection = connect(&server.address());
    let events = events_of(&connection);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let connection = Arc::clone(&connection);
            thread::spawn(move || {
                for _ in 0..5 {
                    connection.set_data("/a", &vec![0; 900_000], None).unwrap();
                    connection.get_data("/a", false).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let large =
        |event: ClientEvent| matches!(event, ClientEvent::NodeChanged { path, .. } if path.len() == 900_000);
    let mut count = 0;
    eventually("all events come", || {
        count += events.try_iter().filter(|event| large(event.clone())).count();
        count == 40
    });
}

#[test]
fn long_listing_is_read() {
    let names: Names = (0..200_000).map(|number| format!("x-{number:032}")).collect();
    let listed = names.clone();
    let server = Server::with(move |mut client| {
        let names = names.clone();
        client.serve_by(move |xid, _| replied(xid, &Reply::Children(names.clone())));
    });
    let connection = connect(&server.address());
    assert_eq!(connection.get_children("/a", false).unwrap(), listed);
}

#[test]
fn panics_of_continuations_and_of_the_event_sink_end_nothing() {
    let server = Server::with(|mut client| {
        client.serve_by(|xid, request| {
            let mut bytes = answer(xid, request);
            WatchEvent { kind: EventKind::Created, path: "/a" }.encode(9, &mut bytes);
            bytes
        });
    });
    let connection = connect(&server.address());
    connection.subscribe(Arc::new(|_| panic!("on purpose")));
    for _ in 0..3 {
        let done = Done::new(|_| panic!("on purpose"));
        connection.submit(Call::exists("/a", false).call, done);
        connection.exists("/a", true).unwrap();
    }
}

struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("on purpose"));
    }
}

/// The connection's thread drops a sink if another one was set during its last call.
#[test]
fn panic_in_the_drop_of_the_event_sink_ends_nothing() {
    let server = Server::start();
    let connection = connect(&server.address());
    let (sender, is_called) = bounded(1);
    let (release, released) = bounded::<Infallible>(0);
    let dropped = PanicsOnDrop;
    connection.subscribe(Arc::new(move |_| {
        let _ = (&dropped, sender.try_send(()), released.recv());
    }));
    server.disconnect();
    next(&is_called);
    connection.subscribe(Arc::new(|_| ()));
    drop(release);
    eventually("the session goes on", || connection.exists("/a", false).is_ok());
}

#[test]
fn transaction_that_a_lost_session_ends_is_no_failed_operation() {
    let failed = |error| Transacted::Failed { position: 0, error };
    let committed = |count| Transacted::Committed(vec![OpOutcome::Checked; count]);
    let answers = [
        (failed(ZkError::SessionExpired), Err(ZkError::SessionExpired)),
        (failed(ZkError::SessionMoved), Err(ZkError::SessionMoved)),
        (failed(ZkError::NoNode), Ok(failed(ZkError::NoNode))),
        (committed(1), Ok(committed(1))),
        (committed(2), Err(ZkError::MarshallingError)),
    ];
    for (transacted, expected) in answers {
        let reply = Reply::Multi(transacted);
        let server = Server::with(move |mut client| client.serve_by(|xid, _| replied(xid, &reply)));
        let connection = connect(&server.address());
        let check = Op::Check { path: "/a".to_owned(), version: None };
        assert_eq!(connection.transact(&[check]), expected);
    }
}
