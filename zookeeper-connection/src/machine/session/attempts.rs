//! The attempts to find a server that serves the session.

use std::time::Duration;

use super::authentication::Stage;
use super::{Action, Event, Identity, Phase, Serving, Session, SessionLoss};
use crate::Granted;
use crate::codec::{ConnectAnswer, ConnectRequest, ConnectResponse, Frames, decode_connect_answer};
use crate::error::ZkError;
use crate::time::Moment;

pub(crate) const UNKNOWN_AT_FORMER_ADDRESS: &str = "it does not know the session; its name may have another address by now, and \
     this one may belong to another ensemble";

/// The error for a connection that must be dropped, usually because the server has sent bytes that the protocol does
/// not allow at this point.
pub(super) struct Malformed;

impl<C> Session<C> {
    pub(super) fn open(&mut self, now: Moment) {
        self.phase = Phase::Opening { give_up_at: now.after(self.pacing.opening_time()) };
        self.frames = Frames::new(self.config.max_frame);
        self.first_token = None;
        self.is_current = true;
        self.actions.push_back(Action::Open);
    }

    /// Sends the connect request, and nothing else. If the server closed the connection before it had read all bytes,
    /// it might reset the connection, and its answer would be lost.
    ///
    /// From now on, the server may use a shorter session timeout than before. The client does not know this until the
    /// answer arrives.
    pub(super) fn greet(&mut self, now: Moment) {
        let Identity { id, password, seen_zxid, .. } = &self.identity;
        let request = ConnectRequest {
            last_zxid: *seen_zxid,
            timeout_ms: i32::try_from(self.pacing.session_timeout().as_millis()).unwrap_or(i32::MAX),
            session_id: *id,
            password: password.clone(),
            read_only: false,
        };
        self.outgoing.clear();
        request.encode(&mut self.outgoing);
        self.phase = Phase::Greeting { give_up_at: now.after(self.pacing.greeting_time()) };
    }

    pub(super) fn read_greeting(&mut self, now: Moment, frame: &[u8]) -> Result<(), Malformed> {
        match decode_connect_answer(frame).map_err(|_| Malformed)? {
            ConnectAnswer::Accepted(ConnectResponse { read_only: true, .. })
            | ConnectAnswer::ReadOnlyServer => Err(Malformed),
            // A request for session 0 opens a new session, so a session 0 could never be resumed. No server
            // opens a session with the id -1.
            ConnectAnswer::Accepted(ConnectResponse { session_id: 0 | -1, .. }) => Err(Malformed),
            ConnectAnswer::ClickHouseKeeper => {
                self.refused(now, SessionLoss::ClickHouseKeeper);
                Err(Malformed)
            }
            ConnectAnswer::Accepted(response) => self.accepted(response, now),
            ConnectAnswer::Refused if self.identity.id == 0 => Err(Malformed),
            ConnectAnswer::Refused => self.unknown(now),
        }
    }

    /// Handles a server that does not know the session.
    fn unknown(&mut self, now: Moment) -> Result<(), Malformed> {
        let expires_at = self.last_heard.after(self.pacing.session_timeout());
        if self.is_current || expires_at <= now {
            self.lose_session(SessionLoss::Expired);
            return Ok(());
        }
        self.expires_at = Some(expires_at);
        self.failure = Some(UNKNOWN_AT_FORMER_ADDRESS.to_owned());
        Err(Malformed)
    }

