//! [`Traffic`]: the requests of a connection, and the handling of its frames.

use std::collections::VecDeque;
use std::time::Duration;

use super::attempts::Malformed;
use super::authentication::MAX_EARLY_FRAME;
use super::watches::Table;
use super::{Action, Event, Phase, Session, SessionLoss};
use crate::chroot::Chroot;
use crate::codec::{
    AUTHENTICATION_REQUIRED, Control, DecodeError, EventKind, OpCode, ReplyHeader, WatchEvent, XID_EVENT,
    XID_PING, XID_SET_WATCHES,
};
use crate::error::{ZkError, ZkResult};
use crate::time::Moment;
use crate::{Call, Reply};

/// If a request ends this many connections in a row, requests like it are not sent for a while.
const MAX_ENDED_CONNECTIONS: u32 = 3;

/// Every server accepts requests of this length. A request that proves that the session is alive is far shorter.
const ALWAYS_TAKEN: usize = 4 << 10;

/// The requests in flight, and the calls that wait for a connection.
pub(super) struct Traffic<C> {
    pub(super) last_xid: i32,
    /// The requests in flight, in the order in which their replies come.
    sent: VecDeque<Sent<C>>,
    pub(super) unsent: VecDeque<Unsent<C>>,
    /// Whether a server has turned out to be older than 3.5, and to know neither `Create2` nor `RemoveWatches`.
    is_before_3_5: bool,
    /// Whether a server has turned out to be older than 3.5.3, and not to know `CreateContainer`.
    lacks_containers: bool,
    /// Whether a server has denied the barrier without asking the leader. If so, the barrier's znode exists after all.
    is_barrier_denied: bool,
    /// The length of the longest request of each operation that a server has answered.
    answered: Vec<(OpCode, usize)>,
    /// The request that was unanswered when each of the last connections ended, and the number of these connections.
    suspect: Option<(Suspect, u32)>,
    /// `Some` if requests like this one have ended several connections. Such requests are not sent until this moment.
    ends_connections: Option<(Suspect, Moment)>,
}

/// The operation and the length of a request that may have caused a server to close the connection.
type Suspect = (OpCode, usize);

#[derive(Debug)]
struct Sent<C> {
    xid: i32,
    operation: OpCode,
    /// The length of the frame.
    bytes: usize,
    purpose: SentFor<C>,
}

#[derive(Debug)]
enum SentFor<C> {
    Caller(Submitted<C>),
    /// A ping that was sent at this moment.
    Ping(Moment),
    SetWatches,
    Barrier,
    /// A request whose outcome does not matter.
    Internal,
    Close,
}

/// A call, with the continuation that the caller gets back with the outcome.
#[derive(Debug)]
pub(super) struct Submitted<C> {
    pub(super) call: Call,
    pub(super) chroot: Chroot,
    pub(super) continuation: C,
}

pub(super) struct Unsent<C> {
    kept_at: Moment,
    pub(super) submitted: Submitted<C>,
}

impl<C> Sent<C> {
    /// Decodes the reply.
    fn decode(&self, header: ReplyHeader, body: &[u8]) -> Result<ZkResult<Reply>, DecodeError> {
        match &self.purpose {
            SentFor::Caller(Submitted { call: Call::Multi(steps), chroot, .. }) => {
                Reply::decode(self.operation, steps, chroot, header, body)
            }
            SentFor::Caller(Submitted { chroot, .. }) => {
                Reply::decode(self.operation, &[], chroot, header, body)
            }
            _ => Reply::decode(self.operation, &[], &Chroot::default(), header, body),
        }
    }
}

impl<C> Default for Traffic<C> {
    fn default() -> Traffic<C> {
        Traffic {
            last_xid: 0,
            sent: VecDeque::new(),
            unsent: VecDeque::new(),
            is_before_3_5: false,
            lacks_containers: false,
            is_barrier_denied: false,
            answered: Vec::new(),
            suspect: None,
            ends_connections: None,
        }
    }
}

impl<C> Traffic<C> {
    /// Returns the xid of the next request. Xids run from 1 to `i32::MAX`, because the protocol reserves lower numbers.
    pub(super) fn next_xid(&mut self) -> i32 {
        self.last_xid = self.last_xid.checked_add(1).unwrap_or(1);
        self.last_xid
    }

