//! Checks of watches: what fires them, how often, and what does not fire them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::scene::{Outcome, Problem, Scene, done, refused, same};
use super::{Check, ensure, named};
use zookeeper_recipes_lock::client::ZkError;
use zookeeper_recipes_lock::client::seam::Verbs;

pub(super) const CHECKS: &[Check] = &[
    named!(data_watch_fires_once_on_a_change),
    named!(watch_on_a_missing_znode_fires_on_its_creation),
    named!(child_watch_fires_once_on_a_child),
    named!(deletion_fires_each_watch),
    named!(watch_set_twice_fires_once),
    named!(own_change_fires_a_watch),
    named!(watches_of_every_session_fire),
    named!(read_without_a_watch_sets_none),
    named!(failed_read_sets_no_watch),
    named!(change_can_be_read_after_its_event),
    named!(watch_set_after_a_removal_fires),
    named!(sink_is_called_after_it_panicked),
];

fn data_watch_fires_once_on_a_change(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.given("a")?);
    done("get_data", client.get_data(&path, true))?;
    client.fence(scene)?;
    same("events before the change", client.events.changes(&path), 0)?;
    for data in [b"1", b"2"] {
        done("set_data", scene.other.set_data(&path, data, None))?;
    }
    client.fence(scene)?;
    same("events after two changes", client.events.changes(&path), 1)?;
    // A watch set by `exists` on an existing znode watches the znode's data.
    done("exists", client.exists(&path, true))?;
    done("set_data", scene.other.set_data(&path, b"3", None))?;
    client.fence(scene)?;
    same("events after the next change", client.events.changes(&path), 2)
}

fn watch_on_a_missing_znode_fires_on_its_creation(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.path("a"));
    same("exists for a missing znode", client.exists(&path, true), Ok(None))?;
    scene.given("a")?;
    client.fence(scene)?;
    same("events after the creation", client.events.changes(&path), 1)?;
    done("delete", scene.other.delete(&path, None))?;
    client.fence(scene)?;
    same("events after the deletion", client.events.changes(&path), 1)
}

fn child_watch_fires_once_on_a_child(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.given("a")?);
    done("get_children", client.get_children(&path, true))?;
    done("set_data", scene.other.set_data(&path, b"1", None))?;
    client.fence(scene)?;
    same("events after a change of data", client.events.changes(&path), 0)?;
    let child = scene.given("a/b")?;
    scene.given("a/c")?;
    client.fence(scene)?;
    same("events after two creations of children", client.events.changes(&path), 1)?;
    done("get_children", client.get_children(&path, true))?;
    done("delete", scene.other.delete(&child, None))?;
    client.fence(scene)?;
    same("events after a deletion of a child", client.events.changes(&path), 2)
}

fn deletion_fires_each_watch(scene: &Scene<'_>) -> Outcome {
    let (client, by_data) = (scene.connect()?, scene.given("a")?);
    let (by_children, by_existence) = (scene.given("b")?, scene.given("c")?);
    done("get_data", client.get_data(&by_data, true))?;
    done("get_children", client.get_children(&by_children, true))?;
    done("exists", client.exists(&by_existence, true))?;
    for path in [by_data, by_children, by_existence] {
        done("delete", scene.other.delete(&path, None))?;
        client.events.await_change(&path)?;
        client.fence(scene)?;
        same("events after a deletion", client.events.changes(&path), 1)?;
    }
    Ok(())
}

fn watch_set_twice_fires_once(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.given("a")?);
    for _ in 0..2 {
        done("get_data", client.get_data(&path, true))?;
        done("exists", client.exists(&path, true))?;
    }
    let missing = scene.path("b");
    let parent = scene.given("c")?;
    for _ in 0..2 {
        done("exists", client.exists(&missing, true))?;
        done("get_children", client.get_children(&parent, true))?;
    }
    done("set_data", scene.other.set_data(&path, b"1", None))?;
    scene.given("b")?;
    scene.given("c/child")?;
    client.fence(scene)?;
    for path in [path, missing, parent] {
        same(&format!("events of '{path}', watched twice"), client.events.changes(&path), 1)?;
    }
    Ok(())
}

