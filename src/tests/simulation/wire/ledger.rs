//! [`Ledger`]: what a client must know of its session, given the frames that it has received. The servers
//! compare it with what the client sends.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::fake::Fired;
use zookeeper_connection::codec::EventKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Data,
    Existence,
    Children,
}

/// The watches of a session, by table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Watched([BTreeSet<String>; 3]);

impl Watched {
    fn add(&mut self, table: Table, path: String) {
        self.0[table as usize].insert(path);
    }

    fn fire(&mut self, fired: &Fired) {
        let tables: &[Table] = match fired.kind {
            EventKind::Created | EventKind::DataChanged => &[Table::Data, Table::Existence],
            EventKind::Deleted => &[Table::Data, Table::Existence, Table::Children],
            EventKind::ChildrenChanged => &[Table::Children],
            EventKind::Other(_) => &[],
        };
        for table in tables {
            self.0[*table as usize].remove(&fired.path);
        }
    }

    /// Removes the watches on a path. Returns whether there were any.
    pub(super) fn remove(&mut self, path: &str) -> bool {
        self.0.iter_mut().filter_map(|table| table.take(path)).count() > 0
    }

    /// Adds the paths of a message that sets watches again.
    pub(super) fn add_all(&mut self, lists: [&[Cow<'_, str>]; 3]) {
        for (table, paths) in self.0.iter_mut().zip(lists) {
            table.extend(paths.iter().map(|path| path.clone().into_owned()));
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// The id of the session; zero until a server has opened it.
    pub(super) session: i64,
    /// The shortest session timeout that was ever granted to the session.
    pub(super) granted: Duration,
    /// The highest transaction in a reply to an ordinary request.
    pub(super) zxid: i64,
    /// The highest transaction in such a reply or an event.
    pub(super) seen_zxid: i64,
    pub(super) watched: Watched,
}

/// What a server's frame means for the client.
#[derive(Clone, Debug)]
pub(super) enum Meaning {
    /// The session was opened, or taken up again.
    Served {
        session: i64,
        granted: Duration,
    },
    Reply {
        zxid: i64,
        watch: Option<(Table, String)>,
    },
    /// The ensemble declines a request. A client that needs the answer before it goes on leaves the connection, and
    /// is not served.
    Declined,
    Event {
        zxid: i64,
        fired: Fired,
    },
    /// A SASL token, or the end of the exchange.
    Token,
    /// The server refuses the client by SASL, or because authentication is missing.
    Refusal,
    /// The client must leave this connection.
    Garbage,
}

impl Ledger {
    /// Applies a frame. Returns whether the client must leave the connection.
    pub(super) fn take_up(&mut self, meaning: Meaning) -> bool {
        match meaning {
            Meaning::Served { session, granted } => {
                let is_new = std::mem::replace(&mut self.session, session) != session;
                self.granted = if is_new { granted } else { granted.min(self.granted) };
            }
            Meaning::Reply { zxid, watch } => {
                self.zxid = self.zxid.max(zxid);
                self.seen_zxid = self.seen_zxid.max(zxid);
                if let Some((table, path)) = watch {
                    self.watched.add(table, path);
                }
            }
            Meaning::Event { zxid, fired } => {
                self.seen_zxid = self.seen_zxid.max(zxid);
                self.watched.fire(&fired);
            }
            Meaning::Token | Meaning::Declined => {}
            Meaning::Refusal | Meaning::Garbage => return true,
        }
        false
    }
}
