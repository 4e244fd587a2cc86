//! Tests that the credentials, keys and passwords of sessions appear in no log line, no error and no `Debug`
//! output. This is a separate binary because a process has a single logger.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "in a test, a panic is the failure report"
)]

use std::error::Error;
use std::fmt::Debug;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use log::{LevelFilter, Log, Metadata, Record};
use zookeeper_connection::support::logging;
use zookeeper_recipes_lock::{BlockingWriteLock, ErrorReason, LockError, Session, SessionState};

const TIMEOUT: Duration = Duration::from_secs(6);
const CREDENTIAL: &str = "user:secret-8d1c2f";
/// The session's password, which the server sends.
const PASSWORD: &[u8; 16] = b"session-pa55word";

// ---- what an application, or the reader of its log, may see

struct Seen;

static SEEN: Mutex<String> = Mutex::new(String::new());

fn see(text: impl AsRef<str>) {
    let mut seen = SEEN.lock().unwrap();
    seen.push_str(text.as_ref());
    seen.push('\n');
}

fn see_debug(value: &impl Debug) {
    see(format!("{value:?}\n{value:#?}"));
}

fn see_error(error: &LockError) {
    see_debug(error);
    let mut source: Option<&dyn Error> = Some(error);
    while let Some(error) = source {
        see(error.to_string());
        source = error.source();
    }
}

/// Records the log lines of all crates.
impl Log for Seen {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        see(format!("{} {}: {}", record.level(), record.target(), record.args()));
    }

    fn flush(&self) {}
}

/// Returns the forms in which a secret could appear: as text, as `Debug` prints its bytes, and in hexadecimal
/// digits.
fn forms(secret: &[u8]) -> [String; 5] {
    let decimal = format!("{secret:?}");
    let lines = secret.iter().map(|byte| format!("    {byte},\n")).collect::<String>();
    let hex = |format: fn(&u8) -> String| secret.iter().map(format).collect::<String>();
    [
        String::from_utf8_lossy(secret).into_owned(),
        decimal.trim_matches(['[', ']']).to_owned(),
        lines,
        hex(|byte| format!("{byte:02x}")),
        hex(|byte| format!("{byte:02X}")),
    ]
}

fn assert_unseen(secret: &[u8]) {
    logging::await_written();
    let seen = SEEN.lock().unwrap();
    for form in forms(secret) {
        let found = seen.lines().find(|line| line.contains(form.lines().next().unwrap_or_default()));
        assert!(!seen.contains(&form), "the secret is in {found:?}");
    }
}

fn has_seen(text: &str) -> bool {
    logging::await_written();
    SEEN.lock().unwrap().contains(text)
}

fn assert_seen(text: &str) {
    assert!(has_seen(text), "'{text}' is not in:\n{}", SEEN.lock().unwrap());
}

// ---- a server on which no znode exists

#[derive(Clone)]
struct Server {
    address: String,
    /// Whether the server refuses credentials.
    refuses: Arc<AtomicBool>,
    /// Whether the server closes connections at once.
    is_down: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    presented: Arc<AtomicUsize>,
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

impl Server {
    fn start() -> Server {
        Server::with(|stream| Box::new(stream))
    }

    /// Starts a server. `wrap` turns each connection into the stream that the server uses.
    fn with(wrap: impl Fn(TcpStream) -> Box<dyn Stream> + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            address: listener.local_addr().unwrap().to_string(),
            refuses: Arc::default(),
            is_down: Arc::default(),
            streams: Arc::default(),
            presented: Arc::default(),
        };
        let (serving, wrap) = (server.clone(), Arc::new(wrap));
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if serving.is_down.load(Ordering::SeqCst) {
                    continue;
                }
                serving.streams.lock().unwrap().push(stream.try_clone().unwrap());
                let (serving, wrap) = (serving.clone(), Arc::clone(&wrap));
                // The thread ends when the client disconnects.
                thread::spawn(move || serving.serve(&mut *wrap(stream)));
            }
        });
        server
    }

    fn serve(&self, stream: &mut dyn Stream) -> Option<()> {
        let request = read_frame(stream)?;
        // The fields: version, timeout, session id, password, and the flag that the server is not read-only.
        let mut answer = [&[0; 4], &request[12..16], &[7; 8], &16_i32.to_be_bytes()[..]].concat();
        answer.extend(PASSWORD);
        answer.push(0);
        write_frame(stream, &answer)?;
        loop {
            let request = read_frame(stream)?;
            let (xid, operation) = (&request[..4], i32::from_be_bytes(request[4..8].try_into().ok()?));
            let refuses = self.refuses.load(Ordering::SeqCst);
            let error: i32 = match operation {
                100 => {
                    assert!(request.ends_with(CREDENTIAL.as_bytes()), "the credential must arrive");
                    self.presented.fetch_add(1, Ordering::SeqCst);
                    if refuses { -115 } else { 0 }
                }
                // A ping, or a request to close the session.
                11 | -11 => 0,
                // No znode exists.
                _ => -101,
            };
            write_frame(stream, &[xid, &[0; 8], &error.to_be_bytes()].concat())?;
            if operation == -11 || error == -115 {
                return None;
            }
        }
    }

    fn disconnect(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn read_frame(stream: &mut dyn Stream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).ok()?;
    Some(frame)
}

