//! Authentication on a new connection: a SASL exchange, followed by the credentials. No other request is sent before
//! authentication is complete, because the server would handle that request without the client's identity, or close the
//! connection.

use std::fmt;

use super::attempts::Malformed;
use super::{Action, Phase, Session, SessionLoss};
use crate::Granted;
use crate::codec::{AUTHENTICATION_REQUIRED, Control, ReplyHeader, XID_AUTH, decode_sasl_token};
use crate::error::ZkError;
use crate::time::Moment;

/// The maximum number of tokens that the client sends on one connection. DIGEST-MD5 needs two, Kerberos three.
const MAX_TOKENS: u32 = 8;

/// The maximum length of a token in either direction. An Active Directory ticket is up to 64 KiB long.
const MAX_TOKEN: usize = 256 << 10;

/// The maximum length of a frame before the server serves the session: a token and its envelope.
pub(super) const MAX_EARLY_FRAME: usize = MAX_TOKEN + 64;

const NO_SASL: &str = "the server does not use SASL, or admits clients whose authentication fails";
const REFUSED: &str = "the server refuses the SASL authentication; its log says why";
const TOO_LONG: &str = "a SASL token is too long";
const ENDLESS: &str = "the SASL exchange does not end";

/// What the client waits for before the server serves the session.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// The server's answer to the token in the request with this xid.
    Token { xid: i32, is_last: bool },
    /// The response to the server's token, which the owner of the machine provides.
    Response,
    /// The server's answers to this many credentials.
    Credentials(usize),
}

/// The client's step in a SASL exchange, in response to a server's token.
#[derive(Clone, PartialEq, Eq)]
pub enum SaslStep {
    /// Send this token. The server must answer with another one.
    Token(Vec<u8>),
    /// Send this token. The exchange is complete when the server accepts it. The server must not send another token.
    LastToken(Vec<u8>),
    /// The exchange is complete: the server has authenticated itself.
    Complete,
    /// The server has not authenticated itself. This counts as a refusal.
    Refused(String),
    /// The exchange cannot go on, for this reason.
    Failed(String),
}

impl fmt::Debug for SaslStep {
    /// Writes no tokens, because they would help an attacker guess passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaslStep::Token(_) => f.write_str("Token"),
            SaslStep::LastToken(_) => f.write_str("LastToken"),
            SaslStep::Complete => f.write_str("Complete"),
            SaslStep::Refused(why) => write!(f, "Refused({why:?})"),
            SaslStep::Failed(why) => write!(f, "Failed({why:?})"),
        }
    }
}

impl<C> Session<C> {
    /// Sets the first token of the SASL exchange on the next open transport.
    ///
    /// With SASL, this must precede each call of [`opened`](Session::opened).
    pub fn set_first_token(&mut self, token: Vec<u8>) {
        self.first_token = Some(token);
    }

    /// Continues the SASL exchange with the response to [`Action::Challenge`].
    pub fn respond(&mut self, now: Moment, step: SaslStep) {
        if !matches!(self.phase, Phase::Authenticating { stage: Stage::Response, .. }) {
            return;
        }
        let result = match step {
            SaslStep::Token(token) => self.send_token(&token, false),
            SaslStep::LastToken(token) => self.send_token(&token, true),
            SaslStep::Complete => {
                self.present_credentials(now);
                Ok(())
            }
            SaslStep::Refused(why) => Err(self.sasl_refused(now, why)),
            SaslStep::Failed(why) => Err(self.attempt_fails(why)),
        };
        if let Err(Malformed) = result {
            self.drop_transport(now);
        }
    }

    /// Takes the reason why the machine abandoned the last connection, if there is one.
    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Returns the xid of the request whose token the server must answer.
    #[cfg(any(test, zk_laws))]
    pub(super) fn awaited_token(&self) -> Option<i32> {
        match self.phase {
            Phase::Authenticating { stage: Stage::Token { xid, .. }, .. } => Some(xid),
            _ => None,
        }
    }

    /// Begins the authentication, after a server has accepted the session with this grant.
    pub(super) fn authenticate(&mut self, granted: Granted, now: Moment) -> Result<(), Malformed> {
        let give_up_at = now.after(self.pacing.greeting_time());
        self.phase = Phase::Authenticating { granted, stage: Stage::Response, tokens: 0, give_up_at };
        if !self.config.sasl {
            self.present_credentials(now);
            return Ok(());
        }
        // Without a token, the session would have no identity.
        let token = self.first_token.take().ok_or(Malformed)?;
        self.send_token(&token, false)
    }

