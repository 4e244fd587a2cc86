//! [`SessionBuilder`]: how a session connects.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zookeeper_connection::Credential;
#[cfg(feature = "kerberos")]
use zookeeper_connection::KerberosConfig;
#[cfg(feature = "sasl")]
use zookeeper_connection::SaslDigest;
#[cfg(feature = "tls")]
use zookeeper_connection::TlsConfig;

use super::own_client::{OwnClient, OwnOptions};
use super::threads::Threads;
use super::{CONNECT_RETRY, Core, Factory, FirstContact, Session, check_timeout, chroot, open_core};
use crate::client::{DEFAULT_JUTE_MAX_BUFFER, ZooKeeperClient};
use crate::error::{ErrorReason, LockError, Operation, Result};
use crate::recipe::path::ZNodePath;
use crate::session::events::EventHook;
use crate::time::{Latch, Runtime};
use crate::wait::Wait;

/// The session timeout unless another one is set.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The least `jute.maxbuffer`: with less, servers could not read each other's packets.
const MIN_JUTE_MAX_BUFFER: usize = 4096;

/// Connects a [`Session`] with settings; made by [`Session::builder`].
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::Session;
///
/// let session = Session::builder("zk1:2181,zk2:2181,zk3:2181/app")
///     .session_timeout(Duration::from_secs(40))
///     .replace_lost_sessions(true)
///     .connect()?;
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct SessionBuilder {
    connect_string: String,
    session_timeout: Duration,
    replaces_lost_sessions: bool,
    max_tick: Option<Duration>,
    jute_max_buffer: usize,
    survived_outage: Option<Duration>,
    wait: Option<Wait>,
    credentials: Vec<Credential>,
    creates_chroot: bool,
    event_hook: Option<Hook>,
    #[cfg(feature = "sasl")]
    sasl_digest: Option<SaslDigest>,
    #[cfg(feature = "kerberos")]
    kerberos: Option<KerberosConfig>,
    #[cfg(feature = "tls")]
    tls: Option<TlsConfig>,
}

#[derive(Clone)]
struct Hook(Arc<dyn EventHook>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventHook")
    }
}

