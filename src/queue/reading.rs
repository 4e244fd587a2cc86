//! Reads many requests at once.

use std::collections::VecDeque;
use std::sync::Arc;

use super::lock_info::{Found, LockInfo};
use crate::client::{Call, Stat};
use crate::error::{Operation, Result, ZkError, ZkResult};
use crate::recipe::is_directory;
use crate::recipe::path::ZNodePath;
use crate::session::Core;

/// The number of requests to read at once. A blocking client makes twice as many calls at once, so the other
/// half is left for the rest of the session's work.
pub(super) const AT_ONCE: usize = 8;

/// Reads the znodes of a listing. Returns what was found, in the same order.
pub(super) fn read_all(core: &Arc<Core>, listed: &[ZNodePath]) -> Result<Vec<Found>> {
    let mut all = Vec::with_capacity(listed.len());
    let mut under_way = VecDeque::with_capacity(AT_ONCE);
    let mut listed = listed.iter();
    loop {
        let free = AT_ONCE - under_way.len();
        let begin = |path| (path, core.begin_ask(Call::get_data(path, false), ()));
        under_way.extend(listed.by_ref().take(free).map(begin));
        let Some((path, data)) = under_way.pop_front() else { return Ok(all) };
        let found = found_at(core, path, data.wait(core));
        all.push(found.map_err(|error| core.failure(Operation::READ, path, error))?);
    }
}

/// Reads one znode of a listing.
pub(super) fn read_one(core: &Arc<Core>, path: &ZNodePath) -> Result<Found> {
    let found = found_at(core, path, core.ask(Call::get_data(path, false)));
    found.map_err(|error| core.failure(Operation::READ, path, error))
}

/// Interprets the reply to a read. Without READ permission, a request has only its name and perhaps its metadata.
fn found_at(core: &Arc<Core>, path: &ZNodePath, data: ZkResult<(Vec<u8>, Stat)>) -> ZkResult<Found> {
    match data {
        Ok((_, stat)) if is_directory(&stat) => Ok(Found::Directory),
        Ok((data, stat)) => Ok(Found::Request(LockInfo::new(path, data, &stat))),
        Err(ZkError::NoNode) => Ok(Found::Nothing),
        Err(ZkError::NoAuth) => LockInfo::without_data(path, core.ask(Call::exists(path, false))),
        Err(error) => Err(error),
    }
}
