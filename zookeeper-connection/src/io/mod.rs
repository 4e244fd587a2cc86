//! The sockets of a connection: what callers and the I/O thread share, and the [`thread`].
//!
//! One mutex guards the machine and the transports. The calling thread writes as much of its request to the socket as
//! the socket takes. Everything else that follows from a call (actions, socket errors, an earlier deadline) is left to
//! the I/O thread, which is woken if it sleeps. Nothing is decided here: the [machine](crate::machine) says what to
//! open, close, send and report.

pub(crate) mod resolver;
pub(crate) mod thread;
mod transport;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use mio::{Events, Registry, Token, Waker};

use self::transport::{Transport, refuses_certificate};
use crate::error::ZkError;
use crate::exchange::Continuation;
use crate::machine::{Failure, LinkId, Machine};
use crate::support::lock_order::{Mutex, MutexGuard, rank::CONNECTION};
use crate::support::process::Process;
use crate::time::{Clock, Moment};
use crate::{Call, ClientEvent, EventSink};

/// The maximum number of reads from a transport in a row. After that many, the mutex is released for the callers.
const MAX_READS: usize = 16;

/// Where the paths of a call begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Chroot,
    Root,
}

pub(crate) struct Shared {
    io: Mutex<CONNECTION, Io>,
    clock: Arc<dyn Clock>,
    /// The process that opened the connection. A forked child has no I/O thread, and must not use the sockets.
    process: Process,
    /// Disconnected when the I/O thread has ended.
    pub(crate) ended: Receiver<Infallible>,
}

/// What the mutex guards.
pub(crate) struct Io {
    pub(crate) machine: Machine<Continuation>,
    pub(crate) sink: Option<EventSink>,
    links: Vec<Link>,
    /// `None` once the I/O thread has ended, because connection handles that are kept longer must not keep the poll's
    /// descriptors open.
    poll: Option<PollHandle>,
    /// The moment until which the I/O thread sleeps.
    asleep_until: Option<Moment>,
}

/// The parts of the I/O thread's poll that a connection needs. Each part holds a file descriptor.
pub(crate) struct PollHandle {
    pub(crate) registry: Registry,
    pub(crate) waker: Arc<Waker>,
}

/// A transport that is in use, or is being opened.
struct Link {
    id: LinkId,
    transport: Transport,
    /// Handled after the last reads, because the bytes that the server sent last may explain it.
    write_error: Option<io::Error>,
    /// Whether the transport may have more to read.
    has_more: bool,
    /// Whether the poll has reported the end of the stream.
    has_ended: bool,
}

impl Shared {
    pub(crate) fn new(
        machine: Machine<Continuation>,
        poll: Option<PollHandle>,
        clock: Arc<dyn Clock>,
        ended: Receiver<Infallible>,
    ) -> Shared {
        let io = Io { machine, sink: None, links: Vec::new(), poll, asleep_until: None };
        Shared { io: Mutex::new(io), clock, process: Process::current(), ended }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, CONNECTION, Io> {
        self.io.lock()
    }

    /// Takes the mutex, except in a forked child, where a thread that does not exist there may hold it.
    pub(crate) fn lock_here(&self) -> Option<MutexGuard<'_, CONNECTION, Io>> {
        self.is_in_its_process().then(|| self.lock())
    }

    /// Submits calls. They are sent in one write if the socket takes them all, and their outcomes come in the same
    /// order, unless one is denied early. If the session has ended or is being closed, or if this process is a forked
    /// child, their continuations run here, with `SessionExpired`.
    pub(crate) fn submit<const N: usize>(&self, calls: [(Call, Continuation); N], base: Base) {
        // Continuations run and are dropped without the mutex, because they may run any code.
        let mut refused = Vec::new();
        if self.is_in_its_process() {
            self.call(|machine, now| {
                for (call, continuation) in calls {
                    let result = match base {
                        Base::Chroot => machine.handle_call(now, call, continuation),
                        Base::Root => machine.handle_call_at_root(now, call, continuation),
                    };
                    refused.extend(result.err());
                }
            });
        } else {
            refused.extend(calls.into_iter().map(|(_, continuation)| continuation));
        }
        for continuation in refused {
            continuation.answered(Err(ZkError::SessionExpired));
        }
    }

