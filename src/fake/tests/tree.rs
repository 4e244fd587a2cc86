use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::ZNodeName;
use crate::client::{Op, Permissions};

#[test]
fn requests_fail_as_on_a_server() {
    let (zookeeper, client, _) = connected();
    zookeeper.create("/a/b", b"");
    ephemeral(&client, "/e");
    let persistent = |path| create(&client, path, CreateMode::Persistent).unwrap_err();
    assert_eq!(persistent("/missing/b"), ZkError::NoNode);
    assert_eq!(persistent("/a"), ZkError::NodeExists);
    assert_eq!(persistent("/"), ZkError::NodeExists);
    assert_eq!(persistent("/e/b"), ZkError::NoChildrenForEphemerals);
    assert_eq!(client.delete("/missing", None), Err(ZkError::NoNode));
    assert_eq!(client.delete("/a", None), Err(ZkError::NotEmpty));
    assert_eq!(client.delete("/a/b", Some(1)), Err(ZkError::BadVersion));
    assert_eq!(client.delete("/", None), Err(ZkError::BadArguments));
    assert_eq!(client.set_data("/missing", b"", None).unwrap_err(), ZkError::NoNode);
    assert_eq!(client.set_data("/a", b"", Some(1)).unwrap_err(), ZkError::BadVersion);
    assert_eq!(client.get_data("/missing", true).unwrap_err(), ZkError::NoNode);
    assert_eq!(client.get_children("/missing", true).unwrap_err(), ZkError::NoNode);
    assert!(client.exists("/missing", false).unwrap().is_none());
    assert_eq!(persistent("/a/../b"), ZkError::NoNode, "the parent is checked before the name");
    for path in ["", "a", "/a/", "//a", "/a/..", "/a\n"] {
        assert_eq!(persistent(path), ZkError::BadArguments, "{path:?}");
        assert_eq!(client.exists(path, true).unwrap_err(), ZkError::BadArguments, "{path:?}");
    }
    assert_eq!(zookeeper.watch_count(), 0);
    assert_eq!(zookeeper.children("/"), ["a", "e"]);
}

#[test]
fn write_requires_the_current_version() {
    let (zookeeper, client, _) = connected();
    assert_eq!(client.set_data("/a", b"new", Some(0)).unwrap().version, 1);
    let (data, stat) = client.get_data("/a", false).unwrap();
    assert_eq!((data.as_slice(), stat.version, stat.data_length), (b"new".as_slice(), 1, 3));
    assert_eq!(client.delete("/a", Some(0)), Err(ZkError::BadVersion));
    assert_eq!(client.delete("/a", Some(1)), Ok(()));
    assert!(!zookeeper.exists("/a"));
}

#[test]
fn every_successful_write_takes_one_zxid() {
    let (zookeeper, client, _) = connected();
    ephemeral(&client, "/a/e");
    let made = zookeeper.stat("/a/e").unwrap();
    assert_eq!(create(&client, "/a/e", CreateMode::Persistent).unwrap_err(), ZkError::NodeExists);
    client.get_data("/a", false).unwrap();
    let written = client.set_data("/a/e", b"1", None).unwrap();
    assert_eq!((written.czxid, written.mzxid), (made.czxid, made.czxid + 1));
    assert_eq!((written.ctime, written.mtime), (written.czxid, written.mzxid));
    client.close();
    zookeeper.create("/b", b"");
    assert_eq!(zookeeper.stat("/b").unwrap().czxid, written.mzxid + 2);
    assert_eq!(zookeeper.stat("/a").unwrap().pzxid, written.mzxid + 1);
}

#[test]
fn stat_shows_owner_and_children() {
    let (zookeeper, client, _) = connected();
    ephemeral(&client, "/a/e");
    zookeeper.create("/a/p", b"");
    let child = client.exists("/a/e", false).unwrap().unwrap();
    assert_eq!(child.ephemeral_owner, client.session_id());
    assert_eq!(zookeeper.stat("/a/p").unwrap().ephemeral_owner, 0);
    zookeeper.delete("/a/p");
    let parent = zookeeper.stat("/a").unwrap();
    // There were two creations and one deletion.
    assert_eq!((parent.num_children, parent.cversion, parent.version), (1, 3, 0));
    assert_eq!(parent.pzxid, child.czxid + 2);
}

