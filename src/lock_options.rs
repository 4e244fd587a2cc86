//! [`LockOptions`]: the settings that every kind of lock has.

use std::sync::Arc;
use std::time::Duration;

use crate::client::{Acl, CreateMode};
use crate::error::{LockError, Result};
use crate::process::PerProcess;
use crate::recipe::naming_scheme::NamingScheme;
use crate::retry::RetryPolicy;

/// A limit of this length or more counts as no limit, because the clock would overflow after a few centuries.
const NO_LIMIT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The settings of a lock.
///
/// | setting | default |
/// |---|---|
/// | [`acl`](LockOptions::acl) | [`Acl::open_unsafe`]: everybody may do anything |
/// | [`data`](LockOptions::data) | `host/pid` |
/// | [`retry`](LockOptions::retry) | [`RetryPolicy::default`]: ten attempts, linear backoff in steps of 500 ms |
/// | [`naming`](LockOptions::naming) | [`NamingScheme::Recipe`] |
/// | [`max_hold`](LockOptions::max_hold) | no limit |
/// | [`container`](LockOptions::container) | missing directories are created as containers, except with [`NamingScheme::Kazoo`] |
///
/// ```
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{LockOptions, RetryPolicy};
/// use zookeeper_recipes_lock::client::Acl;
///
/// let options = LockOptions::new()
///     .acl(Acl::creator_all())
///     .data("worker-7")
///     .retry(RetryPolicy::exponential(Duration::from_millis(50), Duration::from_secs(5)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LockOptions {
    acl: Arc<[Acl]>,
    data: Arc<[u8]>,
    retry_policy: RetryPolicy,
    naming_scheme: NamingScheme,
    /// `None` for the default, which depends on the scheme.
    container: Option<bool>,
    max_hold: Option<Duration>,
}

impl LockOptions {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> LockOptions {
        LockOptions {
            acl: Acl::open_unsafe().into(),
            data: default_data(),
            retry_policy: RetryPolicy::default(),
            naming_scheme: NamingScheme::default(),
            container: None,
            max_hold: None,
        }
    }

    /// Sets the ACL of the znodes that the lock creates: its requests, and missing directories.
    ///
    /// A holder needs READ on its own znode to notice a deletion immediately, and to notice a revocation at all. A
    /// waiter needs READ on the znode ahead of it. Without READ, both only check once a second whether the znode
    /// exists.
    #[must_use]
    pub fn acl(self, acl: impl Into<Vec<Acl>>) -> LockOptions {
        LockOptions { acl: acl.into().into(), ..self }
    }

    /// Sets the data of the requests' znodes.
    ///
    /// The data shows others who holds the lock and who waits. If it is too long for the servers
    /// ([`SessionBuilder::jute_max_buffer`](crate::SessionBuilder::jute_max_buffer)), locking fails with
    /// [`CallTooLong`](crate::ErrorReason::CallTooLong).
    #[must_use]
    pub fn data(self, data: impl Into<Vec<u8>>) -> LockOptions {
        LockOptions { data: data.into().into(), ..self }
    }

    /// Sets how operations are retried after a lost connection.
    ///
    /// The policy applies to joining the queue, for example. It also applies to reads of the queue: if such a
    /// read fails even though the server can be reached, it is repeated after the policy's delay.
    #[must_use]
    pub fn retry(self, policy: RetryPolicy) -> LockOptions {
        LockOptions { retry_policy: policy, ..self }
    }

    /// Sets how the requests are named.
    ///
    /// Use this if the lock shares its directory with another library. [`NamingScheme`] says which scheme to
    /// use.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::{Candidate, Session};
    /// use zookeeper_recipes_lock::{BlockingWriteLock, LockOptions};
    /// use zookeeper_recipes_lock::recipe::NamingScheme;
    ///
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
    /// // The same election as Curator's `new LeaderLatch(client, "/election")`.
    /// let options = LockOptions::new().naming(NamingScheme::CuratorLatch);
    /// let election = BlockingWriteLock::with_options(&session, "/election", options)?;
    /// let candidate = Candidate::start(election, |_leadership| Ok(()))?;
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    #[must_use]
    pub fn naming(self, scheme: NamingScheme) -> LockOptions {
        LockOptions { naming_scheme: scheme, ..self }
    }

