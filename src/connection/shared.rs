//! [`Shared`]: the machine and its transport, which the callers and the I/O thread share.
//!
//! One mutex guards all of it. A caller's request goes from the machine straight to the socket, as
//! long as the socket takes it. Whatever else may follow from a call is left to the I/O thread,
//! which is woken if it sleeps: actions, errors of the socket, an earlier deadline.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::process;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use mio::{Registry, Waker};

use super::exchange::Continuation;
use super::machine::{Action, Event, Machine};
use super::servers::{Destination, Servers};
use super::transport::Transport;
use crate::client::{EventSink, Granted};
use crate::connection::codec::Request;
use crate::error::ZkError;
use crate::lock_order::{Mutex, MutexGuard, rank::CONNECTION};
use crate::time::{Clock, Moment, SystemClock};

/// The actions for the I/O thread, each with the number of the link at its time.
pub(super) type Actions = VecDeque<(u64, Action<Continuation>)>;

/// The largest number of reads of a transport in sequence. Then the callers get the mutex.
const MAX_READS: usize = 16;

/// The likely reasons why a server has closed a connection: if it served before, and if none has served yet.
const CLOSED: &str = "the server closed the connection, it may not be serving";
const CLOSED_AT_FIRST: &str = "the server closed the connection, it may not be serving, or expects TLS";

pub(super) struct Shared {
    io: Mutex<CONNECTION, Io>,
    waker: Arc<Waker>,
    /// The process that opened the connection. One that it forks has no I/O thread, and must not
    /// use the socket.
    process: u32,
    /// Disconnected when the I/O thread has ended.
    pub(super) ended: Receiver<Infallible>,
}

/// See the [module](self).
pub(super) struct Io {
    /// `None` once the I/O thread has ended.
    pub(super) machine: Option<Machine<Continuation>>,
    pub(super) servers: Servers,
    link: Option<Link>,
    /// Counts the transports that the machine has asked for or given up.
    pub(super) link_number: u64,
    actions: Actions,
    registry: Registry,
    /// The transport may have more to read.
    has_more: bool,
    /// An attempt waits for a name to be resolved, until this moment if there is one.
    pub(super) waits_for_name: Option<Option<Moment>>,
    /// The I/O thread sleeps until then.
    asleep_until: Option<Moment>,
    pub(super) status: Status,
}

/// A transport that is in use, or is being opened.
struct Link {
    transport: Transport,
    target: Destination,
    write_error: Option<io::Error>,
}

