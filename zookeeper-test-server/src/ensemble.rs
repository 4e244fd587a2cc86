//! [`TestEnsemble`]: several real ZooKeeper servers that elect a leader.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use super::net::free_port;
use super::options::ServerOptions;
use super::relay::Relay;
use super::server::{TRIES, TestServer};
use super::wait::{holds_within, some_within};

/// How long a relay keeps a connection waiting for a leader that is not listening yet.
const MAX_LINK_WAIT: Duration = Duration::from_secs(3);

/// An ensemble of ZooKeeper servers on loopback ports.
///
/// The servers are numbered from 0. They end when this value is dropped or the test process ends.
///
/// ```no_run
/// use zookeeper_test_server::TestEnsemble;
///
/// # fn main() -> std::io::Result<()> {
/// let ensemble = TestEnsemble::start(3)?;
/// let leader = ensemble.leader()?;
/// ensemble.server(leader).kill()?;
/// assert_ne!(ensemble.leader()?, leader);
/// ensemble.restart(leader)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TestEnsemble {
    servers: Vec<Arc<TestServer>>,
    links: Vec<ServerLink>,
    options: ServerOptions,
}

/// The relay through which one server connects to another as its leader.
#[derive(Debug)]
struct ServerLink {
    ends: [usize; 2],
    relay: Relay,
}

impl TestEnsemble {
    /// Starts `size` servers and returns once all of them serve.
    ///
    /// # Errors
    /// Those of [`TestServer::start`].
    pub fn start(size: usize) -> io::Result<TestEnsemble> {
        TestEnsemble::start_with(size, &ServerOptions::new())
    }

    /// Starts `size` servers with these options and returns once all of them serve.
    ///
    /// The ensemble sets `initLimit` and `syncLimit` itself, after the lines of [`ServerOptions::config`].
    ///
    /// # Errors
    /// Those of [`TestServer::start`].
    pub fn start_with(size: usize, options: &ServerOptions) -> io::Result<TestEnsemble> {
        TestEnsemble::try_ports(|| {
            // The limits are in ticks. With the default tick, a follower drops a silent leader after 3 s.
            let options = with_servers(options, size, None)?.config("syncLimit=6");
            let servers = (1..=size).map(|id| TestServer::prepare(id, &options).map(Arc::new));
            let servers = servers.collect::<io::Result<_>>()?;
            let ensemble = TestEnsemble { servers, links: Vec::new(), options };
            ensemble.launch(&ensemble.servers)?;
            Ok(ensemble)
        })
    }

    /// Like [`start_with`](TestEnsemble::start_with), with two [`Relay`]s between every two servers: through one of
    /// them, the first server follows the second; through the other, the second follows the first. Elections bypass the
    /// relays.
    #[doc(hidden)]
    pub fn start_with_links(size: usize, options: &ServerOptions) -> io::Result<TestEnsemble> {
        TestEnsemble::try_ports(|| {
            let options = options.clone().config("initLimit=20").config("syncLimit=6");
            let ports = (0..size).map(|_| Ok((free_port()?, free_port()?)));
            let ports = ports.collect::<io::Result<Vec<_>>>()?;
            let (mut servers, mut links) = (Vec::new(), Vec::new());
            for from in 0..size {
                let mut own = options.clone();
                for (to, &(quorum, election)) in ports.iter().enumerate() {
                    let mut seen = quorum;
                    if to != from {
                        // A follower whose connection is refused tries again, but a follower whose connection
                        // closes starts an election. So this relay waits for its target.
                        let relay = Relay::waiting_for((Ipv4Addr::LOCALHOST, quorum), MAX_LINK_WAIT)?;
                        seen = relay.port();
                        links.push(ServerLink { ends: [from, to], relay });
                    }
                    own = own.config(server_line(to + 1, seen, election));
                }
                servers.push(Arc::new(TestServer::prepare(from + 1, &own)?));
            }
            let ensemble = TestEnsemble { servers, links, options };
            ensemble.launch(&ensemble.servers)?;
            Ok(ensemble)
        })
    }

    /// Starts three voting servers and an observer, the last server, which is connected to the first server.
    ///
    /// The observer follows the first server, which is itself a follower (`observerMasterPort`). This requires
    /// ZooKeeper 3.6 or later.
    ///
    /// # Errors
    /// Those of [`TestServer::start`].
    pub fn start_with_observer(options: &ServerOptions) -> io::Result<TestEnsemble> {
        const OBSERVER: usize = 4;
        TestEnsemble::try_ports(|| {
            let options = with_servers(options, OBSERVER, Some(OBSERVER))?.config("syncLimit=10");
            let master = options.clone().config(format!("observerMasterPort={}", free_port()?));
            let observer = master.clone().config("peerType=observer");
            let servers = [&master, &options, &options, &observer];
            let servers = servers.iter().zip(1..).map(|(options, id)| TestServer::prepare(id, options));
            let servers: Vec<_> = servers.map(|server| server.map(Arc::new)).collect::<io::Result<_>>()?;
            let ensemble = TestEnsemble { servers, links: Vec::new(), options };
            // Two of the voters elect a leader between them, so the first server becomes a follower.
            for batch in [&ensemble.servers[1..3], &ensemble.servers[..1], &ensemble.servers[3..]] {
                ensemble.launch(batch)?;
            }
            Ok(ensemble)
        })
    }

    fn try_ports(start: impl Fn() -> io::Result<TestEnsemble>) -> io::Result<TestEnsemble> {
        for _ in 0..TRIES {
            let ensemble = start()?;
            if !ensemble.lost_a_port() {
                return Ok(ensemble);
            }
        }
        let message = format!("in each of {TRIES} attempts another process took a server's port first");
        Err(io::Error::other(message))
    }