    pub(super) fn send(&mut self, submitted: Submitted<C>, outgoing: &mut Vec<u8>) {
        let (xid, operation) = (self.next_xid(), self.operation(&submitted.call));
        let before = outgoing.len();
        submitted.call.encode(operation, &submitted.chroot, xid, outgoing);
        let bytes = outgoing.len() - before;
        self.sent.push_back(Sent { xid, operation, bytes, purpose: SentFor::Caller(submitted) });
    }

    fn send_control(&mut self, purpose: SentFor<C>, control: &Control<'_>, outgoing: &mut Vec<u8>) {
        let xid = match purpose {
            SentFor::Ping(_) => XID_PING,
            SentFor::SetWatches => XID_SET_WATCHES,
            _ => self.next_xid(),
        };
        let before = outgoing.len();
        control.encode(xid, outgoing);
        let (operation, bytes) = (control.operation(), outgoing.len() - before);
        self.sent.push_back(Sent { xid, operation, bytes, purpose });
    }

    /// Returns whether a server has turned out not to know the operation of this call. Sending the call would end the
    /// connection.
    pub(super) fn is_unknown(&self, call: &Call) -> bool {
        self.lacks_containers && OpCode::of_call(call) == OpCode::CreateContainer
    }

    /// Returns the error of a call that must not be sent because it would end the connection.
    pub(super) fn ends_connection(&self, now: Moment, call: &Call, chroot: &Chroot) -> Option<ZkError> {
        let ((operation, least), until) = self.ends_connections?;
        if until <= now || self.operation(call) != operation {
            return None;
        }
        let mut frame = Vec::new();
        call.encode(operation, chroot, 1, &mut frame);
        (frame.len() >= least).then_some(ZkError::EndsConnection { bytes: frame.len() })
    }

    /// Notes that the server has closed the connection. The first unanswered request that is suspicious may be the
    /// reason. Such a request counts as the reason once several connections in a row have ended at it. But servers also
    /// close connections when their leader changes. So the request is tried again after a `pause`. If the connection
    /// ends at it again, or at a longer one, it is not sent for another pause.
    pub(super) fn connection_closed(&mut self, now: Moment, pause: Duration) {
        let suspect = self.sent.iter().find(|sent| self.may_end_connections(sent));
        let suspect = suspect.map(|sent| (sent.operation, sent.bytes));
        if let (Some(((operation, least), until)), Some(suspect)) = (&mut self.ends_connections, suspect) {
            if suspect.0 == *operation && suspect.1 >= *least {
                *until = now.after(pause);
            }
        }
        self.suspect = suspect.map(|suspect| match self.suspect {
            Some((former, count)) if former == suspect => (suspect, count + 1),
            _ => (suspect, 1),
        });
        if let Some(((operation, bytes), MAX_ENDED_CONNECTIONS..)) = self.suspect {
            let least = match self.ends_connections {
                Some(((former, least), _)) if former == operation => least.min(bytes),
                _ => bytes,
            };
            self.ends_connections = Some(((operation, least), now.after(pause)));
        }
    }

    /// Notes that the client has abandoned the connection on which a server served the session. Since the server did
    /// not close it, the connections that end at a request are counted anew.
    pub(super) fn connection_left(&mut self) {
        self.suspect = None;
    }

    /// Returns whether a request may be the reason why the server closed the connection. This is so if some servers do
    /// not know the operation or do not accept the length, and if no request of the same operation and of at least the
    /// same length has ever been answered. Other requests are never suspected, so they are always sent. They include
    /// deletions, because deletions release locks, and proofs that the session is alive: a proof is the first call on
    /// each connection, so it would be suspected whatever ended the connection.
    fn may_end_connections(&self, sent: &Sent<C>) -> bool {
        let Sent { operation, bytes, .. } = sent;
        let is_suspicious = match operation {
            OpCode::Create2 | OpCode::CreateContainer | OpCode::Multi => true,
            OpCode::Create | OpCode::SetData => *bytes > ALWAYS_TAKEN,
            _ => false,
        };
        let is_known = self.answered.iter().any(|(known, longest)| known == operation && longest >= bytes);
        matches!(sent.purpose, SentFor::Caller(_)) && is_suspicious && !is_known
    }

    /// Notes that a server has answered a request with this operation and length.
    fn note_answered(&mut self, operation: OpCode, bytes: usize) {
        match self.answered.iter_mut().find(|(known, _)| *known == operation) {
            Some((_, longest)) => *longest = bytes.max(*longest),
            None => self.answered.push((operation, bytes)),
        }
        let is_refuted = |((refused, least), _): &(Suspect, Moment)| *refused == operation && bytes >= *least;
        if self.ends_connections.as_ref().is_some_and(is_refuted) {
            self.ends_connections = None;
        }
    }