fn own_change_fires_a_watch(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.given("a")?);
    done("get_data", client.get_data(&path, true))?;
    done("delete", client.delete(&path, None))?;
    client.events.await_change(&path)
}

fn watches_of_every_session_fire(scene: &Scene<'_>) -> Outcome {
    let (first, second) = (scene.connect()?, scene.connect()?);
    let path = scene.given("a")?;
    for client in [&first, &second] {
        done("get_data", client.get_data(&path, true))?;
    }
    done("delete", scene.other.delete(&path, None))?;
    for client in [&first, &second] {
        client.events.await_change(&path)?;
    }
    Ok(())
}

fn read_without_a_watch_sets_none(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.given("a")?);
    done("get_data", client.get_data(&path, false))?;
    done("exists", client.exists(&path, false))?;
    done("get_children", client.get_children(&path, false))?;
    scene.given("a/b")?;
    done("set_data", scene.other.set_data(&path, b"1", None))?;
    client.fence(scene)?;
    same("events without a watch", client.events.changes(&path), 0)
}

fn failed_read_sets_no_watch(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.path("a"));
    refused("get_data of a missing znode", client.get_data(&path, true), ZkError::NoNode)?;
    refused("get_children of a missing znode", client.get_children(&path, true), ZkError::NoNode)?;
    scene.given("a")?;
    client.fence(scene)?;
    same("events of a znode that was missing", client.events.changes(&path), 0)
}

fn change_can_be_read_after_its_event(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.given("a")?);
    for version in 1..=20 {
        done("get_data", client.get_data(&path, true))?;
        let before = client.events.changes(&path);
        done("set_data", scene.other.set_data(&path, b"", None))?;
        let is_next = |events: &super::scene::Recorder| events.changes(&path) > before;
        scene.eventually("the watch fires", |_| is_next(&client.events))?;
        let (_, stat) = done("get_data", client.get_data(&path, false))?;
        ensure!(stat.version == version, "after the event, the data still has version {}", stat.version);
    }
    Ok(())
}

fn watch_set_after_a_removal_fires(scene: &Scene<'_>) -> Outcome {
    let (client, path) = (scene.connect()?, scene.given("a")?);
    done("get_data", client.get_data(&path, true))?;
    client.remove_watches(&path);
    done("get_data", client.get_data(&path, true))?;
    done("set_data", scene.other.set_data(&path, b"1", None))?;
    client.fence(scene)?;
    same("events after the change", client.events.changes(&path), 1)
}

fn sink_is_called_after_it_panicked(scene: &Scene<'_>) -> Outcome {
    if !scene.fixture.contains_panics() {
        return Err(Problem::Lacking("a client that contains panics in its sink"));
    }
    let (client, path) = (scene.connect()?, scene.given("a")?);
    let panics = Arc::new(AtomicBool::new(true));
    let (will_panic, record) = (Arc::clone(&panics), client.events.sink());
    client.subscribe(Arc::new(move |event| {
        // `resume_unwind` panics without printing a message.
        if will_panic.swap(false, Ordering::SeqCst) {
            std::panic::resume_unwind(Box::new("a panic in the sink"));
        }
        record(event);
    }));
    done("get_data", client.get_data(&path, true))?;
    // A simulated client may call the sink within this call.
    let _ = catch_unwind(AssertUnwindSafe(|| scene.other.set_data(&path, b"1", None).map(drop)));
    scene.eventually("the sink panics", |_| !panics.load(Ordering::SeqCst))?;
    done("get_data", client.get_data(&path, true))?;
    done("set_data", scene.other.set_data(&path, b"2", None))?;
    client.events.await_change(&path)
}