    /// Sets whether a missing lock directory is created as a container.
    ///
    /// The server deletes empty containers from time to time (once a minute by default), so even a program that
    /// uses many lock names leaves no directories behind.
    ///
    /// The locks of this crate and of Curator create the directory again when they need it. Other clients may fail if
    /// the directory disappears: kazoo's locks create it only once, and Apache's `WriteLock` only before each request.
    /// The default is therefore `false` with [`NamingScheme::Kazoo`], and `true` otherwise. Set it to `false`
    /// for every directory that a client expects to exist even while it has no request there.
    ///
    /// Only the directory itself becomes a container; its missing parents are persistent. A directory that exists is
    /// left as it is. Servers before 3.5.3, and the client of the crate `zookeeper`, create a persistent znode instead.
    #[must_use]
    pub fn container(self, container: bool) -> LockOptions {
        LockOptions { container: Some(container), ..self }
    }

    /// Sets the longest time for which the lock may be held.
    ///
    /// Without a limit, a thread that hangs keeps the lock forever, because its session lives on and its lease never
    /// ends. The time starts when the lock is acquired. It is measured on the clock of the lease, which keeps
    /// running while the process is stopped and, on Linux and Android, while the machine sleeps. Nothing extends
    /// the time.
    ///
    /// When the time is up, the lock is lost with the reason [`HeldTooLong`](crate::LossReason::HeldTooLong),
    /// and the loss is reported like any other. From that moment on, `is_owner()` returns `false` on every
    /// thread. Then the znode is deleted (during an outage, after the reconnect), and the next waiter acquires the
    /// lock. Nothing stops the thread that held the lock: it must check [`is_owner`](crate::LockGuard::is_owner), or
    /// wait for [`lost`](crate::LockGuard::lost). A later `unlock` fails with
    /// [`HeldTooLong`](crate::ErrorReason::HeldTooLong). [`lease_remaining`](crate::LockGuard::lease_remaining) never
    /// returns more than the time that is left.
    ///
    /// What the time applies to depends on the lock:
    /// - [`ReadWriteLock`](crate::locks::ReadWriteLock): each guard. A [downgrade](crate::locks::WriteGuard::downgrade)
    ///   does not extend the time.
    /// - [`ReentrantLock`](crate::locks::ReentrantLock): all guards of a thread together, starting with the first.
    /// - [`MultiLock`](crate::locks::MultiLock): each lock, from its own acquisition. The first loss ends the wait for
    ///   the remaining locks.
    /// - [`Semaphore`](crate::locks::Semaphore): each permit.
    /// - [`CohortLock`](crate::locks::CohortLock): the process, from its acquisition until it releases the
    ///   lock to other processes. Once half of the time has passed, the process no longer hands the lock to
    ///   another of its threads, so each thread has at least half of the time.
    /// - [`Candidate`](crate::Candidate): each leadership. When the time is up and the closure has returned, the
    ///   candidate stands again, behind the current waiters.
    /// - [`RunOnce`](crate::locks::RunOnce): each job.
    ///
    /// Choose a time far longer than the work can legitimately take. If the time is zero, creating a lock
    /// with these options fails with [`InvalidArgument`](crate::ErrorReason::InvalidArgument). A century or
    /// more counts as no limit.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::{BlockingWriteLock, LockOptions, LossReason, Session};
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
    /// # fn write_a_part() -> bool { false }
    /// let options = LockOptions::new().max_hold(Duration::from_secs(3600));
    /// let lock = BlockingWriteLock::with_options(&session, "/locks/report", options)?;
    /// let guard = lock.lock()?;
    /// while guard.is_owner() && write_a_part() {}
    /// if guard.loss() == Some(LossReason::HeldTooLong) {
    ///     eprintln!("the report takes more than an hour");
    /// }
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    #[must_use]
    pub fn max_hold(self, time: Duration) -> LockOptions {
        LockOptions { max_hold: Some(time), ..self }
    }