    fn operation(&self, call: &Call) -> OpCode {
        match OpCode::of_call(call) {
            OpCode::Create2 if self.is_before_3_5 => OpCode::Create,
            operation => operation,
        }
    }

    pub(super) fn send_watches(&mut self, request: &Control<'_>, outgoing: &mut Vec<u8>) {
        self.send_control(SentFor::SetWatches, request, outgoing);
    }

    pub(super) fn send_removal(&mut self, path: &str, outgoing: &mut Vec<u8>) {
        if !self.is_before_3_5 {
            let removal = Control::RemoveWatches { path: path.into() };
            self.send_control(SentFor::Internal, &removal, outgoing);
        }
    }

    /// Sends a write that changes nothing. A `sync` would not be enough, because a deposed leader answers it.
    pub(super) fn send_barrier(&mut self, [path, other]: [&str; 2], outgoing: &mut Vec<u8>) {
        let path = if self.is_barrier_denied { other } else { path };
        self.send_control(SentFor::Barrier, &Control::Barrier { path }, outgoing);
    }

    pub(super) fn send_close(&mut self, outgoing: &mut Vec<u8>) {
        self.send_control(SentFor::Close, &Control::Close, outgoing);
    }

    /// Keeps a call for the next connection.
    pub(super) fn keep(&mut self, submitted: Submitted<C>, now: Moment) {
        self.unsent.push_back(Unsent { kept_at: now, submitted });
    }

    pub(super) fn send_unsent(&mut self, outgoing: &mut Vec<u8>) {
        while let Some(Unsent { submitted, .. }) = self.unsent.pop_front() {
            self.send(submitted, outgoing);
        }
    }

    /// Returns the position and the error of a write that the connected server has denied without asking the leader
    /// (`enableEagerACLCheck`). Such a reply comes immediately, ahead of the replies to older requests, and names no
    /// transaction.
    fn denied_at_once(&self, header: ReplyHeader) -> Option<(usize, ZkError)> {
        let error = ZkError::from_code(header.error);
        if header.zxid != 0 || !matches!(error, ZkError::NoAuth | ZkError::InvalidAcl) {
            return None;
        }
        let position =
            self.sent.iter().position(|sent| sent.xid == header.xid && is_write(sent.operation))?;
        Some((position, error))
    }

    /// Returns the xid of the next reply, and the operation that it answers.
    #[cfg(any(test, zk_laws))]
    pub(super) fn next_reply(&self) -> Option<(i32, OpCode)> {
        self.sent.front().map(|sent| (sent.xid, sent.operation))
    }

    pub(super) fn oldest_unsent(&self) -> Option<Moment> {
        self.unsent.front().map(|unsent| unsent.kept_at)
    }

    /// Takes the oldest unsent call, if it has waited for this long by now.
    pub(super) fn take_stale(&mut self, wait: Duration, now: Moment) -> Option<Unsent<C>> {
        self.oldest_unsent().filter(|kept_at| kept_at.after(wait) <= now)?;
        self.unsent.pop_front()
    }

    /// Takes all requests in flight, and returns the continuations of the calls among them.
    pub(super) fn take_sent(&mut self) -> impl Iterator<Item = C> + use<C> {
        std::mem::take(&mut self.sent).into_iter().filter_map(|sent| match sent.purpose {
            SentFor::Caller(Submitted { continuation, .. }) => Some(continuation),
            SentFor::Ping(_)
            | SentFor::SetWatches
            | SentFor::Barrier
            | SentFor::Internal
            | SentFor::Close => None,
        })
    }
}

fn is_write(operation: OpCode) -> bool {
    matches!(
        operation,
        OpCode::Create | OpCode::Create2 | OpCode::CreateContainer | OpCode::Delete | OpCode::SetData
    )
}

/// Returns the table in which the server has set the watch of a request with this result.
fn table_of(operation: OpCode, result: ZkResult<()>) -> Option<Table> {
    match (operation, result) {
        (OpCode::Exists | OpCode::GetData, Ok(())) => Some(Table::Data),
        (OpCode::Exists, Err(ZkError::NoNode)) => Some(Table::Existence),
        (OpCode::GetChildren, Ok(())) => Some(Table::Children),
        _ => None,
    }
}