    /// See [`Machine::handle_removal`].
    pub(crate) fn remove_watches(&self, path: &str) {
        if self.is_in_its_process() {
            self.call(|machine, _| machine.handle_removal(path));
        }
    }

    /// Begins to close the session. No event is reported afterwards, except one whose report has already begun.
    pub(crate) fn close(&self) {
        if self.is_in_its_process() {
            self.call(|machine, now| machine.handle_close(now));
            let sink = self.lock().sink.take();
            // The sink is dropped without the mutex, because its destructor may run any code.
            drop(sink);
        }
    }

    /// Notes that the application is being told of this event. Returns the sink, unless the session has been closed.
    pub(crate) fn sink_for(&self, event: &ClientEvent) -> Option<EventSink> {
        let mut io = self.lock();
        let may_be_told = io.machine.note_told(event);
        io.sink.clone().filter(|_| may_be_told)
    }

    pub(crate) fn is_in_its_process(&self) -> bool {
        self.process.is_current()
    }

    /// Gives the machine an input of a caller, writes the resulting bytes, and wakes the I/O thread if necessary.
    fn call(&self, input: impl FnOnce(&mut Machine<Continuation>, Moment)) {
        let waker = {
            let mut io = self.lock();
            let was_blocked = io.is_write_blocked();
            input(&mut io.machine, self.clock.now());
            if !was_blocked {
                io.flush();
            }
            io.waker_if_needed()
        };
        if let Some(waker) = waker {
            // Waking fails only if memory is exhausted. The I/O thread wakes up every second anyway.
            let _ = waker.wake();
        }
    }
}

impl Io {
    /// Returns whether an earlier write waits for the socket. If so, the I/O thread will continue that write.
    fn is_write_blocked(&mut self) -> bool {
        let in_use = self.machine.link_in_use();
        in_use.and_then(|link| self.machine.poll_transmit(link)).is_some_and(|bytes| !bytes.is_empty())
    }

    /// Returns the waker of the I/O thread if the thread sleeps and has something to do earlier than it knows.
    fn waker_if_needed(&mut self) -> Option<Arc<Waker>> {
        let asleep_until = self.asleep_until?;
        let is_needed =
            self.has_work() || self.machine.poll_deadline().is_some_and(|deadline| deadline < asleep_until);
        if !is_needed {
            return None;
        }
        self.asleep_until = None;
        self.poll.as_ref().map(|poll| Arc::clone(&poll.waker))
    }

    fn has_work(&self) -> bool {
        let has_work = |link: &Link| link.has_more || link.write_error.is_some();
        self.machine.has_actions() || self.machine.has_closes() || self.links.iter().any(has_work)
    }

    /// Prepares for sleep. Returns when to wake up, or `None` if there is work to do.
    fn fall_asleep(&mut self) -> Option<Moment> {
        if self.has_work() {
            return None;
        }
        self.asleep_until = Some(self.machine.poll_deadline().unwrap_or(Moment::from_nanos(u64::MAX)));
        self.asleep_until
    }

    /// Reads from the transports that are ready, and does what is due.
    fn turn(&mut self, now: Moment, events: &Events, buffer: &mut [u8]) {
        self.asleep_until = None;
        self.settle();
        // kqueue may report reading and writing in two events.
        for event in events {
            if let Some(link) = self.links.iter_mut().find(|link| event.token() == Token(link.id.0)) {
                link.has_more = true;
                link.has_ended |= event.is_read_closed() || event.is_error();
            }
        }
        let is_ready = |link: &&Link| link.has_more || link.write_error.is_some();
        let links: Vec<LinkId> = self.links.iter().filter(is_ready).map(|link| link.id).collect();
        for link in links {
            self.read(now, link, buffer);
        }
        self.machine.handle_time(now);
        self.settle();
    }

