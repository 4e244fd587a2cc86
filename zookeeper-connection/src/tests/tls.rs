//! Encrypted connections.

mod made;

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::SocketAddr;
#[cfg(unix)]
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion};

use super::server::Server;
use super::*;
use crate::TlsConfig;
use crate::Verbs;
use crate::tests::certificates::{Authority, Files, Identity};
use crate::tests::{eventually, in_background, logged_down_to, next};

fn roots(authority: &Authority) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.issuer.der().clone()).unwrap();
    Arc::new(roots)
}

impl Files {
    fn trusting(&self, authority: &Authority) -> TlsConfig {
        TlsConfig::new().ca_file(self.write_authority(authority))
    }

    fn with_identity(&self, config: TlsConfig, identity: &Identity) -> TlsConfig {
        let (certificate, key) = self.write_identity(identity);
        config.client_certificate(certificate, key)
    }
}

/// Starts a server with this identity. If there is an authority, the server asks clients for a certificate issued by
/// it.
fn serve(identity: &Identity, clients: Option<&Authority>) -> Server {
    let config = server_config(identity, clients);
    Server::with(move |client| {
        let encrypted = ServerConnection::new(Arc::clone(&config)).unwrap();
        client.within(|stream| StreamOwned::new(encrypted, stream)).serve();
    })
}

/// Starts a server that requires certificates. Returns the certificate of each client, or why its handshake failed.
fn serve_and_report(
    identity: &Identity,
    clients: &Authority,
) -> (Server, Receiver<io::Result<CertificateDer<'static>>>) {
    let config = server_config(identity, Some(clients));
    let (sender, reports) = unbounded();
    let server = Server::with(move |mut client| {
        let mut encrypted = ServerConnection::new(Arc::clone(&config)).unwrap();
        let handshake = encrypted.complete_io(&mut client.stream);
        let is_complete = handshake.is_ok();
        let certificate = handshake.map(|_| encrypted.peer_certificates().unwrap()[0].clone());
        let _ = sender.send(certificate);
        if is_complete {
            client.within(|stream| StreamOwned::new(encrypted, stream)).serve();
        }
    });
    (server, reports)
}

fn server_config(identity: &Identity, clients: Option<&Authority>) -> Arc<ServerConfig> {
    server_config_with(&[&TLS12, &TLS13], identity, clients)
}

fn server_config_with(
    versions: &[&'static SupportedProtocolVersion],
    identity: &Identity,
    clients: Option<&Authority>,
) -> Arc<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let config = config.with_protocol_versions(versions).unwrap();
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(authority) => config.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(roots(authority), provider).build().unwrap(),
        ),
    };
    let key = PrivateKeyDer::try_from(identity.key.serialize_der()).unwrap();
    Arc::new(config.with_single_cert(vec![identity.certificate.der().clone()], key).unwrap())
}

/// Returns the options of a connection to a server by the name `zk1`.
fn options_for(server: &Server, tls: &TlsConfig, session_timeout: Duration) -> ConnectionOptions {
    let address: SocketAddr = server.address().parse().unwrap();
    let mut options = ConnectionOptions::new(session_timeout);
    options.tls = Some(tls.clone());
    options.names = Arc::new(move |_, _| Ok(vec![address]));
    options
}

fn assert_serves(server: &Server, tls: &TlsConfig) -> Arc<Connection> {
    let connection = connect_with("zk1:2281", &options_for(server, tls, LONG)).unwrap();
    assert_eq!(connection.get_data("/a", false).unwrap().0, b"data");
    connection
}

#[track_caller]
fn assert_refused(server: &Server, tls: &TlsConfig, why: &str) {
    let error = |timeout| connect_error("zk1:2281", &options_for(server, tls, timeout));
    error_in_some_time(Duration::from_millis(500), error, |error| {
        error.contains("zk1:2281 (") && error.contains(why)
    });
}