impl SessionBuilder {
    pub(super) fn new(connect_string: String) -> SessionBuilder {
        SessionBuilder {
            connect_string,
            session_timeout: DEFAULT_TIMEOUT,
            replaces_lost_sessions: false,
            max_tick: None,
            jute_max_buffer: DEFAULT_JUTE_MAX_BUFFER,
            survived_outage: None,
            wait: None,
            credentials: Vec::new(),
            creates_chroot: false,
            event_hook: None,
            #[cfg(feature = "sasl")]
            sasl_digest: None,
            #[cfg(feature = "kerberos")]
            kerberos: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Sets how long the server keeps the session, with its locks, without hearing from this
    /// process; 30 s by default. The server limits it (by default to 4 s to 40 s), and its answer
    /// counts: [`Session::session_timeout`].
    pub fn session_timeout(self, session_timeout: Duration) -> SessionBuilder {
        SessionBuilder { session_timeout, ..self }
    }

    /// Sets the longest tick (`tickTime`) of the servers; 2 s by default, as in their sample
    /// configuration.
    ///
    /// A lock is owned only while the server provably keeps the session, and the proof depends on
    /// the tick. The session takes half of the shortest session timeout that a server grants for its
    /// tick, but no less than this. It asks for that on a second connection. Where the server refuses one, a
    /// tick that is set here counts as it is, and without one the longest that the session timeout allows.
    ///
    /// - State shorter ticks for a session timeout of a few seconds: its locks then survive longer
    ///   outages.
    /// - State longer ticks if the servers' `minSessionTimeout` is below two of them, as it hides
    ///   them. **A value below the true one then breaks mutual exclusion** when a server dies. So it does
    ///   where the servers refuse a second connection.
    pub fn max_tick(self, max_tick: Duration) -> SessionBuilder {
        SessionBuilder { max_tick: Some(max_tick), ..self }
    }

    /// Sets the servers' `jute.maxbuffer`, in bytes; a mebibyte by default, as theirs.
    ///
    /// The transaction that ends a session names all its ephemeral znodes. If it is longer than
    /// `jute.maxbuffer`, no server can read it, **and the whole ensemble goes down**. So the session has locks,
    /// requests and other ephemeral znodes as long as their paths have less than seven eighths of this together,
    /// each with its chroot and four bytes more: some 8,000 with paths of 110 bytes. A call beyond
    /// that sends nothing and fails with [`SessionFull`](crate::ErrorReason::SessionFull). Use several sessions
    /// for more.
    ///
    /// State the smallest value of all servers, if one differs from the default. It must be at least 4096.
    pub fn jute_max_buffer(self, bytes: usize) -> SessionBuilder {
        SessionBuilder { jute_max_buffer: bytes, ..self }
    }

    /// Sets how long an outage the owner of a lock survives; by default 9/16 of the session timeout.
    ///
    /// While a lock is held, the session writes to the servers so often that the lock's lease lasts for this
    /// time at any moment, except for the first seconds. The round trips of these writes and the way to
    /// another server count as part of the outage. A shorter time means fewer writes. Set it where thousands
    /// of sessions hold locks: with a session timeout of 30 s, an owner makes 12 writes a minute by default,
    /// and 6 to survive 7.5 s. `docs/performance.md` has a table.
    ///
    /// - The session uses at least an eighth of the session timeout, and at most three quarters of what the
    ///   clock margin (1/32 of it) and the report delay (a tick and a tenth) leave of it.
    /// - A silent connection is left after 2/5 of the session timeout. If this time does not suffice for that
    ///   and for the way to another server, a lock is lost with every connection that falls silent.
    ///
    /// Safety does not depend on it.
    pub fn survived_outage(self, outage: Duration) -> SessionBuilder {
        SessionBuilder { survived_outage: Some(outage), ..self }
    }

    /// Sets whether to connect a new session whenever one is lost; `false` by default.
    ///
    /// Waiting requests then join the queue again on the new session, at its end, and what the lost
    /// session left in the queue is deleted. A lock that was *held* is lost and reported as such:
    /// only the application knows what that means. The [state](Session::state) changes from `Lost`
    /// back to `Connected`.
    ///
    /// Calls that wait for a lock wait for the next session, too. All others fail with
    /// [`SessionLost`](crate::ErrorReason::SessionLost) until it is connected: `try_lock`, a
    /// downgrade, a look at a directory, a revocation, a call for data. Repeat them later.
    ///
    /// This is for daemons that contend all the time. It is not the default, as everything else on
    /// a lost session is gone as well: other locks, and ephemeral znodes. A library should not
    /// carry on with its own part alone. What [`NodeTracker`](crate::data::NodeTracker), [`LeaderWatch`](crate::queue::LeaderWatch)
    /// and [`QueueWatch`](crate::queue::QueueWatch) follow, they follow on the next session.
    pub fn replace_lost_sessions(self, replace: bool) -> SessionBuilder {
        SessionBuilder { replaces_lost_sessions: replace, ..self }
    }

    /// Adds an identity, presented to every server before anything else, on every connection and
    /// also by a session that replaces a lost one: ZooKeeper's `addauth`.
    ///
    /// With the scheme `digest`, the credential is `user:password`. A refused credential is the
    /// error [`CredentialsRefused`](crate::ErrorReason::CredentialsRefused), or ends a session that
    /// is established. Credentials are never logged.
    pub fn auth(mut self, scheme: impl Into<String>, credential: impl Into<Vec<u8>>) -> SessionBuilder {
        self.credentials.push(Credential { scheme: scheme.into(), auth: credential.into() });
        self
    }

    /// Sets whether to create the chroot of the connect string, with its missing parents, before the
    /// session is used; `false` by default. Without a chroot it has no effect.
    ///
    /// With `false`, a connect string with a wrong chroot shows itself at the first lock, by the error
    /// [`NoChroot`](crate::ErrorReason::NoChroot). With `true`, such a mistake makes a new tree in which
    /// nobody else locks.
    ///
    /// The znodes persist, and their ACL grants everything to everybody
    /// ([`Acl::open_unsafe`](crate::client::Acl::open_unsafe)), because clients with other identities share a
    /// chroot. Create it by hand to protect it. A znode that exists is left as it is, and needs no
    /// permission. A session that [replaces](SessionBuilder::replace_lost_sessions) a lost one creates a
    /// missing chroot again.
    pub fn create_chroot(self, create: bool) -> SessionBuilder {
        SessionBuilder { creates_chroot: create, ..self }
    }

    /// Authenticates by SASL with DIGEST-MD5: before anything else, on every connection, and also on a session that
    /// replaces a lost one. Credentials of [`auth`](SessionBuilder::auth) come after it.
    ///
    /// A server that refuses the user is left for another one. When all servers have refused it, or some have and none has
    /// served for a session timeout or until the wait ends, the error is [`CredentialsRefused`](crate::ErrorReason::CredentialsRefused), and a
    /// session that is established is lost. A server that does not use SASL is never used without it. The password is
    /// never sent nor logged, but those who read the connection can try passwords: use [TLS](SessionBuilder::tls).
    #[cfg(feature = "sasl")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sasl")))]
    pub fn sasl_digest(self, user: impl Into<String>, password: impl Into<String>) -> SessionBuilder {
        let login = SaslDigest { user: user.into(), password: password.into() };
        SessionBuilder { sasl_digest: Some(login), ..self }
    }

    /// Authenticates by SASL with Kerberos: before anything else, on every connection, and also on a session that replaces
    /// a lost one. Credentials of [`auth`](SessionBuilder::auth) come after it.
    ///
    /// Without a ticket, no connection is opened: [`connect`](SessionBuilder::connect) tries again until its wait ends, and a
    /// session that is established until it has expired. The tickets for all servers are fetched
    /// ahead, so a connection that is lost is replaced without a KDC. A server that refuses the ticket is left for
    /// another one. When all servers have refused it, or some have and none has served for a session timeout
    /// or until the wait ends, the error is
    /// [`CredentialsRefused`](crate::ErrorReason::CredentialsRefused), and a session that is established is lost. A server
    /// that does not use SASL is never used without it.
    #[cfg(feature = "kerberos")]
    #[cfg_attr(docsrs, doc(cfg(feature = "kerberos")))]
    pub fn kerberos(self, kerberos: KerberosConfig) -> SessionBuilder {
        SessionBuilder { kerberos: Some(kerberos), ..self }
    }

    /// Encrypts the connection with TLS.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(self, tls: TlsConfig) -> SessionBuilder {
        SessionBuilder { tls: Some(tls), ..self }
    }

    /// Has a hook receive what happens on the session and with its locks, from the first connection
    /// on. See [`Session::set_event_hook`].
    pub fn event_hook(self, hook: impl EventHook + 'static) -> SessionBuilder {
        SessionBuilder { event_hook: Some(Hook(Arc::new(hook))), ..self }
    }

    /// Sets how long [`connect`](SessionBuilder::connect) waits for a first server; for the session
    /// timeout by default. A [`Duration`] counts from this call.
    ///
    /// With [`Wait::forever`] a daemon may start before the ensemble: it connects when the first
    /// servers serve. Meanwhile the log mentions the outcome for each server, after 1 s, 10 s and
    /// 60 s, then at intervals that double up to an hour. A [`CancelToken`](crate::CancelToken) ends the wait.
    ///
    /// This has no effect on later outages. A session that
    /// [replaces](SessionBuilder::replace_lost_sessions) a lost one is awaited without a limit in
    /// any case.
    pub fn wait_for_server(self, wait: impl Into<Wait>) -> SessionBuilder {
        SessionBuilder { wait: Some(wait.into()), ..self }
    }

    /// Connects, and returns when the session is established. Blocks for the session timeout at
    /// most, unless [`wait_for_server`](SessionBuilder::wait_for_server) sets another time.
    ///
    /// # Errors
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the connect string is malformed,
    ///   the timeout is shorter than 100 ms or longer than a day, `jute.maxbuffer` is less than 4096, a
    ///   file of the TLS configuration is not usable, or SASL is to use both DIGEST-MD5 and Kerberos.
    /// - [`NoServer`](crate::ErrorReason::NoServer): no server served in time. The message has the
    ///   outcome for each server.
    /// - [`CredentialsRefused`](crate::ErrorReason::CredentialsRefused): a server refused a
    ///   credential of [`auth`](SessionBuilder::auth), or the servers refuse the authentication by SASL, or demand one.
    /// - [`NotZooKeeper`](crate::ErrorReason::NotZooKeeper): the servers are those of ClickHouse Keeper.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied) with the path of the znode below which the
    ///   chroot cannot be created, and [`Server`](crate::ErrorReason::Server) or
    ///   [`Refused`](crate::ErrorReason::Refused) if a server refuses it for another reason: only with
    ///   [`create_chroot`](SessionBuilder::create_chroot). The path is that from the servers' root.
    /// - [`Cancelled`](crate::ErrorReason::Cancelled): by another thread.
    /// - [`Thread`](crate::ErrorReason::Thread): no thread could be started.
    pub fn connect(mut self) -> Result<Session> {
        let hook = self.event_hook.take();
        let session = self.open()?;
        if let Some(Hook(hook)) = hook {
            // The session is new, so there is no other.
            let _ = session.handle.set_events(hook);
        }
        Ok(session)
    }

    /// Checks the connect string, the session timeout and `jute.maxbuffer`, as [`connect`](SessionBuilder::connect)
    /// does before it sends anything.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument), or
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument) for the chroot.
    pub fn check(&self) -> Result<()> {
        self.options().map(drop)
    }

