//! [`Watches`]: the watches of the session, which are set again on each new connection.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::codec::Control;

/// The maximum total length of the paths in one request that sets watches again, as in Java's client.
const MAX_PATHS_LENGTH: usize = 128 * 1024;

/// The bytes of such a request without its paths: two numbers, a transaction and three counts.
const REST: usize = 2 * 4 + 8 + 3 * 4;

/// The table in which a server keeps a watch. The order is that of [`Control::SetWatches`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Table {
    /// Watches on the data and the deletion of a znode.
    Data,
    /// Watches on the creation of a znode.
    Existence,
    /// Watches on the children of a znode.
    Children,
}

const TABLES: usize = 3;

/// The paths of each [`Table`]. The paths are sorted, so a seed replays a run exactly.
#[derive(Debug, Default)]
pub(super) struct Watches {
    tables: [BTreeSet<String>; TABLES],
}

impl Watches {
    pub(super) fn set(&mut self, table: Table, path: String) {
        self.tables[table as usize].insert(path);
    }

    /// Removes a watch that has fired.
    pub(super) fn remove_fired(&mut self, tables: &[Table], path: &str) {
        for table in tables {
            self.tables[*table as usize].remove(path);
        }
    }

    /// Forgets the watches on a path. Returns whether there were any.
    pub(super) fn remove(&mut self, path: &str) -> bool {
        let mut any = false;
        for paths in &mut self.tables {
            any |= paths.remove(path);
        }
        any
    }

    /// Returns the requests that set all watches again, none of them longer than `max_length`. They make the server
    /// report the events since `zxid`. The call that set a watch was short enough for this request, too.
    pub(super) fn to_set_again(&self, zxid: i64, max_length: usize) -> Vec<Control<'_>> {
        let max_paths = max_length.saturating_sub(REST).min(MAX_PATHS_LENGTH);
        let tables = self.tables.iter().enumerate();
        let all = tables.flat_map(|(table, paths)| paths.iter().map(move |path| (table, path)));
        let mut requests = Vec::new();
        let mut chunk = Chunk::default();
        for (table, path) in all {
            let length = path.len() + size_of::<i32>();
            if chunk.length > 0 && chunk.length + length > max_paths {
                requests.push(std::mem::take(&mut chunk).into_request(zxid));
            }
            chunk.length += length;
            chunk.tables[table].push(Cow::Borrowed(path));
        }
        if chunk.length > 0 {
            requests.push(chunk.into_request(zxid));
        }
        requests
    }
}

#[derive(Default)]
struct Chunk<'a> {
    length: usize,
    tables: [Vec<Cow<'a, str>>; TABLES],
}

impl<'a> Chunk<'a> {
    fn into_request(self, zxid: i64) -> Control<'a> {
        let [data, exist, child] = self.tables;
        Control::SetWatches { relative_zxid: zxid, data, exist, child }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fired_watch_is_not_set_again() {
        let mut watches = Watches::default();
        watches.set(Table::Data, "/a".to_owned());
        watches.set(Table::Children, "/a".to_owned());
        watches.remove_fired(&[Table::Data, Table::Existence], "/a");
        let again = watches.to_set_again(5, usize::MAX);
        let [Control::SetWatches { relative_zxid: 5, data, exist, child }] = again.as_slice() else {
            panic!("{again:?}");
        };
        assert!(data.is_empty() && exist.is_empty());
        assert_eq!(child, &["/a"]);
    }

    #[test]
    fn without_watches_there_is_no_request() {
        let mut watches = Watches::default();
        watches.set(Table::Existence, "/a".to_owned());
        watches.remove_fired(&[Table::Existence], "/a");
        assert!(watches.to_set_again(1, usize::MAX).is_empty());
    }

    #[test]
    fn many_watches_are_set_again_in_several_requests() {
        let mut watches = Watches::default();
        for number in 0..10_000 {
            let table = [Table::Data, Table::Existence, Table::Children][number % 3];
            watches.set(table, format!("/a/long/directory/of/locks/x-lock-{number:010}"));
        }
        // A server's limit does not include the four bytes of the length.
        for (max_length, longest) in [(4096, 4096), (usize::MAX, MAX_PATHS_LENGTH + REST)] {
            let mut seen = 0;
            for request in watches.to_set_again(1, max_length) {
                let Control::SetWatches { data, exist, child, .. } = &request else { panic!("{request:?}") };
                seen += data.len() + exist.len() + child.len();
                let mut frame = Vec::new();
                request.encode(-8, &mut frame);
                assert!(frame.len() - 4 <= longest, "{}", frame.len());
            }
            assert_eq!(seen, 10_000);
        }
    }

    #[test]
    fn requests_that_set_watches_again_are_filled_up() {
        let mut watches = Watches::default();
        // Each path takes sixteen bytes.
        (0..MAX_PATHS_LENGTH / 16).for_each(|number| watches.set(Table::Data, format!("/{number:011}")));
        assert_eq!(watches.to_set_again(1, usize::MAX).len(), 1);
        watches.set(Table::Data, "/b".to_owned());
        assert_eq!(watches.to_set_again(1, usize::MAX).len(), 2);
    }
}