    /// Continues to open a transport, or reads what has arrived.
    fn read(&mut self, now: Moment, id: LinkId, buffer: &mut [u8]) {
        for _ in 0..MAX_READS {
            let Some(link) = self.links.iter_mut().find(|link| link.id == id) else { return };
            link.has_more = false;
            if !link.transport.is_open() {
                match link.transport.progress() {
                    Ok(true) => self.machine.handle_opened(now, id),
                    Ok(false) => return,
                    Err(error) => return self.fail(now, id, &error),
                }
                self.settle();
                continue;
            }
            match link.transport.read(buffer) {
                Ok(0) => {
                    self.machine.handle_closed(now, id);
                    return self.settle();
                }
                Ok(count) => {
                    let is_drained = count < buffer.len() && link.transport.ends_with_a_short_read();
                    let is_over = is_drained && !link.has_ended && link.write_error.is_none();
                    self.machine.handle_bytes(now, id, &buffer[..count]);
                    self.settle();
                    if is_over {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(error) = link.write_error.take() {
                        self.fail(now, id, &error);
                    }
                    return;
                }
                Err(error) => return self.fail(now, id, &error),
            }
        }
        if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
            link.has_more = true;
        }
    }

    /// Adds a transport that is being opened. Closes it if the machine has given it up meanwhile.
    fn add(&mut self, now: Moment, id: LinkId, opened: io::Result<Transport>) {
        match opened {
            Ok(transport) => {
                self.links.push(Link { id, transport, write_error: None, has_more: false, has_ended: false });
                if !self.machine.is_wanted(id) {
                    self.close(id);
                }
            }
            Err(error) => self.fail(now, id, &error),
        }
    }

    fn fail(&mut self, now: Moment, id: LinkId, error: &io::Error) {
        let failure = Failure { why: error.to_string(), refuses_certificate: refuses_certificate(error) };
        self.machine.handle_failed(now, id, failure);
        self.settle();
    }

    /// Closes the transports that the machine has given up. Then writes what the others take now. Only the I/O thread
    /// does this, because closing may run the logger: rustls and mio have lines of their own.
    fn settle(&mut self) {
        while let Some(id) = self.machine.poll_close() {
            self.close(id);
        }
        self.flush();
    }

    /// Writes what the transports take now. A transport that the machine has given up gets nothing more.
    fn flush(&mut self) {
        for link in self.links.iter_mut().filter(|link| link.write_error.is_none()) {
            if let Some(bytes) = self.machine.poll_transmit(link.id) {
                link.write_error = link.transport.write(bytes).err();
            }
        }
    }

    fn close(&mut self, id: LinkId) {
        let Some(position) = self.links.iter().position(|link| link.id == id) else { return };
        let link = self.links.swap_remove(position);
        // Without a poll, dropping the transport closes it.
        if let Some(poll) = &self.poll {
            link.transport.close(&poll.registry);
        }
    }

    /// Closes all transports.
    fn close_all(&mut self) {
        let Some(poll) = &self.poll else { return };
        for link in self.links.drain(..) {
            link.transport.close(&poll.registry);
        }
    }

    /// Takes what remains when the I/O thread ends. The caller must drop it without the mutex, because it owns
    /// continuations.
    fn take_rest(&mut self) -> impl Sized + use<> {
        (self.machine.abandon(), std::mem::take(&mut self.links), self.poll.take())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crossbeam_channel::bounded;
    use mio::Poll;

    use super::*;
    use crate::ConnectionOptions;
    use crate::machine::{Config, session};
    use crate::time::SystemClock;

    #[test]
    fn call_wakes_the_io_thread_only_for_an_earlier_deadline() {
        let options = ConnectionOptions::new(Duration::from_secs(30));
        let session = session::Config::new(&options, false, Default::default(), 1);
        let config = Config::new(&options, session, &["127.0.0.1:1".to_owned()]);
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let handle = PollHandle { registry: poll.registry().try_clone().unwrap(), waker };
        let machine = Machine::new(config, SystemClock.now());
        let shared = Shared::new(machine, Some(handle), Arc::new(SystemClock), bounded(0).1);
        let mut io = shared.lock();
        io.machine.swap_actions(&mut Default::default());
        let deadline = io.fall_asleep().unwrap();
        assert!(io.waker_if_needed().is_none());
        io.asleep_until = Some(deadline.after(Duration::from_millis(1)));
        assert!(io.waker_if_needed().is_some());
        assert_eq!(io.asleep_until, None, "the thread is woken once");
    }
}
