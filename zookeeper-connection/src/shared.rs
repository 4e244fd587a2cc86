//! [`Shared`]: the machine and its transport, shared by the callers and the I/O thread.
//!
//! One mutex guards all of this. The calling thread writes as much of its request to the socket as the socket takes.
//! Everything else that follows from a call (actions, socket errors, an earlier deadline) is left to the I/O thread,
//! which is woken if it sleeps.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use mio::{Registry, Waker};

use crate::chroot::Chroot;
use crate::error::ZkError;
use crate::exchange::Continuation;
use crate::machine::{Action, Event, Machine, SaslStep, SessionLoss, UNKNOWN_AT_FORMER_ADDRESS};
use crate::memory::Trouble;
use crate::sasl::Prepared;
use crate::servers::{ANSWERS_NO_CALL, Destination, NextServer, Servers};
use crate::support::lock_order::{Mutex, MutexGuard, rank::CONNECTION};
use crate::support::process::Process;
use crate::time::{Clock, Moment, SystemClock};
use crate::transport::{Transport, refuses_certificate};
use crate::{Call, EventSink, Granted, Reply, ZkResult};

/// The actions for the I/O thread, each with the link number at the time of its creation.
pub(super) type Actions = VecDeque<(u64, Action<Continuation>)>;

/// The maximum number of reads from a transport in a row. After that many, the mutex is released for the callers.
const MAX_READS: usize = 16;

/// If an address does not answer within this fraction of the session timeout, the next one is tried in parallel. The
/// maximum is taken from RFC 8305.
const OVERLAP_DIVISOR: u32 = 40;
const MAX_OVERLAP: Duration = Duration::from_millis(250);

/// The likely reasons why a server has closed a connection.
const CLOSED: &str = "the server closed the connection; it may not be serving, or may have too many connections from \
     this machine (maxClientCnxns)";
/// The likely reasons if no server has served the session yet and the connection is not encrypted.
const CLOSED_AT_FIRST: &str = "the server closed the connection; it may not be serving, may expect TLS, or may have \
     too many connections from this machine (maxClientCnxns)";

/// The outcome of an attempt that was given up before its first SASL token was made.
pub(super) const NO_TOKEN: &str = "no ticket for the server in time; the KDC may not answer";

pub(super) struct Shared {
    io: Mutex<CONNECTION, Io>,
    /// The process that opened the connection. A forked child has no I/O thread, and must not use the socket.
    process: Process,
    /// Disconnected when the I/O thread has ended.
    pub(super) ended: Receiver<Infallible>,
}

/// See the [module](self).
pub(super) struct Io {
    /// `None` once the I/O thread has ended.
    pub(super) machine: Option<Machine<Continuation>>,
    pub(super) servers: Servers,
    link: Option<Link>,
    /// The transports that are being opened in parallel. The first one to open becomes the link. The others are closed,
    /// because only one server at a time may be asked to serve the session.
    opening: Vec<Link>,
    /// The addresses for which a first SASL token is being made. Once the token is ready, the transport is opened.
    preparing: Vec<Destination>,
    /// The addresses of servers to which a connection has failed because a certificate was refused.
    refusing: Vec<SocketAddr>,
    /// When to try another address in parallel.
    opens_another: Option<Moment>,
    /// Increases when the machine asks for a transport, and when a transport is given up or lost.
    pub(super) link_number: u64,
    actions: Actions,
    /// `None` once the I/O thread has ended, because connection handles that are kept longer must not keep the poll's
    /// descriptors open.
    poll: Option<PollHandle>,
    /// Whether the transport may have more to read.
    has_more: bool,
    /// `Some` while an attempt waits for a name to be resolved. The moment, if there is one, ends this wait.
    pub(super) waits_for_name: Option<Option<Moment>>,
    /// The moment until which the I/O thread sleeps.
    asleep_until: Option<Moment>,
    pub(super) status: Status,
}

/// The parts of the I/O thread's poll that a connection needs. Each part holds a file descriptor.
pub(super) struct PollHandle {
    pub(super) registry: Registry,
    pub(super) waker: Arc<Waker>,
}

