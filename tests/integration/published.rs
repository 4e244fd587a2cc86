//! The published test tools, as users see them.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use zookeeper_recipes_lock::{BlockingWriteLock, LossReason, Session};
use zookeeper_test_server::{Relay, ServerOptions, TestEnsemble, TestServer};

use crate::support::test_server::java::{class_path_in, java_in};
use crate::support::wait::{deadline, eventually, scaled};

#[test]
fn published_server_and_relay_test_a_lease() {
    let timeout = scaled(Duration::from_secs(2));
    let server = TestServer::start_with(&ServerOptions::new().tick(timeout / 10)).unwrap();
    let relay = Relay::to(server.connect_string()).unwrap();
    let session = Session::connect(&relay.connect_string(), timeout).unwrap();
    let lock = BlockingWriteLock::new(&session, "/locks/report").unwrap();
    let guard = lock.lock().unwrap();
    relay.cut().unwrap();
    assert!(guard.is_owner());
    relay.swallow().unwrap();
    assert_eq!(guard.lost().recv_timeout(deadline()).unwrap(), LossReason::LeaseExpired);
    assert!(!guard.is_owner());
    relay.restore().unwrap();

    server.stop().unwrap();
    assert!(!server.is_running() && server.pid().is_none());
    server.restart().unwrap();
    assert!(server.serves());
    assert!(server.restart().is_err(), "it runs already");
}

#[test]
fn published_ensemble_elects_another_leader() {
    let ensemble = TestEnsemble::start(3).unwrap();
    let leader = ensemble.leader().unwrap();
    ensemble.server(leader).kill().unwrap();
    assert!(ensemble.has_quorum());
    assert_ne!(ensemble.leader().unwrap(), leader);
    let dirs: Vec<_> = (0..3).map(|index| ensemble.server(index).dir().to_owned()).collect();
    drop(ensemble);
    eventually("the data are removed", || !dirs.iter().any(|dir| dir.exists()));
}

#[test]
fn missing_installation_is_named_with_its_remedy() {
    let empty = tempfile::tempdir().unwrap();
    let (nothing, home) = (OsStr::new(""), Some(empty.path().as_os_str()));
    let errors = [
        (java_in(home, nothing).map(drop), "default-jre-headless"),
        (class_path_in(home, empty.path()).map(drop), "ZOOKEEPER_HOME="),
        (class_path_in(None, empty.path()).map(drop), "libzookeeper-java"),
    ];
    for (error, remedy) in errors {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(remedy), "{error}");
    }
}

#[test]
fn server_that_cannot_start_shows_its_log() {
    let error = TestServer::start_with(&ServerOptions::new().config("syncLimit=many")).unwrap_err();
    assert!(error.to_string().contains("many"), "{error}");
}

/// Empty files by these names.
fn touch(dir: &Path, names: &[&str]) {
    fs::create_dir_all(dir).unwrap();
    names.iter().for_each(|name| fs::write(dir.join(name), "").unwrap());
}

#[test]
fn jars_are_found_in_a_release_a_directory_and_a_package() {
    let dir = tempfile::tempdir().unwrap();
    let [release, flat, package] = ["release", "flat", "package"].map(|name| dir.path().join(name));
    touch(&release, &["zookeeper-3.4.jar", "other.jar"]);
    touch(&release.join("lib"), &["zookeeper-3.9.4.jar", "slf4j-api.jar", "notes.txt"]);
    touch(&flat, &["zookeeper-3.6.3.jar", "log4j.jar"]);
    touch(&package, &["zookeeper.jar", "slf4j-api.jar", "slf4j-simple.jar", "netty-codec.jar", "ant.jar"]);
    let names = |home: Option<&Path>| {
        let path = class_path_in(home.map(Path::as_os_str), &package).unwrap();
        let parts: Vec<_> = std::env::split_paths(&path).collect();
        let names = parts.iter().map(|part| part.file_name().unwrap().to_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(Some(&release)), ["conf", "zookeeper-3.4.jar", "slf4j-api.jar", "zookeeper-3.9.4.jar"]);
    assert_eq!(names(Some(&flat)), ["conf", "log4j.jar", "zookeeper-3.6.3.jar"]);
    assert_eq!(names(None), ["zookeeper.jar", "slf4j-api.jar", "slf4j-simple.jar", "netty-codec.jar"]);
}