    fn options(&self) -> Result<OwnOptions> {
        check_timeout(self.session_timeout)?;
        check_jute_max_buffer(self.jute_max_buffer)?;
        OwnOptions::new(&self.connect_string, self.session_timeout)
    }

    fn open(self) -> Result<Session> {
        let session_timeout = self.session_timeout;
        let mut options = self.options()?;
        options.jute_max_buffer = self.jute_max_buffer;
        options.connection.credentials = self.credentials;
        options.connection.max_tick = self.max_tick;
        #[cfg(feature = "sasl")]
        {
            options.connection.sasl_digest = self.sasl_digest;
        }
        #[cfg(feature = "kerberos")]
        {
            options.connection.kerberos = self.kerberos;
        }
        #[cfg(feature = "tls")]
        {
            options.connection.tls = self.tls;
        }
        let wait = self.wait.unwrap_or_else(|| Wait::timeout(session_timeout));
        let mut client = Opener { options, creates_chroot: self.creates_chroot };
        let core = client.open_first(&wait)?;
        if let Some(outage) = self.survived_outage {
            core.set_survived_outage(outage);
        }
        if !self.replaces_lost_sessions {
            return Ok(Session::on(core));
        }
        let runtime = || Ok(Threads::start()? as Arc<dyn Runtime>);
        client.options.connection.mentions_first_outage = false;
        let client = move || Ok(client.connect(&Wait::timeout(session_timeout))? as Arc<dyn ZooKeeperClient>);
        let factory = Factory::new(runtime, client).with_survived_outage(self.survived_outage);
        Session::replaced_by(core, factory)
    }
}

