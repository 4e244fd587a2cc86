//! [`ModelConnection`]: a connection to the simulated server.

use std::sync::atomic::{AtomicI64, Ordering};

use super::seen::Seen;
use crate::client::Reply;
use crate::error::ZkResult;
use crate::fake::{ServedConnection, SimulatedZooKeeper};
use zookeeper_connection::codec::{Control, Request};

static LAST_NUMBER: AtomicI64 = AtomicI64::new(0);

pub(super) struct ModelConnection {
    zookeeper: SimulatedZooKeeper,
    connection: ServedConnection,
    session: i64,
}

impl ModelConnection {
    /// Resumes a session. Returns `None` if the server does not know the session.
    pub(super) fn open(zookeeper: &SimulatedZooKeeper, session: i64) -> Option<ModelConnection> {
        if !zookeeper.sessions().contains(&session) {
            return None;
        }
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        let connection = ServedConnection::open(zookeeper, number, session);
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
            Request::Call(call) if call.is_write() => self.connection.write(call),
            Request::Call(call) => self.connection.read(call, None),
            Request::Control(control) => self.obey(control, seen).map(|()| Reply::Done),
        };
        Seen::reply(reply)
    }

    fn obey(&self, control: &Control<'_>, seen: &mut Vec<Seen>) -> ZkResult<()> {
        match control {
            Control::RemoveWatches { path } => self.connection.remove_watches(path)?,
            // No client in these tests uses SASL.
            Control::Ping | Control::Barrier { .. } | Control::Sasl { .. } => {}
            Control::Auth { scheme, auth } => {
                self.connection.authenticate(scheme, &String::from_utf8_lossy(auth));
            }
            Control::SetWatches { relative_zxid, data, exist, child } => {
                for event in self.connection.set_watches(*relative_zxid, [data, exist, child], None) {
                    seen.push(Seen::Event(event.kind, event.path));
                }
            }
            Control::Close => self.zookeeper.expire_session(self.session),
        }
        Ok(())
    }
}