impl<C> Session<C> {
    pub(super) fn ping(&mut self, now: Moment) {
        let Phase::Serving(serving) = &mut self.phase else { return };
        if now < serving.next_ping {
            return;
        }
        // Ping even if the last ping is unanswered. Its answer may be stuck behind a long reply, and the server ends a
        // session that it does not hear from.
        serving.next_ping = now.after(self.pacing.ping_interval());
        self.traffic.send_control(SentFor::Ping(now), &Control::Ping, &mut self.outgoing);
    }

    /// Handles every frame that has arrived.
    pub(super) fn read_frames(&mut self, now: Moment) {
        while self.has_transport() {
            // Take the buffer out, because a frame borrows it while the handling of the frame changes the machine.
            let mut frames = std::mem::replace(&mut self.frames, super::Frames::new(0));
            frames.set_max(self.max_frame());
            let read = match frames.next_frame() {
                Ok(Some(frame)) => self.read_frame(now, frame).map(|()| true),
                Ok(None) => Ok(false),
                Err(DecodeError::TooLong) => {
                    self.fail_unreadable();
                    Err(Malformed)
                }
                Err(_) => Err(Malformed),
            };
            self.frames = frames;
            match read {
                Ok(true) => {}
                Ok(false) => return,
                Err(Malformed) => return self.drop_transport(now),
            }
        }
    }

    /// Returns the length of the longest frame to accept now. Only a server that serves the session may send long
    /// frames.
    fn max_frame(&self) -> usize {
        match self.phase {
            Phase::Serving(_) => self.config.max_frame,
            _ => self.config.max_frame.min(MAX_EARLY_FRAME),
        }
    }

    fn read_frame(&mut self, now: Moment, frame: &[u8]) -> Result<(), Malformed> {
        match &mut self.phase {
            Phase::Greeting { .. } => self.read_greeting(now, frame),
            Phase::Authenticating { .. } => self.read_authentication(now, frame),
            Phase::Serving(_) => {
                self.last_heard = self.last_heard.max(now);
                self.read_served(now, frame)
            }
            // A server sends nothing before the connect request.
            Phase::Pausing { .. } | Phase::Opening { .. } | Phase::Ended => Err(Malformed),
        }
    }

    fn read_served(&mut self, now: Moment, frame: &[u8]) -> Result<(), Malformed> {
        let (header, body) = ReplyHeader::decode(frame).map_err(|_| Malformed)?;
        if header.xid == XID_EVENT {
            return self.read_event(header, body);
        }
        if header.error == AUTHENTICATION_REQUIRED {
            self.refused(now, SessionLoss::AuthenticationRequired);
            return Err(Malformed);
        }
        self.note_unknown_operation(header)?;
        match self.traffic.denied_at_once(header) {
            Some((position, error)) => self.finish(now, position, header, Err(error)),
            None => self.read_reply(now, header, body),
        }
    }

    fn read_event(&mut self, header: ReplyHeader, body: &[u8]) -> Result<(), Malformed> {
        let event = WatchEvent::decode(body).map_err(|_| Malformed)?;
        self.identity.notified(header.zxid);
        let tables: &[Table] = match event.kind {
            EventKind::Created | EventKind::DataChanged => &[Table::Data, Table::Existence],
            EventKind::Deleted => &[Table::Data, Table::Existence, Table::Children],
            EventKind::ChildrenChanged => &[Table::Children],
            EventKind::Other(_) => return Ok(()),
        };
        self.watches.remove_fired(tables, event.path);
        let is_deleted = event.kind == EventKind::Deleted;
        // A call at the root may have set a watch outside the chroot, which the application does not see.
        if let Some(path) = self.config.chroot.remove_from(event.path).map(str::to_owned) {
            self.post(Event::NodeChanged { path, is_deleted });
        }
        Ok(())
    }