fn write_frame(stream: &mut dyn Stream, frame: &[u8]) -> Option<()> {
    let length = u32::try_from(frame.len()).ok()?.to_be_bytes();
    stream.write_all(&[&length, frame].concat()).ok()?;
    stream.flush().ok()
}

// ---- the tests

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn log_everything() {
    let _ = log::set_logger(&Seen);
    log::set_max_level(LevelFilter::Trace);
}

/// Uses a session in its current state, whatever the outcome.
fn use_session(session: &Session) {
    see_debug(session);
    let lock = BlockingWriteLock::new(session, "/locks/a").unwrap();
    see_debug(&lock);
    if let Err(error) = lock.try_lock_for(Duration::from_millis(200)) {
        see_error(&error);
    }
}

#[test]
fn forms_of_a_secret_are_recognized() {
    let secret = b"secret";
    let printed = [
        "a secret".to_owned(),
        format!("{secret:?}"),
        format!("{:#?}", secret.to_vec()),
        "0x736563726574".to_owned(),
        "736563726574".to_owned(),
    ];
    for (form, printed) in forms(secret).iter().zip(printed) {
        assert!(printed.contains(form), "{form:?} is not in {printed:?}");
    }
}

#[test]
fn credentials_are_never_shown() {
    log_everything();
    let server = Server::start();
    let builder = Session::builder(&server.address).session_timeout(TIMEOUT).auth("digest", CREDENTIAL);
    see_debug(&builder);
    let session = builder.clone().connect().unwrap();
    use_session(&session);

    server.disconnect();
    eventually("the credentials are presented again", || server.presented.load(Ordering::SeqCst) == 2);
    use_session(&session);

    server.is_down.store(true, Ordering::SeqCst);
    server.disconnect();
    use_session(&session);
    eventually("the outage is mentioned", || has_seen(&format!("tried {}", server.address)));
    server.refuses.store(true, Ordering::SeqCst);
    server.is_down.store(false, Ordering::SeqCst);
    eventually("the session is lost", || session.state() == SessionState::Lost);
    use_session(&session);
    session.close();

    see_error(&builder.clone().connect().unwrap_err());
    see_error(&builder.replace_lost_sessions(true).connect().unwrap_err());

    assert_seen("a server refuses a credential");
    assert_seen("no ZooKeeper server was reached");
    assert_seen("connected to 127.0.0.1");
    assert_unseen(CREDENTIAL.as_bytes());
    assert_unseen(b"secret-8d1c2f");
    assert_unseen(PASSWORD);
}

/// What people put into the wrong place.
const MISTYPED: &str = "secret-5f0e1d";

#[test]
fn secrets_in_the_wrong_place_are_never_shown() {
    log_everything();
    let connect_strings = [
        "user:{}@host:2181",
        "zk://user:{}@host:2181/app",
        "user:p/{}@host:2181",
        "digest:user:{}",
        "user:{}",
        "host:2181,user:{}",
        "host:2181;user:{}",
        "host:2181/app,digest:user:{}",
        "host:2181 user:{}",
        "[{}",
        "{}://host",
    ];
    let of_credentials: [(&str, &str); 4] =
        [("digest", "{}"), ("user:{}", "digest"), ("", "user:{}"), ("digest:user:{}", "")];
    let fill = |text: &str| text.replace("{}", MISTYPED);
    let builders = connect_strings.iter().map(|text| Session::builder(fill(text)));
    let with_credentials = of_credentials
        .iter()
        .map(|(scheme, credential)| Session::builder("localhost").auth(fill(scheme), fill(credential)));
    for builder in builders.chain(with_credentials) {
        see_debug(&builder);
        let error = builder.check().unwrap_err();
        assert_eq!(error.reason(), ErrorReason::InvalidArgument, "{error}");
        see_error(&error);
        see_error(&builder.connect().unwrap_err());
    }
    assert_seen("it has an '@'");
    assert_unseen(MISTYPED.as_bytes());
}

