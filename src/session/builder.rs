//! [`SessionBuilder`]: the settings of a new session.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "kerberos")]
use zookeeper_connection::KerberosConfig;
#[cfg(feature = "sasl")]
use zookeeper_connection::SaslDigest;
use zookeeper_connection::ServerMemory;
#[cfg(feature = "tls")]
use zookeeper_connection::TlsConfig;
use zookeeper_connection::{ConnectString, Connection, Credential, TickNote};

use super::connecting::{self, Options};
use super::threads::Threads;
use super::{CONNECT_RETRY, Core, Factory, FirstContact, Session, check_timeout, chroot, open_core};
use crate::client::{DEFAULT_JUTE_MAX_BUFFER, Granted, ZooKeeperClient};
use crate::engine::lease::longest_outage;
use crate::error::{ErrorReason, LockError, Operation, Result};
use crate::recipe::path::ZNodePath;
use crate::session::events::EventHook;
use crate::time::{Latch, Runtime};
use crate::wait::{CancelToken, Wait};

/// The default session timeout.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The minimum `jute.maxbuffer`. With a smaller value, servers could not read each other's packets.
const MIN_JUTE_MAX_BUFFER: usize = 4096;

/// Builds a [`Session`] with settings of your choice.
///
/// [`Session::builder`] returns one. Set what you need, then call [`connect`](SessionBuilder::connect).
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
///
/// To connect several sessions, clone the builder. Clones share what they learn of the servers, so a session does not
/// begin with a server that was silent to another one.
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect` is called"]
pub struct SessionBuilder {
    connect_string: String,
    session_timeout: Duration,
    replaces_lost_sessions: bool,
    tick: Option<Duration>,
    max_tick: Option<Duration>,
    jute_max_buffer: usize,
    survived_outage: Option<Duration>,
    wait: Option<Wait>,
    credentials: Vec<Credential>,
    creates_chroot: bool,
    event_hook: Option<Hook>,
    memory: ServerMemory,
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

impl fmt::Debug for SessionBuilder {
    /// Writes no credentials, not even if they are in the wrong place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = ConnectString::parse(&self.connect_string);
        let servers = servers.map_or_else(|_| "…".to_owned(), |servers| servers.to_string());
        let mut shown = f.debug_struct("SessionBuilder");
        shown.field("connect_string", &servers).field("session_timeout", &self.session_timeout);
        shown.field("replaces_lost_sessions", &self.replaces_lost_sessions);
        shown.field("credentials", &self.credentials);
        #[cfg(feature = "sasl")]
        shown.field("sasl_digest", &self.sasl_digest);
        #[cfg(feature = "kerberos")]
        shown.field("kerberos", &self.kerberos);
        #[cfg(feature = "tls")]
        shown.field("tls", &self.tls);
        shown.finish_non_exhaustive()
    }
}

impl SessionBuilder {
    pub(super) fn new(connect_string: String) -> SessionBuilder {
        SessionBuilder {
            connect_string,
            session_timeout: DEFAULT_TIMEOUT,
            replaces_lost_sessions: false,
            tick: None,
            max_tick: None,
            jute_max_buffer: DEFAULT_JUTE_MAX_BUFFER,
            survived_outage: None,
            wait: None,
            credentials: Vec::new(),
            creates_chroot: false,
            event_hook: None,
            memory: ServerMemory::new(),
            #[cfg(feature = "sasl")]
            sasl_digest: None,
            #[cfg(feature = "kerberos")]
            kerberos: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Sets how long the servers keep the session without hearing from this process.
    ///
    /// The default is 30 s. The server limits the value, by default to between 4 s and 40 s. The value that it grants
    /// is the [effective timeout](Session::session_timeout).
    pub fn session_timeout(self, session_timeout: Duration) -> SessionBuilder {
        SessionBuilder { session_timeout, ..self }
    }

    /// Sets the tick (`tickTime`) of the servers.
    ///
    /// A lock is owned only while the servers provably keep the session, and the proof depends on the tick. The session
    /// reckons with exactly this tick, in place of one that it measures, and opens no second connection to measure one.
    /// If the servers have different ticks, set the longest.
    ///
    /// Set the tick if you know it, above all if `minSessionTimeout` was raised. The session cannot measure the tick
    /// then, and takes half of `minSessionTimeout` for it, so an owner survives only [shorter
    /// outages](crate::guide::guarantees#limits). `zklock doctor` says what to set. At level `info`, the log says which
    /// tick a session reckons with, and why.
    ///
    /// **A value below the true tick breaks mutual exclusion when a server dies**: a lease may then outlast the session
    /// by up to 1.1 times the difference. Nothing can tell the session that the value is too short. Before you raise
    /// `tickTime`, restart the clients with the new tick. A value above the true tick only costs some of the outage that
    /// an owner survives.
    ///
    /// If the servers grant a session timeout of less than two such ticks, [`connect`](SessionBuilder::connect) fails
    /// with [`InvalidArgument`](crate::ErrorReason::InvalidArgument). It also does so if the value is zero, or longer
    /// than [`max_tick`](SessionBuilder::max_tick). With a tick, `max_tick` has no other effect.
    pub fn tick(self, tick: Duration) -> SessionBuilder {
        SessionBuilder { tick: Some(tick), ..self }
    }

    /// Sets an upper bound of the servers' ticks, for those who do not know the [tick](SessionBuilder::tick).
    ///
    /// The session measures the tick on a second connection, as half of the shortest session timeout that the server
    /// grants there. It then uses the measured tick or the bound set here, whichever is longer. If no bound is set, 2 s
    /// takes its place (the tick in ZooKeeper's sample configuration). If the server refuses a second connection, the
    /// session uses the bound set here or, if none is set, the longest tick that the session timeout allows. That is
    /// half of the session timeout. A longer tick, measured or set here, counts as half of the session timeout, too.
    /// Zero is refused when the session connects.
    ///
    /// - If your servers' ticks are shorter than 2 s and you need a session timeout of a few seconds, set a bound. The
    ///   session's locks then survive longer outages.
    /// - If a true tick is longer than 2 s and the servers' `minSessionTimeout` is less than two ticks, set a bound, and
    ///   a session timeout of at least two such ticks. Such a `minSessionTimeout` hides the true tick from the
    ///   measurement.
    ///
    /// **A value below the true tick breaks mutual exclusion when a server dies**, if `minSessionTimeout` hides the
    /// true tick or the servers refuse a second connection.
    pub fn max_tick(self, max_tick: Duration) -> SessionBuilder {
        SessionBuilder { max_tick: Some(max_tick), ..self }
    }

    /// Sets the servers' `jute.maxbuffer`, in bytes.
    ///
    /// The default is one mebibyte, as in ZooKeeper. If any server has a different value, set the smallest of the
    /// servers' values. The value must be at least 4096.
    ///
    /// If a transaction is longer than `jute.maxbuffer`, no server can read it, **and the whole ensemble goes down**.
    /// The session therefore limits two kinds of transactions:
    /// - *Each call*. The servers may write more than they are sent: a sequential znode gets a number, and an ACL entry
    ///   for the creator ([`Acl::creator_all`](crate::client::Acl::creator_all)) becomes an entry for every identity of
    ///   the session. A call that may take more than the value minus 1024 bytes sends nothing and fails with
    ///   [`CallTooLong`](crate::ErrorReason::CallTooLong).
    /// - *The end of the session*, which names all its locks, requests and other ephemeral znodes. The total length of
    ///   the paths is limited to seven eighths of the value, counting each path with its chroot and four more bytes. By
    ///   default, that is some 8,000 znodes with paths of 110 bytes. A call beyond the limit sends nothing and fails
    ///   with [`SessionFull`](crate::ErrorReason::SessionFull). If you need more znodes, use several sessions.
    ///
    /// An ephemeral znode that the application has created counts until this session deletes it, or until a reply or an
    /// event shows the session that it is gone. If other clients delete such znodes, as the consumers of a queue do,
    /// call [`exists`](crate::data::RecoverableZooKeeper::exists) for them now and then, or create them on a session of
    /// their own. If the reply to a [commit](crate::LockGuard::commit) with sequential creates is lost, these count
    /// until the session ends.
    pub fn jute_max_buffer(self, bytes: usize) -> SessionBuilder {
        SessionBuilder { jute_max_buffer: bytes, ..self }
    }

    /// Sets the length of outage that a lock survives.
    ///
    /// The default is 9/16 of the session timeout, or the maximum below if that is less. While a lock is held, the
    /// session writes to the servers often enough that the remaining lease is never shorter than this time, except in
    /// the first seconds. The round trips of these writes, and the move to another server, count as part of the outage.
    ///
    /// A shorter time means fewer writes. Set it if thousands of sessions hold locks. With a session timeout of 30 s,
    /// for example, an owner makes 12 writes a minute by default, but only 6 if it is to survive 7.5 s. The
    /// [performance guide](crate::guide::performance) has a table. Safety does not depend on this setting.
    ///
    /// - The minimum is an eighth of the session timeout. The maximum is three quarters of what remains of the session
    ///   timeout after the clock margin (1/32 of it) and the report delay (1.1 ticks). Other values are clamped.
    /// - The session gives up a silent connection after 2/5 of the session timeout, and then moves to another server.
    ///   If the time set here is too short for both, locks are lost whenever a connection falls silent.
    pub fn survived_outage(self, outage: Duration) -> SessionBuilder {
        SessionBuilder { survived_outage: Some(outage), ..self }
    }

    /// Sets whether to connect a new session whenever one is lost.
    ///
    /// The default is `false`. Set it to `true` in daemons that contend all the time, and always when threads share a
    /// session: otherwise each thread would open a replacement of its own.
    ///
    /// - A lock that is *held* is lost, and the loss is reported. Only the application knows what a loss means to it.
    /// - A waiting call continues on the next session. There its request joins the queue again, at the end. Whatever
    ///   the lost session left in the queue is deleted.
    /// - All other calls fail with [`SessionLost`](crate::ErrorReason::SessionLost) until the next session is
    ///   connected: `try_lock`, a downgrade, listing a directory, a revocation, reading or writing data. Repeat them
    ///   later.
    /// - [`NodeTracker`](crate::data::NodeTracker), [`LeaderWatch`](crate::queue::LeaderWatch) and
    ///   [`QueueWatch`](crate::queue::QueueWatch) continue on the next session.
    /// - The [state](Session::state) changes from `Lost` back to `Connected`.
    ///
    /// Attempts to connect go on until one succeeds, even if the servers now refuse the credentials. Each failure is
    /// logged.
    ///
    /// Replacement is off by default, because a lost session takes everything with it, including other locks and
    /// ephemeral znodes. A library should not carry on after restoring only its own part.
    pub fn replace_lost_sessions(self, replace: bool) -> SessionBuilder {
        SessionBuilder { replaces_lost_sessions: replace, ..self }
    }

    /// Adds a credential that is presented to every server.
    ///
    /// This is ZooKeeper's `addauth`. With the scheme `digest`, the credential must be `user:password`. The session sends it
    /// before any call on every connection, and so does a session that replaces a lost one. Credentials are never
    /// logged.
    ///
    /// If a server refuses a credential, connecting fails with
    /// [`CredentialsRefused`](crate::ErrorReason::CredentialsRefused), and an established session is lost.
    pub fn auth(mut self, scheme: impl Into<String>, credential: impl Into<Vec<u8>>) -> SessionBuilder {
        self.credentials.push(Credential { scheme: scheme.into(), auth: credential.into() });
        self
    }

    /// Sets whether to create the chroot of the connect string.
    ///
    /// The default is `false`. With `true`, the chroot and its parents are created if they are missing, before the
    /// session is used. A session that [replaces](SessionBuilder::replace_lost_sessions) a lost one does the same.
    /// Without a chroot in the connect string, the setting has no effect.
    ///
    /// With `false`, a typo in the chroot is easy to notice: the first lock fails with
    /// [`NoChroot`](crate::ErrorReason::NoChroot). With `true`, a typo creates a new tree in which nobody else locks.
    ///
    /// The created znodes are persistent. Their ACL grants everything to everybody
    /// ([`Acl::open_unsafe`](crate::client::Acl::open_unsafe)), because clients with different identities may share a
    /// chroot. To protect the chroot, create it by hand. If the chroot exists, it is left as it is, and no permission
    /// is needed.
    pub fn create_chroot(self, create: bool) -> SessionBuilder {
        SessionBuilder { creates_chroot: create, ..self }
    }

    /// Authenticates through SASL with DIGEST-MD5.
    ///
    /// The session authenticates before anything else on every connection, and so does a session that replaces a lost
    /// one. Credentials set with [`auth`](SessionBuilder::auth) are sent after that.
    ///
    /// The password is neither sent nor logged, but anyone who records the traffic can try passwords offline. So use
    /// [TLS](SessionBuilder::tls). A server that does not support SASL is never used.
    ///
    /// If a server refuses the user, the session tries another server. It gives up when all servers have refused. It
    /// also gives up when at least one has refused and no server serves it within a session timeout or before the wait
    /// ends. When it gives up, connecting fails with [`CredentialsRefused`](crate::ErrorReason::CredentialsRefused), or
    /// an established session is lost.
    #[cfg(feature = "sasl")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sasl")))]
    pub fn sasl_digest(self, user: impl Into<String>, password: impl Into<String>) -> SessionBuilder {
        let login = SaslDigest { user: user.into(), password: password.into() };
        SessionBuilder { sasl_digest: Some(login), ..self }
    }

    /// Authenticates through SASL with Kerberos.
    ///
    /// The session authenticates before anything else on every connection, and so does a session that replaces a lost
    /// one. Credentials set with [`auth`](SessionBuilder::auth) are sent after that. A server that does not support
    /// SASL is never used.
    ///
    /// Use a session timeout of at least 4 s.
    ///
    /// Without a ticket, no connection is opened. [`connect`](SessionBuilder::connect) then tries again until its wait
    /// ends, and an established session tries again until it has expired. The tickets for all servers are fetched in
    /// advance, so a lost connection can be replaced even while the KDC is down.
    ///
    /// If a server refuses the ticket, the session tries another server. It gives up when all servers have refused. It
    /// also gives up when at least one has refused and no server serves it within a session timeout or before the wait
    /// ends. When it gives up, connecting fails with [`CredentialsRefused`](crate::ErrorReason::CredentialsRefused), or
    /// an established session is lost.
    #[cfg(feature = "kerberos")]
    #[cfg_attr(docsrs, doc(cfg(feature = "kerberos")))]
    pub fn kerberos(self, kerberos: KerberosConfig) -> SessionBuilder {
        SessionBuilder { kerberos: Some(kerberos), ..self }
    }

    /// Encrypts every connection with TLS.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(self, tls: TlsConfig) -> SessionBuilder {
        SessionBuilder { tls: Some(tls), ..self }
    }

    /// Installs a hook that receives the events of the session and its locks.
    ///
    /// The hook receives every event from the first connection on. See [`Session::set_event_hook`].
    pub fn event_hook(self, hook: impl EventHook + 'static) -> SessionBuilder {
        SessionBuilder { event_hook: Some(Hook(Arc::new(hook))), ..self }
    }

    /// Sets how long [`connect`](SessionBuilder::connect) waits for a server.
    ///
    /// The default is the session timeout. A [`Duration`] counts from the call to this method, so do not keep the
    /// builder to connect with it later: by then, the time may be over. A [`CancelToken`](crate::CancelToken) ends the
    /// wait early.
    ///
    /// With [`Wait::forever`], a daemon may start before the ensemble, and connects once servers are up. Until then,
    /// the outcome for each server is logged after 1 s, 10 s and 60 s, then at intervals that double up to an hour.
    ///
    /// The setting has no effect on later outages, nor on the session that
    /// [replaces](SessionBuilder::replace_lost_sessions) a lost one. Each attempt to connect that session waits for a
    /// session timeout, and attempts go on until one succeeds, the session is closed, or its last handle is dropped.
    pub fn wait_for_server(self, wait: impl Into<Wait>) -> SessionBuilder {
        SessionBuilder { wait: Some(wait.into()), ..self }
    }

    /// Connects, and returns when the session is established.
    ///
    /// Blocks for at most the session timeout, unless [`wait_for_server`](SessionBuilder::wait_for_server) sets a
    /// different time.
    ///
    /// # Errors
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the connect string is malformed, the timeout is
    ///   shorter than 100 ms or longer than a day, the [`max_tick`](SessionBuilder::max_tick) is zero, the
    ///   [`tick`](SessionBuilder::tick) is zero, longer than `max_tick` or more than half of the granted session timeout,
    ///   `jute.maxbuffer` is less than 4096, a credential does not have the form of its scheme, or both DIGEST-MD5 and Kerberos are set.
    /// - [`InvalidTls`](crate::ErrorReason::InvalidTls): a file of the TLS configuration cannot be used.
    /// - [`CertificateRefused`](crate::ErrorReason::CertificateRefused): at each server, one side refused the certificate
    ///   of the other, or the server wants one.
    /// - [`NoServer`](crate::ErrorReason::NoServer): no server served the session in time. The message contains the
    ///   outcome for each server.
    /// - [`CredentialsRefused`](crate::ErrorReason::CredentialsRefused): a server refused a credential set with
    ///   [`auth`](SessionBuilder::auth), or the servers refused the SASL authentication, or they require authentication
    ///   that is not configured.
    /// - [`NotZooKeeper`](crate::ErrorReason::NotZooKeeper): the servers are ClickHouse Keeper.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied), [`Server`](crate::ErrorReason::Server) or
    ///   [`Refused`](crate::ErrorReason::Refused), only with [`create_chroot`](SessionBuilder::create_chroot): the
    ///   chroot cannot be created. The path in an `AccessDenied` is that of the parent znode. It starts at the servers'
    ///   root, not at the chroot.
    /// - [`Cancelled`](crate::ErrorReason::Cancelled): another thread cancelled the wait.
    /// - [`Thread`](crate::ErrorReason::Thread): no thread could be started, or no file opened, because of a limit.
    pub fn connect(mut self) -> Result<Session> {
        let hook = self.event_hook.take();
        let session = self.open()?;
        if let Some(Hook(hook)) = hook {
            // A new session has no other hook.
            let _ = session.handle.set_events(hook);
        }
        Ok(session)
    }

    /// Checks the connect string, the session timeout, the ticks, `jute.maxbuffer` and the form of credentials.
    ///
    /// [`connect`](SessionBuilder::connect) makes the same checks before it sends anything.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): a setting is malformed or out of bounds.
    pub fn check(&self) -> Result<()> {
        self.options().map(drop)
    }

    /// Checks that a lock of a session with these settings may be made in this directory. Sends nothing.
    ///
    /// Each lock makes the same check when it is created.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid or, with the chroot, is
    /// `/zookeeper` or below, where the servers keep znodes of their own; or a setting is malformed or out of bounds.
    pub fn check_lock_path(&self, dir: &str) -> Result<()> {
        ZNodePath::of_lock(self.options()?.servers.chroot(), dir).map(drop)
    }

    fn options(&self) -> Result<Options> {
        check_timeout(self.session_timeout)?;
        check_jute_max_buffer(self.jute_max_buffer)?;
        check_ticks(self.tick, self.max_tick)?;
        if let Some(rule) = self.credentials.iter().find_map(Credential::broken_rule) {
            return Err(LockError::invalid_argument("credential", rule));
        }
        #[cfg(feature = "sasl")]
        if let Some(rule) = self.sasl_digest.as_ref().and_then(SaslDigest::broken_rule) {
            return Err(LockError::invalid_argument("SASL configuration", rule));
        }
        Options::new(&self.connect_string, self.session_timeout)
    }

    fn open(self) -> Result<Session> {
        let session_timeout = self.session_timeout;
        let mut options = self.options()?;
        options.connection.jute_max_buffer = self.jute_max_buffer;
        options.connection.credentials = self.credentials;
        options.connection.tick = self.tick;
        options.connection.max_tick = self.max_tick;
        options.connection.tick_note = Some(outage_note(self.survived_outage));
        options.connection.memory = self.memory;
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
        let client = move |_: &Arc<dyn Runtime>, closed: &CancelToken| {
            let wait = Wait::timeout(session_timeout).cancelled_by(closed);
            Ok(client.connect(&wait)? as Arc<dyn ZooKeeperClient>)
        };
        let factory = Factory::new(runtime, client).with_survived_outage(self.survived_outage);
        Session::replaced_by(core, factory)
    }
}

fn check_ticks(tick: Option<Duration>, max_tick: Option<Duration>) -> Result<()> {
    for (setting, value) in [("tick", tick), ("max_tick", max_tick)] {
        if value.is_some_and(|value| value.is_zero()) {
            return Err(LockError::invalid_argument(setting, "no server has a tick of zero"));
        }
    }
    match (tick, max_tick) {
        (Some(tick), Some(max)) if tick > max => {
            let rule = format!("{tick:?} is longer than max_tick, which is {max:?}");
            Err(LockError::invalid_argument("tick", rule))
        }
        _ => Ok(()),
    }
}

/// Says in the log which outage an owner survives on a connection.
fn outage_note(wanted: Option<Duration>) -> TickNote {
    Arc::new(move |granted: Granted| {
        format!("an owner of a lock survives an outage of up to {:.1?}", longest_outage(granted, wanted))
    })
}

fn check_jute_max_buffer(bytes: usize) -> Result<()> {
    if bytes >= MIN_JUTE_MAX_BUFFER {
        return Ok(());
    }
    let rule =
        format!("{bytes} bytes is less than {MIN_JUTE_MAX_BUFFER}, and no server works with so little");
    Err(LockError::invalid_argument("jute.maxbuffer", rule))
}

/// Opens the first session, and connects the client of each later one.
struct Opener {
    options: Options,
    creates_chroot: bool,
}

impl Opener {
    /// Opens sessions until one is established. One attempt may not be enough, because the servers may go away right
    /// after they have opened a session.
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
        let client = self.connect(wait);
        let contact = FirstContact {
            tried: self.options.servers.to_string(),
            timeout: wait.time_allowed(begun.0),
            deadline: wait.moment(&*threads),
            cancelled: wait.cancelled().map_or_else(Latch::never, Latch::clone),
        };
        let timeout = contact.timeout;
        let own = client.as_ref().ok().map(Arc::clone);
        let opened = open_core(client.map(|client| client as _), threads, Some(begun.1), contact);
        opened.map_err(|error| match own {
            // The client knows the outcome for each server, and the core only that of its own calls.
            Some(client) if error.reason() == ErrorReason::NoServer => {
                LockError::no_server(client.outcomes(), timeout)
            }
            _ => error,
        })
    }

    fn connect(&self, wait: &Wait) -> Result<Arc<Connection>> {
        let begun = Instant::now();
        let client = connecting::connect(&self.options, wait)?;
        self.check_grant(client.granted().session_timeout)?;
        if let Some(chroot) = self.options.servers.chroot().filter(|_| self.creates_chroot) {
            let chroot = ZNodePath::from_server(chroot);
            let call = |call| client.call_at_root_unless(call, wait.deadline(), &wait.cancellation());
            let created = chroot::create(&chroot, call);
            created.map_err(|error| self.no_contact(error, begun, wait))?;
        }
        Ok(client)
    }

    /// With a longer tick, hardly any proof of a lease would be possible, and a request could block others forever.
    fn check_grant(&self, granted: Duration) -> Result<()> {
        let stated = self.options.connection.tick.filter(|tick| tick.saturating_mul(2) > granted);
        let Some(tick) = stated else { return Ok(()) };
        let rule = format!(
            "the servers grant a session timeout of {granted:?}, which is less than two ticks of {tick:?}; check the tick \
             and the servers' minSessionTimeout, or request a longer session timeout"
        );
        Err(LockError::invalid_argument("tick", rule))
    }

    /// Turns a loss of contact during the creation of the chroot into `NoServer`, so that the creation is attempted
    /// again on another session.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_bounds_are_refused_before_anything_is_sent() {
        let check = |set: fn(SessionBuilder) -> SessionBuilder| set(Session::builder("localhost:1")).check();
        const TICK: Duration = Duration::from_millis(1);
        assert!(check(|builder| builder.max_tick(TICK)).is_ok());
        assert!(check(|builder| builder.tick(TICK).max_tick(TICK)).is_ok());
        let refused: [fn(SessionBuilder) -> SessionBuilder; 6] = [
            |builder| builder.max_tick(Duration::ZERO),
            |builder| builder.tick(Duration::ZERO),
            |builder| builder.tick(2 * TICK).max_tick(TICK),
            |builder| builder.session_timeout(Duration::from_millis(99)),
            |builder| builder.session_timeout(Duration::MAX),
            |builder| builder.jute_max_buffer(0),
        ];
        for (number, set) in refused.into_iter().enumerate() {
            assert!(check(set).unwrap_err().is_invalid_argument(), "{number}");
        }
    }

    #[test]
    fn log_says_which_outage_an_owner_survives_with_the_tick_that_counts() {
        let granted = Granted::new(Duration::from_secs(30));
        let note = |granted, wanted: Option<u64>| outage_note(wanted.map(Duration::from_secs))(granted);
        let survives = |outage: &str| format!("an owner of a lock survives an outage of up to {outage}");
        assert_eq!(note(granted.with_tick(Duration::from_secs(2)), None), survives("16.9s"));
        assert_eq!(note(granted.with_tick(Duration::from_secs(2)), Some(5)), survives("5.0s"));
        // Half of a minimum session timeout of 30 s.
        assert_eq!(note(granted.with_tick(Duration::from_secs(15)), None), survives("9.4s"));
    }
}
