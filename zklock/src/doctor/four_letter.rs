//! The four letter words, which ask a server about itself. A server may not allow them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::output::printable;

/// The time for one word, from the connection to the end of the answer.
const TIMEOUT: Duration = Duration::from_secs(2);
const MAX_ANSWER: usize = 64 * 1024;

/// What a server reports about itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) version: Option<String>,
    /// `leader`, `follower`, `observer`, `standalone`, `read-only` or `not serving`.
    pub(super) mode: Option<String>,
    pub(super) tick: Option<Duration>,
    pub(super) min_session_timeout: Option<Duration>,
}

/// Asks a server for its version, mode, tick and minimum session timeout. Whatever the server does not answer is
/// `None`.
pub(super) fn status(address: SocketAddr) -> Status {
    let answer = |word| ask(address, word, TIMEOUT).unwrap_or_default();
    Status::parse(&answer("srvr"), &answer("conf"))
}

fn ask(address: SocketAddr, word: &str, timeout: Duration) -> io::Result<String> {
    let begun = Instant::now();
    let left = || {
        let left = timeout.checked_sub(begun.elapsed()).filter(|left| !left.is_zero());
        left.ok_or(io::Error::from(io::ErrorKind::TimedOut))
    };
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_write_timeout(Some(left()?))?;
    stream.write_all(word.as_bytes())?;
    let (mut answer, mut block) = (Vec::new(), [0; 4096]);
    while answer.len() < MAX_ANSWER {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut block) {
            Ok(0) => break,
            Ok(length) => answer.extend_from_slice(&block[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

impl Status {
    fn parse(srvr: &str, conf: &str) -> Status {
        let find = |answer: &str, name: &str| {
            answer.lines().find_map(|line| Some(printable(line.strip_prefix(name)?.trim())))
        };
        let version = find(srvr, "Zookeeper version:");
        // The commit and the build date follow the version.
        let version = version.and_then(|version| Some(version.split(['-', ',']).next()?.to_owned()));
        let millis = |name| find(conf, name)?.parse().ok().map(Duration::from_millis);
        let mode = match srvr.contains("not currently serving requests") {
            true => Some("not serving".to_owned()),
            false => find(srvr, "Mode:"),
        };
        Status { version, mode, tick: millis("tickTime="), min_session_timeout: millis("minSessionTimeout=") }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A timeout for each read alone would never end this.
    #[test]
    fn answer_that_never_ends_is_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b".").is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        assert!(ask(address, "srvr", Duration::from_millis(300)).is_err());
        server.join().unwrap();
    }

    #[test]
    fn version_mode_and_tick_are_found() {
        let srvr = "Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022-02-25\n\
                    Latency min/avg/max: 0/0.0/0\nZxid: 0x2\nMode: follower\nNode count: 5\n";
        let conf = "clientPort=2181\ntickTime=2000\nmaxClientCnxns=60\nminSessionTimeout=5000\n";
        let status = Status::parse(srvr, conf);
        assert_eq!(status.version.as_deref(), Some("3.8.0"));
        assert_eq!(status.mode.as_deref(), Some("follower"));
        assert_eq!(status.tick, Some(Duration::from_secs(2)));
        assert_eq!(status.min_session_timeout, Some(Duration::from_secs(5)));
    }

    #[test]
    fn answer_cannot_control_the_terminal() {
        let status = Status::parse("Zookeeper version: \x1b[2J-\nMode: \x1b]0;\x07\n", "");
        assert_eq!(status.version.as_deref(), Some("\\u{1b}[2J"));
        assert_eq!(status.mode.as_deref(), Some("\\u{1b}]0;\\u{7}"));
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