#[cfg(feature = "sasl")]
#[test]
fn password_of_sasl_is_never_shown() {
    log_everything();
    for (user, password) in
        [(format!("app:{MISTYPED}"), String::new()), ("app".to_owned(), MISTYPED.to_owned())]
    {
        // Nothing listens there.
        let builder = Session::builder("127.0.0.1:1").session_timeout(Duration::from_millis(200));
        let builder = builder.sasl_digest(user, password);
        see_debug(&builder);
        see_error(&builder.connect().unwrap_err());
    }
    assert_unseen(MISTYPED.as_bytes());
}

#[cfg(feature = "tls")]
mod tls {
    use std::path::Path;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned, server::WebPkiClientVerifier};
    use zookeeper_recipes_lock::client::TlsConfig;

    use super::*;

    const KEY_PASSWORD: &str = "key-pa55word-3b7e";

    struct Identity {
        certificate: rcgen::Certificate,
        key: KeyPair,
    }

    fn issue(issuer: &CertifiedIssuer<'static, KeyPair>) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        Identity { certificate: params.signed_by(&key, issuer).unwrap(), key }
    }

    fn write(dir: &Path, name: &str, content: &str) -> std::path::PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    fn encrypted_server(identity: &Identity, issuer: &CertifiedIssuer<'static, KeyPair>) -> Server {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(issuer.der().clone()).unwrap();
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_client_cert_verifier(clients.build().unwrap());
        let key = PrivateKeyDer::try_from(identity.key.serialize_der()).unwrap();
        let config =
            Arc::new(config.with_single_cert(vec![identity.certificate.der().clone()], key).unwrap());
        Server::with(move |stream| {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            Box::new(StreamOwned::new(connection, stream))
        })
    }

    #[test]
    fn keys_are_never_shown() {
        log_everything();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let (ours, other) = (issue(&issuer), issue(&issuer));
        let dir = tempfile::tempdir().unwrap();
        let ca = write(dir.path(), "ca.pem", &issuer.pem());
        let certificate = write(dir.path(), "client.pem", &ours.certificate.pem());
        let key = write(dir.path(), "client.key", &ours.key.serialize_pem());
        let other_key = write(dir.path(), "other.key", &other.key.serialize_pem());
        let damaged = ours.key.serialize_pem().replace("END", "FIN");
        let damaged_key = write(dir.path(), "damaged.key", &damaged);
        let no_key = write(dir.path(), "no.key", &damaged.replace("BEGIN", "START"));

        let server = encrypted_server(&issue(&issuer), &issuer);
        let connect = |server: &Server, key: &Path| {
            let tls = TlsConfig::new()
                .ca_file(&ca)
                .client_certificate(&certificate, key)
                .key_password(KEY_PASSWORD);
            see_debug(&tls);
            let builder = Session::builder(&server.address).session_timeout(TIMEOUT);
            let builder = builder.auth("digest", CREDENTIAL).tls(tls);
            see_debug(&builder);
            builder.connect()
        };
        let session = connect(&server, &key).unwrap();
        use_session(&session);
        server.disconnect();
        use_session(&session);
        for key in [&other_key, &damaged_key, &no_key, &ca] {
            see_error(&connect(&server, key).unwrap_err());
        }
        // The contents of the key are given instead of the name of its file.
        let contents = ours.key.serialize_pem();
        see_error(&connect(&server, Path::new(&contents)).unwrap_err());
        // This server does not use TLS.
        see_error(&connect(&Server::start(), &key).unwrap_err());

        assert_seen("client.key");
        for identity in [&ours, &other] {
            assert_unseen(&identity.key.serialize_der());
            let pem = identity.key.serialize_pem();
            for line in pem.lines().filter(|line| !line.starts_with('-') && line.len() >= 16) {
                assert_unseen(line.as_bytes());
            }
        }
        assert_unseen(CREDENTIAL.as_bytes());
        assert_unseen(KEY_PASSWORD.as_bytes());
        assert_unseen(PASSWORD);
    }
}
