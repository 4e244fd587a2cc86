//! Wraps the published [`TestEnsemble`] so that errors panic.

use std::fs;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use super::panics;
use super::server::{Server, ServerOptions};
use super::test_server::{self, TestEnsemble};
use super::wait::eventually_some;

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

    /// Deletes the data of a server that was stopped or killed. From its next start on, it has that of the leader.
    pub fn wipe(&self, index: usize) {
        fs::remove_dir_all(self.data_of(index)).unwrap();
    }

    /// Makes a server diverge from the others: it goes on showing the znodes that exist now, whatever `change` deletes.
    ///
    /// The server gets a snapshot of the present state. Its name then claims that it contains the later changes, so the
    /// server never asks for them.
    pub fn diverge(&self, index: usize, change: impl FnOnce()) {
        self.kill(index);
        self.wipe(index);
        self.restart(index);
        let snapshot = eventually_some("the server has written a snapshot", || {
            let files = fs::read_dir(self.data_of(index)).unwrap().map(|entry| entry.unwrap().path());
            let is_snapshot = |file: &PathBuf| file.extension().is_some_and(|zxid| zxid != "0");
            files.filter(|file| file.file_stem().unwrap() == "snapshot").find(is_snapshot)
        });
        self.kill(index);
        change();
        let status = self.node(self.leader()).four_letter("srvr");
        let zxid = status.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).unwrap();
        fs::rename(&snapshot, snapshot.with_extension(zxid)).unwrap();
        for entry in fs::read_dir(self.data_of(index)).unwrap() {
            let file = entry.unwrap().path();
            if file.file_stem().unwrap() == "log" {
                fs::remove_file(file).unwrap();
            }
        }
        self.restart(index);
    }

    fn data_of(&self, index: usize) -> PathBuf {
        self.node(index).dir().join("data/version-2")
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
