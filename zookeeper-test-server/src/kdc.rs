//! [`TestKdc`]: a Kerberos realm, for tests of clients that authenticate with tickets.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::Signal;
use tempfile::TempDir;

use super::daemon::Daemon;
use super::net::free_port;
use super::options::{utf8, with_log};
use super::process::{ENGLISH, tail};
use super::server::{PORT_TAKEN, TRIES, data_dir};
use super::wait::holds_within;

pub(super) const REALM: &str = "ZK.TEST";

/// The principal of a server at `127.0.0.1`, as clients derive it from that address.
pub(super) const SERVICE: &str = "zookeeper/127.0.0.1";

/// The KDC writes this to its log when it listens.
const LISTENS: &str = "commencing operation";

const START_LIMIT: Duration = Duration::from_secs(60);

/// A Kerberos key distribution center (KDC) for the realm `ZK.TEST` on a loopback port.
///
/// The KDC ends, and its data is removed, when this value is dropped or the test process ends in any way. The
/// KDC runs as the current user and leaves the system's Kerberos configuration alone.
///
/// Clients find the KDC through the environment variable `KRB5_CONFIG`, which must be set to the path
/// [`krb5_conf`](TestKdc::krb5_conf). Like `KRB5CCNAME` and `KRB5_CLIENT_KTNAME`, this variable applies to a
/// whole process. A test that runs a client in its own process should therefore start itself again in a child
/// process, with the variables set.
///
/// `Send` and `Sync`. The [crate docs](super) list what must be installed.
///
/// ```no_run
/// use zookeeper_test_server::{ServerOptions, TestKdc, TestServer};
///
/// # fn main() -> std::io::Result<()> {
/// let kdc = TestKdc::start()?;
/// let server = TestServer::start_with(&ServerOptions::new().kerberos(&kdc).require_sasl())?;
/// let client = std::process::Command::new("my-program")
///     .arg(server.connect_string())
///     .env("KRB5_CONFIG", kdc.krb5_conf())
///     .env("KRB5_CLIENT_KTNAME", kdc.keytab("app")?)
///     .env("KRB5CCNAME", "MEMORY:")
///     .spawn()?;
/// kdc.pause()?; // tickets in the client's cache remain valid
/// # drop(client);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TestKdc {
    programs: Programs,
    // Locked while a tool changes the database.
    database: Mutex<()>,
    // Dropped before the directory, which the KDC uses.
    daemon: Daemon,
    dir: TempDir,
}

impl TestKdc {
    /// Starts a KDC and returns once it listens.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if MIT Kerberos is not installed. Another error if the KDC ends or
    /// does not listen in time; its message includes the end of the log.
    pub fn start() -> io::Result<TestKdc> {
        for _ in 0..TRIES {
            let kdc = TestKdc::prepare()?;
            kdc.daemon.launch()?;
            if kdc.comes_up(0)? {
                return Ok(kdc);
            }
            if !kdc.log().contains(PORT_TAKEN) {
                return Err(with_log("the KDC ended", kdc.dir.path()));
            }
        }
        Err(io::Error::other(format!(
            "in each of {TRIES} attempts another process took the KDC's port first"
        )))
    }

    /// Creates the realm without starting the KDC.
    fn prepare() -> io::Result<TestKdc> {
        let programs = Programs::find()?;
        let (port, dir) = (free_port()?, data_dir()?);
        fs::write(dir.path().join("krb5.conf"), client_configuration(port))?;
        fs::write(dir.path().join("kdc.conf"), kdc_configuration(utf8(dir.path())?, port))?;
        let mut command = vec!["env".to_owned()];
        for (name, path) in environment(dir.path()) {
            command.push(format!("{name}={}", utf8(&path)?));
        }
        command.extend([utf8(&programs.krb5kdc)?, "-n", "-r", REALM].map(str::to_owned));
        let daemon = Daemon::new(dir.path(), &command)?;
        let kdc = TestKdc { programs, database: Mutex::new(()), daemon, dir };
        kdc.run(&kdc.programs.kdb5_util, &["create", "-r", REALM, "-s", "-P", "master"])?;
        kdc.keytab(SERVICE)?;
        Ok(kdc)
    }

    /// Returns the path of the realm's `krb5.conf`.
    #[must_use]
    pub fn krb5_conf(&self) -> PathBuf {
        self.dir.path().join("krb5.conf")
    }

    /// Returns the path of a keytab with the keys of a principal, such as `app`.
    ///
    /// Creates the principal and the keytab if they do not exist.
    ///
    /// # Errors
    /// If the name is not valid. The message includes the output of `kadmin.local`.
    pub fn keytab(&self, principal: &str) -> io::Result<PathBuf> {
        let keytab = self.keytab_of(principal);
        let _database = self.database.lock();
        if !keytab.exists() {
            self.administer(&["addprinc", "-randkey", principal])?;
            self.administer(&["ktadd", "-norandkey", "-k", utf8(&keytab)?, principal])?;
        }
        Ok(keytab)
    }

    /// Limits the lifetime of tickets that a principal obtains from now on, in whole seconds, and at least one. The
    /// default is an hour.
    ///
    /// # Errors
    /// The errors of [`keytab`](TestKdc::keytab).
    pub fn max_ticket_life(&self, principal: &str, life: Duration) -> io::Result<()> {
        self.keytab(principal)?;
        let _database = self.database.lock();
        self.administer(&["modprinc", "-maxlife", &format!("{} seconds", life.as_secs().max(1)), principal])
    }

