//! [`Handshake`]: the client's side of GSSAPI with Kerberos (RFC 4752), through the system's library. Only this
//! module uses that library.

use std::time::Duration;

use libgssapi::context::{ClientCtx, CtxFlags, SecurityContext};
use libgssapi::credential::{Cred, CredUsage};
use libgssapi::error::Error;
use libgssapi::name::Name;
use libgssapi::oid::{GSS_MECH_KRB5, GSS_NT_HOSTBASED_SERVICE, GSS_NT_KRB5_PRINCIPAL, OidSet};

use super::Exchange;
use super::kerberos::{KerberosConfig, KerberosTicket, ServerName};
use crate::machine::SaslStep;

/// The bit for "no security layer" in a server's offer.
const NO_LAYER: u8 = 1;
/// The token with which the client chooses no security layer, and a maximum message size of zero.
const CHOICE: [u8; 4] = [NO_LAYER, 0, 0, 0];

/// The properties that are requested and must be granted. Delegation is not requested, because it would let the server
/// act for the client everywhere.
const REQUIRED: CtxFlags =
    CtxFlags::GSS_C_MUTUAL_FLAG.union(CtxFlags::GSS_C_INTEG_FLAG).union(CtxFlags::GSS_C_SEQUENCE_FLAG);

/// The exchange on one connection. Only its first step may block, if a ticket is missing.
pub(super) struct Handshake {
    context: ClientCtx,
    /// Whether both sides have authenticated. The server offers its security layers next.
    is_established: bool,
}

impl Handshake {
    /// Begins an exchange with the server on a host, and returns the first token. Blocks while a KDC does not answer.
    pub(super) fn begin(config: &KerberosConfig, host: &str) -> Result<(Handshake, Vec<u8>), String> {
        let server = server_name(&config.server(host)).map_err(|error| describe(&error))?;
        let credential = credential(config).map_err(|error| describe(&error))?;
        let mut context = ClientCtx::new(Some(credential), server, REQUIRED, Some(GSS_MECH_KRB5));
        let token = context.step(None, None).map_err(|error| describe(&error))?;
        let token = token.map(|token| token.to_vec()).filter(|token| !token.is_empty());
        let token = token.ok_or("Kerberos: there is no first token")?;
        Ok((Handshake { context, is_established: false }, token))
    }

    fn establish(&mut self, token: &[u8]) -> Result<SaslStep, String> {
        let response = self.context.step(Some(token), None).map_err(|error| {
            format!("{}; the server may use a mechanism other than Kerberos", describe(&error))
        })?;
        let response = response.map(|response| response.to_vec()).unwrap_or_default();
        if !self.context.is_complete() {
            return Ok(SaslStep::Token(response));
        }
        self.is_established = true;
        Ok(established(self.context.flags().map_err(|error| describe(&error))?, response))
    }

    fn choose_layer(&mut self, token: &[u8]) -> Result<SaslStep, String> {
        let offer = self.context.unwrap(token).map_err(|error| describe(&error))?;
        match *offer {
            [layers, _, _, _] if layers & NO_LAYER != 0 => {}
            [_, _, _, _] => return Err("Kerberos: the server insists on a security layer".to_owned()),
            _ => return Err("Kerberos: the server offers no security layers".to_owned()),
        }
        // There is no authorization identity: the client acts as its own principal.
        let choice = self.context.wrap(false, &CHOICE).map_err(|error| describe(&error))?;
        Ok(SaslStep::LastToken(choice.to_vec()))
    }
}

impl Exchange for Handshake {
    fn step(&mut self, token: &[u8]) -> SaslStep {
        let step = if self.is_established { self.choose_layer(token) } else { self.establish(token) };
        step.unwrap_or_else(SaslStep::Failed)
    }
}

/// Returns the step that follows once the GSSAPI context is established with these properties.
fn established(granted: CtxFlags, response: Vec<u8>) -> SaslStep {
    match granted.contains(REQUIRED) {
        true => SaslStep::Token(response),
        false => SaslStep::Refused("Kerberos: the server has not proved itself".to_owned()),
    }
}

/// Returns the client's ticket. Blocks while a KDC does not answer.
pub(super) fn client_ticket(config: &KerberosConfig) -> Result<KerberosTicket, String> {
    let ticket = || -> Result<(Name, Duration), Error> {
        let credential = credential(config)?;
        Ok((credential.name()?, credential.lifetime()?))
    };
    let (name, lifetime) = ticket().map_err(|error| describe(&error))?;
    let name = name.display_name().map_err(|error| describe(&error))?;
    Ok(KerberosTicket { client: String::from_utf8_lossy(&name).into_owned(), lifetime })
}

/// Opens the credential cache, or fetches a ticket with the keytab. The result is not cached here, because other
/// processes renew tickets.
fn credential(config: &KerberosConfig) -> Result<Cred, Error> {
    let client = config.client().map(|client| Name::new(client.as_bytes(), Some(GSS_NT_KRB5_PRINCIPAL)));
    let mechanisms = OidSet::singleton(GSS_MECH_KRB5)?;
    Cred::acquire(client.transpose()?.as_ref(), None, CredUsage::Initiate, Some(&mechanisms))
}

fn server_name(name: &ServerName) -> Result<Name, Error> {
    match name {
        ServerName::Principal(principal) => Name::new(principal.as_bytes(), Some(GSS_NT_KRB5_PRINCIPAL)),
        ServerName::OnHost(name) => Name::new(name.as_bytes(), Some(GSS_NT_HOSTBASED_SERVICE)),
    }
}

/// Returns the library's message in one line, without its uninformative parts.
fn describe(error: &Error) -> String {
    in_one_line(&error.to_string())
}

/// A message may contain text from a KDC, so characters that could deceive the reader of a log or a terminal are
/// escaped.
fn in_one_line(text: &str) -> String {
    let text = text.replace("Unspecified GSS failure.  Minor code may provide more information", "");
    let text = text.replace("(Success)", "");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(&text);
    let mut line = "Kerberos: ".to_owned();
    for character in text.chars() {
        match character {
            '\'' | '"' => line.push(character),
            _ => line.extend(character.escape_debug()),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_that_has_not_proved_itself_is_refused() {
        assert_eq!(established(CtxFlags::all(), b"token".to_vec()), SaslStep::Token(b"token".to_vec()));
        for missing in REQUIRED.iter() {
            let step = established(CtxFlags::all() - missing, b"token".to_vec());
            assert!(matches!(step, SaslStep::Refused(_)), "{missing:?}: {step:?}");
        }
        assert!(
            REQUIRED.contains(CtxFlags::GSS_C_MUTUAL_FLAG) && !REQUIRED.contains(CtxFlags::GSS_C_DELEG_FLAG)
        );
    }

    #[test]
    fn messages_are_one_line_without_what_a_terminal_would_obey() {
        let message = "Unspecified GSS failure.  Minor code may provide more information (Cannot contact any KDC for \
                       realm 'ZK.TEST')\n";
        assert_eq!(in_one_line(message), "Kerberos: Cannot contact any KDC for realm 'ZK.TEST'");
        let hostile = "no\u{1b}[2J \r\nticket \u{7}\u{202e}\u{9b}A\0 caf\u{e9}";
        assert_eq!(
            in_one_line(hostile),
            "Kerberos: no\\u{1b}[2J ticket \\u{7}\\u{202e}\\u{9b}A\\0 caf\u{e9}"
        );
    }
}