    fn send_token(&mut self, token: &[u8], is_last: bool) -> Result<(), Malformed> {
        if token.len() > MAX_TOKEN {
            return Err(self.attempt_fails(TOO_LONG));
        }
        let Phase::Authenticating { stage, tokens, .. } = &mut self.phase else { return Err(Malformed) };
        if *tokens == MAX_TOKENS {
            return Err(self.attempt_fails(ENDLESS));
        }
        *tokens += 1;
        let xid = self.traffic.next_xid();
        *stage = Stage::Token { xid, is_last };
        Control::Sasl { token: token.into() }.encode(xid, &mut self.outgoing);
        Ok(())
    }

    fn present_credentials(&mut self, now: Moment) {
        let Phase::Authenticating { granted, stage, .. } = &mut self.phase else { return };
        if self.config.credentials.is_empty() {
            let granted = *granted;
            return self.serve(granted, now);
        }
        *stage = Stage::Credentials(self.config.credentials.len());
        for credential in &self.config.credentials {
            let scheme = credential.scheme.as_str().into();
            let auth = credential.auth.as_slice().into();
            Control::Auth { scheme, auth }.encode(XID_AUTH, &mut self.outgoing);
        }
    }

    pub(super) fn read_authentication(&mut self, now: Moment, frame: &[u8]) -> Result<(), Malformed> {
        let (header, body) = ReplyHeader::decode(frame).map_err(|_| Malformed)?;
        let Phase::Authenticating { stage, .. } = self.phase else { return Err(Malformed) };
        match stage {
            Stage::Token { xid, is_last } => self.read_token(now, header, body, xid, is_last),
            // The server must not send anything before the client's response.
            Stage::Response => Err(Malformed),
            Stage::Credentials(unanswered) => self.read_credential(now, header, unanswered),
        }
    }

    fn read_token(
        &mut self,
        now: Moment,
        header: ReplyHeader,
        body: &[u8],
        xid: i32,
        is_last: bool,
    ) -> Result<(), Malformed> {
        if header.xid != xid {
            return Err(Malformed);
        }
        if header.error == AUTHENTICATION_REQUIRED || header.result() == Err(ZkError::AuthFailed) {
            return Err(self.sasl_refused(now, REFUSED));
        }
        if header.error != 0 {
            return Err(Malformed);
        }
        let token = decode_sasl_token(body).map_err(|_| Malformed)?;
        if token.len() > MAX_TOKEN {
            return Err(self.attempt_fails(TOO_LONG));
        }
        match (is_last, token.is_empty()) {
            (true, true) => self.present_credentials(now),
            (false, false) => {
                let challenge = token.to_vec();
                if let Phase::Authenticating { stage, .. } = &mut self.phase {
                    *stage = Stage::Response;
                }
                self.actions.push_back(Action::Challenge(challenge));
            }
            // The exchange must not go on: the server would handle further requests without the client's identity.
            (false, true) => return Err(self.attempt_fails(NO_SASL)),
            (true, false) => return Err(self.attempt_fails(ENDLESS)),
        }
        Ok(())
    }

    fn read_credential(
        &mut self,
        now: Moment,
        header: ReplyHeader,
        unanswered: usize,
    ) -> Result<(), Malformed> {
        if header.error == AUTHENTICATION_REQUIRED {
            self.refused(now, SessionLoss::AuthenticationRequired);
            return Err(Malformed);
        }
        if header.xid != XID_AUTH {
            return Err(Malformed);
        }
        if header.error != 0 {
            if ZkError::from_code(header.error) == ZkError::AuthFailed {
                self.credentials_refused(now);
            }
            // After refusing a credential, the server closes the connection anyway.
            return Err(Malformed);
        }
        let Phase::Authenticating { granted, stage, .. } = &mut self.phase else { return Err(Malformed) };
        *stage = Stage::Credentials(unanswered - 1);
        if unanswered == 1 {
            let granted = *granted;
            self.serve(granted, now);
        }
        Ok(())
    }

    /// Notes that a server refuses the client, or has not authenticated itself.
    fn sasl_refused(&mut self, now: Moment, why: impl Into<String>) -> Malformed {
        self.refused(now, SessionLoss::SaslRefused);
        self.attempt_fails(why)
    }

    fn attempt_fails(&mut self, why: impl Into<String>) -> Malformed {
        self.failure = Some(why.into());
        Malformed
    }
}
