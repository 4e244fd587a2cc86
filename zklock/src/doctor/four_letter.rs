//! The four letter words, which ask a server about itself. A server may not allow them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(2);
const MAX_ANSWER: u64 = 64 * 1024;

/// What a server reports about itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) version: Option<String>,
    /// `leader`, `follower`, `observer`, `standalone`, `read-only` or `not serving`.
    pub(super) mode: Option<String>,
    pub(super) tick: Option<Duration>,
}

/// Asks a server for its version, mode and tick. Whatever the server does not answer is `None`.
pub(super) fn status(address: SocketAddr) -> Status {
    let answer = |word| ask(address, word).unwrap_or_default();
    Status::parse(&answer("srvr"), &answer("conf"))
}

fn ask(address: SocketAddr, word: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

impl Status {
    fn parse(srvr: &str, conf: &str) -> Status {
        let find = |answer: &str, name: &str| {
            answer.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
        };
        let version = find(srvr, "Zookeeper version:");
        // The commit and the build date follow the version.
        let version = version.and_then(|version| Some(version.split(['-', ',']).next()?.to_owned()));
        let tick = find(conf, "tickTime=").and_then(|tick| tick.parse().ok());
        let mode = match srvr.contains("not currently serving requests") {
            true => Some("not serving".to_owned()),
            false => find(srvr, "Mode:"),
        };
        Status { version, mode, tick: tick.map(Duration::from_millis) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_mode_and_tick_are_found() {
        let srvr = "Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022-02-25\n\
                    Latency min/avg/max: 0/0.0/0\nZxid: 0x2\nMode: follower\nNode count: 5\n";
        let conf = "clientPort=2181\ntickTime=2000\nmaxClientCnxns=60\n";
        let status = Status::parse(srvr, conf);
        assert_eq!(status.version.as_deref(), Some("3.8.0"));
        assert_eq!(status.mode.as_deref(), Some("follower"));
        assert_eq!(status.tick, Some(Duration::from_secs(2)));
    }

    #[test]
    fn refusals_show_nothing() {
        let refused = "srvr is not executed because it is not in the whitelist.\n";
        assert_eq!(Status::parse(refused, refused), Status::default());
        assert_eq!(Status::parse("", ""), Status::default());
    }

    #[test]
    fn server_without_a_quorum_does_not_serve() {
        let status = Status::parse("This ZooKeeper instance is not currently serving requests\n", "");
        assert_eq!(status.mode.as_deref(), Some("not serving"));
    }
}