/// SIGPIPE ends a process in which it has its default effect.
#[cfg(unix)]
#[test]
fn write_to_a_closed_connection_raises_no_signal() {
    use std::sync::atomic::{AtomicBool, Ordering};

    let (authority, files) = (Authority::new(), Files::new());
    let mut client = files.trusting(&authority).load("tls").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let is_raised = Arc::<AtomicBool>::default();
    signal_hook::flag::register(signal_hook::consts::SIGPIPE, Arc::clone(&is_raised)).unwrap();
    // The server of another test may raise the signal at the same time.
    eventually("no signal was raised", || {
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let mut stream = crate::tls::TlsStream::new(client.target("zk1").unwrap()).unwrap();
        is_raised.store(false, Ordering::SeqCst);
        let handshake = stream.handshake(&mut mio::net::TcpStream::from_std(socket));
        assert_eq!(handshake.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        !is_raised.load(Ordering::SeqCst)
    });
}

#[test]
fn calls_work_over_tls() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue(&["zk1"]), None);
    let connection = assert_serves(&server, &files.trusting(&authority));
    let data = vec![1; 1_000_000];
    for _ in 0..5 {
        connection.set_data("/a", &data, None).unwrap();
    }
    // The probe uses TLS, too.
    eventually("the probe is answered", || connection.granted().report_delay < Duration::from_secs(10));
    connection.close();
}

#[test]
fn session_survives_an_end_without_an_alert() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue(&["zk1"]), None);
    let connection = assert_serves(&server, &files.trusting(&authority));
    let events = events_of(&connection);
    server.disconnect();
    assert!(events.iter().any(|event| event == ClientEvent::Disconnected));
    assert!(events.iter().any(|event| is_connected(&event)));
    connection.exists("/a", false).unwrap();
}

#[test]
fn certificate_for_another_name_is_refused_unless_it_is_accepted() {
    let (authority, files) = (Authority::new(), Files::new());
    let trusting = files.trusting(&authority);
    let server = serve(&authority.issue(&["zk2"]), None);
    assert_refused(&server, &trusting, "not valid for name");
    assert_serves(&server, &trusting.clone().server_name("zk2"));
    assert_serves(&server, &trusting.danger_accept_any_server_name());
    let stranger = files.trusting(&Authority::new()).danger_accept_any_server_name();
    assert_refused(&server, &stranger, "UnknownIssuer");
}

/// A certificate cannot have the zone of an IPv6 address.
#[test]
fn zone_of_an_address_is_no_part_of_the_name() {
    let (authority, files) = (Authority::new(), Files::new());
    let trusting = files.trusting(&authority);
    for tls in [trusting.clone(), trusting.server_name("fe80::1%eth0")] {
        tls.load("test").unwrap().target("fe80::1%eth0").unwrap();
    }
}

#[test]
fn certificate_may_be_for_an_address() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue(&["127.0.0.1"]), None);
    let mut options = ConnectionOptions::new(LONG);
    options.tls = Some(files.trusting(&authority));
    connect_with(&server.address(), &options).unwrap();
}

#[test]
fn certificate_of_an_unknown_authority_is_refused() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue(&["zk1"]), None);
    assert_refused(&server, &files.trusting(&Authority::new()), "UnknownIssuer");
}

#[test]
fn expired_certificate_is_refused() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue_expired(&["zk1"]), None);
    assert_refused(&server, &files.trusting(&authority), "expired");
    assert_refused(&server, &files.trusting(&authority).danger_accept_any_server_name(), "expired");
}

#[test]
fn server_that_requires_a_client_certificate_gets_it() {
    let authority = Authority::new();
    let server = serve(&authority.issue(&["zk1"]), Some(&authority));
    let files = Files::new();
    assert_serves(&server, &files.with_identity(files.trusting(&authority), &authority.issue(&["client"])));
}

/// Connects with a certificate that each server refuses or lacks. With TLS 1.3, the client may have sent its connect
/// request by then. The server closes the connection at once, so the client may see the failure of its own writes before
/// the alert.
#[test]
fn refused_certificate_of_the_client_is_always_named_and_at_once() {
    let (authority, files) = (Authority::new(), Files::new());
    let missing = files.trusting(&authority);
    let stranger = files.with_identity(missing.clone(), &Authority::new().issue(&["client"]));
    for version in [&TLS12, &TLS13] {
        let config = server_config_with(&[version], &authority.issue(&["zk1"]), Some(&authority));
        let server = Server::with(move |mut client| {
            let mut encrypted = ServerConnection::new(Arc::clone(&config)).unwrap();
            assert!(encrypted.complete_io(&mut client.stream).is_err());
        });
        let wanted = "the server wants a certificate of this client: set one (TlsConfig::client_certificate)";
        let refused = "the server refuses this client's certificate (TlsConfig::client_certificate)";
        for (tls, advice) in [(&missing, wanted), (&stranger, refused)] {
            for _ in 0..25 {
                let error = connect_with("zk1:2281", &options_for(&server, tls, LONG)).unwrap_err();
                let message = error.to_string();
                assert!(matches!(error, ConnectError::CertificateRefused { .. }), "{error:?}");
                assert!(message.contains("received fatal alert") && message.contains(advice), "{message}");
            }
        }
    }
}