    /// Obtains a ticket-granting ticket for a principal and stores it in a credential cache (`kinit`).
    ///
    /// Other tickets in the cache are removed. The principal's client uses the ticket to obtain tickets for
    /// servers.
    ///
    /// # Errors
    /// If the KDC does not answer; the message includes the output of `kinit`. Also in the cases of
    /// [`keytab`](TestKdc::keytab).
    pub fn kinit(&self, principal: &str, cache: &Path) -> io::Result<()> {
        let keytab = self.keytab(principal)?;
        self.run(&self.programs.kinit, &["-k", "-t", utf8(&keytab)?, "-c", utf8(cache)?, principal])
    }

    pub(super) fn service_keytab(&self) -> PathBuf {
        self.keytab_of(SERVICE)
    }

    /// Returns the path of a principal's keytab. No other principal has the same path.
    fn keytab_of(&self, principal: &str) -> PathBuf {
        self.dir.path().join(format!("{}.keytab", principal.replace('%', "%25").replace('/', "%2F")))
    }

    fn administer(&self, query: &[&str]) -> io::Result<()> {
        self.run(&self.programs.kadmin, &[&["-r", REALM], query].concat())
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> io::Result<()> {
        let mut command = Command::new(program);
        command.args(arguments).envs(environment(self.dir.path())).env("LC_ALL", ENGLISH);
        let output = command.output()?;
        if output.status.success() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("{} {}: {errors}", program.display(), arguments.join(" "))))
    }

    /// Stops the KDC (SIGTERM) and returns once it has ended. Its data is kept.
    ///
    /// Clients notice at once that the KDC is down.
    ///
    /// # Errors
    /// If the KDC does not end within a minute.
    pub fn stop(&self) -> io::Result<()> {
        self.daemon.end(Signal::TERM)
    }

    /// Starts a stopped KDC with the same data and port, and returns once it listens.
    ///
    /// # Errors
    /// If the KDC is already running, and the errors of [`start`](TestKdc::start).
    pub fn restart(&self) -> io::Result<()> {
        let starts = self.starts();
        self.daemon.launch()?;
        if self.comes_up(starts)? { Ok(()) } else { Err(with_log("the KDC ended", self.dir.path())) }
    }

    /// Suspends the KDC (SIGSTOP). Clients wait for an answer until they give up.
    ///
    /// # Errors
    /// If the KDC is not suspended within a minute.
    pub fn pause(&self) -> io::Result<()> {
        self.daemon.pause()
    }

    /// Resumes a paused KDC (SIGCONT).
    pub fn resume(&self) {
        self.daemon.resume();
    }

    /// Returns the process id of the KDC, unless the KDC was stopped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.daemon.pid()
    }

    /// Returns the end of the KDC's log, which has a line for each ticket.
    #[must_use]
    pub fn log(&self) -> String {
        tail(&self.dir.path().join("log"))
    }

    /// Blocks until the KDC listens after a new start. Returns `false` if it ended instead.
    fn comes_up(&self, former_starts: usize) -> io::Result<bool> {
        let listens = || self.starts() > former_starts;
        if holds_within(START_LIMIT, || listens() || !self.daemon.is_running()) {
            return Ok(listens());
        }
        Err(with_log("the KDC is running but does not listen", self.dir.path()))
    }

    /// Returns how many times the KDC has begun to listen, according to its log. A successful connection
    /// would prove nothing, because another process may have taken the port first.
    fn starts(&self) -> usize {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default().matches(LISTENS).count()
    }
}

/// Returns the variables that make the tools of MIT Kerberos use our files instead of the system's.
fn environment(dir: &Path) -> [(&'static str, PathBuf); 2] {
    [("KRB5_CONFIG", dir.join("krb5.conf")), ("KRB5_KDC_PROFILE", dir.join("kdc.conf"))]
}

/// Disables all name lookups, because servers are known by their addresses.
fn client_configuration(port: u16) -> String {
    format!(
        "[libdefaults]
  default_realm = {REALM}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
[realms]
  {REALM} = {{
    kdc = 127.0.0.1:{port}
  }}
"
    )
}

fn kdc_configuration(dir: &str, port: u16) -> String {
    format!(
        "[kdcdefaults]
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {REALM} = {{
    database_name = {dir}/principal
    key_stash_file = {dir}/stash
    max_life = 1h
    supported_enctypes = aes256-cts-hmac-sha1-96:normal
  }}
[logging]
  kdc = STDERR
"
    )
}

/// The programs of MIT Kerberos.
#[derive(Debug)]
pub struct Programs {
    krb5kdc: PathBuf,
    kdb5_util: PathBuf,
    kadmin: PathBuf,
    kinit: PathBuf,
}

impl Programs {
    /// Finds the programs on the `PATH` or in the `sbin` directories, which are rarely on a user's `PATH`.
    fn find() -> io::Result<Programs> {
        let path = env::var_os("PATH").unwrap_or_default();
        let dirs = env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
        Programs::find_in(&dirs.collect::<Vec<_>>())
    }

    pub fn find_in(dirs: &[PathBuf]) -> io::Result<Programs> {
        let find = |name: &str| {
            let mut programs = dirs.iter().map(|dir| dir.join(name));
            programs.find(|program| program.is_file()).ok_or_else(|| missing(name))
        };
        Ok(Programs {
            krb5kdc: find("krb5kdc")?,
            kdb5_util: find("kdb5_util")?,
            kadmin: find("kadmin.local")?,
            kinit: find("kinit")?,
        })
    }
}

fn missing(program: &str) -> io::Error {
    let message = format!(
        "a KDC needs MIT Kerberos: no {program} on the PATH or in /usr/sbin. On Debian, `apt-get install krb5-kdc \
         krb5-admin-server krb5-user`"
    );
    io::Error::new(io::ErrorKind::NotFound, message)
}
