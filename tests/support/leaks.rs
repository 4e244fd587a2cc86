//! Finds threads that a test has leaked.

use std::fs;

use super::wait::deadline;
use super::wait::eventually_within;

/// The kernel keeps only this many bytes of a thread's name.
const KEPT: usize = 15;

/// Returns the names of those threads of this process whose name starts with `prefix`. The kernel truncates
/// names to 15 bytes.
pub fn threads_named(prefix: &str) -> Vec<String> {
    let prefix = &prefix.as_bytes()[..prefix.len().min(KEPT)];
    fs::read_dir("/proc/self/task")
        .expect("/proc/self/task lists the threads")
        .filter_map(|task| fs::read(task.ok()?.path().join("comm")).ok()) // ended meanwhile: no leak
        .map(|comm| comm.trim_ascii_end().to_vec())
        .filter(|comm| comm.starts_with(prefix))
        .map(|comm| String::from_utf8_lossy(&comm).into_owned())
        .collect()
}

/// Blocks until no thread's name starts with `prefix`.
///
/// # Panics
/// With the names, if some threads remain.
#[track_caller]
pub fn assert_no_threads(prefix: &str) {
    let mut left = Vec::new();
    let gone = || {
        left = threads_named(prefix);
        left.is_empty()
    };
    eventually_within(deadline(), &format!("no thread named {prefix}…"), gone);
}
