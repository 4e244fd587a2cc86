//! [`ServerMemory`]: what connections have learnt of servers, for the connections that follow.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::support::lock_order::{Mutex, rank::SERVERS};
use crate::support::process::PerProcess;

/// What connections have learnt of servers.
///
/// Clones share what they know. Set the same memory in the [options](crate::ConnectionOptions) of all connections to an
/// ensemble. An attempt to connect then goes on where the last one ended: it tries servers that were silent last, and
/// knows the addresses of names before the name service answers.
///
/// The memory decides which address is tried first. If the name service does not answer, it also decides where a new
/// session may be opened: at an address that the name had before. In a forked child, the memory is empty.
#[derive(Clone)]
pub struct ServerMemory {
    /// Of each process, because a thread that does not exist in a forked child may hold the mutex.
    known: Arc<PerProcess<Mutex<SERVERS, Known>>>,
}

/// Why an address was not useful when it was last tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    /// It refused the connection or the session, which costs an attempt a round trip.
    Refusing,
    /// It answered nothing, or served no call, which costs an attempt a large part of the session timeout.
    Silent,
}

#[derive(Default)]
struct Known {
    /// The addresses of each server that is given by name, from the last answer of the name service.
    addresses: HashMap<String, Vec<SocketAddr>>,
    troubles: HashMap<SocketAddr, Trouble>,
    /// The address that most recently served a session.
    last: Option<SocketAddr>,
}

impl ServerMemory {
    /// Creates an empty memory.
    #[must_use]
    pub fn new() -> ServerMemory {
        let known = PerProcess::new();
        // Made now, because a child that is forked while another thread makes it would be stuck.
        let _: &Mutex<SERVERS, Known> = known.get_or_make(Mutex::default);
        ServerMemory { known: Arc::new(known) }
    }

    fn known(&self) -> &Mutex<SERVERS, Known> {
        self.known.get_or_make(Mutex::default)
    }

    /// Returns the last known addresses of a server that is given by name.
    pub(super) fn addresses(&self, server: &str) -> Vec<SocketAddr> {
        self.known().lock().addresses.get(server).cloned().unwrap_or_default()
    }

    /// Notes the addresses of a server that is given by name. Forgets everything about its other addresses.
    pub(super) fn set_addresses(&self, server: &str, addresses: &[SocketAddr]) {
        let mut known = self.known().lock();
        let former = known.addresses.insert(server.to_owned(), addresses.to_vec()).unwrap_or_default();
        for gone in former.iter().filter(|address| !addresses.contains(address)) {
            known.troubles.remove(gone);
        }
    }

    /// Forgets an address of a server that is given by name, until the name service answers with it again.
    pub(super) fn forget_address(&self, server: &str, address: SocketAddr) {
        let mut known = self.known().lock();
        if let Some(addresses) = known.addresses.get_mut(server) {
            addresses.retain(|known| *known != address);
        }
        known.troubles.remove(&address);
    }

    pub(super) fn trouble(&self, address: SocketAddr) -> Option<Trouble> {
        self.known().lock().troubles.get(&address).copied()
    }

    pub(super) fn set_trouble(&self, address: SocketAddr, trouble: Trouble) {
        self.known().lock().troubles.insert(address, trouble);
    }

    pub(super) fn forget_trouble(&self, address: SocketAddr) {
        self.known().lock().troubles.remove(&address);
    }

    pub(super) fn last(&self) -> Option<SocketAddr> {
        self.known().lock().last
    }

    pub(super) fn set_last(&self, address: SocketAddr) {
        self.known().lock().last = Some(address);
    }
}

impl Default for ServerMemory {
    fn default() -> ServerMemory {
        ServerMemory::new()
    }
}

impl fmt::Debug for ServerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerMemory").finish_non_exhaustive()
    }
}
