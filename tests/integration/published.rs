//! Tests of the published test tools, which are used here as their users would use them.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use zookeeper_recipes_lock::{BlockingWriteLock, ErrorReason, LossReason, Session};
use zookeeper_test_server::{Relay, ServerOptions, TestEnsemble, TestKdc, TestServer};

use crate::support::test_server::java::{class_path_in, java_in};
use crate::support::test_server::kdc::Programs;
use crate::support::wait::{deadline, eventually, scaled};

#[test]
fn published_server_and_relay_test_a_lease() {
    let timeout = scaled(Duration::from_secs(6));
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
    assert!(server.restart().is_err(), "a running server must not start again");
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
    eventually("the data is removed", || !dirs.iter().any(|dir| dir.exists()));
}

/// Runs a program as a user of the realm. Returns whether it succeeds.
fn succeeds(kdc: &TestKdc, program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).env("KRB5_CONFIG", kdc.krb5_conf()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().unwrap().success()
}

#[test]
fn published_kdc_issues_tickets_until_it_is_stopped_or_paused() {
    let kdc = TestKdc::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let [cache_name, keytab] =
        [cache.clone(), kdc.keytab("app").unwrap()].map(|path| path.display().to_string());
    let kinit = ["kinit", "-k", "-t", &keytab, "-c", &cache_name, "app"];
    let server = ["-c", &cache_name, "zookeeper/127.0.0.1"];
    let ticket_lives = || succeeds(&kdc, "klist", &["-s", &cache_name]);
    kdc.kinit("app", &cache).unwrap();
    assert!(ticket_lives() && succeeds(&kdc, "kvno", &server), "{}", kdc.log());

    kdc.max_ticket_life("app", Duration::from_secs(1)).unwrap();
    kdc.kinit("app", &cache).unwrap();
    eventually("the ticket has expired", || !ticket_lives());

    kdc.pause().unwrap();
    assert!(!succeeds(&kdc, "timeout", &[&["1"], &kinit[..]].concat()));
    kdc.resume();
    assert!(succeeds(&kdc, "timeout", &[&["30"], &kinit[..]].concat()));

    kdc.stop().unwrap();
    assert!(kdc.pid().is_none());
    let error = kdc.kinit("app", &cache).unwrap_err();
    assert!(error.to_string().contains("Cannot contact any KDC"), "{error}");
    kdc.restart().unwrap();
    assert!(kdc.restart().is_err(), "a running KDC must not start again");
    kdc.kinit("other", &cache).unwrap();

    let principals = ["a/b", "a_b", "a%2Fb"];
    let keytabs = principals.map(|principal| kdc.keytab(principal).unwrap().display().to_string());
    for (principal, keytab) in principals.iter().zip(&keytabs) {
        assert!(succeeds(&kdc, "kinit", &["-k", "-t", keytab, "-c", &cache_name, principal]), "{principal}");
    }
    let error = kdc.keytab("a@b@c").unwrap_err();
    assert!(error.to_string().contains("Malformed"), "{error}");
    let (process, krb5_conf) = (format!("/proc/{}", kdc.pid().unwrap()), kdc.krb5_conf());
    drop(kdc);
    assert!(!Path::new(&process).exists() && !krb5_conf.exists());
}

#[test]
fn published_servers_with_either_mechanism_require_sasl() {
    let kdc = TestKdc::start().unwrap();
    let wrong_keytab = kdc.keytab("app").unwrap();
    let options = ServerOptions::new().require_sasl();
    let options = [
        options.clone().sasl_users([("ada", "\"secret\\")]),
        options.clone().kerberos(&kdc),
        options.kerberos_as("zookeeper/127.0.0.1", &kdc, wrong_keytab),
    ];
    for options in options {
        let server = TestServer::start_with(&options).unwrap();
        let error = Session::connect(&server.connect_string(), deadline()).unwrap_err();
        assert_eq!(error.reason(), ErrorReason::CredentialsRefused, "{error:?}");
        server.stop().unwrap();
        server
            .reconfigure("sessionRequireClientSASLAuth=true", "sessionRequireClientSASLAuth=false")
            .unwrap();
        server.restart().unwrap();
        Session::connect(&server.connect_string(), deadline()).unwrap().close();
    }
}

#[test]
fn missing_installation_is_named_with_its_remedy() {
    let empty = tempfile::tempdir().unwrap();
    let (nothing, home) = (OsStr::new(""), Some(empty.path().as_os_str()));
    let errors = [
        (java_in(home, nothing).map(drop), "default-jre-headless"),
        (class_path_in(home, empty.path()).map(drop), "ZOOKEEPER_HOME="),
        (class_path_in(None, empty.path()).map(drop), "libzookeeper-java"),
        (Programs::find_in(&[empty.path().to_owned()]).map(drop), "krb5-kdc krb5-admin-server krb5-user"),
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

#[test]
fn only_a_whole_line_is_reconfigured() {
    let server = TestServer::start_with(&ServerOptions::new().config("syncLimit=50")).unwrap();
    assert!(server.reconfigure("syncLimit=5", "syncLimit=6").is_err(), "there is no such line");
    let config = server.dir().join("zoo.cfg");
    let former = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{former}\nsyncLimit=5\n#syncLimit=5")).unwrap();
    server.reconfigure("syncLimit=5", "syncLimit=6").unwrap();
    assert_eq!(fs::read_to_string(&config).unwrap(), format!("{former}\nsyncLimit=6\n#syncLimit=5"));
}

/// Creates empty files with these names.
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