/// A transport that is in use, or is being opened.
struct Link {
    transport: Transport,
    target: Destination,
    /// The SASL exchange on the transport, if the client uses SASL.
    sasl: Option<Prepared>,
    /// Whether the server serves the session on this transport.
    is_serving: bool,
    /// Whether the server has answered a call on this transport.
    has_answered: bool,
    write_error: Option<io::Error>,
}

/// The application's view of the connection. It changes with the events that the application receives.
pub(super) struct Status {
    pub(super) sink: Option<EventSink>,
    pub(super) contact: ContactState,
    pub(super) granted: Granted,
    pub(super) session_id: i64,
    /// The server of the current or last connection.
    pub(super) server: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContactState {
    Disconnected,
    Connected,
    /// The session cannot come back.
    Lost,
    /// This process has closed the session.
    Closed,
}

impl Shared {
    pub(super) fn new(io: Io, ended: Receiver<Infallible>) -> Shared {
        Shared { io: Mutex::new(io), process: Process::current(), ended }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, CONNECTION, Io> {
        self.io.lock()
    }

    /// Takes the mutex, except in a forked child, where a thread that does not exist there may hold it.
    pub(super) fn lock_here(&self) -> Option<MutexGuard<'_, CONNECTION, Io>> {
        self.is_in_its_process().then(|| self.lock())
    }

    /// Submits calls. They are sent in one write if the socket takes them all, and their outcomes come in the same
    /// order, unless one is denied early. If the session has ended or is being closed, or if this process is a forked
    /// child, their continuations run here, with `SessionExpired`.
    pub(super) fn submit<const N: usize>(&self, calls: [(Call, Continuation); N], chroot: &Chroot) {
        // Continuations run and are dropped without the mutex, because they may run any code.
        let mut refused = Vec::new();
        if self.is_in_its_process() {
            self.call(|io| {
                let now = SystemClock.now();
                for (call, continuation) in calls {
                    match &mut io.machine {
                        Some(machine) => {
                            refused.extend(machine.submit(now, call, chroot, continuation).err());
                        }
                        None => refused.push(continuation),
                    }
                }
            });
        } else {
            refused.extend(calls.into_iter().map(|(_, continuation)| continuation));
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

    /// Begins to close the session. No event is reported afterwards, except one whose report has already begun.
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
        // The sink is dropped without the mutex, because its destructor may run any code.
        drop(sink);
    }

    pub(super) fn is_in_its_process(&self) -> bool {
        self.process.is_current()
    }

    /// Runs a caller's code on the state, writes the resulting bytes, and wakes the I/O thread if necessary.
    fn call<T>(&self, code: impl FnOnce(&mut Io) -> T) -> T {
        let (result, waker) = {
            let mut io = self.lock();
            let was_blocked = io.is_write_blocked();
            let result = code(&mut io);
            let wakes = io.after_call(was_blocked);
            (result, io.poll.as_ref().filter(|_| wakes).map(|poll| Arc::clone(&poll.waker)))
        };
        if let Some(waker) = waker {
            // Waking fails only if memory is exhausted. The I/O thread wakes up every second anyway.
            let _ = waker.wake();
        }
        result
    }
}

impl Io {
    pub(super) fn new(
        machine: Machine<Continuation>,
        servers: Servers,
        poll: PollHandle,
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
            opening: Vec::new(),
            preparing: Vec::new(),
            refusing: Vec::new(),
            opens_another: None,
            link_number: 0,
            actions: Actions::new(),
            poll: Some(poll),
            has_more: false,
            waits_for_name: None,
            asleep_until: None,
            status,
        };
        io.count_addresses();
        io
    }

    /// Returns whether a write has failed. The next read handles the error.
    fn has_failed(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.write_error.is_some())
    }

    // ---- the callers

    /// Returns whether an earlier write waits for the socket. If so, the I/O thread will continue that write.
    fn is_write_blocked(&mut self) -> bool {
        self.machine.as_mut().is_some_and(|machine| !machine.outgoing().is_empty())
    }

    /// Writes the bytes of a call. Returns whether the I/O thread must be woken.
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

    /// Returns the address of the current connection.
    pub(super) fn target(&self) -> Option<Destination> {
        self.link.as_ref().map(|link| link.target)
    }

    /// Swaps the queue of pending actions with an empty one, whose memory is reused.
    pub(super) fn take_actions(&mut self, empty: &mut Actions) {
        self.collect("the connection was given up", Trouble::Refusing);
        std::mem::swap(&mut self.actions, empty);
    }

