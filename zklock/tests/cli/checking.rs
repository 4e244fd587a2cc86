//! `zklock doctor`, TLS and SASL.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;
use std::{fs, io, thread};

use tempfile::TempDir;
use zookeeper_recipes_lock::client::{Acl, CreateMode, Permissions};
use zookeeper_recipes_lock::{BlockingWriteLock, Session};

use crate::program::{Ended, Fixture, Program, command, run, zklock};
use crate::support::certificates::{Authority, Files};
use crate::support::counter;
use crate::support::ensemble::Ensemble;
use crate::support::relay::Relay;
use crate::support::server::{self, Server, ServerOptions, ServerTls};
use crate::support::test_server;
use crate::support::wait::eventually_some;

fn doctor(connect: &str, args: &[&str]) -> Ended {
    run(command(connect, &[&["doctor"], args].concat()))
}

#[test]
fn healthy_server_is_well() {
    let server = server::shared();
    let ended = zklock(server, &["doctor"]);
    ended.assert_succeeded();
    let cells: Vec<&str> = ended.out.lines().nth(1).unwrap().split_whitespace().collect();
    let address = format!("127.0.0.1:{}", server.port());
    assert_eq!([cells[0], cells[1]], [address.as_str(); 2], "{}", ended.out);
    assert!(cells[2].starts_with("3."), "{}", ended.out);
    assert_eq!(cells[3..], ["standalone", "20s", "0.5s"], "{}", ended.out);
    assert!(ended.out.contains("not checked: jute.maxbuffer"), "{}", ended.out);
    assert!(ended.out.ends_with("all is well\n"), "{}", ended.out);
}

#[test]
fn distant_server_is_well() {
    let relay = Relay::with_delay(("127.0.0.1", server::shared().port()), Duration::from_millis(60));
    let ended = doctor(&relay.connect_string(), &[]);
    ended.assert_succeeded();
    assert!(ended.out.ends_with("all is well\n"), "{}", ended.out);
}

#[test]
fn servers_that_do_not_answer_are_warnings_unless_all_are_silent() {
    let good = server::shared().connect_string();
    let ended = doctor(&format!("{good},127.0.0.1:1,no-such-host.invalid"), &[]);
    assert_eq!((ended.code, ended.err.as_str()), (1, ""), "{ended:?}");
    assert!(ended.out.contains("WARN: 127.0.0.1:1: Connection refused"), "{}", ended.out);
    assert!(ended.out.contains("WARN: no-such-host.invalid:2181: "), "{}", ended.out);
    assert!(ended.out.ends_with("2 warnings\n"), "{}", ended.out);
    let json = doctor(&format!("{good},127.0.0.1:1"), &["--json"]);
    assert_eq!((json.code, json.out.lines().count()), (1, 1), "{json:?}");
    for text in
        ["\"mode\":\"standalone\"", "\"tick_ms\":500", "127.0.0.1:1: Connection refused", "\"checked\":["]
    {
        assert!(json.out.contains(text), "{text}: {json:?}");
    }
    doctor("127.0.0.1:1,no-such-host.invalid", &[]).assert_failed(69, "no server serves");
}

#[test]
fn all_addresses_of_a_name_are_tried() {
    let port = server::shared().port();
    let ended = doctor(&format!("localhost:{port}"), &[]);
    assert!(ended.out.contains(&format!("localhost:{port}  127.0.0.1:{port}")), "{}", ended.out);
}

#[test]
fn servers_with_different_settings_are_warnings() {
    let other = Server::with(ServerOptions {
        tick_time_ms: 3000,
        max_session_timeout_ms: 9000,
        ..Default::default()
    });
    let ended = doctor(&format!("{},{}", server::shared().connect_string(), other.connect_string()), &[]);
    assert_eq!(ended.code, 1, "{ended:?}");
    for warning in [
        "WARN: the servers have different session timeouts: 9s, 20s",
        "WARN: the servers have different ticks: 0.5s, 3s",
        "WARN: a tick lasts 3s, but clients assume 2s at most: run zklock with --tick 3s, and set \
         SessionBuilder::tick in the other programs",
        "WARN: the servers grant a session timeout of 9s, not the 20s asked for",
        "are standalone and share nothing, so a lock has an owner on each",
    ] {
        assert!(ended.out.contains(warning), "{warning}: {}", ended.out);
    }
}

