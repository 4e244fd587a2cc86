//! Reads many requests at once.
//!
//! The client's calls block, and calls of several threads share the connection, so a few workers
//! read in parallel. The other workers stay free for the rest of the session's work, and a reader
//! queues again for a worker before each read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Sender, unbounded};

use super::lock_info::LockInfo;
use crate::client::Call;
use crate::error::{LockError, Operation, Result, ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::session::Core;

/// How many threads read at once: half of those that a session has for calls.
pub(super) const READERS: usize = 8;

/// Reads requests and returns them in the same order, without those that no longer exist.
///
/// Blocks the calling thread, which must not be a worker.
pub(super) fn read_all(core: &Arc<Core>, dir: &ZNodePath, requests: Vec<ZNodePath>) -> Result<Vec<LockInfo>> {
    let count = requests.len();
    let (results, read) = unbounded();
    let reading = Arc::new(Reading { requests, next: AtomicUsize::new(0), results });
    for _ in 0..READERS.min(count) {
        Arc::clone(&reading).go_on(core);
    }
    // The channel is then disconnected when the readers are dropped.
    drop(reading);
    let mut infos = vec![None; count];
    for _ in 0..count {
        let (position, info) = core.receive(Operation::READ, dir, &read)?;
        infos[position] = info?;
    }
    Ok(infos.into_iter().flatten().collect())
}

/// Reads one request, on a worker; `None` if it no longer exists. Without READ permission the
/// result has only the name, and perhaps the metadata.
pub(super) fn read_one(core: &Arc<Core>, request: &ZNodePath) -> ZkResult<Option<LockInfo>> {
    match core.ask(Call::get_data(request, false)) {
        Ok((data, stat)) => Ok(Some(LockInfo::new(request, data, &stat))),
        Err(ZkError::NoNode) => Ok(None),
        Err(ZkError::NoAuth) => LockInfo::without_data(request, core.ask(Call::exists(request, false))),
        Err(error) => Err(error),
    }
}

/// Requests that are being read; shared by the readers.
struct Reading {
    requests: Vec<ZNodePath>,
    next: AtomicUsize,
    results: Sender<(usize, Result<Option<LockInfo>>)>,
}

impl Reading {
    fn go_on(self: Arc<Self>, core: &Arc<Core>) {
        core.submit(move |core| {
            if self.read_next(core) {
                self.go_on(core);
            }
        });
    }

    /// Reads one request; `false` when all are taken, or when nobody waits for the results.
    fn read_next(&self, core: &Arc<Core>) -> bool {
        let position = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(request) = self.requests.get(position) else { return false };
        let info =
            read_one(core, request).map_err(|error| LockError::client(Operation::READ, request, error));
        self.results.send((position, info)).is_ok()
    }
}