    /// Takes what remains when the I/O thread ends. The caller must drop it without the mutex, because it owns
    /// continuations.
    pub(super) fn take_rest(&mut self) -> impl Sized + use<> {
        (self.machine.take(), std::mem::take(&mut self.actions), self.poll.take())
    }

    /// Prepares for sleep. Returns when to wake up, or `None` if there is work to do.
    pub(super) fn fall_asleep(&mut self, others: Option<Moment>) -> Option<Moment> {
        let machine = self.machine.as_ref()?;
        if self.has_more || self.has_failed() || machine.has_actions() || !self.actions.is_empty() {
            return None;
        }
        let deadlines = [machine.deadline(), self.waits_for_name.flatten(), self.opens_another, others];
        let until = deadlines.into_iter().flatten().min().unwrap_or(Moment::from_nanos(u64::MAX));
        self.asleep_until = Some(until);
        Some(until)
    }

    /// Handles everything that happened while the I/O thread slept.
    pub(super) fn wake_up(&mut self, link_is_ready: bool, buffer: &mut [u8]) {
        self.asleep_until = None;
        if link_is_ready || self.has_more || self.has_failed() {
            self.transfer(buffer);
        }
        let now = SystemClock.now();
        if let Some(machine) = &mut self.machine {
            if machine.deadline().is_some_and(|deadline| deadline <= now) {
                machine.timer(now);
            }
        }
        self.collect("no answer", Trouble::Silent);
        self.flush();
        if self.waits_for_name.flatten().is_some_and(|until| until <= now) {
            self.open_again();
        }
        if self.opens_another.is_some_and(|at| at <= now) {
            self.opens_another = None;
            self.open_again();
        }
    }

    /// Handles the answer of the name service.
    pub(super) fn handle_resolved(&mut self, server: usize, answer: io::Result<Vec<SocketAddr>>) {
        if self.servers.handle_resolved(server, answer) {
            self.count_addresses();
        }
        self.note_current();
        if self.waits_for_name.is_some() {
            self.open_again();
        } else if self.is_opening() && self.opens_another.is_none() {
            self.open_another_after(self.overlap());
        }
    }

    /// Reports the number of addresses to the machine, which pauses after that many failed attempts. The report also
    /// makes the machine count refusals from zero again.
    fn count_addresses(&mut self) {
        if let Some(machine) = &mut self.machine {
            machine.set_addresses(self.servers.address_count(), !self.servers.misses_addresses());
        }
    }

    /// Tells the machine whether it may believe the server on the link that the session has ended.
    fn note_current(&mut self) {
        if let (Some(link), Some(machine)) = (&self.link, &mut self.machine) {
            machine.set_current(self.servers.is_current(link.target));
        }
    }

    fn open_again(&mut self) {
        self.waits_for_name = None;
        self.actions.push_back((self.link_number, Action::Open));
    }

    /// Returns whether a transport is being opened or prepared.
    pub(super) fn is_opening(&self) -> bool {
        !self.opening.is_empty() || !self.preparing.is_empty()
    }

    /// Returns the next server to try.
    pub(super) fn next_server(&mut self) -> NextServer {
        if !self.is_opening() {
            return self.servers.next(SystemClock.now());
        }
        // A new round would try the same addresses a second time.
        self.servers.next_beside().map_or(NextServer::Nothing, NextServer::Try)
    }

    /// Adds an address for which a first token is being made.
    pub(super) fn add_preparing(&mut self, target: Destination) {
        self.begin_attempt();
        self.preparing.push(target);
    }

    /// Removes and returns an address of this server whose first token has been made, or cannot be made.
    pub(super) fn take_preparing(&mut self, server: usize) -> Option<Destination> {
        let position = self.preparing.iter().position(|target| target.server == server)?;
        Some(self.preparing.swap_remove(position))
    }

    /// Returns whether an address of this server waits for a first token.
    pub(super) fn is_preparing(&self, server: usize) -> bool {
        self.preparing.iter().any(|target| target.server == server)
    }