#[test]
fn ensemble_is_distinguished_from_a_server_beside_it_and_local_sessions_are_a_warning() {
    let options =
        ServerOptions { config: vec!["localSessionsEnabled=true".to_owned()], ..Default::default() };
    let ensemble = Ensemble::with(3, &options);
    let members: Vec<String> = (0..3).map(|index| ensemble.connect_string_of(index)).collect();
    let ended = doctor(&members.join(","), &[]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.out.contains("WARN: the servers open local sessions"), "{}", ended.out);
    assert!(!ended.out.contains("standalone"), "{}", ended.out);
    assert!(!ended.out.contains(", one ensemble"), "{}", ended.out);
    assert!(
        ended.out.contains("not checked: whether the servers are one ensemble, because"),
        "{}",
        ended.out
    );
    let standalone = server::shared().connect_string();
    let ended = doctor(&format!("{},{standalone}", members.join(",")), &[]);
    assert!(
        ended.out.contains(&format!("{standalone} is standalone beside the ensemble of ")),
        "{}",
        ended.out
    );
}

#[test]
fn members_of_one_ensemble_know_a_znode_that_is_created_through_one_of_them() {
    let ensemble = Ensemble::start(3);
    let members: Vec<String> = (0..3).map(|index| ensemble.connect_string_of(index)).collect();
    for chroot in ["", "/app"] {
        let ended = doctor(&format!("{}{chroot}", members.join(",")), &["--create-chroot"]);
        assert!(ended.out.contains(", one ensemble"), "{}", ended.out);
        assert!(!ended.out.contains("not know a znode"), "{}", ended.out);
    }
    // A single server has nothing to be compared with.
    let ended = doctor(&members[0], &[]);
    assert!(!ended.out.contains("one ensemble"), "{}", ended.out);
}

/// ZOOKEEPER-4837 leaves such a znode behind.
#[test]
fn server_that_shows_a_request_that_is_gone_is_named_and_has_to_be_wiped() {
    let ensemble = Ensemble::start(3);
    let (leader, follower) = (ensemble.leader(), ensemble.follower());
    let diverged = ensemble.connect_string_of(follower);
    let all = (0..3).map(|index| ensemble.connect_string_of(index)).collect::<Vec<_>>().join(",");
    let session = Session::connect(&ensemble.connect_string_of(leader), Duration::from_secs(30)).unwrap();
    let guard = BlockingWriteLock::new(&session, "/lock").unwrap().lock().unwrap();
    let id = guard.id().to_owned();
    let ended = doctor(&all, &["/lock"]);
    assert!(ended.out.contains(", the queue on each server") && !ended.out.contains("diverged"), "{ended:?}");

    ensemble.diverge(follower, || {
        guard.unlock().unwrap();
    });
    let still_shown = format!("{diverged} still shows");
    for revoke in [&["revoke", "/lock"][..], &["revoke", "--force-after", "0s", "/lock"]] {
        let ended = run(command(&diverged, revoke));
        assert_eq!((ended.code, ended.out.as_str()), (69, ""), "{ended:?}");
        assert!(ended.err.contains(&still_shown) && ended.err.contains("version-2"), "{ended:?}");
    }
    let warning = format!("WARN: {still_shown} {id}, which the leader does not have");
    for servers in [&all, &diverged] {
        let ended = doctor(servers, &["/lock"]);
        assert!(ended.code == 1 && ended.out.contains(&warning), "{ended:?}");
    }

    ensemble.stop(follower);
    ensemble.wipe(follower);
    ensemble.restart(follower);
    let ended = doctor(&all, &["/lock"]);
    assert!(ended.out.contains(", the queue on each server") && !ended.out.contains("diverged"), "{ended:?}");
}

/// With TLS, the modes of the servers are not known.
#[test]
fn servers_of_unknown_modes_that_share_nothing_are_a_warning() {
    let (authority, files) = (Authority::new(), Files::new());
    let identity = files.write_server_identity(&authority.issue(&["localhost"]));
    let authorities = files.write_authority(&authority);
    let (certificate, key) = files.write_identity(&authority.issue(&["client"]));
    let servers = [(); 2].map(|()| {
        let tls = ServerTls { identity: identity.clone(), authorities: authorities.clone() };
        Server::with(ServerOptions { tls: Some(tls), ..ServerOptions::default() })
    });
    let connect = servers.each_ref().map(Server::tls_connect_string).join(",");
    let [authorities, certificate, key] =
        [&authorities, &certificate, &key].map(|file| file.to_str().unwrap());
    let ended = doctor(&connect, &["--ca", authorities, "--cert", certificate, "--cert-key", key]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.out.contains("does not know a znode that was created through"), "{}", ended.out);
    assert!(ended.out.contains(", one ensemble"), "{}", ended.out);
}