/// The application's view of the connection. Follows the events that it receives.
pub(super) struct Status {
    pub(super) sink: Option<EventSink>,
    pub(super) contact: ContactState,
    pub(super) granted: Granted,
    pub(super) session_id: i64,
    /// The server of the last contact.
    pub(super) server: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContactState {
    Disconnected,
    Connected,
    /// The session cannot come back.
    Lost,
    /// By this process.
    Closed,
}

impl Shared {
    pub(super) fn new(io: Io, waker: Arc<Waker>, ended: Receiver<Infallible>) -> Shared {
        Shared { io: Mutex::new(io), waker, process: process::id(), ended }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, CONNECTION, Io> {
        self.io.lock()
    }

    /// Submits requests, which leave in one write if the socket takes them. Their outcomes come in
    /// the same order. Once the session has ended, they fail here with `SessionExpired`.
    pub(super) fn submit<const N: usize>(&self, requests: [(Request<'_>, Continuation); N]) {
        // Called without the mutex: a continuation may do and own anything.
        let mut refused = Vec::new();
        if self.is_in_its_process() {
            self.call(|io| {
                let now = SystemClock.now();
                for (request, continuation) in requests {
                    match &mut io.machine {
                        Some(machine) => refused.extend(machine.submit(now, &request, continuation).err()),
                        None => refused.push(continuation),
                    }
                }
            });
        } else {
            refused.extend(requests.into_iter().map(|(_, continuation)| continuation));
        }
        for continuation in refused {
            continuation.answered(Err(ZkError::SessionExpired));
        }
    }

    /// See [`Machine::remove_watches`].
    pub(super) fn remove_watches(&self, path: &str) {
        if self.is_in_its_process() {
            self.call(|io| {
                if let Some(machine) = &mut io.machine {
                    machine.remove_watches(path);
                }
            });
        }
    }

    /// Begins to close the session. No event is reported any more.
    pub(super) fn close(&self) {
        if !self.is_in_its_process() {
            return;
        }
        let sink = self.call(|io| {
            io.status.contact = ContactState::Closed;
            if let Some(machine) = &mut io.machine {
                machine.close(SystemClock.now());
            }
            io.status.sink.take()
        });
        // Without the mutex: it may be the last handle of anything.
        drop(sink);
    }

    pub(super) fn is_in_its_process(&self) -> bool {
        process::id() == self.process
    }

    /// Makes a caller's call, writes what it has left to write, and wakes the I/O thread if need be.
    fn call<T>(&self, code: impl FnOnce(&mut Io) -> T) -> T {
        let (result, wakes) = {
            let mut io = self.lock();
            let was_blocked = io.is_write_blocked();
            let result = code(&mut io);
            (result, io.after_call(was_blocked))
        };
        if wakes {
            // Fails only if the process has no memory for it. The I/O thread wakes every second.
            let _ = self.waker.wake();
        }
        result
    }
}

impl Io {
    pub(super) fn new(
        machine: Machine<Continuation>,
        servers: Servers,
        registry: Registry,
        granted: Granted,
    ) -> Io {
        let status = Status {
            sink: None,
            contact: ContactState::Disconnected,
            granted,
            session_id: 0,
            server: String::new(),
        };
        let mut io = Io {
            machine: Some(machine),
            servers,
            link: None,
            link_number: 0,
            actions: Actions::new(),
            registry,
            has_more: false,
            waits_for_name: None,
            asleep_until: None,
            status,
        };
        io.count_addresses();
        io
    }

    /// Returns whether a write has failed, which the next read reports.
    fn has_failed(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.write_error.is_some())
    }

    // ---- the callers

    /// Returns whether an earlier write waits for the socket. Then the I/O thread continues it.
    fn is_write_blocked(&mut self) -> bool {
        self.machine.as_mut().is_some_and(|machine| !machine.outgoing().is_empty())
    }

    /// Writes what a call has left to write. Returns whether the I/O thread is to be woken.
    fn after_call(&mut self, was_blocked: bool) -> bool {
        if !was_blocked {
            self.flush();
        }
        let Some(asleep_until) = self.asleep_until else { return false };
        let Some(machine) = &self.machine else { return false };
        let wakes = self.has_failed()
            || machine.has_actions()
            || machine.deadline().is_some_and(|deadline| deadline < asleep_until);
        if wakes {
            self.asleep_until = None;
        }
        wakes
    }

    // ---- the I/O thread

    /// The address of the present transport.
    pub(super) fn target(&self) -> Option<Destination> {
        self.link.as_ref().map(|link| link.target)
    }

    /// Exchanges the actions to carry out for an empty queue, whose memory is used again.
    pub(super) fn take_actions(&mut self, empty: &mut Actions) {
        self.collect("the connection was given up");
        std::mem::swap(&mut self.actions, empty);
    }

    /// Takes what the end of the I/O thread leaves behind, to be dropped without the mutex: it owns
    /// continuations.
    pub(super) fn take_rest(&mut self) -> impl Sized + use<> {
        self.drop_link("the connection has ended");
        (self.machine.take(), std::mem::take(&mut self.actions))
    }

    /// Prepares for sleep and returns when it ends, or `None` if there is work.
    pub(super) fn fall_asleep(&mut self, others: Option<Moment>) -> Option<Moment> {
        let machine = self.machine.as_ref()?;
        if self.has_more || self.has_failed() || machine.has_actions() || !self.actions.is_empty() {
            return None;
        }
        let deadlines = [machine.deadline(), self.waits_for_name.flatten(), others];
        let until = deadlines.into_iter().flatten().min().unwrap_or(Moment::from_nanos(u64::MAX));
        self.asleep_until = Some(until);
        Some(until)
    }

    /// Handles what has happened during the sleep.
    pub(super) fn wake_up(&mut self, link_is_ready: bool, buffer: &mut [u8]) {
        self.asleep_until = None;
        if link_is_ready || self.has_more || self.has_failed() {
            self.exchange(buffer);
        }
        let now = SystemClock.now();
        if let Some(machine) = &mut self.machine {
            if machine.deadline().is_some_and(|deadline| deadline <= now) {
                machine.timer(now);
            }
        }
        self.collect("no answer");
        self.flush();
        if self.waits_for_name.flatten().is_some_and(|until| until <= now) {
            self.open_again();
        }
    }

    /// Takes the answer of the name service.
    pub(super) fn resolved(&mut self, server: usize, answer: io::Result<Vec<std::net::SocketAddr>>) {
        self.servers.resolved(server, answer);
        self.count_addresses();
        if self.waits_for_name.is_some() {
            self.open_again();
        }
    }

    /// The machine makes a pause after as many attempts as there are addresses.
    fn count_addresses(&mut self) {
        if let Some(machine) = &mut self.machine {
            machine.set_addresses(self.servers.address_count());
        }
    }

    fn open_again(&mut self) {
        self.waits_for_name = None;
        self.actions.push_back((self.link_number, Action::Open));
    }

    /// Uses a transport that is being opened.
    pub(super) fn set_link(&mut self, transport: Transport, target: Destination) {
        self.link = Some(Link { transport, target, write_error: None });
    }

    /// Reports to the machine that there is no transport, or no longer.
    pub(super) fn fail(&mut self) {
        if let Some(machine) = &mut self.machine {
            machine.failed(SystemClock.now());
        }
    }

    /// Opens the transport further, reads what has arrived and writes what waits.
    fn exchange(&mut self, buffer: &mut [u8]) {
        self.has_more = false;
        let (Some(link), Some(machine)) = (&mut self.link, &mut self.machine) else { return };
        if !link.transport.is_open() {
            match link.transport.progress() {
                Ok(false) => return,
                Ok(true) => machine.opened(SystemClock.now()),
                Err(error) => return self.lose_link(&error.to_string()),
            }
            self.flush();
        }
        for _ in 0..MAX_READS {
            let (Some(link), Some(machine)) = (&mut self.link, &mut self.machine) else { return };
            match link.transport.read(buffer) {
                Ok(0) => {
                    let may_expect_tls = self.status.session_id == 0 && !link.transport.is_encrypted();
                    return self.lose_link(if may_expect_tls { CLOSED_AT_FIRST } else { CLOSED });
                }
                Ok(count) => {
                    machine.received(SystemClock.now(), &buffer[..count]);
                    self.flush();
                    self.collect("it refused the connection, or is no ZooKeeper server");
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(error) = link.write_error.take() {
                        self.lose_link(&error.to_string());
                    }
                    return;
                }
                Err(error) => return self.lose_link(&error.to_string()),
            }
        }
        self.has_more = true;
    }

    /// Writes what the socket takes now. An error is handled after the last reads, as they may
    /// explain it.
    fn flush(&mut self) {
        let (Some(link), Some(machine)) = (&mut self.link, &mut self.machine) else { return };
        if link.transport.is_open() && link.write_error.is_none() {
            link.write_error = link.transport.write(machine.outgoing()).err();
        }
    }

    fn lose_link(&mut self, why: &str) {
        self.drop_link(why);
        self.fail();
    }

    fn drop_link(&mut self, why: &str) {
        self.link_number += 1;
        self.waits_for_name = None;
        self.has_more = false;
        if let Some(link) = self.link.take() {
            self.servers.failed(link.target, why.to_owned());
            link.transport.close(&self.registry);
        }
    }

    /// Takes the machine's actions for the I/O thread. Transports that it gives up are closed at
    /// once, so that nothing more is written to them; `why` is logged.
    fn collect(&mut self, why: &str) {
        while let Some(action) = self.machine.as_mut().and_then(Machine::next_action) {
            match action {
                Action::Open | Action::Drop | Action::Ended => self.drop_link(why),
                Action::Event(Event::Connected { .. }) => {
                    if let Some(link) = &self.link {
                        self.servers.succeeded(link.target);
                    }
                }
                Action::Event(_) | Action::Reply(..) => {}
            }
            self.actions.push_back((self.link_number, action));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::machine::Config;
    use mio::Poll;
    use std::time::Duration;

    #[test]
    fn call_wakes_the_io_thread_only_for_an_earlier_deadline() {
        let session_timeout = Duration::from_secs(30);
        let config = Config { session_timeout, credentials: Vec::new(), max_frame: 1 << 20, seed: 1 };
        let machine = Machine::new(config, SystemClock.now());
        let servers = Servers::new(&["127.0.0.1:1".to_owned()], Duration::ZERO, 1);
        let registry = Poll::new().unwrap().registry().try_clone().unwrap();
        let mut io = Io::new(machine, servers, registry, Granted::new(session_timeout));
        io.take_actions(&mut Actions::new());
        let deadline = io.machine.as_ref().and_then(Machine::deadline).unwrap();
        io.asleep_until = Some(deadline);
        assert!(!io.after_call(false));
        assert_eq!(io.asleep_until, Some(deadline));
        io.asleep_until = Some(deadline.after(Duration::from_millis(1)));
        assert!(io.after_call(false));
        assert_eq!(io.asleep_until, None, "it is woken once");
    }
}