    fn accepted(&mut self, response: ConnectResponse, now: Moment) -> Result<(), Malformed> {
        // A server that opens a different session does not know the requested one.
        if self.identity.id != 0 && response.session_id != self.identity.id {
            return self.unknown(now);
        }
        self.expires_at = None;
        let is_new = std::mem::replace(&mut self.identity.id, response.session_id) == 0;
        self.identity.password = response.password;
        let millis = u64::from(response.timeout_ms.unsigned_abs());
        let mut granted = Granted::new(Duration::from_millis(millis));
        if !is_new {
            // A timeout that is longer than an earlier grant never counts, because the leader may go back to the
            // earlier one. For example, a new leader uses the timeout that was granted when the session was created.
            granted = granted.at_most(self.pacing.session_timeout());
        }
        self.pacing.granted(granted.session_timeout);
        self.last_heard = self.last_heard.max(now);
        if self.config.credentials.is_empty() && !self.config.sasl {
            self.serve(granted, now);
            return Ok(());
        }
        if !is_new {
            self.post(Event::TakenUp { session_timeout: granted.session_timeout });
        }
        self.authenticate(granted, now)
    }

    /// Notes that the server now serves the session. Reports the connection, sets the watches again, sends the barrier
    /// if one is needed, and then sends the calls that have waited. If the session is being closed, sends only the
    /// close.
    pub(super) fn serve(&mut self, granted: Granted, now: Moment) {
        // If the last connection has not shown that a server serves the session, this one must show it soon.
        let next_ping = if self.service.is_shown() { now.after(self.pacing.ping_interval()) } else { now };
        self.phase = Phase::Serving(Serving {
            since: now,
            has_answered: false,
            last_progress: now,
            unread: 0,
            next_ping,
        });
        if self.closing_until.is_some() {
            return self.traffic.send_close(&mut self.outgoing);
        }
        self.post(Event::Connected { granted, session_id: self.identity.id });
        let (zxid, max_length) = (self.identity.replied_zxid, self.config.jute_max_buffer);
        for request in self.watches.to_set_again(zxid, max_length) {
            self.traffic.send_watches(&request, &mut self.outgoing);
        }
        if self.identity.has_seen_more {
            self.traffic.send_barrier(self.config.barrier_paths, &mut self.outgoing);
        }
        self.traffic.send_unsent(&mut self.outgoing);
    }

    /// Abandons the connection, or the attempt to open one.
    pub(super) fn drop_transport(&mut self, now: Moment) {
        if self.has_transport() {
            if matches!(self.phase, Phase::Serving(_)) {
                self.traffic.connection_left();
            }
            self.actions.push_back(Action::Drop);
            self.transport_gone(now);
        }
    }

    /// Handles the end of the transport, whatever the cause.
    pub(super) fn transport_gone(&mut self, now: Moment) {
        let next = match &self.phase {
            Phase::Pausing { .. } | Phase::Ended => return,
            Phase::Opening { .. } | Phase::Greeting { .. } | Phase::Authenticating { .. } => {
                self.pacing.attempt_failed(now)
            }
            Phase::Serving(serving) => self.pacing.connection_lost(now.since(serving.since), now),
        };
        let was_serving = matches!(self.phase, Phase::Serving(_));
        let is_renewed = match &self.phase {
            Phase::Authenticating { .. } => true,
            Phase::Serving(serving) => !serving.has_answered,
            _ => false,
        };
        let was_in_sasl =
            matches!(self.phase, Phase::Authenticating { stage: Stage::Token { .. } | Stage::Response, .. });
        self.outgoing.clear();
        self.phase = Phase::Pausing { until: next };
        if was_serving {
            self.post(Event::Disconnected);
            for continuation in self.traffic.take_sent() {
                self.actions.push_back(Action::Reply(continuation, Err(ZkError::ConnectionLoss)));
            }
        }
        if let Some(loss) = self.service.ended(now, is_renewed, &self.pacing) {
            // A session that is being closed already has a deadline.
            if self.closing_until.is_none() {
                return self.lose_session(loss);
            }
        }
        // Do not try again to close the session if it has no id, because another attempt would only open a session. If
        // the attempt ended during the SASL exchange, another one would probably end there, too, and would only renew
        // the session.
        if self.closing_until.is_some() && (was_in_sasl || self.identity.id == 0) {
            return self.end();
        }
        if next <= now {
            self.open(now);
        }
    }
}
