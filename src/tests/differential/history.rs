//! Random requests on a few znodes.

use crate::client::{Acl, CreateMode, Permissions};
use crate::connection::codec::Request;
use crate::tests::simulation::random::Random;

/// Where everything happens.
pub(super) const ROOT: &str = "/it";

/// A container, which goes when its last child is deleted.
pub(super) const CONTAINER: &str = "/it/container";

/// The user whom the digest of `ACL_OF_ADA` names.
pub(super) const CREDENTIAL: (&str, &str) = ("digest", "ada:secret");

const PATHS: [&str; 9] =
    [ROOT, "/it/a", "/it/b", "/it/a/c", "/it/a/d", "/it/b/e", "/it/a/c/f", "/it/none/g", CONTAINER];

const BAD_PATHS: [&str; 6] = ["it", "/it/", "/it//a", "/it/../it", "/it/.", "/it/\u{1}"];

const MODES: [CreateMode; 5] = [
    CreateMode::Persistent,
    CreateMode::Ephemeral,
    CreateMode::PersistentSequential,
    CreateMode::EphemeralSequential,
    // Those that go are made on purpose only.
    CreateMode::Persistent,
];

/// A request of any kind but those that begin or end a connection.
pub(super) fn request(random: &mut Random, known: &[String]) -> Request<'static> {
    match random.below(20) {
        0..=6 => write(random, known),
        7..=8 => Request::Multi((0..=random.below(4)).map(|_| part(random, known)).collect()),
        9..=10 => Request::RemoveWatches { path: path(random, known).into() },
        11 => Request::Ping,
        12..=14 => Request::Exists { path: path(random, known).into(), watch: random.one_in(2) },
        15..=17 => Request::GetData { path: path(random, known).into(), watch: random.one_in(2) },
        _ => Request::GetChildren { path: path(random, known).into(), watch: random.one_in(2) },
    }
}

fn part(random: &mut Random, known: &[String]) -> Request<'static> {
    match random.below(4) {
        0 => Request::Check { path: path(random, known).into(), version: version(random) },
        _ => write(random, known),
    }
}

fn write(random: &mut Random, known: &[String]) -> Request<'static> {
    match random.below(8) {
        0..=3 => create(random),
        4..=5 => Request::Delete { path: path(random, known).into(), version: version(random) },
        _ => Request::SetData {
            path: path(random, known).into(),
            data: data(random).into(),
            version: version(random),
        },
    }
}

fn create(random: &mut Random) -> Request<'static> {
    let mode = random.of(&MODES);
    let path = match random.below(30) {
        0 => random.of(&BAD_PATHS).to_owned(),
        _ => random.of(&PATHS[..8]).to_owned(),
    };
    let path = if mode.is_sequential() { format!("{path}/n-") } else { path };
    Request::Create { path: path.into(), data: data(random).into(), acl: acl(random).into(), mode }
}

/// One of the znodes that exist sometimes, or one with a number.
fn path(random: &mut Random, known: &[String]) -> String {
    match known.len() {
        length @ 1.. if random.one_in(3) => known[random.index(length)].clone(),
        _ => random.of(&PATHS).to_owned(),
    }
}

fn version(random: &mut Random) -> i32 {
    random.of(&[-1, -1, -1, 0, 0, 1, 2])
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