    /// Handles the outcome of beginning to connect to an address, for the attempt with this number. Ignores it if that
    /// attempt was given up meanwhile.
    pub(super) fn handle_opening(
        &mut self,
        opened: Result<Transport, String>,
        target: Destination,
        sasl: Option<Prepared>,
        number: u64,
    ) {
        let is_late = self.link_number != number;
        match opened {
            Ok(transport) if is_late => close(transport, self.poll.as_ref()),
            Ok(transport) => self.add_opening(transport, target, sasl),
            Err(_) if is_late => {}
            Err(why) => self.opening_failed(target, why),
        }
    }

    /// Adds a transport that is being opened, with the SASL exchange prepared for it.
    fn add_opening(&mut self, transport: Transport, target: Destination, sasl: Option<Prepared>) {
        // With SASL, the attempt began when the first token was requested.
        if sasl.is_none() {
            self.begin_attempt();
        }
        let (is_serving, has_answered) = (false, false);
        self.opening.push(Link { transport, target, sasl, is_serving, has_answered, write_error: None });
    }

    /// Notes that an attempt to reach an address begins, perhaps in parallel with other attempts.
    fn begin_attempt(&mut self) {
        let is_another = self.is_opening();
        if let Some(machine) = self.machine.as_mut().filter(|_| is_another) {
            machine.opening_another(SystemClock.now());
        }
        self.open_another_after(self.overlap());
    }

    fn overlap(&self) -> Duration {
        (self.status.granted.session_timeout / OVERLAP_DIVISOR).min(MAX_OVERLAP)
    }

    fn open_another_after(&mut self, pause: Duration) {
        self.opens_another = self.servers.has_more().then(|| SystemClock.now().after(pause));
    }

    /// Records that an address could not be reached. Reports a failure to the machine if no other address is being
    /// tried.
    pub(super) fn opening_failed(&mut self, target: Destination, why: String) {
        self.servers.record_failure(target, why);
        self.servers.record_trouble(target, Trouble::Refusing);
        match self.is_opening() {
            true => self.open_another_after(Duration::ZERO),
            false => self.fail(),
        }
    }

    /// Continues to open the transports. The first one to open becomes the link.
    fn advance_opening(&mut self) {
        let mut position = 0;
        while let Some(link) = self.opening.get_mut(position) {
            match link.transport.progress() {
                Ok(false) => position += 1,
                Ok(true) => {
                    let mut link = self.opening.swap_remove(position);
                    let first_token = link.sasl.as_mut().map(|sasl| std::mem::take(&mut sasl.first_token));
                    self.link = Some(link);
                    self.note_current();
                    self.close_opening(None, None);
                    if let Some(machine) = &mut self.machine {
                        if let Some(token) = first_token {
                            machine.set_first_token(token);
                        }
                        machine.opened(SystemClock.now());
                    }
                    return self.flush();
                }
                Err(error) => {
                    let Link { transport, target, .. } = self.opening.remove(position);
                    close(transport, self.poll.as_ref());
                    self.opening_failed(target, error.to_string());
                    self.note_certificate(target, &error);
                }
            }
        }
    }

    /// Closes the transports that are being opened, because of `failure`, or because another transport has opened.
    /// `trouble` is recorded of their addresses.
    fn close_opening(&mut self, failure: Option<&str>, trouble: Option<Trouble>) {
        self.opens_another = None;
        let preparing = std::mem::take(&mut self.preparing).into_iter();
        let mut given_up: Vec<_> = preparing.map(|target| (target, NO_TOKEN)).collect();
        for Link { transport, target, .. } in self.opening.drain(..) {
            close(transport, self.poll.as_ref());
            given_up.push((target, failure.unwrap_or_default()));
        }
        for (target, why) in given_up {
            match failure {
                Some(_) => self.servers.record_failure(target, why.to_owned()),
                None => self.servers.put_back(target),
            }
            if let Some(trouble) = trouble {
                self.servers.record_trouble(target, trouble);
            }
        }
    }

    /// Takes the SASL exchange on the link with this number.
    pub(super) fn take_exchange(&mut self, number: u64) -> Option<Prepared> {
        self.link.as_mut().filter(|_| self.link_number == number)?.sasl.take()
    }

    /// Continues the SASL exchange with `step`, on the link with this number.
    pub(super) fn respond(&mut self, number: u64, sasl: Prepared, step: SaslStep) {
        let Some(link) = self.link.as_mut().filter(|_| self.link_number == number) else { return };
        link.sasl = Some(sasl);
        if let Some(machine) = &mut self.machine {
            machine.respond(SystemClock.now(), step);
        }
        self.flush();
    }

