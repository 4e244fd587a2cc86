//! A process that forks while it owns a lock: its child owns nothing. In a process without other threads of tests, as a
//! child has only a copy of the thread that forks.

#![cfg(unix)]
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test")]

use std::time::Duration;

use zookeeper_recipes_lock::fake::SimulatedZooKeeper;
use zookeeper_recipes_lock::{BlockingWriteLock, Session};

fn main() {
    let zookeeper = SimulatedZooKeeper::new();
    let session = Session::from_client(zookeeper.connect(Duration::from_secs(30))).expect("there is contact");
    let lock = BlockingWriteLock::new(&session, "/locks/forked").expect("the path is valid");
    let guard = lock.lock().expect("nobody else wants it");
    assert!(guard.is_owner());
    let child = fork();
    if child == 0 {
        exit(i32::from(guard.is_owner()));
    }
    assert_eq!(wait_for(child), 0, "the child takes itself for the owner");
    assert!(guard.is_owner(), "the parent goes on");
    println!("test an_owner_in_a_forked_child_is_no_owner ... ok");
}

#[allow(unsafe_code, reason = "no safe function forks")]
fn fork() -> libc::pid_t {
    // SAFETY: the child calls `is_owner` and `_exit`, which take no lock that another thread may hold.
    unsafe { libc::fork() }
}

#[allow(unsafe_code, reason = "it must not run what the parent's libraries do at the exit")]
fn exit(code: i32) -> ! {
    // SAFETY: it only ends the process.
    unsafe { libc::_exit(code) }
}

/// Returns the exit status of the child.
#[allow(unsafe_code, reason = "no safe function waits for a process that was not spawned")]
fn wait_for(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: the pointer is valid for the time of the call.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    libc::WEXITSTATUS(status)
}
