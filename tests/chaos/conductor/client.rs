//! A client process as the conductor sees it: it is started, killed, stopped and resumed by pid.

use std::path::Path;

use parking_lot::Mutex;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

use crate::network::Link;
use crate::support::process::{Process, Supervisor};

#[derive(Debug)]
pub struct Client {
    link: Link,
    supervisor: Mutex<Supervisor>,
    /// The most recently started process.
    process: Mutex<Option<Process>>,
}

impl Client {
    /// Prepares a client without starting it.
    pub fn new(
        index: usize,
        link: Link,
        seed: u64,
        history: &Path,
        scratch: &Path,
        certificates: &Path,
    ) -> Client {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = link.command();
        command.extend([utf8(&program), "--client".to_owned(), index.to_string(), seed.to_string()]);
        command.extend([
            utf8(history),
            utf8(&scratch.join("socket")),
            link.connect_string(),
            utf8(certificates),
        ]);
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        // The supervisor removes the scratch directory when this process no longer needs it or has ended.
        let log = history.join(format!("client-{index}.out"));
        let supervisor = Mutex::new(Supervisor::new(scratch, &log, &command));
        Client { link, supervisor, process: Mutex::new(None) }
    }

    pub fn link(&self) -> &Link {
        &self.link
    }

    pub fn start(&self) {
        *self.process.lock() = Some(self.supervisor.lock().start());
    }

    /// Kills the process (SIGKILL) and returns once it has ended.
    pub fn kill(&self) {
        if let Some(process) = *self.process.lock() {
            process.signal(Signal::KILL);
            process.wait();
        }
    }

    /// Suspends the process (SIGSTOP).
    pub fn stop(&self) {
        if let Some(process) = *self.process.lock() {
            process.pause();
        }
    }

    pub fn resume(&self) {
        if let Some(process) = *self.process.lock() {
            process.signal(Signal::CONT);
        }
    }

    /// Prevents the process from opening further descriptors. Open ones stay open. Does nothing to a process that has
    /// opened no socket yet: it may still be loading its libraries.
    pub fn exhaust_descriptors(&self) {
        if self.process.lock().is_some_and(has_sockets) {
            self.limit_descriptors(Some(0));
        }
    }

    pub fn restore_descriptors(&self) {
        self.limit_descriptors(getrlimit(Resource::Nofile).current);
    }

    fn limit_descriptors(&self, current: Option<u64>) {
        if let Some(process) = *self.process.lock() {
            let pid = i32::try_from(process.pid()).ok().and_then(Pid::from_raw);
            let limit = Rlimit { current, ..getrlimit(Resource::Nofile) };
            prlimit(pid, Resource::Nofile, limit).expect("the client is ours");
        }
    }

    pub fn is_running(&self) -> bool {
        self.process.lock().is_some_and(Process::is_running)
    }
}

fn has_sockets(process: Process) -> bool {
    let descriptors =
        std::fs::read_dir(format!("/proc/{}/fd", process.pid())).into_iter().flatten().flatten();
    let mut targets = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
    targets.any(|target| target.to_string_lossy().starts_with("socket:"))
}

fn utf8(path: &Path) -> String {
    path.to_str().expect("the paths of a run are UTF-8").to_owned()
}
