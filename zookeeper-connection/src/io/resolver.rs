//! [`Resolver`]: resolves names on short-lived threads, because name resolution blocks.
//!
//! There is at most one thread per name, because the [machine](crate::machine) does not ask for a name again
//! before the last answer has arrived. If the name service keeps a thread waiting, neither the I/O thread nor another
//! lookup waits for that thread. The thread ends when the answer arrives, even if the connection has ended by then.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};
use mio::Waker;

use crate::machine::Lookup;
use crate::support::panics;

/// Resolves a host and a port to addresses. May block for any length of time.
pub(crate) type NameService = Arc<dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

/// Returns the name service of the system.
pub(crate) fn system() -> NameService {
    Arc::new(|host, port| Ok((host, port).to_socket_addrs()?.collect()))
}

/// The position of a server in the list, and the answer for it.
pub(crate) type Answer = (usize, Result<Vec<SocketAddr>, String>);

pub(crate) struct Resolver {
    names: NameService,
    answer: Sender<Answer>,
    answers: Receiver<Answer>,
    waker: Arc<Waker>,
}

impl Resolver {
    /// Creates a resolver that calls `waker` on each answer.
    pub(crate) fn new(names: NameService, waker: Arc<Waker>) -> Resolver {
        let (answer, answers) = unbounded();
        Resolver { names, answer, answers, waker }
    }

    pub(crate) fn resolve(&self, lookup: Lookup) {
        let server = lookup.server;
        let (names, answer, waker) = (Arc::clone(&self.names), self.answer.clone(), Arc::clone(&self.waker));
        let thread = thread::Builder::new().name("zk-resolve".to_owned());
        let spawned = thread.spawn(move || {
            let resolved = panics::contain(|| names(&lookup.host, lookup.port));
            let resolved = resolved.and_then(|answer| answer.map_err(|error| error.to_string()));
            // This fails once the connection has ended.
            if answer.send((server, resolved)).is_ok() {
                let _ = waker.wake();
            }
        });
        if let Err(error) = spawned {
            let _ = self.answer.send((server, Err(error.to_string())));
            let _ = self.waker.wake();
        }
    }

    pub(crate) fn next_answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}