/// A server that refuses the client's certificate may close the connection before the client has sent its last message
/// of the handshake.
#[cfg(unix)]
#[test]
fn alert_is_reported_in_place_of_the_failed_write_that_follows_it() {
    let (authority, files) = (Authority::new(), Files::new());
    let mut client = files.trusting(&authority).load("tls").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut connect = || {
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        // From now on, each write fails.
        socket.shutdown(Shutdown::Write).unwrap();
        let stream = crate::tls::TlsStream::new(client.target("zk1").unwrap()).unwrap();
        (stream, mio::net::TcpStream::from_std(socket), listener.accept().unwrap().0)
    };
    let (mut stream, mut socket, mut server) = connect();
    // The record of a fatal alert: certificate_required.
    server.write_all(&[21, 3, 3, 0, 2, 2, 116]).unwrap();
    eventually("the alert has arrived", || socket.peek(&mut [0; 7]).is_ok_and(|count| count == 7));
    let error = stream.handshake(&mut socket).unwrap_err();
    assert!(error.to_string().contains("received fatal alert: CertificateRequired"), "{error}");
    // Without an alert, or with a part of one, the failure of the write is all that is known.
    for part in [&[][..], &[21, 3, 3, 0, 2]] {
        let (mut stream, mut socket, mut server) = connect();
        server.write_all(part).unwrap();
        drop(server);
        eventually("the end has arrived", || {
            let mut bytes = [0; 7];
            socket.peek(&mut bytes).is_ok_and(|count| count == part.len())
        });
        let error = stream.handshake(&mut socket).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{error}");
    }
}

/// The files may be renewed while the session lives.
#[test]
fn session_that_was_served_outlives_refused_certificates() {
    let (authority, files) = (Authority::new(), Files::new());
    let (server, reports) = serve_and_report(&authority.issue(&["zk1"]), &authority);
    let tls = files.with_identity(files.trusting(&authority), &authority.issue(&["client"]));
    let connection = assert_serves(&server, &tls);
    let id = connection.session_id();
    files.write_identity(&Authority::new().issue(&["client of another authority"]));
    let mut refusals = 0;
    eventually("the certificate was refused several times", || {
        server.disconnect();
        refusals += u32::from(next(&reports).is_err());
        refusals == 5
    });
    files.write_identity(&authority.issue(&["a renewed client"]));
    eventually("a server is connected again", || connection.exists("/a", false).is_ok());
    assert_eq!(connection.session_id(), id);
}

/// Servers make an identity of the certificate.
#[test]
fn certificate_of_the_client_counts_as_an_identity_of_the_session() {
    let (authority, files) = (Authority::new(), Files::new());
    let identity = authority.issue(&["client"]);
    let server = serve(&authority.issue(&["zk1"]), Some(&authority));
    let trusting = files.trusting(&authority);
    let without = options_for(&server, &trusting, LONG).max_buffer();
    let connection = assert_serves(&server, &files.with_identity(trusting, &identity));
    // The names are a small part of a certificate, which also has a key and a signature.
    let length = identity.certificate.der().len();
    let mut names = "client".len()..length / 2;
    assert!(names.any(|names| connection.max_buffer == without.clone().with_certificate(names)));
}

