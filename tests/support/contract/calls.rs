//! Checks of what each call does and how it fails.

use std::thread;

use super::scene::{Outcome, Problem, Scene, done, refused, same};
use super::{Check, ensure, named};
use zookeeper_recipes_lock::client::seam::Names;
use zookeeper_recipes_lock::client::seam::{Enqueued, Verbs, ZooKeeperClient};
use zookeeper_recipes_lock::client::{Acl, CreateMode, Permissions};
use zookeeper_recipes_lock::client::{ZkError, ZkResult};

pub(super) const CHECKS: &[Check] = &[
    named!(create_makes_a_znode_and_returns_its_path),
    named!(create_fails_as_the_server_refuses),
    named!(sequence_numbers_are_appended_and_grow),
    named!(ephemeral_znodes_belong_to_their_session),
    named!(container_has_children),
    named!(delete_depends_on_version_and_children),
    named!(set_data_depends_on_the_version),
    named!(missing_znode_is_an_error_except_for_exists),
    named!(children_are_names_without_paths),
    named!(create_and_list_includes_the_new_znode),
    named!(create_and_list_fails_as_create_does),
    named!(permissions_are_enforced),
    named!(paths_begin_below_the_chroot),
    named!(watch_on_the_chroot_itself_fires),
    named!(data_of_nearly_a_mebibyte_are_kept),
    named!(request_that_is_too_long_is_refused),
    named!(concurrent_calls_get_their_own_replies),
];

/// By default, clients make calls of up to a mebibyte minus a kibibyte. This length leaves room for the path and the
/// ACL.
const LONG_DATA: usize = (1 << 20) - 2048;

fn open() -> Vec<Acl> {
    Acl::open_unsafe()
}

fn create_makes_a_znode_and_returns_its_path(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.path("a"));
    let created = done("create", client.create(&path, b"data", &open(), CreateMode::Persistent))?;
    same("the path of a new znode", created, path.clone())?;
    let (data, stat) = done("get_data", client.get_data(&path, false))?;
    same("the data of a new znode", data, b"data".to_vec())?;
    same("the owner of a persistent znode", stat.ephemeral_owner, 0)?;
    same("the version of new data", stat.version, 0)?;
    same("the length of the data", stat.data_length, 4)?;
    ensure!(stat.czxid > 0 && stat.czxid == stat.mzxid, "a new znode's transactions: {stat:?}");
    let without_data = done("create", client.create(&scene.path("b"), b"", &open(), CreateMode::Persistent))?;
    let (data, later) = done("get_data", client.get_data(&without_data, false))?;
    same("the data of a znode without data", data, Vec::new())?;
    ensure!(later.czxid > stat.czxid, "the czxid of a later znode is not greater: {later:?} after {stat:?}");
    let dir = done("exists", client.exists(scene.dir(), false))?;
    same("the number of children", dir.map(|stat| stat.num_children), Some(2))
}

fn create_fails_as_the_server_refuses(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    let create = |name: &str, acl: &[Acl]| client.create(&scene.path(name), b"", acl, CreateMode::Persistent);
    refused("a create without a parent", create("no/child", &open()), ZkError::NoNode)?;
    client.make(&scene.path("a"))?;
    refused("a create of a znode that exists", create("a", &open()), ZkError::NodeExists)?;
    refused("a create with an empty ACL", create("b", &[]), ZkError::InvalidAcl)?;
    client.make_ephemeral(&scene.path("e"))?;
    refused("a create below an ephemeral znode", create("e/x", &open()), ZkError::NoChildrenForEphemerals)?;
    refused("a create of a znode named '.'", create(".", &open()), ZkError::BadArguments)?;
    let children = done("get_children", client.get_children(scene.dir(), false))?;
    same("the number of znodes after the refused calls", children.len(), 2)
}

