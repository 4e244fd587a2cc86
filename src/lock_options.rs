//! [`LockOptions`]: the settings that every kind of lock takes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::client::{Acl, CreateMode};
use crate::error::{LockError, Result};
use crate::recipe::naming_scheme::NamingScheme;
use crate::retry::RetryPolicy;

/// The largest data of a znode in bytes. The server's limit of 1 MiB is for the whole request, with
/// path and ACL.
const MAX_DATA: usize = 1024 * 1024 - 16 * 1024;

/// A hold that may be as long is not limited. The clock would overflow after a few centuries.
const NO_LIMIT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The settings of a lock.
///
/// | setting | default |
/// |---|---|
/// | [`acl`](LockOptions::acl) | [`Acl::open_unsafe`]: everybody may do anything |
/// | [`data`](LockOptions::data) | `host/pid` |
/// | [`retry`](LockOptions::retry) | [`RetryPolicy::default`]: ten attempts, linear backoff by 500 ms |
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
    /// `None`: as the scheme's library expects.
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

    /// Sets the ACL of the created znodes: of the requests, and of directories that are missing.
    ///
    /// A holder needs READ on its own znode to notice a deletion or a revocation at once, and a
    /// waiter READ on the znode ahead of it. Without READ they look again from time to time.
    #[must_use]
    pub fn acl(self, acl: impl Into<Vec<Acl>>) -> LockOptions {
        LockOptions { acl: acl.into().into(), ..self }
    }

    /// Sets the data of the requests' znodes, which show others who holds the lock and who waits.
    /// At most 1 MiB less 16 KiB.
    #[must_use]
    pub fn data(self, data: impl Into<Vec<u8>>) -> LockOptions {
        LockOptions { data: data.into().into(), ..self }
    }

    /// Sets how often and after which delays an operation is repeated that lost its connection,
    /// joining the queue for example.
    ///
    /// A request also looks at the queue again after the policy's delay
    /// when a look has failed in contact with the server.
    #[must_use]
    pub fn retry(self, policy: RetryPolicy) -> LockOptions {
        LockOptions { retry_policy: policy, ..self }
    }

    /// Sets how the requests are named, for a directory that is shared with another library.
    /// [`NamingScheme`] has the table.
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

    /// Sets whether a missing lock directory is created as a container. The server deletes a
    /// container when it has been empty for a while, a minute or two by default. So locks with many
    /// names leave nothing behind.
    ///
    /// The locks of this crate, and Curator's, create the directory again when they need it. Other
    /// clients may fail if the directory disappears: kazoo's locks create it only once, and Apache's
    /// `WriteLock` only before each request. With
    /// [`NamingScheme::Kazoo`] the default is therefore `false`, and `true` otherwise. Set it to
    /// `false` for every directory on which a client relies for longer than it holds a lock.
    ///
    /// Only the directory itself becomes a container, its missing parents persist. A directory that
    /// exists stays as it is. Servers before 3.5.3, and the crate `zookeeper`, create a persistent
    /// znode instead.
    #[must_use]
    pub fn container(self, container: bool) -> LockOptions {
        LockOptions { container: Some(container), ..self }
    }

    /// Sets the longest time for which the lock is held, counted from its acquisition. So a thread that hangs does not
    /// keep it for ever: its session lives on, and no lease ends.
    ///
    /// At the end of that time the lock is lost, as by any other loss, with the reason
    /// [`HeldTooLong`](crate::LossReason::HeldTooLong): `is_owner()` is `false` from that very moment on, on every
    /// thread. Then the znode is deleted, during an outage after the reconnect, and the next one acquires. Nothing
    /// extends the time, and nothing stops the thread that has held the lock: it must ask
    /// [`is_owner`](crate::LockGuard::is_owner), or wait for [`lost`](crate::LockGuard::lost). An `unlock` that comes
    /// later reports [`HeldTooLong`](crate::ErrorReason::HeldTooLong). [`lease_remaining`](crate::LockGuard::lease_remaining)
    /// never shows more than the time that is left.
    ///
    /// The clock is that of the lease: it also counts while the process is stopped or the machine sleeps.
    ///
    /// | lock | the time counts for |
    /// |---|---|
    /// | [`ReadWriteLock`](crate::locks::ReadWriteLock) | each guard; a [downgrade](crate::locks::WriteGuard::downgrade) does not extend it |
    /// | [`ReentrantLock`](crate::locks::ReentrantLock) | all guards of a thread together, from the first on |
    /// | [`MultiLock`](crate::locks::MultiLock) | each lock from its own acquisition; the first one that is lost ends the wait for the others |
    /// | [`Semaphore`](crate::locks::Semaphore) | each permit |
    /// | [`CohortLock`](crate::locks::CohortLock) | the process, from its acquisition until it releases the lock to others; when half of it is over, no other thread gets the lock from it, so each has at least half |
    /// | [`Candidate`](crate::Candidate) | each leadership; then it stands again, behind those who wait |
    /// | [`RunOnce`](crate::locks::RunOnce) | each job |
    ///
    /// Choose a time far longer than any proper work takes. A time of zero is refused with
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument) when a lock is made with these options. One of a century or
    /// more is no limit.
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

    /// Returns how an operation is repeated that lost its connection.
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
            let rule = "a lock cannot be held for no time at all";
            return Err(LockError::invalid_argument("max_hold", rule));
        }
        check_data(&self.data)
    }
}

impl Default for LockOptions {
    fn default() -> LockOptions {
        LockOptions::new()
    }
}

/// Refuses data that do not fit into a request.
pub(crate) fn check_data(data: &[u8]) -> Result<()> {
    if data.len() <= MAX_DATA {
        return Ok(());
    }
    let rule = format!("{} bytes are more than the {MAX_DATA} that fit into a request", data.len());
    Err(LockError::invalid_argument("znode data", rule))
}

/// `host/pid`, which shows an operator who waits.
fn default_data() -> Arc<[u8]> {
    static DATA: OnceLock<Arc<[u8]>> = OnceLock::new();
    let data = DATA.get_or_init(|| format!("{}/{}", host_name(), std::process::id()).into_bytes().into());
    Arc::clone(data)
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// From the environment: a system call would need another dependency.
#[cfg(not(unix))]
fn host_name() -> String {
    host_of(|name| std::env::var(name).ok())
}

/// Windows sets the first of these, shells elsewhere the second.
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
