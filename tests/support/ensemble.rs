//! Wraps the published [`TestEnsemble`] so that errors panic.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use super::panics;
use super::server::{Server, ServerOptions};
use super::test_server::{self, TestEnsemble};

/// An ensemble. Any error from it fails the test.
#[derive(Debug)]
pub struct Ensemble {
    nodes: Vec<Server>,
    published: TestEnsemble,
}

impl Ensemble {
    /// Starts `size` servers and returns once all of them serve.
    pub fn start(size: usize) -> Self {
        Self::with(size, &ServerOptions::default())
    }

    /// Starts `size` servers with these options and returns once all of them serve.
    pub fn with(size: usize, options: &ServerOptions) -> Self {
        Self::published(size, &options.published())
    }

    /// Starts `size` servers with options of the published package.
    pub fn published(size: usize, options: &test_server::ServerOptions) -> Self {
        Self::of(TestEnsemble::start_with(size, options))
    }

    /// Starts `size` servers with links between them that can be stalled.
    pub fn with_links(size: usize, options: &test_server::ServerOptions) -> Self {
        Self::of(TestEnsemble::start_with_links(size, options))
    }

    /// Starts three voting servers and an observer. The observer is the last server, and is connected to the first
    /// server, which is a follower.
    pub fn with_observer(options: &ServerOptions) -> Self {
        Self::of(TestEnsemble::start_with_observer(&options.published()))
    }

    fn of(started: io::Result<TestEnsemble>) -> Self {
        panics::watch();
        let published = started.unwrap_or_else(|error| panic!("{error}"));
        let nodes = published.servers().iter().map(|server| Server(Arc::clone(server))).collect();
        Self { nodes, published }
    }

    /// Returns the server with this index.
    pub fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// Returns the addresses of all servers' TLS ports.
    pub fn tls_connect_string(&self) -> String {
        let all: Vec<_> = self.nodes.iter().map(Server::tls_connect_string).collect();
        all.join(",")
    }

    /// Returns the address of one server.
    pub fn connect_string_of(&self, index: usize) -> String {
        self.nodes[index].connect_string()
    }

    pub fn stop(&self, index: usize) {
        self.nodes[index].stop();
    }

    pub fn kill(&self, index: usize) {
        self.nodes[index].kill();
    }

    pub fn pause(&self, index: usize) {
        self.nodes[index].pause();
    }

    /// Resumes a server without waiting until it has rejoined the ensemble.
    pub fn resume(&self, index: usize) {
        self.nodes[index].resume();
    }

    /// Holds back what two servers send to each other as leader and follower.
    pub fn stall_link(&self, one: usize, other: usize) {
        self.published.links(one, other).for_each(|link| link.swallow().expect("the link stalls"));
    }

    /// Delivers what was held back on this link.
    pub fn restore_link(&self, one: usize, other: usize) {
        self.published.links(one, other).for_each(|link| link.restore().expect("the link is restored"));
    }

    /// Cuts the link, which loses what was held back on it.
    pub fn cut_link(&self, one: usize, other: usize) {
        self.published.links(one, other).for_each(|link| link.cut().expect("the link is cut"));
    }

    pub fn restart(&self, index: usize) {
        self.published.restart(index).unwrap_or_else(|error| panic!("{error}"));
    }

    pub fn await_quorum(&self) {
        self.published.await_quorum().expect("the ensemble serves");
    }

    pub fn leader(&self) -> usize {
        self.published.leader().expect("the ensemble has a leader")
    }

    pub fn follower(&self) -> usize {
        self.published.follower().expect("the ensemble has a follower")
    }
}

impl Deref for Ensemble {
    type Target = TestEnsemble;

    fn deref(&self) -> &TestEnsemble {
        &self.published
    }
}