fn sequence_numbers_are_appended_and_grow(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    let prefix = scene.path("x-");
    let mut last = -1;
    for mode in [CreateMode::PersistentSequential, CreateMode::EphemeralSequential].repeat(2) {
        let path = done("create", client.create(&prefix, b"", &open(), mode))?;
        let number = path.strip_prefix(&prefix).unwrap_or_default();
        ensure!(number.len() == 10, "a sequential create of '{prefix}' returns '{path}'");
        let number: i32 = number.parse().unwrap_or(-1);
        ensure!(number > last, "sequence number {number} follows {last}");
        last = number;
        let stat = done("exists", client.exists(&path, false))?;
        let is_ephemeral = stat.map(|stat| stat.ephemeral_owner != 0);
        same(
            "whether the sequential znode is ephemeral",
            is_ephemeral,
            Some(mode == CreateMode::EphemeralSequential),
        )?;
    }
    Ok(())
}

fn ephemeral_znodes_belong_to_their_session(scene: &Scene<'_>) -> Outcome {
    let (client, second) = (scene.connect()?, scene.connect()?);
    let owner = |session: &super::scene::Tested, name: &str| {
        let path = session.make_ephemeral(&scene.path(name))?;
        let stat = done("exists", scene.other.exists(&path, false))?;
        stat.map(|stat| stat.ephemeral_owner).ok_or(Problem::Violated(format!("'{path}' is missing")))
    };
    let (first, again, other) = (owner(&client, "a")?, owner(&client, "b")?, owner(&second, "c")?);
    ensure!(first != 0 && first == again, "the owners of two ephemeral znodes: {first:#x}, {again:#x}");
    ensure!(other != first, "two sessions have the id {first:#x}");
    if let Some(id) = client.session_id() {
        same("the owner of an ephemeral znode", first, id)?;
    }
    Ok(())
}

fn container_has_children(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.path("c"));
    match client.create(&path, b"", &open(), CreateMode::Container) {
        Err(ZkError::Unimplemented) => return Err(Problem::Lacking("containers")),
        created => same("the path of a container", done("create", created)?, path.clone())?,
    }
    client.make(&format!("{path}/child"))?;
    let stat = done("exists", client.exists(&path, false))?;
    let session = stat.and_then(|stat| stat.session());
    same("the session that owns a container", session, None)
}

fn delete_depends_on_version_and_children(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.given("a")?);
    refused("a delete of a missing znode", client.delete(&scene.path("b"), None), ZkError::NoNode)?;
    scene.given("a/child")?;
    refused("a delete of a znode with a child", client.delete(&path, None), ZkError::NotEmpty)?;
    done("delete", client.delete(&format!("{path}/child"), Some(0)))?;
    refused("a delete at another version", client.delete(&path, Some(7)), ZkError::BadVersion)?;
    done("set_data", client.set_data(&path, b"1", None))?;
    refused("a delete at an old version", client.delete(&path, Some(0)), ZkError::BadVersion)?;
    done("delete", client.delete(&path, Some(1)))?;
    same("a deleted znode", done("exists", client.exists(&path, false))?, None)?;
    let again = scene.given("a")?;
    done("delete", client.delete(&again, None))
}

fn set_data_depends_on_the_version(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.given("a")?);
    let first = done("set_data", client.set_data(&path, b"one", Some(0)))?;
    same("the version after the first change", first.version, 1)?;
    same("the length after the first change", first.data_length, 3)?;
    refused("set_data at an old version", client.set_data(&path, b"x", Some(0)), ZkError::BadVersion)?;
    let second = done("set_data", client.set_data(&path, b"three", None))?;
    same("the version after the second change", second.version, 2)?;
    ensure!(second.mzxid > first.mzxid && second.czxid == first.czxid, "{second:?} after {first:?}");
    let read = done("get_data", client.get_data(&path, false))?;
    same("the data and metadata read after the change", read, (b"three".to_vec(), second))
}

fn missing_znode_is_an_error_except_for_exists(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.path("missing"));
    for watch in [false, true] {
        same("exists for a missing znode", client.exists(&path, watch), Ok(None))?;
        refused("get_data of a missing znode", client.get_data(&path, watch), ZkError::NoNode)?;
        refused("get_children of a missing znode", client.get_children(&path, watch), ZkError::NoNode)?;
    }
    refused("set_data of a missing znode", client.set_data(&path, b"", None), ZkError::NoNode)
}

