//! [`Probe`]: a session that finds out a server's minimum session timeout, and ends at once.
//!
//! A server grants no less than its minimum, which is two of its ticks unless it is configured
//! otherwise. The protocol has no request for either. Only the report delay depends on the
//! answer: without one, the longest ticks that the server may have are assumed. A minimum below two
//! ticks would make the report delay too short, so the application's statement
//! ([`max_tick`](crate::ConnectionOptions::max_tick)) is a lower bound.

use std::io;
use std::time::Duration;

use mio::Registry;

use crate::codec::{ConnectAnswer, ConnectRequest, Control, Frames, Password, decode_connect_answer};
use crate::time::Moment;
use crate::transport::Transport;

/// The length of an answer is less than this, with the reply to the close request.
const MAX_ANSWER: usize = 1024;

pub(super) struct Probe {
    transport: Transport,
    stage: ProbeStage,
    outgoing: Vec<u8>,
    frames: Frames,
    /// The number of bytes that may still come.
    budget: usize,
    deadline: Moment,
    /// The session is closed, rather than left to end by itself.
    closes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeStage {
    Opening,
    /// The connect request was sent.
    Asked,
    /// The answer has come, and the session is being closed.
    Answered,
}

/// The progress of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Pending,
    /// The minimum session timeout. The probe still closes its session.
    Answered(Duration),
    /// Nothing more comes.
    Over,
}

impl Probe {
    /// Takes a transport that is being opened. Ends at `deadline`. Must not close its session where servers require an
    /// authentication, as they would refuse that, and log an error.
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

    /// Continues after a change of the transport's readiness, until `Pending` or `Over`.
    pub(super) fn advance(&mut self) -> Progress {
        self.try_advance().unwrap_or(Progress::Over)
    }

    /// Closes the transport. The server ends a session that was not closed after its minimum.
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
        // A server that never stops sending would keep the thread here.
        while self.budget > 0 {
            let count = match self.transport.read(&mut buffer) {
                Ok(0) => return Ok(Progress::Over),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Progress::Pending),
                Err(error) => return Err(error),
            };
            self.budget = self.budget.saturating_sub(count);
            if self.stage == ProbeStage::Answered {
                // The answer to the close request, after which the server closes the connection.
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
                // Above zero, as the answer is valid.
                let millis = u64::try_from(accepted.timeout_ms).unwrap_or(u64::MAX);
                return Ok(Progress::Answered(Duration::from_millis(millis)));
            }
        }
        Ok(Progress::Over)
    }
}
