//! Several real ZooKeeper servers that elect a leader.

use super::net::{four_letter, free_port};
use super::server::{Server, ServerOptions, TRIES};
use super::wait::{deadline, eventually, eventually_some, holds_within};

/// An ensemble on loopback ports. Its servers are named by their index, from 0. They end when this
/// value is dropped or the test process ends.
#[derive(Debug)]
pub struct Ensemble {
    nodes: Vec<Server>,
}

impl Ensemble {
    /// Starts `size` servers and returns once all of them serve.
    pub fn start(size: usize) -> Self {
        Self::with(size, &ServerOptions::default())
    }

    /// Starts `size` servers with these options and returns once all of them serve.
    pub fn with(size: usize, options: &ServerOptions) -> Self {
        for _ in 0..TRIES {
            let ensemble = Self::launch(size, options);
            let settled = holds_within(2 * deadline(), || {
                ensemble.nodes.iter().all(Server::serves) || ensemble.lost_a_port()
            });
            assert!(settled, "not all servers serve:\n{}", ensemble.logs());
            if !ensemble.lost_a_port() {
                return ensemble;
            }
        }
        panic!("in each of {TRIES} tries another process took a port before the server");
    }

    fn launch(size: usize, options: &ServerOptions) -> Self {
        let mut options = options.clone();
        // Limits in ticks. With the default tick a follower drops a silent leader after 3 s.
        options.config.extend(["initLimit=20".to_owned(), "syncLimit=6".to_owned()]);
        for id in 1..=size {
            let (quorum, election) = (free_port(), free_port());
            options.config.push(format!("server.{id}=127.0.0.1:{quorum}:{election}"));
        }
        let nodes: Vec<_> = (1..=size).map(|id| Server::prepare(id, &options)).collect();
        nodes.iter().for_each(Server::launch);
        Self { nodes }
    }

    /// Starts three voting servers and, last, an observer connected to the first of them, which is
    /// a follower.
    pub fn with_observer(options: &ServerOptions) -> Self {
        for _ in 0..TRIES {
            let ensemble = Self::launch_with_observer(options);
            if !ensemble.lost_a_port() {
                return ensemble;
            }
        }
        panic!("in each of {TRIES} tries another process took a port before the server");
    }

    fn launch_with_observer(options: &ServerOptions) -> Self {
        const OBSERVER: usize = 4;
        let mut common = options.clone();
        common.config.extend(["initLimit=20".to_owned(), "syncLimit=10".to_owned()]);
        for id in 1..=OBSERVER {
            let (quorum, election) = (free_port(), free_port());
            let role = if id == OBSERVER { ":observer" } else { "" };
            common.config.push(format!("server.{id}=127.0.0.1:{quorum}:{election}{role}"));
        }
        let master_port = format!("observerMasterPort={}", free_port());
        let prepare = |id| {
            let mut options = common.clone();
            if id == 1 || id == OBSERVER {
                options.config.push(master_port.clone());
            }
            if id == OBSERVER {
                options.config.push("peerType=observer".to_owned());
            }
            Server::prepare(id, &options)
        };
        let ensemble = Self { nodes: (1..=OBSERVER).map(prepare).collect() };
        // Two of the voters elect one of themselves, so that the first is a follower.
        for batch in [&ensemble.nodes[1..3], &ensemble.nodes[..1], &ensemble.nodes[3..]] {
            batch.iter().for_each(Server::launch);
            let settled =
                holds_within(2 * deadline(), || batch.iter().all(Server::serves) || ensemble.lost_a_port());
            assert!(settled, "not all servers serve:\n{}", ensemble.logs());
        }
        ensemble
    }

    fn lost_a_port(&self) -> bool {
        self.nodes.iter().any(Server::lost_its_port)
    }

    fn logs(&self) -> String {
        let logs: Vec<_> = self.nodes.iter().map(Server::log).collect();
        logs.join("\n--\n")
    }

    /// The number of servers, running or not.
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// One of the servers.
    pub fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// The addresses of all servers.
    pub fn connect_string(&self) -> String {
        let all: Vec<_> = self.nodes.iter().map(Server::connect_string).collect();
        all.join(",")
    }

    /// The addresses of all servers' ports with TLS.
    pub fn tls_connect_string(&self) -> String {
        let all: Vec<_> = self.nodes.iter().map(Server::tls_connect_string).collect();
        all.join(",")
    }

    /// The address of one server.
    pub fn connect_string_of(&self, index: usize) -> String {
        self.nodes[index].connect_string()
    }

    /// As [`Server::stop`].
    pub fn stop(&self, index: usize) {
        self.nodes[index].stop();
    }

    /// As [`Server::kill`].
    pub fn kill(&self, index: usize) {
        self.nodes[index].kill();
    }

    /// As [`Server::pause`].
    pub fn pause(&self, index: usize) {
        self.nodes[index].pause();
    }

    /// As [`Server::resume`]. Does not wait until the server has rejoined the ensemble.
    pub fn resume(&self, index: usize) {
        self.nodes[index].resume();
    }

    /// Starts a stopped or killed server. Returns once it serves if enough of the others are awake,
    /// otherwise immediately.
    pub fn restart(&self, index: usize) {
        self.nodes[index].launch();
        if self.has_quorum() {
            self.nodes[index].await_serving();
        }
    }

    /// Returns whether more than half of the servers are awake.
    pub fn has_quorum(&self) -> bool {
        self.nodes.iter().filter(|node| node.is_awake()).count() > self.size() / 2
    }

    /// Blocks until all awake servers serve under one leader. Panics without a quorum.
    pub fn await_quorum(&self) {
        assert!(self.has_quorum(), "more than half of the servers are down or paused");
        eventually("all servers that are awake serve", || {
            self.awake().all(|index| self.nodes[index].serves()) && self.leading().is_some()
        });
    }

    /// Blocks until there is a leader among the awake servers, and returns its index.
    pub fn leader(&self) -> usize {
        eventually_some("the ensemble has a leader", || self.leading())
    }

    /// Returns an awake server that does not lead.
    pub fn follower(&self) -> usize {
        let leader = self.leader();
        let mut others = self.awake().filter(|&index| index != leader);
        others.next().expect("a server is awake besides the leader")
    }

    fn awake(&self) -> impl Iterator<Item = usize> {
        (0..self.size()).filter(|&index| self.nodes[index].is_awake())
    }

    // An old leader, cut off from its followers, may briefly claim that it still leads.
    fn leading(&self) -> Option<usize> {
        let mut leaders = self.awake().filter(|&index| self.mode(index).as_deref() == Some("leader"));
        let leader = leaders.next();
        leader.filter(|_| leaders.next().is_none())
    }

    /// `leader` or `follower`, or `None` while the server has no quorum.
    pub fn mode(&self, index: usize) -> Option<String> {
        let answer = four_letter(self.nodes[index].port(), "srvr").ok()?;
        let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "))?;
        Some(mode.to_owned())
    }
}