    pub(crate) fn hold_limit(&self) -> Option<Duration> {
        self.max_hold.filter(|time| *time < NO_LIMIT)
    }

    /// Returns how a missing directory is created.
    pub(crate) fn directory_mode(&self) -> CreateMode {
        match self.container.unwrap_or(self.naming_scheme != NamingScheme::Kazoo) {
            true => CreateMode::Container,
            false => CreateMode::Persistent,
        }
    }

    pub(crate) fn shared_acl(&self) -> &Arc<[Acl]> {
        &self.acl
    }

    pub(crate) fn shared_data(&self) -> &Arc<[u8]> {
        &self.data
    }

    /// Returns how operations are retried after a lost connection.
    #[must_use]
    pub(crate) fn retry_policy(&self) -> RetryPolicy {
        self.retry_policy
    }

    /// Returns how the requests are named.
    #[must_use]
    pub(crate) fn naming_scheme(&self) -> NamingScheme {
        self.naming_scheme
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.max_hold.is_some_and(|time| time.is_zero()) {
            let rule = "the time must not be zero";
            return Err(LockError::invalid_argument("max_hold", rule));
        }
        Ok(())
    }
}

impl Default for LockOptions {
    fn default() -> LockOptions {
        LockOptions::new()
    }
}

/// Returns `host/pid`, from which an operator can tell who holds the lock and who waits.
fn default_data() -> Arc<[u8]> {
    static DATA: PerProcess<Arc<[u8]>> = PerProcess::new();
    let data = DATA.get_or_make(|| format!("{}/{}", host_name(), std::process::id()).into_bytes().into());
    Arc::clone(data)
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Reads the host name from the environment, because a system call would need another dependency.
#[cfg(not(unix))]
fn host_name() -> String {
    host_of(|name| std::env::var(name).ok())
}

/// Returns the host name from environment variables: Windows sets `COMPUTERNAME`, and shells on other systems set
/// `HOSTNAME`.
#[cfg(any(not(unix), test))]
fn host_of(variable: impl Fn(&str) -> Option<String>) -> String {
    let mut named = ["COMPUTERNAME", "HOSTNAME"].into_iter().filter_map(variable);
    named.find(|name| !name.is_empty()).unwrap_or_else(|| "unknown-host".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_of_no_time_is_refused_and_one_of_centuries_is_not_limited() {
        let of = |time| LockOptions::new().max_hold(time);
        assert!(of(Duration::ZERO).check().unwrap_err().is_invalid_argument());
        for (time, limit) in [
            (Duration::from_nanos(1), Some(Duration::from_nanos(1))),
            (NO_LIMIT, None),
            (Duration::MAX, None),
        ] {
            of(time).check().unwrap();
            assert_eq!(of(time).hold_limit(), limit);
        }
    }

    #[test]
    fn host_name_falls_back_to_the_environment() {
        let of = |set: &'static [(&str, &str)]| {
            host_of(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[("COMPUTERNAME", "WEB-1"), ("HOSTNAME", "other")]), "WEB-1");
        assert_eq!(of(&[("COMPUTERNAME", ""), ("HOSTNAME", "web-1")]), "web-1");
        assert_eq!(of(&[]), "unknown-host");
    }

    #[cfg(unix)]
    #[test]
    fn default_data_is_host_and_process_id() {
        let data = String::from_utf8(default_data().to_vec()).unwrap();
        let (host, pid) = data.rsplit_once('/').unwrap();
        assert!(!host.is_empty());
        assert_eq!(pid, std::process::id().to_string());
    }
}