    /// Reports to the machine that the transport has ended, or could not be opened.
    pub(super) fn fail(&mut self) {
        // The machine may pause now. During the pause, no address may be tried.
        self.opens_another = None;
        if let Some(machine) = &mut self.machine {
            machine.failed(SystemClock.now());
        }
    }

    /// Continues to open a transport, reads what has arrived and writes what is pending.
    fn transfer(&mut self, buffer: &mut [u8]) {
        self.has_more = false;
        if self.link.is_none() {
            self.advance_opening();
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
                    self.collect(
                        "it refused the connection, or is not a ZooKeeper server",
                        Trouble::Refusing,
                    );
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(error) = link.write_error.take() {
                        self.lose_link(&error.to_string());
                    }
                    return;
                }
                Err(error) => {
                    let target = link.target;
                    self.lose_link(&error.to_string());
                    return self.note_certificate(target, &error);
                }
            }
        }
        self.has_more = true;
    }

    /// Notes whether a connection has failed because a certificate was refused. Once this is true of each server, no
    /// attempt can succeed. A session that a server has accepted before is not given up, because the files may be renewed
    /// while it lives.
    fn note_certificate(&mut self, target: Destination, error: &io::Error) {
        self.refusing.retain(|address| *address != target.address);
        if !refuses_certificate(error) {
            return;
        }
        self.refusing.push(target.address);
        let mut addresses = self.servers.addresses();
        if self.servers.misses_addresses() || !addresses.all(|address| self.refusing.contains(address)) {
            return;
        }
        if let Some(machine) = &mut self.machine {
            machine.give_up_opening(SessionLoss::CertificateRefused);
        }
    }

    /// Writes what the socket takes now. An error is handled after the last reads, because the bytes that the server
    /// sent last may explain it.
    fn flush(&mut self) {
        let (Some(link), Some(machine)) = (&mut self.link, &mut self.machine) else { return };
        if link.write_error.is_none() {
            link.write_error = link.transport.write(machine.outgoing()).err();
        }
    }

    /// Handles a connection that the server or the network has closed.
    fn lose_link(&mut self, why: &str) {
        self.note_end(false);
        self.drop_link(why, Some(Trouble::Refusing));
        self.fail();
    }

    /// See [`Machine::refusal`].
    pub(super) fn refusal(&self) -> Option<SessionLoss> {
        self.machine.as_ref().and_then(Machine::refusal)
    }

    fn note_end(&mut self, was_silent: bool) {
        if let Some(link) = self.link.as_ref().filter(|link| link.is_serving) {
            let was_refused = self.refusal().is_some();
            self.servers.record_end(link.target, was_silent, was_refused);
        }
    }

    /// Closes all transports. Records why, and the trouble with the addresses at which no server serves the session.
    pub(super) fn drop_link(&mut self, why: &str, trouble: Option<Trouble>) {
        self.link_number += 1;
        self.waits_for_name = None;
        self.has_more = false;
        self.close_opening(Some(why), trouble);
        let Some(link) = self.link.take() else { return };
        self.servers.record_failure(link.target, why.to_owned());
        if let Some(trouble) = trouble.filter(|_| !link.is_serving) {
            self.servers.record_trouble(link.target, trouble);
        }
        close(link.transport, self.poll.as_ref());
    }

    /// Moves the machine's actions to the queue of the I/O thread. A transport that the machine gives up is closed at
    /// once, so nothing more is written to it. Records the reason that the machine gives, or `why` if it gives none,
    /// and `trouble` with the address.
    fn collect(&mut self, why: &str, trouble: Trouble) {
        let mut loss = None;
        while let Some(action) = self.machine.as_mut().and_then(Machine::next_action) {
            match &action {
                Action::Drop if self.machine.as_ref().is_some_and(Machine::ends_now) => {
                    self.drop_link(loss.or(self.silence()).unwrap_or(why), None);
                }
                Action::Drop => {
                    self.note_end(true);
                    let failure = self.machine.as_mut().and_then(Machine::take_failure);
                    let why = failure.as_deref().or(self.silence()).unwrap_or(why);
                    let stranger = self.target().filter(|_| why == UNKNOWN_AT_FORMER_ADDRESS);
                    self.drop_link(why, Some(trouble));
                    stranger.into_iter().for_each(|target| self.servers.record_stranger(target));
                }
                Action::Open | Action::Ended => self.drop_link(why, None),
                Action::Event(Event::Connected { .. }) => {
                    if let Some(link) = &mut self.link {
                        link.is_serving = true;
                        self.servers.record_success(link.target);
                        // Noted here, because the link may be lost before the I/O thread reports the event.
                        self.status.server = self.servers.describe(link.target);
                    }
                }
                Action::Event(Event::SessionLost(reason)) => loss = Some(reason.reason()),
                Action::Reply(_, result) => self.note_answer(result),
                Action::Challenge(_) | Action::Event(_) => {}
            }
            self.actions.push_back((self.link_number, action));
        }
    }

    /// Returns the outcome for a server that has accepted the session and answered no call.
    fn silence(&self) -> Option<&'static str> {
        let link = self.link.as_ref().filter(|link| link.is_serving && !link.has_answered);
        link.map(|_| ANSWERS_NO_CALL)
    }

    /// Notes the outcome of a call, which may be a server's answer.
    fn note_answer(&mut self, result: &ZkResult<Reply>) {
        let Some(link) = self.link.as_mut().filter(|link| link.is_serving && !link.has_answered) else {
            return;
        };
        if result.as_ref().map_or_else(|error| error.is_answer(), |_| true) {
            link.has_answered = true;
            self.servers.record_answer(link.target);
        }
    }
}