    /// Notes which operation a server does not know. A server before 3.5 says so at once, ahead of the replies to older
    /// requests, and closes the connection.
    fn note_unknown_operation(&mut self, header: ReplyHeader) -> Result<(), Malformed> {
        if header.result() != Err(ZkError::Unimplemented) {
            return Ok(());
        }
        match self.traffic.sent.iter().find(|sent| sent.xid == header.xid).map(|sent| sent.operation) {
            // On the next connection, the client uses `Create` instead of `Create2`, and removes no watches.
            Some(OpCode::Create2 | OpCode::RemoveWatches) => {
                self.traffic.is_before_3_5 = true;
                self.note_served();
                Err(Malformed)
            }
            Some(OpCode::CreateContainer) => {
                self.traffic.lacks_containers = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn read_reply(&mut self, now: Moment, header: ReplyHeader, body: &[u8]) -> Result<(), Malformed> {
        let sent = self.traffic.sent.front().ok_or(Malformed)?;
        // Servers may answer `SetWatches` with another xid.
        let is_next = match sent.purpose {
            SentFor::SetWatches => header.xid != XID_PING,
            _ => header.xid == sent.xid,
        };
        if !is_next {
            return Err(Malformed);
        }
        match sent.decode(header, body) {
            Ok(outcome) => self.finish(now, 0, header, outcome),
            Err(_) => {
                // Fail the request for good: if it were repeated, its reply would be unreadable again.
                self.fail_unreadable();
                Err(Malformed)
            }
        }
    }

    /// Handles the reply to the request in flight at this position.
    fn finish(
        &mut self,
        now: Moment,
        position: usize,
        header: ReplyHeader,
        outcome: ZkResult<Reply>,
    ) -> Result<(), Malformed> {
        let result = self.handle_reply(now, position, header, outcome);
        if result.is_ok() {
            self.note_served();
        }
        result
    }

    fn handle_reply(
        &mut self,
        now: Moment,
        position: usize,
        header: ReplyHeader,
        outcome: ZkResult<Reply>,
    ) -> Result<(), Malformed> {
        let result = header.result();
        let Sent { operation, bytes, purpose, .. } = self.traffic.sent.remove(position).ok_or(Malformed)?;
        self.traffic.note_answered(operation, bytes);
        if let Phase::Serving(serving) = &mut self.phase {
            // A denial that overtakes other replies does not show that those replies make progress.
            if position == 0 {
                serving.progressed(now);
            }
        }
        // Until all watches are set again, earlier events may be missing. The transactions that the replies to
        // `SetWatches` and pings name are therefore not recorded. The transaction that a barrier's reply names is
        // recorded if the write has passed through the leader.
        match purpose {
            SentFor::SetWatches | SentFor::Ping(_) => {}
            SentFor::Barrier if !is_leaders_answer(header) => {
                self.traffic.is_barrier_denied |= result == Err(ZkError::NoAuth);
                return Err(Malformed);
            }
            _ => self.identity.replied(header.zxid),
        }
        let is_expired = result == Err(ZkError::SessionExpired);
        match purpose {
            SentFor::Caller(Submitted { call, chroot, continuation }) => {
                if let Some((table, path)) = table_of(operation, result).zip(call.watched_path()) {
                    self.watches.set(table, chroot.full(path).into_owned());
                }
                self.actions.push_back(Action::Reply(continuation, outcome));
            }
            SentFor::Ping(sent) if result.is_ok() => self.post(Event::PingAnswered { sent }),
            SentFor::Ping(_) if !is_expired => return Err(Malformed),
            SentFor::Ping(_) => {}
            SentFor::Close => self.end(),
            // Without its watches, the session would wait for events that never come.
            SentFor::SetWatches if result.is_err() => return Err(Malformed),
            SentFor::SetWatches | SentFor::Barrier | SentFor::Internal => {}
        }
        if is_expired {
            self.lose_session(SessionLoss::Expired);
        }
        Ok(())
    }

    /// Notes that the server has answered a request, so it serves the session.
    fn note_served(&mut self) {
        if let Phase::Serving(serving) = &mut self.phase {
            serving.has_answered = true;
        }
        self.service.answered();
    }

    /// Fails the oldest request in flight, because its reply cannot be read.
    fn fail_unreadable(&mut self) {
        if !matches!(self.phase, Phase::Serving(_)) {
            return;
        }
        let Some(sent) = self.traffic.sent.pop_front() else { return };
        self.note_served();
        if let SentFor::Caller(Submitted { continuation, .. }) = sent.purpose {
            self.actions.push_back(Action::Reply(continuation, Err(ZkError::MarshallingError)));
        }
    }
}

/// Returns whether the leader has handled the write that this reply answers. If so, the server has applied everything
/// up to the write. A server that denies or throttles a write without asking the leader may lag behind.
fn is_leaders_answer(header: ReplyHeader) -> bool {
    match header.result() {
        Ok(()) | Err(ZkError::SessionExpired) => true,
        Err(error) => error.is_leaders_answer() || (error.is_answer() && header.zxid > 0),
    }
}