/// Renewed files are used by a later attempt than the one that notices the change.
#[test]
fn renewed_files_are_used_by_later_connections() {
    let (authority, files) = (Authority::new(), Files::new());
    let (server, reports) = serve_and_report(&authority.issue(&["zk1"]), &authority);
    let tls = files.with_identity(files.trusting(&authority), &authority.issue(&["client"]));
    let connection = assert_serves(&server, &tls);
    // The new file is not usable, so the former contents stay in use.
    files.write("client.pem", "nothing");
    for _ in 0..2 {
        server.disconnect();
        eventually("a server is connected again", || connection.exists("/a", false).is_ok());
    }
    // The server does not accept this certificate.
    files.write_identity(&Authority::new().issue(&["client of another authority"]));
    eventually("the certificate is used, and refused", || {
        server.disconnect();
        next(&reports).is_err_and(|error| error.to_string().contains("UnknownIssuer"))
    });
    let renewed = authority.issue(&["a renewed client"]);
    files.write_identity(&renewed);
    eventually("the renewed certificate is used", || {
        next(&reports).is_ok_and(|certificate| certificate == *renewed.certificate.der())
    });
    eventually("a server is connected again", || connection.exists("/a", false).is_ok());
}

/// The attempt that notices the change does not wait for the new files.
#[test]
fn renewed_files_are_used_by_a_later_attempt_and_then_kept() {
    let (authority, files) = (Authority::new(), Files::new());
    let tls = files.with_identity(files.trusting(&authority), &authority.issue(&["client"]));
    let mut client = tls.load("test").unwrap();
    let mut used = || client.target("zk1").unwrap().client;
    let first = used();
    files.write_identity(&authority.issue(&["a renewed client"]));
    eventually("the renewed files are used", || !Arc::ptr_eq(&used(), &first));
    let renewed = used();
    assert!((0..100).all(|_| Arc::ptr_eq(&used(), &renewed)));
}

#[test]
fn other_protocol_on_the_port_is_named_in_the_error() {
    let (authority, files) = (Authority::new(), Files::new());
    let tls = files.trusting(&authority);
    assert_refused(&Server::with(drop), &tls, "closed the connection during the TLS handshake");
    let talking = Server::with(|mut client| client.stream.write_all(&[0; 100]).unwrap());
    assert_refused(&talking, &tls, "TLS: ");
    let encrypted = serve(&authority.issue(&["zk1"]), None);
    let error = |timeout| connect_error(&encrypted.address(), &ConnectionOptions::new(timeout));
    error_in_some_time(Duration::from_millis(500), error, |error| {
        error.contains("may expect TLS") || error.contains("is not a ZooKeeper server")
    });
}

#[test]
fn unusable_file_is_an_invalid_argument_that_names_it() {
    let (authority, files) = (Authority::new(), Files::new());
    let identity = authority.issue(&["client"]);
    let certificate = files.write("client.pem", &identity.certificate.pem());
    let key = files.write("client.key", &identity.key.serialize_pem());
    let other_key = files.write("other.key", &authority.issue(&["other"]).key.serialize_pem());
    let empty = files.write("empty.pem", "");
    let broken = files.write("broken.pem", "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n");
    let missing = files.dir.path().join("missing.pem");
    let with_ca = |file: &PathBuf| TlsConfig::new().ca_file(file);
    let with_client = |certificate: &PathBuf, key: &PathBuf| {
        files.trusting(&authority).client_certificate(certificate, key)
    };
    let cases = [
        (with_ca(&missing), "missing.pem", "No such file"),
        (with_ca(&empty), "empty.pem", "no certificate in PEM format"),
        (with_ca(&broken), "broken.pem", "invalid peer certificate"),
        (with_client(&missing, &key), "missing.pem", "No such file"),
        (with_client(&certificate, &missing), "missing.pem", "No such file"),
        (with_client(&certificate, &empty), "empty.pem", "no private key in PEM format"),
        (with_client(&certificate, &other_key), "other.key", "cannot be used together"),
        (files.trusting(&authority).server_name("not a name"), "not a name", "not a valid server name"),
    ];
    for (tls, file, rule) in cases {
        let mut options = ConnectionOptions::new(LONG);
        options.tls = Some(tls);
        let error = connect_with("zk1", &options).unwrap_err();
        assert!(matches!(error, ConnectError::InvalidTls { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains(file) && message.contains(rule), "{file}, {rule}: {message}");
    }
}

const PASSWORD: &str = "a-key-pa55word";

#[track_caller]
fn assert_unusable(tls: &TlsConfig, rule: &str) {
    let message = tls.load("test").unwrap_err().to_string();
    assert!(message.contains(rule) && !message.contains("pa55word"), "{rule}: {message}");
}

#[test]
fn encrypted_key_is_used_with_its_password() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue(&["zk1"]), Some(&authority));
    let identity = authority.issue(&["client"]);
    let (certificate, key) = files.write_encrypted_identity(&identity, PASSWORD);
    let tls = files.trusting(&authority).client_certificate(certificate, key);
    assert_unusable(&tls, "client.key\": its private key is encrypted, and no password is set");
    for wrong in ["", "another-pa55word"] {
        assert_unusable(
            &tls.clone().key_password(wrong),
            "client.key\": the password of its private key is wrong",
        );
    }
    let tls = tls.key_password(PASSWORD);
    let connection = assert_serves(&server, &tls);
    // A renewed key is read with the password, too, and a key that is not encrypted is also accepted.
    files.write_encrypted_identity(&authority.issue(&["a renewed client"]), PASSWORD);
    server.disconnect();
    eventually("a server is connected again", || connection.exists("/a", false).is_ok());
    files.write_identity(&identity);
    assert_serves(&server, &tls);
}

