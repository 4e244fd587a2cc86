//! [`ModelConnection`]: a connection to the simulated server.

use std::sync::atomic::{AtomicI64, Ordering};

use super::seen::Seen;
use crate::connection::codec::{Reply, Request};
use crate::fake::{Connection, SimulatedZooKeeper};

static LAST_NUMBER: AtomicI64 = AtomicI64::new(0);

pub(super) struct ModelConnection {
    zookeeper: SimulatedZooKeeper,
    connection: Connection,
    session: i64,
}

impl ModelConnection {
    /// Takes up a session. `None` if the server does not know it.
    pub(super) fn open(zookeeper: &SimulatedZooKeeper, session: i64) -> Option<ModelConnection> {
        if !zookeeper.sessions().contains(&session) {
            return None;
        }
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        let connection = Connection::open(zookeeper, number, session);
        Some(ModelConnection { zookeeper: zookeeper.clone(), connection, session })
    }

    pub(super) fn make(&mut self, requests: &[Request<'_>]) -> Vec<Seen> {
        let mut seen = Vec::new();
        for request in requests {
            let reply = self.answer(request, &mut seen);
            while let Some(event) = self.connection.take_event() {
                seen.push(Seen::Event(event.kind, event.path));
            }
            seen.push(reply);
        }
        seen
    }

    fn answer(&self, request: &Request<'_>, seen: &mut Vec<Seen>) -> Seen {
        let reply = match request {
            Request::Ping => Ok(Reply::Empty),
            Request::Auth { scheme, auth } => {
                self.connection.authenticate(scheme, &String::from_utf8_lossy(auth));
                Ok(Reply::Empty)
            }
            Request::SetWatches { relative_zxid, data, exist, child } => {
                for event in self.connection.set_watches(*relative_zxid, [data, exist, child], None) {
                    seen.push(Seen::Event(event.kind, event.path));
                }
                Ok(Reply::Empty)
            }
            Request::Close => {
                self.zookeeper.expire_session(self.session);
                Ok(Reply::Empty)
            }
            Request::Create { .. } | Request::Delete { .. } | Request::SetData { .. } | Request::Multi(_) => {
                self.connection.write(request)
            }
            read => self.connection.read(read, None),
        };
        Seen::reply(reply)
    }
}
