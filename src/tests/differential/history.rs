//! Random requests for a few znodes.

use crate::client::{Acl, Call, CreateMode, Op, Permissions};
use crate::tests::simulation::random::Random;
use zookeeper_connection::codec::{Control, Request};

/// The znode below which all other znodes are.
pub(super) const ROOT: &str = "/it";

/// A container, which the server deletes some time after its last child.
pub(super) const CONTAINER: &str = "/it/container";

/// The user as whom clients authenticate themselves. [`Acl::creator_all`] then stands for this user.
pub(super) const CREDENTIAL: (&str, &str) = ("digest", "ada:secret");

const PATHS: [&str; 9] =
    [ROOT, "/it/a", "/it/b", "/it/a/c", "/it/a/d", "/it/b/e", "/it/a/c/f", "/it/none/g", CONTAINER];

const BAD_PATHS: [&str; 6] = ["it", "/it/", "/it//a", "/it/../it", "/it/.", "/it/\u{1}"];

const MODES: [CreateMode; 5] = [
    CreateMode::Persistent,
    CreateMode::Ephemeral,
    CreateMode::PersistentSequential,
    CreateMode::EphemeralSequential,
    // Once more, in place of a container: only `let_a_container_go` creates one.
    CreateMode::Persistent,
];

/// Draws a request of any kind, except those that begin or end a connection.
pub(super) fn request(random: &mut Random, known: &[String]) -> Request<'static> {
    let call = match random.below(20) {
        0..=6 => write(random, known),
        7..=8 => {
            let steps: Vec<Op> = (0..=random.below(4)).map(|_| step(random, known)).collect();
            Call::multi(steps).call
        }
        9..=10 => {
            return Request::Control(Control::RemoveWatches { path: path(random, known).into() });
        }
        11 => return Request::Control(Control::Ping),
        12..=14 => Call::exists(path(random, known), random.one_in(2)).call,
        15..=17 => Call::get_data(path(random, known), random.one_in(2)).call,
        _ => Call::get_children(path(random, known), random.one_in(2)).call,
    };
    Request::Call(call)
}

fn write(random: &mut Random, known: &[String]) -> Call {
    match write_step(random, known) {
        Op::Create { path, data, acl, mode } => Call::create(path, data, acl, mode).call,
        Op::SetData { path, data, version } => Call::set_data(path, data, version).call,
        Op::Delete { path, version } | Op::Check { path, version } => Call::delete(path, version).call,
    }
}

fn step(random: &mut Random, known: &[String]) -> Op {
    match random.below(4) {
        0 => Op::Check { path: path(random, known), version: version(random) },
        _ => write_step(random, known),
    }
}

fn write_step(random: &mut Random, known: &[String]) -> Op {
    match random.below(8) {
        0..=3 => create(random),
        4..=5 => Op::Delete { path: path(random, known), version: version(random) },
        _ => Op::SetData { path: path(random, known), data: data(random), version: version(random) },
    }
}

fn create(random: &mut Random) -> Op {
    let mode = random.of(&MODES);
    let path = match random.below(30) {
        0 => random.of(&BAD_PATHS).to_owned(),
        _ => random.of(&PATHS[..8]).to_owned(),
    };
    let path = if mode.is_sequential() { format!("{path}/n-") } else { path };
    Op::Create { path, data: data(random), acl: acl(random), mode }
}

/// Draws a fixed path, whose znode may or may not exist, or the path of a sequential znode.
fn path(random: &mut Random, known: &[String]) -> String {
    match known.len() {
        length @ 1.. if random.one_in(3) => known[random.index(length)].clone(),
        _ => random.of(&PATHS).to_owned(),
    }
}

fn version(random: &mut Random) -> Option<i32> {
    random.of(&[None, None, None, Some(0), Some(0), Some(1), Some(2)])
}

fn data(random: &mut Random) -> Vec<u8> {
    vec![7; random.index(4)]
}

fn acl(random: &mut Random) -> Vec<Acl> {
    let for_all = |permissions| vec![Acl::new(permissions, "world", "anyone")];
    match random.below(40) {
        0..=1 => Acl::creator_all(),
        2 => for_all(Permissions::READ),
        3 => for_all(Permissions::CREATE | Permissions::DELETE | Permissions::WRITE),
        4 => Vec::new(),
        5 => vec![Acl::new(Permissions::ALL, "world", "somebody")],
        _ => Acl::open_unsafe(),
    }
}
