//! [`Probe`]: a short session that finds out a server's minimum session timeout.
//!
//! The protocol has no request for a server's tick or its minimum session timeout. But a server never grants less than
//! its minimum session timeout. [`Ticks`](crate::tick::Ticks) concludes from the answer, or from its absence, which tick
//! counts. If the application has stated the tick, no server is probed.

use std::io;
use std::time::Duration;

use mio::Registry;

use crate::codec::{ConnectAnswer, ConnectRequest, Control, Frames, Password, decode_connect_answer};
use crate::time::Moment;
use crate::transport::Transport;

/// A server sends fewer bytes than this in total, including the reply to the close request.
const MAX_ANSWER: usize = 1024;

pub(super) struct Probe {
    transport: Transport,
    stage: ProbeStage,
    outgoing: Vec<u8>,
    frames: Frames,
    /// The number of bytes that the server may still send.
    budget: usize,
    deadline: Moment,
    /// Whether to close the session instead of letting it expire.
    closes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeStage {
    Opening,
    /// The connect request has been sent.
    Asked,
    /// The server has answered, and the session is being closed.
    Answered,
}

/// The progress of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Pending,
    /// The server has this minimum session timeout. The probe has yet to close its session.
    Answered(Duration),
    /// The probe has ended.
    Over,
}

impl Probe {
    /// Creates a probe on a transport that is being opened. The probe ends at `deadline`.
    ///
    /// `closes` must be `false` if the servers may require authentication: they would refuse to close the session, and
    /// log an error.
    pub(super) fn new(transport: Transport, deadline: Moment, closes: bool) -> Probe {
        let mut outgoing = Vec::new();
        let request = ConnectRequest {
            last_zxid: 0,
            timeout_ms: 1,
            session_id: 0,
            password: Password::default(),
            read_only: false,
        };
        request.encode(&mut outgoing);
        let frames = Frames::new(MAX_ANSWER);
        Probe {
            transport,
            stage: ProbeStage::Opening,
            outgoing,
            frames,
            budget: MAX_ANSWER,
            deadline,
            closes,
        }
    }

    pub(super) fn deadline(&self) -> Moment {
        self.deadline
    }

    /// Continues after the transport has become ready. Must be called again after `Answered`.
    pub(super) fn advance(&mut self) -> Progress {
        self.try_advance().unwrap_or(Progress::Over)
    }

    /// Closes the transport. A session that was not closed expires after the minimum session timeout.
    pub(super) fn close(self, registry: &Registry) {
        self.transport.close(registry);
    }

    fn try_advance(&mut self) -> io::Result<Progress> {
        if self.stage == ProbeStage::Opening {
            if !self.transport.progress()? {
                return Ok(Progress::Pending);
            }
            self.stage = ProbeStage::Asked;
        }
        self.transport.write(&mut self.outgoing)?;
        let mut buffer = [0; MAX_ANSWER];
        // Without a bound, a server that never stops sending would keep the thread here.
        while self.budget > 0 {
            let count = match self.transport.read(&mut buffer) {
                Ok(0) => return Ok(Progress::Over),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Progress::Pending),
                Err(error) => return Err(error),
            };
            self.budget = self.budget.saturating_sub(count);
            if self.stage == ProbeStage::Answered {
                // This is the answer to the close request. The server closes the connection next.
                continue;
            }
            self.frames.push(&buffer[..count]);
            if let Some(frame) = self.frames.next_frame().map_err(io::Error::other)? {
                let Ok(ConnectAnswer::Accepted(accepted)) = decode_connect_answer(frame) else {
                    return Ok(Progress::Over);
                };
                self.stage = ProbeStage::Answered;
                if self.closes {
                    Control::Close.encode(1, &mut self.outgoing);
                    self.transport.write(&mut self.outgoing)?;
                } else {
                    self.budget = 0;
                }
                // The timeout is above zero, because the answer is valid.
                let millis = u64::try_from(accepted.timeout_ms).unwrap_or(u64::MAX);
                return Ok(Progress::Answered(Duration::from_millis(millis)));
            }
        }
        Ok(Progress::Over)
    }
}
