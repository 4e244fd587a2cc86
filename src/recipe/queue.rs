//! Decides whether a request owns the lock or which request it watches, from nothing but the names of a lock
//! directory's children.
//!
//! Origin: steps 3 and 4 of ZooKeeper's recipes for locks and for shared locks, and
//! `LockZooKeeperOperation.execute` in the Java class `WriteLock`. [`decide`] makes one pass over the children, without
//! sorting.

use std::cmp::Reverse;

use super::access::Access;
use super::counter::{distance_ahead, is_in_doubt, is_ordered};
use super::kind::LockKind;
use super::permit::decide_permit;
use super::znode_name::generated_sequence;
use zookeeper_connection::Names;

/// What a lock directory's children mean for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision<'a> {
    /// No request that excludes this one is ahead.
    Owner,
    /// This child is the nearest one ahead that excludes this request. The request waits for no other child.
    WaitFor(&'a str),
    /// At least as many requests are ahead as there are permits. Any of them may be the next to
    /// leave, so watch the directory's children.
    Full,
    /// The request's own znode is not among the children.
    Missing,
    /// Another request excludes this one, and their numbers do not define which of the two came first, because they are
    /// at the [end of the counter](super::counter).
    Exhausted,
}

/// Decides for a request, from the children that exclude it.
///
/// A request whose number is in order owns the lock if no child that excludes it is ahead; otherwise it waits for the
/// nearest one ahead. A request whose number is [in doubt](super::counter) owns the lock if no child excludes it at
/// all. Otherwise, it waits if all children that exclude it are in order and ahead, and fails if not.
pub(crate) fn decide<'a, N: AsRef<str> + ?Sized + 'a>(
    access: Access,
    own: &str,
    children: impl IntoIterator<Item = &'a N>,
) -> Decision<'a> {
    if let Some(permits) = access.permits() {
        return decide_permit(permits, own, children);
    }
    let Some(sequence) = generated_sequence(own) else { return Decision::Missing };
    let in_doubt = is_in_doubt(sequence);
    let mut present = false;
    let mut exhausted = false;
    let mut nearest: Option<(u32, &str)> = None;
    for child in children {
        let child = child.as_ref();
        if child == own {
            present = true;
            continue;
        }
        let Some(theirs) = generated_sequence(child).filter(|_| access.waits_for(child)) else { continue };
        let distance = distance_ahead(sequence, theirs);
        // A downgraded reader has the number of its writer. For every other request, the two are both ahead or both
        // behind.
        let is_ahead = match distance {
            0 | HALF_CIRCLE => child < own,
            _ => distance < HALF_CIRCLE,
        };
        exhausted |= in_doubt && (!is_ahead || is_in_doubt(theirs));
        if is_ahead && nearest.is_none_or(|found| (distance, found.1) < (found.0, child)) {
            nearest = Some((distance, child));
        }
    }
    match nearest {
        _ if !present => Decision::Missing,
        _ if exhausted => Decision::Exhausted,
        None => Decision::Owner,
        Some((_, child)) => Decision::WaitFor(child),
    }
}

/// What a waiting exclusive request can expect when its predecessor leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlook<'a> {
    /// Only the predecessor is ahead, and no other request can take the predecessor's place. So once the predecessor is
    /// deleted, nobody is ahead.
    Next,
    /// This child is the nearest one ahead of the predecessor.
    Behind(&'a str),
    /// Another request with the predecessor's number may take its place, or the numbers do not define an order.
    Unclear,
}

impl<'a> Outlook<'a> {
    /// Returns the outlook of a request, from the two nearest requests ahead.
    fn of(own: i32, nearest: Option<&str>, second: Option<&'a str>) -> Outlook<'a> {
        match (nearest, second) {
            _ if !is_ordered(own) => Outlook::Unclear,
            (_, Some(second)) => Outlook::Behind(second),
            (Some(nearest), None) if is_irreplaceable(nearest) => Outlook::Next,
            _ => Outlook::Unclear,
        }
    }
}

/// Returns the outlook of an exclusive request, from the children.
pub(crate) fn outlook<'a, N: AsRef<str> + ?Sized + 'a>(
    own: &str,
    children: impl IntoIterator<Item = &'a N>,
) -> Outlook<'a> {
    let Some(sequence) = generated_sequence(own) else { return Outlook::Unclear };
    // If two requests have the same number, the one with the larger name is nearer, as in `decide`.
    let mut nearest: Option<(u32, Reverse<&str>)> = None;
    let mut second: Option<(u32, Reverse<&str>)> = None;
    for child in children.into_iter().map(AsRef::as_ref).filter(|child| *child != own) {
        let Some(theirs) = generated_sequence(child) else { continue };
        if !is_ordered(theirs) {
            return Outlook::Unclear;
        }
        let found = (distance_ahead(sequence, theirs), Reverse(child));
        if found.0 >= HALF_CIRCLE || (found.0 == 0 && child > own) {
            continue;
        }
        if nearest.is_none_or(|nearest| found < nearest) {
            second = nearest.replace(found);
        } else if second.is_none_or(|second| found < second) {
            second = Some(found);
        }
    }
    Outlook::of(sequence, nearest.map(|(_, name)| name.0), second.map(|(_, name)| name.0))
}