#[test]
fn keys_that_openssl_encrypts_are_read() {
    let files = Files::new();
    let read = |key: &str| {
        let file = files.write("openssl.key", key);
        crate::tls::private_key(&file, Some("secret"))
    };
    // This is how openssl pkcs12 writes it.
    let with_attributes = format!("Bag Attributes\n    friendlyName: z\u{fc}rich\n{OPENSSL_AES}");
    for key in [OPENSSL_AES, &with_attributes, &OPENSSL_AES.replace('\n', "\r\n"), OPENSSL_SCRYPT] {
        assert_eq!(read(key).unwrap(), read(OPENSSL_PLAIN).unwrap());
    }
    let damaged = OPENSSL_AES.replace("MIHs", "MIHt");
    for key in [OPENSSL_3DES, OPENSSL_PKCS12_V1, OPENSSL_PBES1, &damaged] {
        let message = read(key).unwrap_err().to_string();
        assert!(message.contains("openssl pkcs8 -topk8 -v2 aes256"), "{message}");
    }
}

#[test]
fn other_formats_are_named_with_the_command_that_converts_them() {
    let (authority, files) = (Authority::new(), Files::new());
    let (certificate, key) = files.write_identity(&authority.issue(&["client"]));
    let trusting = files.trusting(&authority);
    // The first bytes as keytool and openssl write them, and as other programs write PKCS #12.
    let jks = [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 1];
    let pkcs12 = [0x30, 0x82, 0x04, 0x0c, 0x02, 0x01, 0x03, 0x30, 0x82, 0x03, 0xc2, 0x06];
    let streamed = [0x30, 0x80, 0x02, 0x01, 0x03, 0x30, 0x80, 0x06];
    let legacy = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,3CB9\n\nxQr7\n\
                  -----END EC PRIVATE KEY-----\n";
    let with_legacy = authority.issuer.pem() + legacy;
    // The expected texts for certificates and for keys.
    let cases: [(&[u8], [&str; 2]); 5] = [
        (&jks, ["(JKS), not PEM; convert it: keytool -list -rfc", "keytool -importkeystore"]),
        (&pkcs12, ["openssl pkcs12 -in FILE -nokeys", "openssl pkcs12 -in FILE -nocerts"]),
        (&streamed, ["PKCS #12 keystore, not PEM", "PKCS #12 keystore, not PEM"]),
        (legacy.as_bytes(), ["(Proc-Type: 4,ENCRYPTED); convert it", "openssl pkcs8 -topk8"]),
        (with_legacy.as_bytes(), ["(Proc-Type: 4,ENCRYPTED); convert it", "openssl pkcs8 -topk8"]),
    ];
    for (content, [of_certificates, of_key]) in cases {
        let other = files.dir.path().join("other");
        fs::write(&other, content).unwrap();
        assert_unusable(&TlsConfig::new().ca_file(&other), of_certificates);
        assert_unusable(&trusting.clone().client_certificate(&other, &key), of_certificates);
        assert_unusable(&trusting.clone().client_certificate(&certificate, &other), of_key);
    }
    // A certificate in DER format is not recognized.
    let der = files.dir.path().join("der");
    fs::write(&der, authority.issuer.der()).unwrap();
    assert_unusable(&TlsConfig::new().ca_file(&der), "it has no certificate in PEM format");
}

