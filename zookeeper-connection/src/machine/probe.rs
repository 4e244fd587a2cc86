//! [`Probe`]: a short session that finds out a server's minimum session timeout.
//!
//! The protocol has no request for a server's tick or its minimum session timeout. But a server never grants less than
//! its minimum session timeout. [`TickSearch`](super::ticks::TickSearch) concludes from the answer, or from its absence,
//! which tick counts. If the application has stated the tick, no server is probed.

use std::time::Duration;

use super::LinkId;
use crate::codec::{ConnectAnswer, ConnectRequest, Control, Frames, Password, decode_connect_answer};

/// A server sends fewer bytes than this in total, including the reply to the close request.
const MAX_ANSWER: usize = 1024;

pub(super) struct Probe {
    pub(super) link: LinkId,
    is_open: bool,
    has_answered: bool,
    outgoing: Vec<u8>,
    frames: Frames,
    /// The number of bytes that the server may still send.
    budget: usize,
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
    /// Creates a probe on a transport that is being opened.
    pub(super) fn new(link: LinkId) -> Probe {
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
        Probe { link, is_open: false, has_answered: false, outgoing, frames, budget: MAX_ANSWER }
    }

    pub(super) fn opened(&mut self) {
        self.is_open = true;
    }

    /// Returns the bytes to send, if the transport is open.
    pub(super) fn outgoing(&mut self) -> Option<&mut Vec<u8>> {
        self.is_open.then_some(&mut self.outgoing)
    }

    /// Handles bytes from the server. `closes` says whether to close the session when the server has answered.
    pub(super) fn received(&mut self, bytes: &[u8], closes: bool) -> Progress {
        // Without a bound, a server that never stops sending would cost time until the probe's deadline.
        self.budget = self.budget.saturating_sub(bytes.len());
        let goes_on = if self.budget > 0 { Progress::Pending } else { Progress::Over };
        if self.has_answered {
            // This is the answer to the close request. The server closes the connection next.
            return goes_on;
        }
        self.frames.push(bytes);
        match self.frames.next_frame() {
            Ok(None) => goes_on,
            Ok(Some(frame)) => match decode_connect_answer(frame) {
                Ok(ConnectAnswer::Accepted(accepted)) => {
                    self.has_answered = true;
                    if closes {
                        Control::Close.encode(1, &mut self.outgoing);
                    }
                    // The timeout is above zero, because the answer is valid.
                    let millis = u64::try_from(accepted.timeout_ms).unwrap_or(u64::MAX);
                    Progress::Answered(Duration::from_millis(millis))
                }
                _ => Progress::Over,
            },
            Err(_) => Progress::Over,
        }
    }
}