/// Returns whether no other request can get the number of this one. A writer may become a reader with the same number,
/// and nobody knows what clients of unknown kinds do. With kazoo's names, writers and exclusive requests look alike.
fn is_irreplaceable(name: &str) -> bool {
    LockKind::of(name) == Some(LockKind::Exclusive) && !name.contains("__lock__")
}

/// A sorted listing, from which many requests of one kind decide.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ordered {
    access: Access,
    /// The numbers of the requests, each with the position of its name in the listing.
    requests: Vec<(i32, usize)>,
    /// The positions, in `requests`, of the requests that exclude a request of this kind.
    excluding: Vec<usize>,
}

impl Ordered {
    /// Sorts a listing. Returns `None` if it contains numbers that are negative or [in doubt](super::counter).
    pub(crate) fn of(children: &Names, access: Access) -> Option<Ordered> {
        let numbered = |(position, child): (usize, _)| Some((generated_sequence(child)?, position));
        let mut requests: Vec<_> = children.iter().enumerate().filter_map(numbered).collect();
        if requests.iter().any(|(sequence, _)| !is_ordered(*sequence)) {
            return None;
        }
        requests.sort_unstable_by_key(|(sequence, position)| (*sequence, children.get(*position)));
        let excludes =
            |(_, position): &(i32, usize)| children.get(*position).is_some_and(|name| access.waits_for(name));
        let positions = requests.iter().enumerate().filter(|(_, request)| excludes(request));
        let excluding = positions.map(|(position, _)| position).collect();
        Some(Ordered { access, requests, excluding })
    }

    /// Returns whether this listing was sorted for requests of this kind.
    pub(crate) fn serves(&self, access: Access) -> bool {
        self.access == access
    }

    /// [Decides](decide) for a request of this kind. `children` must be the listing that was sorted.
    pub(crate) fn decide<'a>(&self, own: &str, children: &'a Names) -> Decision<'a> {
        match self.nearest_ahead(own, children) {
            None => Decision::Missing,
            Some([None, _]) => Decision::Owner,
            Some([Some(nearest), _]) => Decision::WaitFor(nearest),
        }
    }

    /// Returns the [outlook](outlook) of an exclusive request.
    pub(crate) fn outlook<'a>(&self, own: &str, children: &'a Names) -> Outlook<'a> {
        match (generated_sequence(own), self.nearest_ahead(own, children)) {
            (Some(sequence), Some([nearest, second])) => Outlook::of(sequence, nearest, second),
            _ => Outlook::Unclear,
        }
    }

    /// Returns the two nearest requests ahead, or `None` if the request itself is missing.
    fn nearest_ahead<'a>(&self, own: &str, children: &'a Names) -> Option<[Option<&'a str>; 2]> {
        let name = |position: usize| children.get(position).unwrap_or_default();
        let sequence = generated_sequence(own)?;
        let found = self
            .requests
            .binary_search_by_key(&(sequence, own), |(sequence, position)| (*sequence, name(*position)));
        let index = found.ok()?;
        let count = self.excluding.partition_point(|excluding| *excluding < index);
        let ahead = |distance: usize| {
            let (_, position) = self.requests.get(*self.excluding.get(count.checked_sub(distance)?)?)?;
            Some(name(*position))
        };
        Some([ahead(1), ahead(2)])
    }
}

/// A number at a greater distance is behind. At exactly this distance, each of two numbers is as far ahead of the other
/// as behind it, so the names decide. Of any two requests, therefore, one is ahead, whatever names other clients put
/// into the directory.
pub(super) const HALF_CIRCLE: u32 = 1 << 31;

/// Returns how many requests are ahead of this one.
pub(crate) fn count_ahead<'a>(own: &str, children: impl IntoIterator<Item = &'a str>) -> usize {
    let Some(sequence) = generated_sequence(own) else { return 0 };
    let is_ahead = |child: &&str| {
        let distance = generated_sequence(child).map(|theirs| distance_ahead(sequence, theirs));
        distance.is_some_and(|distance| distance > 0 && distance < HALF_CIRCLE)
    };
    children.into_iter().filter(is_ahead).count()
}

/// Finds the child that a request created with this prefix, after the reply to the create was lost.
pub(crate) fn find_own<'a, N: AsRef<str> + ?Sized + 'a>(
    prefix: &str,
    children: impl IntoIterator<Item = &'a N>,
) -> Option<&'a str> {
    children.into_iter().map(N::as_ref).find(|child| child.starts_with(prefix))
}

/// Returns whether another request is in the queue of an exclusive owner. All others are behind the owner.
pub(crate) fn has_waiter<'a>(own: &str, children: impl IntoIterator<Item = &'a str>) -> bool {
    children.into_iter().any(|child| child != own && generated_sequence(child).is_some())
}

#[cfg(test)]
mod tests;