#[test]
fn debug_output_has_no_key() {
    let (authority, files) = (Authority::new(), Files::new());
    let identity = authority.issue(&["client"]);
    let tls = files.with_identity(files.trusting(&authority), &identity).key_password(PASSWORD);
    let text = format!("{tls:?} {:?}", tls.load("test").unwrap());
    assert!(!text.contains(PASSWORD), "{text}");
    let key = identity.key.serialize_der();
    let printed = key.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
    assert!(!text.contains(&printed[..40]) && !text.contains("PRIVATE KEY"), "{text}");
}

#[cfg(unix)]
#[test]
fn file_that_changes_while_it_is_read_is_read_again() {
    let (authority, files) = (Authority::new(), Files::new());
    // The file is a pipe, whose reader waits for a writer. Each write changes its modification time.
    let pipe = files.dir.path().join("ca.pem");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    File::options().read(true).write(true).open(&pipe).unwrap().set_modified(long_ago).unwrap();
    let write = || {
        let (pipe, certificate) = (pipe.clone(), authority.issuer.pem());
        in_background(move || fs::write(pipe, certificate))
    };
    let first = write();
    let mut client = TlsConfig::new().ca_file(&pipe).load("test").unwrap();
    next(&first).unwrap();
    let second = write();
    // Another thread reads the pipe.
    client.target("zk1").unwrap();
    next(&second).unwrap();
}

#[cfg(unix)]
#[test]
fn file_that_hangs_delays_no_reconnect() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue(&["zk1"]), None);
    let tls = files.trusting(&authority);
    let connection = assert_serves(&server, &tls);
    // The file is a pipe, whose reader waits for a writer.
    let ca = files.dir.path().join("ca.pem");
    fs::remove_file(&ca).unwrap();
    assert!(Command::new("mkfifo").arg(&ca).status().unwrap().success());
    let events = events_of(&connection);
    for _ in 0..2 {
        server.disconnect();
        assert!(events.iter().any(|event| event == ClientEvent::Disconnected));
        let is_back = (0..).map(|_| next(&events)).any(|event| matches!(event, ClientEvent::Connected(_)));
        assert!(is_back);
    }
    // End the other thread, if it reads the pipe. To open a pipe for both directions does not block.
    let mut pipe = fs::OpenOptions::new().read(true).write(true).open(&ca).unwrap();
    pipe.write_all(authority.issuer.pem().as_bytes()).unwrap();
}

#[test]
fn files_that_cannot_be_used_again_are_named_once_for_each_change() {
    let (authority, files) = (Authority::new(), Files::new());
    let tls = files.with_identity(files.trusting(&authority), &authority.issue(&["client"]));
    let mut loaded = tls.load("test").unwrap();
    let mut look = || logged_down_to(::log::Level::Warn, || loaded.look_now());
    assert!(look().is_empty());
    files.write("client.pem", "nothing");
    let lines = look();
    assert!(lines.len() == 1 && lines[0].contains("client.pem"), "{lines:?}");
    assert!(look().is_empty());
    files.write("client.pem", "nothing either");
    assert_eq!(look().len(), 1);
    assert!(look().is_empty());
    fs::remove_file(files.dir.path().join("ca.pem")).unwrap();
    let lines = look();
    assert!(lines.len() == 1 && lines[0].contains("ca.pem"), "{lines:?}");
    files.write_authority(&authority);
    files.write_identity(&authority.issue(&["a renewed client"]));
    assert!(look().is_empty());
    files.write("client.key", "nothing");
    assert_eq!(look().len(), 1);
    // Only one file of the pair has been renewed so far.
    let renewed = authority.issue(&["another renewed client"]);
    files.write_identity(&authority.issue(&["a renewed client"]));
    assert!(look().is_empty());
    files.write("client.pem", &renewed.certificate.pem());
    let lines = look();
    assert!(lines.len() == 1 && lines[0].contains("cannot be used together"), "{lines:?}");
    files.write_identity(&renewed);
    assert!(look().is_empty());
}

// The same key, which nobody trusts, in several formats of OpenSSL 3.0. The password is "secret".

const OPENSSL_PLAIN: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgR3f9aNlzMJdpqd2/
fTkxEEqshvP7bA2XkLc/0dVfP8KhRANCAATgEQxyDvBJoMc3hRayLXwZdMNECXdy
AIevR/GnhPkS1k2+ZB54+9HFlVlGplua3dYN1l2zQ7C47PFhZSBvXdWh
-----END PRIVATE KEY-----
";

