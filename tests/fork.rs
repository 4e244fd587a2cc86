//! After a fork, the child of a process that owns a lock does not own it. A separate binary without
//! the threads of other tests, as a child has only a copy of the thread that forks.

#![cfg(unix)]
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test")]

use std::time::Duration;

use zookeeper_recipes_lock::fake::SimulatedZooKeeper;
use zookeeper_recipes_lock::{BlockingWriteLock, Session};

fn main() {
    let zookeeper = SimulatedZooKeeper::new();
    let session = Session::from_client(zookeeper.connect(Duration::from_secs(30))).expect("there is contact");
    let lock = BlockingWriteLock::new(&session, "/locks/forked").expect("the path is valid");
    let guard = lock.lock().expect("the lock is free");
    assert!(guard.is_owner());
    let child = fork();
    if child == 0 {
        exit(i32::from(guard.is_owner()));
    }
    assert_eq!(wait_for(child), 0, "the child considers itself the owner");
    assert!(guard.is_owner(), "the parent keeps the lock");
    println!("test forked_child_does_not_own_the_lock ... ok");
}

#[allow(unsafe_code, reason = "no safe function forks")]
fn fork() -> libc::pid_t {
    // SAFETY: the child calls only `is_owner` and `_exit`, which take no mutex of another thread.
    unsafe { libc::fork() }
}

#[allow(unsafe_code, reason = "the exit handlers of the parent's libraries must not run")]
fn exit(code: i32) -> ! {
    // SAFETY: it only ends the process.
    unsafe { libc::_exit(code) }
}

/// Returns the exit status of the child.
#[allow(unsafe_code, reason = "no safe function waits for a process that was not spawned")]
fn wait_for(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: the pointer is valid during the call.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    libc::WEXITSTATUS(status)
}
