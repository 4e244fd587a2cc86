//! The znodes of [`RunOnce`]: the directory of a key and its [`Marker`].

use std::time::SystemTime;

use super::RunOnce;
use crate::client::Names;
use crate::client::{Ask, Call, Op, Stat, Transacted};
use crate::error::{LockError, Operation, Result, ZkError};
use crate::recipe::path::ZNodePath;
use crate::recipe::resource::escaped;
use crate::recipe::znode_name::generated_sequence;

/// The maximum length of a key in bytes.
const MAX_KEY: usize = 255;

/// The name of the marker, which stands beside the requests for the lock of its key.
const DONE: &str = "done";

/// The znodes of a key.
pub(super) struct Key {
    /// The directory of its lock.
    pub(super) dir: ZNodePath,
    /// The marker.
    pub(super) done: ZNodePath,
}

impl Key {
    /// Checks a caller's key.
    pub(super) fn parse(root: &ZNodePath, key: &str) -> Result<Key> {
        match key.len() {
            0 => return Err(LockError::invalid_argument("key", "a key must not be empty")),
            length if length > MAX_KEY => {
                let rule = format!("a key of {length} bytes is longer than {MAX_KEY}");
                return Err(LockError::invalid_argument("key", rule));
            }
            _ => {}
        }
        let key = Key::of(root, &escaped(key));
        // The key is escaped, but the whole path may be too long.
        ZNodePath::parse(key.done.as_str())?;
        Ok(key)
    }

    /// Returns the key whose directory has this name.
    pub(super) fn of(root: &ZNodePath, name: &str) -> Key {
        let dir = root.child(name);
        let done = dir.child(DONE);
        Key { dir, done }
    }
}

/// How far the job had progressed when the key was marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkerState {
    Begun,
    Done,
}

impl MarkerState {
    fn name(self) -> &'static str {
        match self {
            MarkerState::Begun => "begun",
            MarkerState::Done => "done",
        }
    }
}

/// The content of a marker: which process ran the job, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    pub(super) by: String,
    pub(super) at: SystemTime,
    /// The name of the request that owned the lock when the marker was written.
    pub(super) id: String,
    pub(super) state: MarkerState,
    /// The czxid, which distinguishes the marker from a later one of the same key.
    pub(super) czxid: i64,
}

/// Returns the data of a marker: the data of the lock's requests, then a line with the name of the request and the
/// state.
pub(super) fn data(by: &[u8], id: &str, state: MarkerState) -> Vec<u8> {
    [by, b"\n", id.as_bytes(), b" ", state.name().as_bytes()].concat()
}

impl Marker {
    /// Parses a marker. A marker that this crate did not write counts as the marker of a finished job.
    fn read(data: &[u8], stat: &Stat) -> Marker {
        let text = String::from_utf8_lossy(data);
        let parts = text.rsplit_once('\n').and_then(|(by, rest)| {
            let (id, state) = rest.split_once(' ')?;
            let state =
                [MarkerState::Begun, MarkerState::Done].into_iter().find(|known| known.name() == state)?;
            is_request(id).then(|| (by.to_owned(), id.to_owned(), state))
        });
        let (by, id, state) = parts.unwrap_or_else(|| (text.to_string(), String::new(), MarkerState::Done));
        Marker { by, at: stat.created(), id, state, czxid: stat.czxid }
    }
}

pub(super) fn is_request(name: &str) -> bool {
    !name.contains('/') && generated_sequence(name).is_some()
}

/// Calls on single znodes.
impl RunOnce {
    pub(super) fn read(&self, key: &Key) -> Result<Option<Marker>> {
        let read = self.call(Operation::READ, &key.done, Call::get_data(&key.done, false))?;
        Ok(read.map(|(data, stat)| Marker::read(&data, &stat)))
    }

    /// Like [`read`](RunOnce::read), but shows everything that was written before the call.
    pub(super) fn read_latest(&self, key: &Key) -> Result<Option<Marker>> {
        let core = self.support.session().core();
        let written = core.begin_to_write_nothing().wait(&core);
        written.map_err(|error| core.failure(Operation::READ, &key.done, error))?;
        self.read(key)
    }

    pub(super) fn stat(&self, path: &ZNodePath) -> Result<Option<Stat>> {
        Ok(self.call(Operation::READ, path, Call::exists(path, false))?.flatten())
    }

    /// Returns the children of a znode, or none if it does not exist.
    pub(super) fn children(&self, path: &ZNodePath) -> Result<Names> {
        Ok(self.call(Operation::LIST, path, Call::get_children(path, false))?.unwrap_or_default())
    }

    /// Deletes a znode. Returns `false` if it does not exist.
    pub(super) fn delete(&self, path: &ZNodePath) -> Result<bool> {
        Ok(self.call(Operation::DELETE, path, Call::delete(path, None))?.is_some())
    }

    pub(super) fn transact(&self, key: &Key, operations: &[Op]) -> Result<Transacted> {
        self.support.session().core().call(Operation::DELETE, &key.done, Call::multi(operations))
    }

    /// Makes a call. Returns `None` if the znode does not exist.
    fn call<T>(&self, operation: Operation, path: &ZNodePath, ask: Ask<T>) -> Result<Option<T>> {
        let core = self.support.session().core();
        match core.ask(ask) {
            Ok(value) => Ok(Some(value)),
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(core.failure(operation, path, error)),
        }
    }
}