    /// Starts these servers. Waits until all of them serve, or until some server of the ensemble has lost its
    /// port.
    fn launch(&self, servers: &[Arc<TestServer>]) -> io::Result<()> {
        servers.iter().try_for_each(|server| server.launch())?;
        let serve = || servers.iter().all(|server| server.serves()) || self.lost_a_port();
        if holds_within(self.options.start_limit, serve) {
            return Ok(());
        }
        let logs: Vec<_> = self.servers.iter().map(|server| server.log()).collect();
        Err(io::Error::other(format!("not all servers serve:\n{}", logs.join("\n--\n"))))
    }

    fn lost_a_port(&self) -> bool {
        self.servers.iter().any(|server| server.lost_its_port())
    }

    /// Returns the number of servers, running or not.
    #[must_use]
    pub fn size(&self) -> usize {
        self.servers.len()
    }

    /// Returns the server with this index, for example to stop, kill or pause it.
    ///
    /// # Panics
    /// If there is no server with this index.
    #[must_use]
    pub fn server(&self, index: usize) -> &TestServer {
        &self.servers[index]
    }

    /// Returns the relays between these two servers, if the ensemble was started with relays.
    #[doc(hidden)]
    pub fn links(&self, one: usize, other: usize) -> impl Iterator<Item = &Relay> {
        let links =
            self.links.iter().filter(move |link| link.ends == [one, other] || link.ends == [other, one]);
        links.map(|link| &link.relay)
    }

    #[doc(hidden)]
    pub fn servers(&self) -> &[Arc<TestServer>] {
        &self.servers
    }

    /// Returns the addresses of all servers.
    #[must_use]
    pub fn connect_string(&self) -> String {
        let all: Vec<_> = self.servers.iter().map(|server| server.connect_string()).collect();
        all.join(",")
    }

    /// Starts a server that was stopped or killed.
    ///
    /// If there [is a quorum](TestEnsemble::has_quorum) with the restarted server, returns once that server serves;
    /// otherwise returns immediately.
    ///
    /// # Errors
    /// Those of [`TestServer::restart`].
    ///
    /// # Panics
    /// If there is no server with this index.
    pub fn restart(&self, index: usize) -> io::Result<()> {
        let server = &self.servers[index];
        server.launch()?;
        if self.has_quorum() { server.await_serving() } else { Ok(()) }
    }

    /// Returns whether more than half of the servers are awake.
    ///
    /// An observer counts as a server here, although it does not vote.
    #[must_use]
    pub fn has_quorum(&self) -> bool {
        self.awake().count() > self.size() / 2
    }

    /// Blocks until every awake server serves and one of them leads.
    ///
    /// # Errors
    /// If that does not happen in time, or if no more than half of the servers are awake.
    pub fn await_quorum(&self) -> io::Result<()> {
        if !self.has_quorum() {
            return Err(io::Error::other("at least half of the servers are down or paused"));
        }
        let serve = || self.awake().all(|index| self.servers[index].serves()) && self.leading().is_some();
        if holds_within(self.options.start_limit, serve) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "not all awake servers serve"))
    }

    /// Blocks until there is a leader among the awake servers, and returns its index.
    ///
    /// # Errors
    /// If no server leads in time.
    pub fn leader(&self) -> io::Result<usize> {
        some_within(self.options.start_limit, || self.leading())
            .ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "the ensemble has no leader"))
    }

    /// Returns the index of an awake server that is not the leader.
    ///
    /// # Errors
    /// If no server leads in time, or no other server is awake.
    pub fn follower(&self) -> io::Result<usize> {
        let leader = self.leader()?;
        let mut others = self.awake().filter(|&index| index != leader);
        others.next().ok_or_else(|| io::Error::other("no server besides the leader is awake"))
    }

    fn awake(&self) -> impl Iterator<Item = usize> {
        (0..self.size()).filter(|&index| self.servers[index].is_awake())
    }

    // Requires that exactly one server claims to lead: a former leader that is cut off from its followers may
    // briefly claim that it still leads.
    fn leading(&self) -> Option<usize> {
        let mut leaders = self.awake().filter(|&index| self.mode(index).as_deref() == Some("leader"));
        let leader = leaders.next();
        leader.filter(|_| leaders.next().is_none())
    }

    /// Returns `leader`, `follower` or `observer`.
    ///
    /// Returns `None` while the server is down or paused, has no quorum, or does not answer within 500 ms. The only
    /// server of an ensemble of size 1 is `standalone`.
    ///
    /// # Panics
    /// If there is no server with this index.
    #[must_use]
    pub fn mode(&self, index: usize) -> Option<String> {
        let answer = self.servers[index].ask_once("srvr").ok()?;
        let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "))?;
        Some(mode.to_owned())
    }
}

/// Returns the options with `initLimit` and the addresses of `size` servers added.
fn with_servers(options: &ServerOptions, size: usize, observer: Option<usize>) -> io::Result<ServerOptions> {
    let mut options = options.clone().config("initLimit=20");
    for id in 1..=size {
        let (quorum, election) = (free_port()?, free_port()?);
        let role = if observer == Some(id) { ":observer" } else { "" };
        options = options.config(server_line(id, quorum, election) + role);
    }
    Ok(options)
}

fn server_line(id: usize, quorum: u16, election: u16) -> String {
    format!("server.{id}=127.0.0.1:{quorum}:{election}")
}