fn children_are_names_without_paths(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.given("a")?);
    same("the children of a znode without any", client.get_children(&path, false), Ok(Names::default()))?;
    let names = ["b", "ç", "x-lock-0000000001"];
    for name in names {
        scene.given(&format!("a/{name}"))?;
    }
    scene.given("a/b/grandchild")?;
    // The other session created the children. If this session were on another server, that server might lag behind.
    scene.eventually("the listing is complete", |_| {
        let listed = client.get_children(&path, true).unwrap_or_default();
        listed.len() == names.len() && names.iter().all(|name| listed.contains(name))
    })
}

fn create_and_list_includes_the_new_znode(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    for count in 1..=3 {
        let created = client.create_and_list(scene.dir(), "x-lock-", b"me", &open());
        let Enqueued { path, stat: returned, children: listed } = done("create_and_list", created)?;
        let name = path.strip_prefix(&format!("{}/", scene.dir())).unwrap_or_default().to_owned();
        ensure!(name.starts_with("x-lock-") && name.len() == 17, "create_and_list returns the path '{path}'");
        let listed = done("the listing", listed)?;
        ensure!(
            listed.contains(&name),
            "'{name}' is missing from the listing that follows its creation: {listed:?}"
        );
        same("the length of the listing", listed.len(), count)?;
        let (data, stat) = done("get_data", client.get_data(&path, false))?;
        same("the data of the new znode", data, b"me".to_vec())?;
        ensure!(stat.session().is_some(), "the new znode is not ephemeral: {stat:?}");
        same("the returned metadata", returned.unwrap_or(stat), stat)?;
    }
    Ok(())
}

fn create_and_list_fails_as_create_does(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect()?;
    let missing = client.create_and_list(&scene.path("no"), "x-", b"", &open());
    refused("create_and_list in a missing directory", missing, ZkError::NoNode)?;
    let no_acl = client.create_and_list(scene.dir(), "x-", b"", &[]);
    refused("create_and_list with an empty ACL", no_acl, ZkError::InvalidAcl)?;
    // The connection must still deliver its replies in order.
    same("a call after the failed ones", client.get_children(scene.dir(), false), Ok(Names::default()))
}

fn permissions_are_enforced(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.path("a"));
    let only = |permissions| [Acl::new(permissions, "world", "anyone")];
    let read_only = only(Permissions::READ);
    done("create", client.create(&path, b"data", &read_only, CreateMode::Persistent))?;
    refused("set_data without WRITE", client.set_data(&path, b"", None), ZkError::NoAuth)?;
    let child = client.create(&format!("{path}/x"), b"", &open(), CreateMode::Ephemeral);
    refused("a create without CREATE", child, ZkError::NoAuth)?;
    same("data with READ", done("get_data", client.get_data(&path, false))?.0, b"data".to_vec())?;
    let hidden = scene.path("b");
    done("create", client.create(&hidden, b"", &only(Permissions::CREATE), CreateMode::Persistent))?;
    refused("get_data without READ", client.get_data(&hidden, false), ZkError::NoAuth)?;
    refused("get_children without READ", client.get_children(&hidden, true), ZkError::NoAuth)?;
    let child = format!("{hidden}/x");
    client.make_ephemeral(&child)?;
    refused("a delete without DELETE", client.delete(&child, None), ZkError::NoAuth)?;
    // No client may delete that znode. It is gone once its session ends.
    client.in_time("close", |client| client.close())
}