fn check_jute_max_buffer(bytes: usize) -> Result<()> {
    if bytes >= MIN_JUTE_MAX_BUFFER {
        return Ok(());
    }
    let rule = format!("{bytes} bytes are less than {MIN_JUTE_MAX_BUFFER}, no server works with that");
    Err(LockError::invalid_argument("jute.maxbuffer", rule))
}

/// Opens the first session, and connects each later one.
struct Opener {
    options: OwnOptions,
    creates_chroot: bool,
}

impl Opener {
    /// Opens sessions until one is established, as the servers may go away again just after they
    /// opened one.
    fn open_first(&self, wait: &Wait) -> Result<Arc<Core>> {
        loop {
            match self.open(wait) {
                Err(error) if error.reason() == ErrorReason::NoServer && !wait.pause(CONNECT_RETRY) => {}
                result => return result,
            }
        }
    }

    fn open(&self, wait: &Wait) -> Result<Arc<Core>> {
        let threads = Threads::start()?;
        let begun = (Instant::now(), threads.now());
        let client = self.connect(wait).map(|client| client as Arc<dyn ZooKeeperClient>);
        let contact = FirstContact {
            tried: self.options.servers.to_string(),
            timeout: wait.time_allowed(begun.0),
            deadline: wait.moment(&*threads),
            cancelled: wait.cancelled().map_or_else(Latch::never, Latch::clone),
        };
        open_core(client, threads, Some(begun.1), contact)
    }

    fn connect(&self, wait: &Wait) -> Result<Arc<OwnClient>> {
        let begun = Instant::now();
        let client = OwnClient::connect(&self.options, wait)?;
        if let Some(chroot) = self.options.servers.chroot().filter(|_| self.creates_chroot) {
            let chroot = ZNodePath::from_server(chroot);
            let created = chroot::create(&chroot, |call| client.call_at_root(call, wait));
            created.map_err(|error| self.no_contact(error, begun, wait))?;
        }
        Ok(client)
    }

    /// Contact was lost while the chroot was created: the next session may create it.
    fn no_contact(&self, error: LockError, begun: Instant, wait: &Wait) -> LockError {
        let servers = self.options.servers.to_string();
        if !error.is_connection_loss() && !error.is_session_lost() {
            return error;
        }
        if wait.is_cancelled() {
            return LockError::of(ErrorReason::Cancelled, Operation::CONNECT, servers);
        }
        let tried = format!("{servers} (contact was lost while the chroot was created)");
        LockError::no_server(tried, wait.time_allowed(begun))
    }
}