#[test]
fn sequence_numbers_count_all_children_ever_created() {
    let (zookeeper, client, _) = connected();
    let sequential = |mode| create(&client, "/a/x-", mode).unwrap();
    assert_eq!(sequential(CreateMode::EphemeralSequential), "/a/x-0000000000");
    zookeeper.delete("/a/x-0000000000");
    zookeeper.create("/a/plain", b"");
    assert_eq!(sequential(CreateMode::PersistentSequential), "/a/x-0000000002");
    assert_eq!(create(&client, "/a/", CreateMode::EphemeralSequential).unwrap(), "/a/0000000003");
    assert_eq!(zookeeper.create_sequential("/a", "", None), "/a/0000000004");
    assert_eq!(zookeeper.create_sequential("/new/dir", "x-", None), "/new/dir/x-0000000000");
    assert_eq!(zookeeper.create_sequential("/", "x-", None), "/x-0000000002");
}

#[test]
fn sequence_numbers_wrap_to_negative_ones() {
    let (zookeeper, client, _) = connected();
    zookeeper.set_sequence("/a", i32::MAX);
    let next = || create(&client, "/a/x-", CreateMode::EphemeralSequential).unwrap();
    assert_eq!(next(), "/a/x-2147483647");
    assert_eq!(next(), "/a/x--2147483648");
    zookeeper.set_sequence("/b", -5);
    assert_eq!(zookeeper.create_sequential("/b", "x-", None), "/b/x--000000005");
}

#[test]
fn sequence_numbers_may_stick_at_the_last() {
    let (zookeeper, _, _) = connected();
    zookeeper.set_sequence_end(SequenceEnd::Sticks);
    zookeeper.set_sequence("/a", i32::MAX - 1);
    let made = ["w", "x", "y"].map(|prefix| zookeeper.create_sequential("/a", prefix, None));
    assert_eq!(made, ["/a/w2147483646", "/a/x2147483647", "/a/y2147483647"]);
    assert_eq!(zookeeper.stat("/a").unwrap().cversion, i32::MAX.wrapping_mul(2).wrapping_sub(3));
}

#[test]
fn sequence_numbers_may_mix_after_the_last() {
    let (zookeeper, _, _) = connected();
    zookeeper.set_sequence_end(SequenceEnd::Mixes);
    zookeeper.set_sequence("/a", i32::MAX - 10);
    let mut created = 0;
    let mut next = || {
        created += 1;
        let path = zookeeper.create_sequential("/a", &format!("x{created}-"), None);
        ZNodeName::new(path).sequence().unwrap()
    };
    let in_order: Vec<i32> = (0..11).map(|_| next()).collect();
    assert_eq!(in_order, (i32::MAX - 10..=i32::MAX).collect::<Vec<_>>());
    let mut last = i32::MAX;
    let mut counts = [0, 0];
    for _ in 0..100 {
        let number = next();
        let overlaps = number == last.wrapping_add(1);
        assert!(overlaps || number == i32::MAX, "{number} follows {last}");
        counts[usize::from(overlaps)] += 1;
        last = number;
    }
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
    zookeeper.set_sequence("/a", 5);
    assert_eq!(next(), 5);
}

#[test]
fn a_client_lists_children_in_no_order() {
    let (zookeeper, client, _) = connected();
    let made: Vec<String> = (0..20).map(|_| zookeeper.create_sequential("/a", "x-", None)).collect();
    let sorted: Vec<String> = made.iter().map(|path| path["/a/".len()..].to_owned()).collect();
    let list = || Vec::from(client.get_children("/a", false).unwrap());
    let mut listed = list();
    assert_ne!(listed, sorted);
    assert_eq!(listed, list());
    listed.sort();
    assert_eq!(listed, sorted);
    assert_eq!(zookeeper.children("/a"), sorted);
}

#[test]
fn each_request_needs_its_permission() {
    let zookeeper = SimulatedZooKeeper::new();
    let client = zookeeper.connect(TIMEOUT);
    let all = [Permissions::READ, Permissions::WRITE, Permissions::CREATE, Permissions::DELETE];
    for (missing, dir) in all.into_iter().zip(["/read", "/write", "/create", "/delete"]) {
        let granted = all.into_iter().filter(|permission| *permission != missing);
        let perms = granted.fold(Permissions::NONE, |granted, permission| granted | permission);
        zookeeper.create_with_acl(dir, b"", &[Acl::new(perms, "world", "anyone")]);
        zookeeper.create(&format!("{dir}/child"), b"");
        let outcome = |result: Result<(), ZkError>, permission| {
            let expected = if permission == missing { Err(ZkError::NoAuth) } else { Ok(()) };
            assert_eq!(result, expected, "{dir} {permission:?}");
        };
        outcome(client.get_data(dir, false).map(drop), Permissions::READ);
        outcome(client.get_children(dir, false).map(drop), Permissions::READ);
        outcome(client.set_data(dir, b"", None).map(drop), Permissions::WRITE);
        outcome(create(&client, &format!("{dir}/own"), CreateMode::Ephemeral).map(drop), Permissions::CREATE);
        outcome(client.delete(&format!("{dir}/child"), None), Permissions::DELETE);
        outcome(client.exists(dir, false).map(drop), Permissions::READ);
    }
}