#[test]
fn session_timeout_of_two_ticks_is_a_warning() {
    let connect = server::shared().connect_string();
    let ended = doctor(&connect, &["--session-timeout", "1s", "--tick", "500ms"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.out.contains("(0.5s)") && ended.out.contains("ask for 1.5s or more"), "{}", ended.out);
    assert!(ended.out.ends_with("1 warning\n"), "{}", ended.out);
}

/// A longer session timeout would not help.
#[test]
fn doctor_says_which_tick_to_state_where_a_minimum_session_timeout_hides_it() {
    let options = ServerOptions { min_session_timeout_ms: 20_000, ..ServerOptions::default() };
    let server = Server::with(options);
    let ended = zklock(&server, &["doctor"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    let warning = "WARN: a tick lasts 0.5s, but clients assume 10s, so their locks survive only shorter outages: run zklock \
                   with --tick 0.5s, and set SessionBuilder::tick in the other programs";
    assert!(ended.out.contains(warning) && ended.out.ends_with("1 warning\n"), "{}", ended.out);
    zklock(&server, &["doctor", "--tick", "0.5s"]).assert_succeeded();
    // A session assumes 2 s, although it measures less.
    let ended = zklock(server::shared(), &["doctor", "--session-timeout", "6s"]);
    assert!(ended.out.contains("clients assume 2s, so their locks survive only"), "{}", ended.out);
}

/// This is the tick of a server whose configuration states none.
#[test]
fn tick_that_sessions_measure_is_no_warning() {
    let options = ServerOptions { tick_time_ms: 3000, min_session_timeout_ms: 6000, ..Default::default() };
    let ended = zklock(&Server::with(options), &["doctor"]);
    ended.assert_succeeded();
    assert!(ended.out.lines().nth(1).unwrap().ends_with("20s      3s"), "{}", ended.out);
}

#[test]
fn refused_second_connection_is_a_warning() {
    let of_one_machine = |limit: u32| ServerOptions {
        config: vec![format!("maxClientCnxns={limit}")],
        ..ServerOptions::default()
    };
    let server = Server::with(of_one_machine(1));
    let ended = zklock(&server, &["doctor"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    let warning = format!("WARN: {} refuses this machine a second connection", server.connect_string());
    assert_eq!(ended.out.matches(&warning).count(), 1, "{}", ended.out);
    assert!(ended.out.contains("raise maxClientCnxns, or state the tick"), "{}", ended.out);
    assert!(ended.out.ends_with("1 warning\n"), "{}", ended.out);
    // Two are enough, because a session needs its second connection only for a moment.
    zklock(&Server::with(of_one_machine(2)), &["doctor"]).assert_succeeded();
}

#[test]
fn stated_tick_counts_even_if_it_is_the_default() {
    let config = vec!["maxClientCnxns=1".to_owned()];
    let server = Server::with(ServerOptions { config, ..ServerOptions::default() });
    let logged = |options: &[&str]| {
        let watch = ["who", "--watch", "-v", "--session-timeout", "6s", "/locks/a"];
        let program = Program::start(&server, &[options, &watch].concat());
        eventually_some("the refusal is logged", || {
            program.err().lines().find(|line| line.contains("its tick is not known")).map(str::to_owned)
        })
    };
    let line = logged(&["--max-tick", "2s"]);
    assert!(line.contains("a tick of 2s counts"), "{line}");
    let line = logged(&[]);
    assert!(line.contains("the longest possible one counts"), "{line}");
    let ended = zklock(&server, &["doctor", "--max-tick", "2s"]);
    assert!(ended.code == 0 && ended.out.ends_with("all is well\n"), "{ended:?}");
    assert!(ended.out.contains("refuses this machine a second connection"), "{ended:?}");
}

#[test]
fn persistent_request_in_a_queue_is_a_warning() {
    let fixture = Fixture::new();
    let path = fixture.create("x-left-lock-0000000001", b"", CreateMode::Persistent);
    fixture.create("x-waits-lock-0000000002", b"", CreateMode::Ephemeral);
    let ended = fixture.zklock(&["doctor"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.out.contains(&format!("{}: owners 1, waiters 1\n", fixture.dir)), "{}", ended.out);
    assert!(ended.out.contains(&format!("WARN: {path} is persistent")), "{}", ended.out);
    assert!(ended.out.ends_with("1 warning\n"), "{}", ended.out);
}

#[test]
fn requests_that_do_not_count_each_other_are_a_warning() {
    let fixture = Fixture::new();
    let _guard = fixture.hold();
    fixture.zklock(&["doctor"]).assert_succeeded();
    let path =
        fixture.create("5f0a5bd197a14c3c9b2ea7a4ab4c1ac9__lock__0000000009", b"", CreateMode::Ephemeral);
    let ended = fixture.zklock(&["doctor"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    let name = path.rsplit('/').next().unwrap();
    assert!(ended.out.contains(name) && ended.out.contains("--naming kazoo"), "{ended:?}");
    assert!(ended.out.ends_with("1 warning\n"), "{ended:?}");
}

#[test]
fn missing_directory_is_that_of_a_free_lock_and_a_missing_chroot_is_a_warning() {
    let fixture = Fixture::new();
    let ended = fixture.zklock(&["doctor"]);
    ended.assert_succeeded();
    assert!(ended.out.contains(&format!("\n{} does not exist", fixture.dir)), "{}", ended.out);
    let connect = format!("{}/missing-chroot ", fixture.server.connect_string());
    let ended = doctor(&connect, &[&fixture.dir]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.out.contains("WARN: the chroot /missing-chroot does not exist"), "{}", ended.out);
}

#[test]
fn directory_where_no_lock_can_be_taken_or_released_is_a_warning() {
    let fixture = Fixture::new();
    let zookeeper = fixture.zookeeper();
    let (read, create, delete) = (Permissions::READ, Permissions::CREATE, Permissions::DELETE);
    let dir = |name: &str, granted| {
        let path = format!("{}-{name}", fixture.dir);
        let acl = [Acl::new(granted, "world", "anyone")];
        zookeeper.create(&path, b"", &acl, CreateMode::Persistent).unwrap()
    };
    let (readable, without_delete) = (dir("readable", read), dir("without-delete", read | create));
    let with_both = dir("with-both", read | create | delete);
    let below = format!("{readable}/a/b");
    for (dir, warning) in [
        (&readable, format!("no lock can be taken in {readable}: ")),
        (&below, format!("no lock can be taken in {below}: ")),
        (&without_delete, format!("no lock can be released in {without_delete}: ")),
    ] {
        let ended = zklock(fixture.server, &["doctor", dir]);
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(ended.out.contains(&format!("WARN: {warning}")), "{}", ended.out);
        assert!(ended.out.ends_with("1 warning\n"), "{}", ended.out);
    }
    // What `doctor` tries leaves nothing.
    for (dir, is_missing) in [(with_both.clone(), false), (format!("{without_delete}/a/b"), true)] {
        let ended = zklock(fixture.server, &["doctor", &dir]);
        ended.assert_succeeded();
        assert!(ended.out.contains(", that a lock can be taken and released"), "{}", ended.out);
        assert_eq!(ended.out.contains(&format!("\n{dir} does not exist")), is_missing, "{}", ended.out);
    }
    for dir in [with_both, without_delete] {
        let stat = zookeeper.exists(&dir).unwrap().unwrap();
        assert_eq!((stat.num_children, stat.cversion), (0, 0), "{dir}");
    }
}

#[test]
fn chroot_where_nothing_can_be_created_is_a_warning() {
    let fixture = Fixture::new();
    let acl = [Acl::new(Permissions::READ, "world", "anyone")];
    fixture.zookeeper().create(&fixture.dir, b"", &acl, CreateMode::Persistent).unwrap();
    let ended = doctor(&format!("{}{}", fixture.server.connect_string(), fixture.dir), &[]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.out.contains("WARN: not checked: the clock of the servers, because no znode"), "{ended:?}");
    assert!(ended.out.ends_with("1 warning\n"), "{}", ended.out);
}

#[test]
fn quota_that_is_used_up_is_a_warning() {
    let jvm_flags = vec!["-Dzookeeper.enforceQuota=true".to_owned()];
    let server = Server::with(ServerOptions { jvm_flags, ..ServerOptions::default() });
    if !server.enforces_quotas() {
        return;
    }
    server.run_in_shell(&["create", "/full"]);
    server.run_in_shell(&["create", "/full/lock"]);
    server.run_in_shell(&["setquota", "-N", "2", "/full"]);
    for dir in ["/full/lock", "/full/missing"] {
        let ended = zklock(&server, &["doctor", dir]);
        assert_eq!(ended.code, 1, "{ended:?}");
        let warning = format!("WARN: no lock can be taken in {dir}: create '{dir}");
        assert!(ended.out.contains(&warning) && ended.out.contains("a quota is exceeded"), "{}", ended.out);
    }
    zklock(&server, &["doctor", "/free/lock"]).assert_succeeded();
}

#[test]
fn directory_whose_sequence_numbers_are_used_up_is_a_warning() {
    let server = Server::start();
    let session = || Session::connect(&server.connect_string(), Duration::from_secs(30)).unwrap();
    BlockingWriteLock::new(&session(), "/counted").unwrap().lock().unwrap().unlock().unwrap();
    zklock(&server, &["doctor", "/counted"]).assert_succeeded();
    counter::advance(&server, "/counted", i32::MAX - 4);
    let ended = zklock(&server, &["doctor", "/counted"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.out.contains("WARN: /counted has 4 sequence numbers left"), "{}", ended.out);
}

#[test]
fn queue_that_may_not_be_read_hides_no_other_finding() {
    let fixture = Fixture::new();
    let create_only = [Acl::new(Permissions::CREATE | Permissions::DELETE, "world", "anyone")];
    fixture.zookeeper().create(&fixture.dir, b"", &create_only, CreateMode::Persistent).unwrap();
    let ended = fixture.zklock(&["doctor"]);
    assert_eq!(ended.code, 77, "{ended:?}");
    assert!(ended.out.contains("WARN: the checks have ended early: "), "{}", ended.out);
    assert!(
        ended.out.contains("the clock of the servers") && ended.out.ends_with("1 warning\n"),
        "{}",
        ended.out
    );
}

#[test]
fn connections_are_encrypted() {
    let (authority, files) = (Authority::new(), Files::new());
    let identity = files.write_server_identity(&authority.issue(&["localhost"]));
    let authorities = files.write_authority(&authority);
    let tls = ServerTls { identity, authorities: authorities.clone() };
    let server = Server::with(ServerOptions { tls: Some(tls), ..ServerOptions::default() });
    let (certificate, key) = files.write_identity(&authority.issue(&["client"]));
    let options = [
        ["--ca", authorities.to_str().unwrap()],
        ["--cert", certificate.to_str().unwrap()],
        ["--cert-key", key.to_str().unwrap()],
    ];
    let options = options.concat();
    let tls = |args: &[&str]| run(command(&server.tls_connect_string(), &[args, &options].concat()));
    // The server opens this port last. A session waits for the port, but `doctor` does not.
    tls(&["who", "/missing"]).assert_failed(66, "does not exist");
    // On a busy machine, a server may be too slow for a second connection at first.
    let ended =
        eventually_some("nothing is wrong", || Some(tls(&["doctor"])).filter(|ended| ended.code == 0));
    assert_eq!(ended.err, "", "{ended:?}");
    // The tick is half of the shortest session timeout that the server grants.
    assert!(ended.out.lines().nth(1).unwrap().ends_with("serves  20s      0.5s"), "{}", ended.out);
    assert!(ended.out.contains("\nnot checked: the release of localhost:"), "{}", ended.out);
    for (delay_ms, tick, is_measured) in [(30, "0.5s", true), (100, "?", false)] {
        let relay = Relay::with_delay(server.tls_connect_string(), Duration::from_millis(delay_ms));
        let connect = relay.connect_string().replace("127.0.0.1", "localhost");
        let doctor = || run(command(&connect, &[&["doctor"], &options[..]].concat()));
        eventually_some("nothing is wrong", || {
            let ended = doctor();
            let is_noted = ended.out.contains("not checked: the tick of localhost:");
            let has_tick = ended.out.lines().nth(1).is_some_and(|line| line.ends_with(tick));
            (ended.code == 0 && has_tick && is_noted != is_measured).then_some(())
        });
    }
    let untrusted = command(&server.tls_connect_string(), &["who", "/a", "--tls", "--session-timeout", "5s"]);
    run(untrusted).assert_failed(78, "--ca must have the authority");
    let without_certificate = &["who", "/a", "--ca", authorities.to_str().unwrap()];
    run(command(&server.tls_connect_string(), without_certificate))
        .assert_failed(78, "the server wants a certificate of this client: set one (--cert and --cert-key)");
    let named = |name| ["who", "/missing", "--tls-server-name", name];
    tls(&named("zk.example")).assert_failed(78, "or make another one (openssl req -x509");
    tls(&named("localhost")).assert_failed(66, "does not exist");
    let by_address = server.tls_connect_string().replace("localhost", "127.0.0.1");
    let with_name = |args: &[&str]| {
        run(command(&by_address, &[args, &options, &["--tls-server-name", "localhost"]].concat()))
    };
    run(command(&by_address, &[&["who", "/missing"], &options[..]].concat()))
        .assert_failed(78, "state that name (--tls-server-name)");
    with_name(&["who", "/missing"]).assert_failed(66, "does not exist");
    eventually_some("nothing is wrong", || Some(with_name(&["doctor"])).filter(|ended| ended.code == 0));
    let mut no_file = command(&server.tls_connect_string(), &["who", "/a", "--ca", "/nowhere"]);
    no_file.env("SSL_CERT_FILE", "/nowhere");
    run(no_file).assert_failed(78, "/nowhere");

    files.write_encrypted_identity(&authority.issue(&["client"]), "pa55word");
    tls(&["who", "/missing"]).assert_failed(78, "no password is set");
    let password = files.write("password", "pa55word\nanother line\n");
    let with_file = ["who", "/missing", "--cert-key-password-file", password.to_str().unwrap()];
    tls(&with_file).assert_failed(66, "does not exist");
    tls(&["who", "/missing", "--cert-key-password-file", "/nowhere"]).assert_failed(78, "/nowhere");
    for (value, code, text) in
        [("pa55word", 66, "does not exist"), ("wr0ng", 78, "is wrong"), ("", 78, "is set")]
    {
        let mut program =
            command(&server.tls_connect_string(), &[&["who", "/missing"], &options[..]].concat());
        program.env("ZK_CERT_KEY_PASSWORD", value);
        let ended = run(program);
        ended.assert_failed(code, text);
        assert!(!ended.err.contains("wr0ng"), "{ended:?}");
    }
}

/// Certificates have addresses without a zone.
#[test]
fn address_with_a_zone_is_well_with_tls() {
    let listener = match TcpListener::bind("[::1]:0") {
        Ok(listener) => listener,
        Err(error) => return println!("skipped: this machine has no IPv6: {error}"),
    };
    let (authority, files) = (Authority::new(), Files::new());
    let identity = files.write_server_identity(&authority.issue(&["localhost", "::1"]));
    let authorities = files.write_authority(&authority);
    let (certificate, key) = files.write_identity(&authority.issue(&["client"]));
    let tls = ServerTls { identity, authorities: authorities.clone() };
    let server = Server::with(ServerOptions { tls: Some(tls), ..ServerOptions::default() });
    // The index of the loopback device is 1.
    let connect = format!("[::1%1]:{}", listener.local_addr().unwrap().port());
    let target = server.tls_connect_string();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(&target) else { continue };
            let reversed = (server.try_clone().unwrap(), client.try_clone().unwrap());
            for (mut from, mut to) in [(client, server), reversed] {
                thread::spawn(move || {
                    drop(io::copy(&mut from, &mut to));
                    to.shutdown(Shutdown::Both)
                });
            }
        }
    });
    let [authorities, certificate, key] =
        [&authorities, &certificate, &key].map(|file| file.to_str().unwrap());
    let tls = ["--ca", authorities, "--cert", certificate, "--cert-key", key];
    // The server opens the port of TLS last.
    eventually_some("nothing is wrong", || Some(doctor(&connect, &tls)).filter(|ended| ended.code == 0));
}

// ---- servers that require authentication

#[test]
fn servers_that_demand_an_authentication_are_77() {
    let config = ["enforce.auth.enabled=true", "enforce.auth.schemes=digest"].map(str::to_owned).into();
    let server = Server::with(ServerOptions { config, ..ServerOptions::default() });
    for args in [&["run", "/locks/a", "--", "true"][..], &["who", "/locks/a"], &["leader", "/locks/a"]] {
        zklock(&server, args).assert_failed(77, "requires SASL authentication");
    }
    assert_eq!(zklock(&server, &["run", "--auth", "digest:ada:secret", "/locks/a", "--", "true"]).code, 0);
}

// ---- SASL

fn options() -> test_server::ServerOptions {
    ServerOptions::default().published()
}

#[test]
fn user_of_sasl_may_and_wrong_passwords_are_77() {
    let server = Server::published(&options().sasl_users([("ada", "secret:word")]).require_sasl());
    let connect = server.connect_string();
    let run_with = |sasl: &[&str]| command(&connect, &[&["run"], sasl, &["/locks/a", "--", "true"]].concat());
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("sasl");
    fs::write(&file, "digest-md5:ada:secret:word\n").unwrap();
    let file = ["--sasl-file", file.to_str().unwrap()];
    run(run_with(&["--sasl", "digest-md5:ada:secret:word"])).assert_succeeded();
    run(run_with(&file)).assert_succeeded();
    let mut by_variable = run_with(&[]);
    by_variable.env("ZK_SASL", "digest-md5:ada:secret:word");
    run(by_variable).assert_succeeded();
    let ended = doctor(&connect, &file);
    assert!(ended.out.contains("authenticates with SASL (DIGEST-MD5) as ada"), "{ended:?}");
    assert!(ended.code == 0 && ended.out.ends_with("all is well\n"), "{ended:?}");

    run(run_with(&[])).assert_failed(77, "requires SASL authentication");
    for login in ["ada:pass-phrase", "nobody:pass-phrase"] {
        let ended = run(run_with(&["--sasl", &format!("digest-md5:{login}")]));
        ended.assert_failed(77, "the servers refuse the SASL authentication");
        assert!(!ended.err.contains("pass-phrase"), "{ended:?}");
    }
    run(run_with(&["--sasl", "plain:ada:pass-phrase"])).assert_failed(64, "write digest-md5:USER:PASSWORD");
    run(run_with(&["--sasl-file", "/nowhere"])).assert_failed(78, "/nowhere");
    let without = zklock(
        server::shared(),
        &["who", "/locks/a", "--sasl", "digest-md5:ada:x", "--session-timeout", "2s"],
    );
    without.assert_failed(69, "the server does not use SASL");
}

#[cfg(feature = "kerberos")]
#[test]
fn tickets_of_the_environment_are_used() {
    let kdc = test_server::TestKdc::start().unwrap();
    let server = Server::published(&options().kerberos(&kdc).require_sasl());
    let keytab = kdc.keytab("app").unwrap();
    let zklock = |args: &[&str]| {
        let args = [&["--sasl", "kerberos", "--session-timeout", "6s"], args].concat();
        let mut zklock = command(&server.connect_string(), &args);
        zklock
            .env("KRB5_CONFIG", kdc.krb5_conf())
            .env("KRB5CCNAME", "MEMORY:")
            .env_remove("KRB5_CLIENT_KTNAME");
        zklock
    };
    let mut with_keytab = zklock(&["who", "/locks/a"]);
    with_keytab.env("KRB5_CLIENT_KTNAME", &keytab);
    run(with_keytab).assert_failed(66, "does not exist");
    run(zklock(&["who", "/locks/a"])).assert_failed(69, "No Kerberos credentials available");

    let mut doctor = zklock(&["doctor", "--tick", "500ms"]);
    doctor.env("KRB5_CLIENT_KTNAME", &keytab);
    let ended = run(doctor);
    assert!(ended.out.contains("authenticates with SASL (Kerberos) as app@ZK.TEST"), "{ended:?}");
    assert!(ended.code == 0 && ended.out.ends_with("all is well\n"), "{ended:?}");

    let wrong_keytab = options().kerberos_as("zookeeper/127.0.0.1", &kdc, &keytab);
    let refusing = Server::published(&wrong_keytab);
    let mut refused = zklock(&["run", "/locks/a", "--connect", &refusing.connect_string(), "--", "true"]);
    refused.env("KRB5_CLIENT_KTNAME", &keytab);
    run(refused).assert_failed(77, "the servers refuse the SASL authentication");
}
