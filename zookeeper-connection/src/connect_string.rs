//! [`ConnectString`]: the servers and the chroot, parsed before anything is sent.

use std::fmt;

use crate::ConnectError;
use crate::path::{broken_rule, printable};

type Result<T> = std::result::Result<T, ConnectError>;

const DEFAULT_PORT: u16 = 2181;
const FORM: &str = "write host:port,host:port/chroot";

/// A parsed connect string: the servers, in order, and the chroot of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectString {
    servers: Vec<String>,
    chroot: Option<String>,
}

impl ConnectString {
    /// Parses `host:port,host:port/chroot`. The default port is 2181.
    ///
    /// A chroot that contains a comma, a semicolon or white space is refused, although a znode may have such a name.
    /// More likely, somebody has repeated the chroot after each server, and all servers but the first would silently
    /// become part of the chroot.
    ///
    /// # Errors
    /// [`InvalidConnectString`](ConnectError::InvalidConnectString) and
    /// [`InvalidChroot`](ConnectError::InvalidChroot). They do not show the text, in which somebody may have put a
    /// password.
    pub fn parse(text: &str) -> Result<ConnectString> {
        let text = text.trim();
        let (servers, chroot) = match text.find('/') {
            Some(slash) => text.split_at(slash),
            None => (text, ""),
        };
        if text.contains('@') {
            return Err(refused(format!("it has an '@'; {FORM}, and give credentials apart from it")));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            let is_scheme = scheme.chars().all(|character| character.is_ascii_alphanumeric());
            let scheme = if is_scheme { scheme } else { "…" };
            return Err(refused(format!("it has a scheme; leave '{scheme}://' out")));
        }
        if servers.contains(';') {
            return Err(refused("it has a semicolon; separate servers by commas".to_owned()));
        }
        if chroot.contains(|character: char| matches!(character, ',' | ';') || character.is_whitespace()) {
            let rule = "its chroot has a comma, a semicolon or white space; give the chroot once, after the last server";
            return Err(refused(format!("{rule}: {FORM}")));
        }
        // Empty entries are ignored, as in Java's client: a generated list may end in a comma.
        let named = servers.split(',').map(str::trim).filter(|server| !server.is_empty());
        let servers: Vec<String> =
            (1..).zip(named).map(|(number, server)| parse_server(number, server)).collect::<Result<_>>()?;
        if servers.is_empty() {
            return Err(refused(format!("it names no server; {FORM}")));
        }
        let chroot = match chroot {
            "" | "/" => None,
            chroot => Some(checked(chroot)?),
        };
        Ok(ConnectString { servers, chroot })
    }

    /// Returns the servers, each as `host:port`.
    #[must_use]
    pub fn servers(&self) -> &[String] {
        &self.servers
    }

    /// Returns the chroot, or `None` if there is none or if it is `/`.
    #[must_use]
    pub fn chroot(&self) -> Option<&str> {
        self.chroot.as_deref()
    }
}

fn refused(rule: String) -> ConnectError {
    ConnectError::InvalidConnectString { rule }
}

fn checked(chroot: &str) -> Result<String> {
    match broken_rule(chroot) {
        None => Ok(chroot.to_owned()),
        Some(rule) => Err(ConnectError::InvalidChroot { path: printable(chroot), rule }),
    }
}

/// Parses the server with this number in the list.
fn parse_server(number: usize, server: &str) -> Result<String> {
    let refuse = |rule: &str| Err(refused(format!("server {number} {rule}")));
    // Colons inside the brackets of an IPv6 address are not separators.
    let after_address = server.rfind(']').map_or(0, |bracket| bracket + 1);
    let (host, port) = match server[after_address..].rfind(':') {
        Some(colon) => (&server[..after_address + colon], Some(&server[after_address + colon + 1..])),
        None => (server, None),
    };
    if host.is_empty() {
        return refuse(&format!("names no host; {FORM}"));
    }
    if host.chars().any(|character| character.is_whitespace() || character.is_control()) {
        return refuse("has white space or a control character; separate servers by commas");
    }
    if host.contains([':', '[', ']']) && !(host.starts_with('[') && host.ends_with(']')) {
        return refuse("needs brackets around its IPv6 address");
    }
    match port.map(str::parse) {
        None => Ok(format!("{host}:{DEFAULT_PORT}")),
        Some(Ok(0)) | Some(Err(_)) => refuse("has no valid port, a number from 1 to 65535"),
        Some(Ok::<u16, _>(port)) => Ok(format!("{host}:{port}")),
    }
}

