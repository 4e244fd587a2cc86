//! [`Descendants`] of a command, on Linux: its processes outside its process group, as timeout(1)
//! and setsid(1) make them.
//!
//! This process becomes the parent of those whose parents have ended. The ids of children stay in
//! use until this process waits for them, so no signal reaches another process. The children of a
//! child that is killed are children of this process next.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, set_child_subreaper, waitid,
    waitpid,
};

#[derive(Debug)]
pub(super) struct Descendants {
    /// The children that this process had before. They are none of the command's.
    others: Vec<Pid>,
    /// Set by SIGCHLD.
    has_child_ended: Arc<AtomicBool>,
}

impl Descendants {
    /// Adopts, from now on, the processes whose parents have ended.
    pub(super) fn adopt(has_child_ended: Arc<AtomicBool>) -> io::Result<Descendants> {
        // Without /proc the command runs as well. A loss of the lock reports that it is missing.
        let others = children().unwrap_or_default();
        set_child_subreaper(Some(getpid()))?;
        Ok(Descendants { others, has_child_ended })
    }

    /// Waits for the adopted processes that have ended: they are no zombies then.
    pub(super) fn reap(&self, command: Pid) {
        if self.has_child_ended.swap(false, Ordering::SeqCst) {
            // A failure is that of /proc. The zombies end with this process.
            let _ = self.running(command);
        }
    }

    /// Sends SIGKILL to the children, the command among them. Returns how many got it or had ended
    /// by themselves: the children of all of these become children of this process.
    pub(super) fn kill(&self, command: Pid) -> (usize, io::Result<()>) {
        let (running, ended) = match self.running(command) {
            Ok(children) => children,
            Err(error) => return (0, Err(error)),
        };
        let (mut gone, mut outcome) = (ended, Ok(()));
        for child in running {
            match kill_process(child, Signal::KILL) {
                Ok(()) => gone += 1,
                Err(error) => {
                    let message = format!("process {}: {}", child.as_raw_nonzero(), io::Error::from(error));
                    outcome = Err(io::Error::new(error.kind(), message));
                }
            }
        }
        (gone, outcome)
    }

    /// The children that have not ended. Waits for the others, which it counts, but for the command:
    /// its process id stays in use until its exit code is read.
    fn running(&self, command: Pid) -> io::Result<(Vec<Pid>, usize)> {
        let mut running = children()?;
        let mut ended = 0;
        running.retain(|child| {
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            // The state that /proc shows is that of the first thread alone.
            match *child {
                child if self.others.contains(&child) => false,
                child if child == command => matches!(waitid(WaitId::Pid(child), look), Ok(None)),
                child => {
                    let is_running = matches!(waitpid(Some(child), WaitOptions::NOHANG), Ok(None));
                    ended += usize::from(!is_running);
                    is_running
                }
            }
        });
        Ok((running, ended))
    }
}

/// The children of this process, as far as nobody has waited for them.
fn children() -> io::Result<Vec<Pid>> {
    let me = getpid().as_raw_nonzero().to_string();
    let mut children = Vec::new();
    let in_proc = |error: io::Error| io::Error::new(error.kind(), format!("/proc: {error}"));
    for entry in fs::read_dir("/proc").map_err(in_proc)? {
        let entry = entry.map_err(in_proc)?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?)) else {
            continue;
        };
        // A process that ends at this moment has none.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The state and the parent follow the name, which is in parentheses and may contain
        // anything.
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
        if parent == Some(&*me) {
            children.push(pid);
        }
    }
    Ok(children)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::process::Command;

    const ALONE: &str = "ZKLOCK_TEST_ALONE";
    const NAME: &str = "run::platform::descendants::tests::child_that_has_ended_may_leave_others";

    #[test]
    #[allow(clippy::zombie_processes, reason = "what is tested waits for it")]
    fn child_that_has_ended_may_leave_others() {
        if env::var_os(ALONE).is_none() {
            // In another process: it kills all children.
            let mut alone = Command::new(env::current_exe().unwrap());
            let ran = alone.args(["--exact", NAME]).env(ALONE, "1").output().unwrap();
            let out = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success() && out.contains("1 passed"), "{ran:?}");
            return;
        }
        let descendants = Descendants { others: Vec::new(), has_child_ended: Arc::default() };
        let child = Command::new("true").spawn().unwrap();
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), ended).unwrap();
        let gone = |(gone, outcome): (usize, io::Result<()>)| outcome.map(|()| gone).unwrap();
        assert_eq!(gone(descendants.kill(getpid())), 1);
        assert_eq!(gone(descendants.kill(getpid())), 0);
    }
}