fn paths_begin_below_the_chroot(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect_below()?;
    same("the path of a new znode", client.make("/a")?, "/a".to_owned())?;
    let sequential = client.create("/a/x-", b"", &open(), CreateMode::EphemeralSequential);
    let sequential = done("create", sequential)?;
    ensure!(sequential.starts_with("/a/x-") && sequential.len() == 15, "a sequential znode: {sequential:?}");
    let enqueued = done("create_and_list", client.create_and_list("/a", "y-", b"", &open()))?;
    let (created, listed) = (enqueued.path, enqueued.children);
    ensure!(created.starts_with("/a/y-"), "the znode of create_and_list: {created:?}");
    same("the length of the listing", done("the listing", listed)?.len(), 2)?;
    same("the children of the chroot", client.get_children("/", false), Ok(Names::from_iter(["a"])))?;
    let full = format!("{}{created}", scene.dir());
    let seen = done("exists", scene.other.exists(&full, false))?;
    ensure!(seen.is_some(), "'{created}' in the chroot is not '{full}' at the root");
    done("get_data", client.get_data(&created, true))?;
    done("delete", scene.other.delete(&full, None))?;
    client.events.await_change(&created)
}

fn watch_on_the_chroot_itself_fires(scene: &Scene<'_>) -> Outcome {
    let client = scene.connect_below()?;
    done("get_children", client.get_children("/", true))?;
    scene.given("a")?;
    client.events.await_change("/")
}

fn data_of_nearly_a_mebibyte_are_kept(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.path("a"));
    let data: Vec<u8> = (0..LONG_DATA).map(|position| (position % 251) as u8).collect();
    done("a long create", client.create(&path, &data, &open(), CreateMode::Persistent))?;
    let (read, _) = done("get_data", client.get_data(&path, false))?;
    ensure!(read == data, "{} bytes are read back instead of {LONG_DATA}, or they differ", read.len());
    let reversed: Vec<u8> = data.into_iter().rev().collect();
    done("a long set_data", client.set_data(&path, &reversed, Some(0)))?;
    let (read, stat) = done("get_data", client.get_data(&path, false))?;
    ensure!(read == reversed && stat.version == 1, "the new data is not read back: {stat:?}");
    Ok(())
}

fn request_that_is_too_long_is_refused(scene: &Scene<'_>) -> Outcome {
    /// The name of a kind of call, and a function that makes such a call with these data.
    type WithData = (&'static str, fn(&dyn ZooKeeperClient, &str, &[u8]) -> ZkResult<()>);
    const CALLS: [WithData; 3] = [
        ("create", |client, path, data| {
            client.create(&format!("{path}/x"), data, &open(), CreateMode::Persistent).map(drop)
        }),
        ("create_and_list", |client, path, data| client.create_and_list(path, "x-", data, &open()).map(drop)),
        ("set_data", |client, path, data| client.set_data(path, data, None).map(drop)),
    ];
    let (client, path) = (scene.connect()?, scene.given("a")?);
    for (name, call) in CALLS {
        let (what, path) = (format!("a {name} that is too long"), path.clone());
        let result = client.in_time(&what, move |client| call(client, &path, &vec![0; 2 << 20]))?;
        let is_refused = matches!(result, Err(ZkError::CallTooLong { .. }));
        ensure!(is_refused, "{what}: expected CallTooLong, found {result:?}");
    }
    let stat = done("exists", scene.other.exists(&path, false))?;
    let found = stat.map(|stat| (stat.version, stat.num_children));
    same("the version and the children after the refused calls", found, Some((0, 0)))
}

fn concurrent_calls_get_their_own_replies(scene: &Scene<'_>) -> Outcome {
    const THREADS: usize = 8;
    const CALLS: usize = 20;
    let (client, dir) = (scene.connect()?, scene.dir());
    let work = |thread: usize| {
        let path = client.make(&format!("{dir}/thread-{thread}"))?;
        for call in 0..CALLS {
            let text = format!("{thread}/{call}").into_bytes();
            done("set_data", client.set_data(&path, &text, i32::try_from(call).ok()))?;
            same("data read after own data", done("get_data", client.get_data(&path, false))?.0, text)?;
            let missing = format!("{dir}/missing-{thread}");
            same("exists for a missing znode", client.exists(&missing, false), Ok(None))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || work(number))).collect();
        let panicked = |_| Err(Problem::Violated("a call panicked".to_owned()));
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
    })
}