#[test]
fn unreadable_znodes_are_hidden_as_each_release_does() {
    let rules = [
        (ReadChecks::ReadsOnly, true, true),
        (ReadChecks::Events, true, false),
        (ReadChecks::EventsAndExists, false, false),
    ];
    for (checks, seen, notified) in rules {
        let (zookeeper, client, events) = connected();
        zookeeper.set_read_checks(checks);
        let hidden = Acl::new(Permissions::ALL, "digest", "alice:hash");
        let open = Acl::new(Permissions::READ, "world", "anyone");
        let expect = |event, notified| {
            assert_eq!(events.take(), [event][..usize::from(notified)], "{checks:?}");
        };
        // A watch on a missing znode is always set. Whether the client gets its event depends on the ACL at creation.
        assert!(client.exists("/h", true).unwrap().is_none());
        zookeeper.create_with_acl("/h", b"", std::slice::from_ref(&hidden));
        expect(changed("/h"), notified);
        assert_eq!(zookeeper.watch_count(), 0);
        let exists = client.exists("/h", true).map(|stat| stat.is_some());
        assert_eq!(exists, if seen { Ok(true) } else { Err(ZkError::NoAuth) });
        assert_eq!(zookeeper.watch_count(), usize::from(seen));
        zookeeper.delete("/h");
        expect(deleted("/h"), notified && seen);
        // A child watch requires rights on the parent, not on the child.
        client.get_children("/a", true).unwrap();
        zookeeper.create_with_acl("/a/h", b"", std::slice::from_ref(&hidden));
        expect(changed("/a"), true);
        client.get_children("/a", true).unwrap();
        zookeeper.delete("/a/h");
        expect(changed("/a"), true);
        // A client that may read is notified.
        zookeeper.create_with_acl("/o", b"", &[hidden, open]);
        client.exists("/o", true).unwrap();
        zookeeper.delete("/o");
        expect(deleted("/o"), true);
    }
}

#[test]
fn expiry_sends_no_event_for_an_unreadable_znode() {
    let (zookeeper, client, events) = connected();
    let other = zookeeper.connect(TIMEOUT);
    for (path, permission) in [("/a/r", Permissions::READ), ("/a/w", Permissions::WRITE)] {
        client.exists(path, true).unwrap();
        let acl = [Acl::new(permission, "world", "anyone")];
        other.create(path, b"", &acl, CreateMode::Ephemeral).unwrap();
    }
    assert_eq!(events.take(), [changed("/a/r")]);
    zookeeper.set_read_checks(ReadChecks::Events);
    client.exists("/a/r", true).unwrap();
    client.exists("/a/w", true).unwrap();
    client.get_children("/a", true).unwrap();
    other.expire();
    // A session's znodes are deleted in no particular order.
    let seen = events.take();
    assert!(seen.len() == 2 && seen.contains(&deleted("/a/r")) && seen.contains(&changed("/a")), "{seen:?}");
}

#[test]
fn transaction_notifies_of_a_change_to_a_znode_that_it_deletes_afterwards() {
    let (zookeeper, client, events) = connected();
    zookeeper.set_read_checks(ReadChecks::Events);
    client.exists("/n", true).unwrap();
    client.get_children("/a", true).unwrap();
    let create = |path: &str| {
        let (path, data, acl) = (path.to_owned(), Vec::new(), Acl::open_unsafe());
        Op::Create { path, data, acl, mode: CreateMode::Persistent }
    };
    let delete = |path: &str| Op::Delete { path: path.to_owned(), version: None };
    let operations = [create("/n"), delete("/n"), create("/a/c"), delete("/a/c"), delete("/a")];
    client.transact(&operations).unwrap();
    assert_eq!(events.take(), [changed("/n"), changed("/a")]);
}

#[test]
fn identity_grants_access_where_an_acl_names_it() {
    let (zookeeper, client, _) = connected();
    let acl = [Acl::new(Permissions::READ, "digest", "alice:hash")];
    zookeeper.create_with_acl("/private", b"", &acl);
    assert_eq!(zookeeper.acl("/private").unwrap(), acl);
    client.authenticate("digest", "bob:hash");
    client.authenticate("ip", "alice:hash");
    assert_eq!(client.get_data("/private", true).unwrap_err(), ZkError::NoAuth);
    assert_eq!(client.get_children("/private", true).unwrap_err(), ZkError::NoAuth);
    assert_eq!(zookeeper.watch_count(), 0);
    client.authenticate("digest", "alice:hash");
    assert!(client.get_data("/private", true).is_ok());
    assert_eq!(client.set_data("/private", b"", None).unwrap_err(), ZkError::NoAuth);
}