impl fmt::Display for ConnectString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.servers.join(","), self.chroot().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_chroot_are_parsed() {
        let parsed = ConnectString::parse("zk1:2182, zk2,[::1]:2183,[::1]/app/a").unwrap();
        assert_eq!(parsed.servers(), ["zk1:2182", "zk2:2181", "[::1]:2183", "[::1]:2181"]);
        assert_eq!(parsed.chroot(), Some("/app/a"));
        assert_eq!(ConnectString::parse("zk1/").unwrap().chroot(), None);
    }

    #[test]
    fn empty_entries_are_ignored() {
        for text in ["zk1:2181,zk2:2181,", ",zk1:2181,,zk2:2181", " zk1:2181, ,zk2:2181, "] {
            let parsed = ConnectString::parse(text).unwrap();
            assert_eq!(parsed.servers(), ["zk1:2181", "zk2:2181"], "{text:?}");
        }
        let parsed = ConnectString::parse("zk1:2181,/app").unwrap();
        assert_eq!(parsed.to_string(), "zk1:2181/app");
    }

    #[test]
    fn connect_string_without_a_server_is_refused() {
        for text in ["", " ", ",", " , ", "/app", ",/app"] {
            let error = ConnectString::parse(text).unwrap_err();
            assert!(matches!(error, ConnectError::InvalidConnectString { .. }), "{text:?}: {error}");
            assert!(error.to_string().contains("names no server; write host:port"), "{text:?}: {error}");
        }
    }

    #[test]
    fn invalid_connect_string_is_named_in_the_error() {
        for text in ["zk1:port", "zk1:0", "zk1:70000", ":2181", "::1:2181", "[::1", "::1]:2181", "z k:1"] {
            let error = ConnectString::parse(text).unwrap_err();
            assert!(matches!(error, ConnectError::InvalidConnectString { .. }), "{text:?}: {error}");
            assert!(error.to_string().contains("connect string"), "{text:?}: {error}");
        }
    }

    #[track_caller]
    fn assert_refused(text: &str, because: &str) {
        let error = ConnectString::parse(text).unwrap_err();
        assert!(matches!(error, ConnectError::InvalidConnectString { .. }), "{text:?}: {error}");
        assert!(error.to_string().contains(because), "{text:?}: {error}");
    }

    #[test]
    fn chroot_behind_each_server_is_refused() {
        for text in ["h1:2181/app,h2:2181/app", "h1/app,h2/app", "h1:2181/app, h2:2181", "h1/app;h2/app"] {
            assert_refused(text, "give the chroot once, after the last server");
        }
        assert_refused("h1:2181/app h2:2181/app", "white space");
    }

    #[test]
    fn semicolon_between_servers_is_named_in_the_error() {
        for text in ["h1:2181;h2:2181", "h1;h2", "h1:2181,h2:2181;h3:2181/app"] {
            assert_refused(text, "has a semicolon; separate servers by commas");
        }
    }

    #[test]
    fn spaces_separate_nothing_and_are_ignored_around_servers_and_chroot() {
        for text in ["h1:2181 h2:2181", "h1 h2", "h1 :2181", "h1:2181,h2 h3"] {
            assert_refused(text, "separate servers by commas");
        }
        assert_refused("h1: 2181", "no valid port");
        let parsed = ConnectString::parse("  h1:2181 , h2:2181/app\n").unwrap();
        assert_eq!(parsed.to_string(), "h1:2181,h2:2181/app");
    }

    #[test]
    fn chroot_is_checked_as_any_path() {
        for text in ["zk1:2181/a//b", "zk1:2181/a/", "zk1:2181/../a"] {
            assert!(
                matches!(ConnectString::parse(text), Err(ConnectError::InvalidChroot { .. })),
                "{text:?}"
            );
        }
    }
}