/// Closes a transport. Without a poll, dropping the transport closes it.
fn close(transport: Transport, poll: Option<&PollHandle>) {
    if let Some(poll) = poll {
        transport.close(&poll.registry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Config;
    use crate::tests::eventually;
    use mio::{Poll, Token};
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn io(servers: &[String], session_timeout: Duration) -> (Poll, Io) {
        let barrier_paths = ["/barrier", "/barrier/none"];
        let config = Config {
            session_timeout,
            credentials: Vec::new(),
            sasl: false,
            max_frame: 1 << 20,
            jute_max_buffer: 1 << 20,
            barrier_paths,
            seed: 1,
        };
        let machine = Machine::new(config, SystemClock.now());
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let handle = PollHandle { registry: poll.registry().try_clone().unwrap(), waker };
        let servers = Servers::new(servers, Default::default(), Duration::ZERO, 1);
        let mut io = Io::new(machine, servers, handle, Granted::new(session_timeout));
        io.take_actions(&mut Actions::new());
        (poll, io)
    }

    /// Two connect requests at once would open two sessions, or make two servers serve one session.
    #[test]
    fn one_of_two_open_transports_is_greeted_and_the_other_closed() {
        let listeners = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap().to_string());
        let (poll, mut io) = io(&addresses, Duration::from_secs(30));
        for _ in 0..2 {
            let NextServer::Try(target) = io.next_server() else { panic!("two addresses are known") };
            let transport =
                Transport::connect(target.address, Default::default(), poll.registry(), Token(1)).unwrap();
            io.add_opening(transport, target, None);
        }
        assert_eq!(io.next_server(), NextServer::Nothing, "no second round in parallel with the first");
        eventually("one is open", || {
            io.wake_up(true, &mut [0; 64]);
            io.target().is_some()
        });
        assert!(!io.is_opening());
        let received = listeners.map(|listener| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let mut bytes = Vec::new();
            let has_ended = stream.read_to_end(&mut bytes).is_ok();
            (bytes.len(), has_ended)
        });
        let mut received = received;
        received.sort_unstable();
        assert_eq!(received, [(0, true), (4 + 45, false)]);
    }

    /// The I/O thread reports a connection after it has read everything, and the connection may be lost by then.
    #[test]
    fn server_of_a_connection_is_known_although_it_is_lost_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (poll, mut io) = io(&[listener.local_addr().unwrap().to_string()], Duration::from_secs(30));
        let NextServer::Try(target) = io.next_server() else { panic!("an address is known") };
        let transport =
            Transport::connect(target.address, Default::default(), poll.registry(), Token(1)).unwrap();
        io.add_opening(transport, target, None);
        eventually("it is open", || {
            io.wake_up(true, &mut [0; 64]);
            io.target().is_some()
        });
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 4 + 45]).unwrap();
        // The length, the version, the session timeout, the session id, the password, and that it is not read-only.
        let mut answer = vec![0, 0, 0, 37, 0, 0, 0, 0, 0, 0, 0x75, 0x30];
        answer.extend(7_i64.to_be_bytes());
        answer.extend(16_i32.to_be_bytes());
        answer.extend([1; 16]);
        answer.push(0);
        stream.write_all(&answer).unwrap();
        drop(stream);
        eventually("it is lost", || {
            io.wake_up(true, &mut [0; 64]);
            io.target().is_none()
        });
        assert!(
            io.actions.iter().any(|(_, action)| matches!(action, Action::Event(Event::Connected { .. })))
        );
        assert_eq!(io.status.server, io.servers.describe(target));
    }

    /// The machine may give an attempt up while the I/O thread connects without the mutex. A transport of that attempt
    /// could then serve the session beside one of the next attempt.
    #[test]
    fn late_outcome_of_an_attempt_that_was_given_up_is_ignored() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (poll, mut io) = io(&[listener.local_addr().unwrap().to_string()], Duration::from_secs(30));
        let NextServer::Try(target) = io.next_server() else { panic!("an address is known") };
        let number = io.link_number;
        io.drop_link("given up", None);
        let connect =
            || Transport::connect(target.address, Default::default(), poll.registry(), Token(1)).unwrap();
        let mut late = connect();
        eventually("it is connected", || late.progress().unwrap());
        io.handle_opening(Ok(late), target, None, number);
        assert!(!io.is_opening());
        let (mut late, _) = listener.accept().unwrap();
        late.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(late.read(&mut [0]).unwrap(), 0, "the late transport was closed");
        io.handle_opening(Ok(connect()), target, None, io.link_number);
        assert!(io.is_opening());
        io.handle_opening(Err("too late".to_owned()), target, None, number);
        assert!(!io.servers.outcomes().contains("too late"));
        assert!(!io.machine.as_ref().unwrap().has_actions());
    }

    /// A KDC that does not answer must not hold up the servers whose tickets are known.
    #[test]
    fn next_address_is_tried_in_parallel_with_one_whose_token_is_missing() {
        let (_poll, mut io) =
            io(&["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()], Duration::from_secs(30));
        let NextServer::Try(first) = io.next_server() else { panic!("two addresses are known") };
        io.add_preparing(first);
        assert!(io.is_opening() && io.opens_another.is_some());
        let NextServer::Try(second) = io.next_server() else { panic!("one is left") };
        io.add_preparing(second);
        assert_eq!((io.opens_another, io.next_server()), (None, NextServer::Nothing));
        io.take_preparing(first.server);
        io.opening_failed(first, "no ticket".to_owned());
        assert!(io.is_preparing(second.server) && !io.machine.as_ref().unwrap().has_actions());
        io.take_preparing(second.server);
        io.opening_failed(second, "no ticket".to_owned());
        assert!(!io.is_opening() && io.servers.outcomes().contains("127.0.0.1:2 (no ticket)"));
    }

    #[test]
    fn no_address_is_tried_while_the_machine_pauses() {
        let (_poll, mut io) =
            io(&["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()], Duration::from_secs(30));
        let NextServer::Try(first) = io.next_server() else { panic!("two addresses are known") };
        io.add_preparing(first);
        assert!(io.opens_another.is_some());
        io.take_preparing(first.server);
        io.opening_failed(first, "refused".to_owned());
        assert!(!io.is_opening() && io.opens_another.is_none());
    }

    #[test]
    fn call_wakes_the_io_thread_only_for_an_earlier_deadline() {
        let (_poll, mut io) = io(&["127.0.0.1:1".to_owned()], Duration::from_secs(30));
        let deadline = io.machine.as_ref().and_then(Machine::deadline).unwrap();
        io.asleep_until = Some(deadline);
        assert!(!io.after_call(false));
        assert_eq!(io.asleep_until, Some(deadline));
        io.asleep_until = Some(deadline.after(Duration::from_millis(1)));
        assert!(io.after_call(false));
        assert_eq!(io.asleep_until, None, "the thread is woken once");
    }
}
