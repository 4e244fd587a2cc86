//! Reads many requests at once.

use std::collections::VecDeque;
use std::sync::Arc;

use super::lock_info::LockInfo;
use crate::client::{Call, Stat};
use crate::error::{Operation, Result, ZkError, ZkResult};
use crate::recipe::is_directory;
use crate::recipe::path::ZNodePath;
use crate::session::Core;

/// The number of requests to read at once. A blocking client makes twice as many calls at once, so the other
/// half is left for the rest of the session's work.
pub(super) const AT_ONCE: usize = 8;

/// Reads requests, and returns those that still exist, in the same order.
pub(super) fn read_all(core: &Arc<Core>, requests: &[ZNodePath]) -> Result<Vec<LockInfo>> {
    let mut infos = Vec::with_capacity(requests.len());
    let mut under_way = VecDeque::with_capacity(AT_ONCE);
    let mut requests = requests.iter();
    loop {
        let free = AT_ONCE - under_way.len();
        let begin = |request| (request, core.begin_ask(Call::get_data(request, false), ()));
        under_way.extend(requests.by_ref().take(free).map(begin));
        let Some((request, data)) = under_way.pop_front() else { return Ok(infos) };
        let info = info_of(core, request, data.wait(core));
        infos.extend(info.map_err(|error| core.failure(Operation::READ, request, error))?);
    }
}

/// Reads one request. Returns `None` if it no longer exists.
pub(super) fn read_one(core: &Arc<Core>, request: &ZNodePath) -> ZkResult<Option<LockInfo>> {
    info_of(core, request, core.ask(Call::get_data(request, false)))
}

/// Makes a [`LockInfo`] from the reply to a read. Without READ permission, the result has only the name and perhaps the
/// metadata. Returns `None` for a directory.
fn info_of(
    core: &Arc<Core>,
    request: &ZNodePath,
    data: ZkResult<(Vec<u8>, Stat)>,
) -> ZkResult<Option<LockInfo>> {
    match data {
        Ok((_, stat)) if is_directory(&stat) => Ok(None),
        Ok((data, stat)) => Ok(Some(LockInfo::new(request, data, &stat))),
        Err(ZkError::NoNode) => Ok(None),
        Err(ZkError::NoAuth) => LockInfo::without_data(request, core.ask(Call::exists(request, false))),
        Err(error) => Err(error),
    }
}