/// Written by `openssl pkcs8 -topk8 -v2 aes256`.
const OPENSSL_AES: &str = "\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhQ1P7SrtzgZQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEOvKJCBYn6HCqah8cFIEf2kEgZCZ
9/0sMxfgxGLXfvalpj+bXv28zOC1At67NuVj1pDRMNzv92r8PJDYqde14xPUQvSQ
yTtc394yzHtThyA+dXPbydSB3ngdz1k+nODfxLdCxjJ3szHC298buhrbqhLwpedD
D79ShRoJjbXuvJ+d6zAoV3suxgd/vTKkQzT5t+Mi8TaeRbQwM1gTVaXiOOx3u/U=
-----END ENCRYPTED PRIVATE KEY-----
";

/// Written by `openssl pkcs8 -topk8 -scrypt`.
const OPENSSL_SCRYPT: &str = "\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHkME8GCSqGSIb3DQEFDTBCMCEGCSsGAQQB2kcECzAUBAjOSceHJuRcAgICQAAC
AQgCAQEwHQYJYIZIAWUDBAEqBBCcIb/Qx/BBFprU4ncBhwvvBIGQ4jFoMNJ2U9I+
j4D3N3JFzNnXshHHx6kOQFezDUHm2fV2GS9zLA79jFLiwgcLDK5cHrrifCtNLsEY
6kHk0ICmQRA65DrfMB0Baec2wD9d/PF5T8opJdVEdkYdsi568SfmeyPEkuTeCKA0
0+iLbn8eBUzFH6bvZabD78Lh1fGI+QxdFwjFMe4bQ5sRiTHWP1bG
-----END ENCRYPTED PRIVATE KEY-----
";

/// Written by `openssl pkcs8 -topk8 -v2 des3`.
const OPENSSL_3DES: &str = "\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHjME4GCSqGSIb3DQEFDTBBMCkGCSqGSIb3DQEFDDAcBAjleYWWmZpCsgICCAAw
DAYIKoZIhvcNAgkFADAUBggqhkiG9w0DBwQIKJXgQHbJqtUEgZCUOefWjzsN7+9W
ayQAqHCoAOVyjcDz8ia+C9F1xLStM0C8qxCAxpE0C5+t1UVh3srNWk4wBCcbyMBR
+bRsQ8qGFFh44cYWI5WSHI18Gxyd3VVWABz/EIOw4dyAhtWf5rAnkcLITggyjQR7
R9I5gbcsUouHBoQFIOwtFyf/6zy+xOliSm+CSjbvoLBj5ks335o=
-----END ENCRYPTED PRIVATE KEY-----
";

/// Written by `openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES`.
const OPENSSL_PKCS12_V1: &str = "\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGxMBwGCiqGSIb3DQEMAQMwDgQIX+LRNCRCUU8CAggABIGQ+p4VOkxEc+O3hNtO
VdnK7CzIdRC65eHjVQ5/eNTLTCjoqlXzmxkxPz5VX9qxldvJONfocwLmCHv5IbS/
DmIg5eAh1Jea7kJRClhDtrRkwuz4Nq1hyO2AXpqLxvJo0yQJiKhoORaJhcfSkbjp
6vFWqMTgIlehc32KK4BKZFHaJgo/v8FxPyOfY7M0MzTOwiTZ
-----END ENCRYPTED PRIVATE KEY-----
";

/// Written by `openssl pkcs8 -topk8 -v1 PBE-MD5-DES`.
const OPENSSL_PBES1: &str = "\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGwMBsGCSqGSIb3DQEFAzAOBAhuQ8uGh1GzsAICCAAEgZA7PyVqEl8X0Q48S2DP
0Yk5IJ2QfyLC5Mh+zvvO3Wny+bVn/6HU+ZbnplTiLQmKkBuZubA4sp3RGVncEI5D
X37K/jPAvKGQTt6rQuSaQWlSMQQZXsKfcpRVRtM741ye07EiSrE9xSdJwbKbU3K4
Eqol9flV5WxmVH9m7i8iO5LrywqPoyhMtIY3FmtaDVU7RHY=
-----END ENCRYPTED PRIVATE KEY-----
";
