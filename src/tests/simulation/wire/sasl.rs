//! SASL authentication by a mechanism with one challenge, in which only the order of the tokens matters.

use super::ensemble::Mode;
use super::ledger::Meaning;
use super::server::Front;
use crate::error::ZkError;
use crate::tests::simulation::seen::saw;
use zookeeper_connection::codec::{ReplyHeader, encode_sasl_token};
use zookeeper_connection::machine::SaslStep;

pub(super) const FIRST: &[u8] = b"first";
const CHALLENGE: &[u8] = b"challenge";
const LAST: &[u8] = b"last";

/// Whether a client gets the ticket that its first token needs. Without one, it opens no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tickets {
    AtHand,
    /// The KDC does not answer for now.
    Awaited,
    Missing,
}

/// What a server knows of the client on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    Unknown,
    Challenged,
    Proven,
}

/// Returns the client's response to a server's token.
pub(super) fn respond(token: &[u8]) -> SaslStep {
    match token == CHALLENGE {
        true => SaslStep::LastToken(LAST.to_vec()),
        false => SaslStep::Refused("this is not the challenge".to_owned()),
    }
}

impl Front<'_> {
    pub(super) fn take_token(&mut self, xid: i32, token: &[u8]) {
        let identity = self.transport.peer.identity;
        let (expected, next, answer) = match identity {
            Identity::Unknown => (FIRST, Identity::Challenged, Some(CHALLENGE)),
            Identity::Challenged | Identity::Proven => (LAST, Identity::Proven, None),
        };
        if token != expected || identity == Identity::Proven {
            return self.fail("sends a token out of turn");
        }
        match self.mode() {
            Mode::Mute if identity == Identity::Challenged => return saw("sasl-exchange-stops"),
            Mode::Refusing if answer.is_none() || self.world.state().random.one_in(2) => {
                return self.refuse(xid);
            }
            // The server ignores the token and serves the client without an identity.
            Mode::WithoutSasl => {
                saw("sasl-ignored");
                return self.send_token(xid, None, Meaning::Garbage);
            }
            _ => {}
        }
        self.transport.peer.identity = next;
        self.send_token(xid, answer, Meaning::Token);
    }

    fn refuse(&mut self, xid: i32) {
        self.world.note(format!("server {} refuses client {} by SASL", self.transport.server, self.client));
        saw("sasl-refused");
        let mut frame = Vec::new();
        ReplyHeader { xid, zxid: 0, error: ZkError::AuthFailed.code() }.encode(&mut frame);
        self.send(&frame, Some(Meaning::Refusal));
    }

    fn send_token(&mut self, xid: i32, token: Option<&[u8]>, meaning: Meaning) {
        let mut frame = Vec::new();
        encode_sasl_token(xid, token, &mut frame);
        self.send(&frame, Some(meaning));
    }
}
