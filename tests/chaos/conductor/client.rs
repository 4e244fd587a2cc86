//! A client process, seen from outside: started, killed, stopped and continued by its pid.

use std::path::Path;

use parking_lot::Mutex;
use rustix::process::Signal;

use crate::network::Link;
use crate::support::process::{Process, Supervisor};

#[derive(Debug)]
pub struct Client {
    link: Link,
    supervisor: Mutex<Supervisor>,
    /// The process that was started last.
    process: Mutex<Option<Process>>,
}

impl Client {
    /// Gets ready to start a client.
    pub fn new(index: usize, link: Link, seed: u64, history: &Path, scratch: &Path) -> Client {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = link.command();
        command.extend([utf8(&program), "--client".to_owned(), index.to_string(), seed.to_string()]);
        command.extend([utf8(history), utf8(&scratch.join("socket")), link.connect_string()]);
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        // The supervisor removes the scratch directory when this process has no more use for it, or is gone.
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

    /// Kills the process (SIGKILL) and returns once it is gone.
    pub fn kill(&self) {
        if let Some(process) = *self.process.lock() {
            process.signal(Signal::KILL);
            process.wait();
        }
    }

    /// Stops its time (SIGSTOP).
    pub fn stop(&self) {
        if let Some(process) = *self.process.lock() {
            process.pause();
        }
    }

    pub fn go_on(&self) {
        if let Some(process) = *self.process.lock() {
            process.signal(Signal::CONT);
        }
    }

    pub fn is_running(&self) -> bool {
        self.process.lock().is_some_and(Process::is_running)
    }
}

fn utf8(path: &Path) -> String {
    path.to_str().expect("the paths of a run are UTF-8").to_owned()
}