#[test]
fn scheme_auth_is_replaced_by_the_creators_identities() {
    let (zookeeper, client, _) = connected();
    let create = |path| client.create(path, b"", &Acl::creator_all(), CreateMode::Persistent);
    assert_eq!(create("/mine"), Err(ZkError::InvalidAcl));
    client.authenticate("digest", "alice:hash");
    create("/mine").unwrap();
    assert_eq!(zookeeper.acl("/mine").unwrap(), [Acl::new(Permissions::ALL, "digest", "alice:hash")]);
}

#[test]
fn replaced_acl_takes_effect_and_fires_no_watch() {
    let (zookeeper, client, events) = connected();
    client.get_data("/a", true).unwrap();
    let hidden = [Acl::new(Permissions::DELETE, "world", "anyone")];
    zookeeper.set_acl("/a", &hidden);
    assert_eq!((zookeeper.acl("/a").unwrap(), zookeeper.stat("/a").unwrap().aversion), (hidden.to_vec(), 1));
    assert!(matches!(client.get_data("/a", false), Err(ZkError::NoAuth)));
    zookeeper.delete("/a");
    assert_eq!(
        (events.take(), zookeeper.watch_count()),
        (vec![], 0),
        "the watch must be used up without an event"
    );
}

#[test]
fn bad_acl_is_refused() {
    let (zookeeper, client, _) = connected();
    let bad =
        [vec![], vec![Acl::new(Permissions::ALL, "world", "me")], vec![Acl::new(Permissions::ALL, "", "")]];
    for acl in bad {
        let refused = client.create("/b", b"", &acl, CreateMode::Persistent);
        assert_eq!(refused, Err(ZkError::InvalidAcl), "{acl:?}");
    }
    assert!(!zookeeper.exists("/b"));
}

#[test]
fn other_client_creates_parents_and_has_all_rights() {
    let zookeeper = SimulatedZooKeeper::new();
    zookeeper.create_with_acl("/x/y", b"", &[Acl::new(Permissions::NONE, "world", "anyone")]);
    zookeeper.clone().create("/x/y/z", b"1");
    zookeeper.set_data("/x/y/z", b"2");
    assert_eq!(zookeeper.data("/x/y/z").unwrap(), b"2");
    assert_eq!(zookeeper.children("/x/y"), ["z"]);
    zookeeper.delete("/x/y/z");
    assert!(!zookeeper.exists("/x/y/z") && zookeeper.exists("/x/y"));
    assert!(zookeeper.data("/x/y/z").is_none() && zookeeper.acl("/x/y/z").is_none());
    assert!(zookeeper.children("/missing").is_empty());
    assert!(zookeeper.log().is_empty());
}

#[test]
fn session_without_a_client_owns_its_znodes_until_it_expires() {
    let (zookeeper, client, events) = connected();
    let kept = zookeeper.create_sequential("/a", "x-", None);
    let gone = zookeeper.create_sequential("/a", "x-", Some(7));
    assert_eq!(zookeeper.stat(&gone).unwrap().ephemeral_owner, 7);
    client.exists(&gone, true).unwrap();
    zookeeper.expire_session(7);
    assert!(zookeeper.exists(&kept) && !zookeeper.exists(&gone));
    assert_eq!(events.take(), [deleted(&gone)]);
}

#[test]
#[should_panic(expected = "the simulated server refuses to delete '/missing': NoNode")]
fn verb_panics_where_the_server_would_refuse() {
    SimulatedZooKeeper::new().delete("/missing");
}

#[test]
fn session_that_does_not_exist_creates_no_znode() {
    let (zookeeper, client, _) = connected();
    client.expire();
    for session in [client.session_id(), 0] {
        let create = || zookeeper.create_sequential("/a", "x-", Some(session));
        let refused = catch_unwind(AssertUnwindSafe(create)).unwrap_err();
        let message = refused.downcast_ref::<String>().unwrap();
        assert!(message.contains("SessionExpired"), "{message}");
        assert!(zookeeper.children("/a").is_empty());
    }
}

#[test]
fn end_of_no_session_deletes_nothing() {
    let (zookeeper, _client, _) = connected();
    zookeeper.expire_session(0);
    assert!(zookeeper.exists("/a"));
}

#[test]
fn clock_of_the_server_advances_with_transactions_and_on_command() {
    let (zookeeper, client, _) = connected();
    let before = zookeeper.stat("/a").unwrap();
    zookeeper.advance_clock(Duration::from_secs(5));
    let written = client.set_data("/a", b"", None).unwrap();
    assert_eq!((written.ctime, written.mtime), (before.ctime, before.mtime + 5001));
    zookeeper.create("/b", b"");
    assert_eq!(zookeeper.stat("/b").unwrap().ctime, written.mtime + 1);
}
