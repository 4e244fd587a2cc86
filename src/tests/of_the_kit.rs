//! Tests of the monitors that end a test run. Each test runs this program again, with only that test.

use std::env;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use super::{begin, in_background, next};

const CHILD: &str = "ZK_LOCK_TEST_CHILD";

/// Runs one test in a process that is expected to fail.
fn run_once_more(test: &str) -> Output {
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", test]).env(CHILD, "1").env("ZK_TEST_TIME_FACTOR", "0.01");
    next(&in_background(move || child.output().unwrap()))
}

fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

fn assert_ended(output: &Output, by: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(by), "{:?}: {said}", output.status);
}

#[test]
fn panic_on_a_crate_thread_ends_the_run_unless_on_purpose() {
    begin();
    let panic_with = |message: &'static str| {
        let thread = thread::Builder::new().name("zk-lock-tried".to_owned());
        assert!(thread.spawn(move || panic!("{message}")).unwrap().join().is_err());
    };
    panic_with("on purpose");
    if is_child() {
        return panic_with("planted");
    }
    let test = "tests::of_the_kit::panic_on_a_crate_thread_ends_the_run_unless_on_purpose";
    assert_ended(&run_once_more(test), "thread 'zk-lock-tried' panicked");
}

#[test]
fn hanging_test_ends_the_run() {
    let test = "tests::of_the_kit::hanging_test_ends_the_run";
    if is_child() {
        begin();
        return thread::sleep(Duration::from_secs(10));
    }
    assert_ended(&run_once_more(test), &format!("{test} hangs"));
}
