//! The healing of a session: a new one is made when the old one is lost, and those who waited on the old one are told.
//!
//! Off unless asked for: whether to carry on after the loss of a session is the application's decision, which it has taken
//! here for requests that wait, and for nothing else.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, select};
use parking_lot::Mutex;

use super::core::Core;
use super::runtime::Runtime;
use super::runtime::Threads;
use super::{Handle, SessionState, open_core};
use crate::client::ZooKeeperClient;
use crate::error::Result;

/// How soon a factory that failed is asked again.
const RETRY: Duration = Duration::from_secs(1);

pub(super) type Factory = dyn Fn() -> Result<Arc<dyn ZooKeeperClient>> + Send + Sync;

/// Something that waited on a lost session and goes on waiting on the next.
pub(crate) trait Rejoin: Send + Sync {
    fn rejoin(&self);

    /// The session was closed: there is no next one. Called also when the last one lives, which tells everybody itself.
    fn closed(&self) {}
}

/// What the handles of a session that is healed share.
pub(crate) struct Healing {
    state: Mutex<State>,
}

struct State {
    /// Dropped to close, which ends every wait of the healing thread.
    open: Option<Sender<Infallible>>,
    subscribers: Vec<Sender<SessionState>>,
    waiting: Vec<Weak<dyn Rejoin>>,
    /// Dropped when the present core is replaced, and when there will be no other.
    present: Option<Sender<Infallible>>,
    replaced: Receiver<Infallible>,
}

impl Healing {
    pub(super) fn new() -> (Healing, Receiver<Infallible>) {
        let (open, closed) = bounded(0);
        let (present, replaced) = bounded(0);
        let state = State {
            open: Some(open),
            subscribers: Vec::new(),
            waiting: Vec::new(),
            present: Some(present),
            replaced,
        };
        (Healing { state: Mutex::new(state) }, closed)
    }

    pub(super) fn close(&self) {
        let waiting: Vec<_> = {
            let mut state = self.state.lock();
            state.open = None;
            state.present = None;
            state.waiting.iter().filter_map(Weak::upgrade).collect()
        };
        for waiting in waiting {
            waiting.closed();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().open.is_none()
    }

    pub(super) fn subscribe(&self, subscriber: Sender<SessionState>) {
        self.state.lock().subscribers.push(subscriber);
    }

    /// Has this called after every healing, for as long as it is there.
    pub(crate) fn register(&self, waiting: Weak<dyn Rejoin>) {
        let mut state = self.state.lock();
        state.waiting.retain(|waiting| waiting.strong_count() > 0);
        state.waiting.push(waiting);
    }

    /// A channel that is disconnected when the core of this moment is replaced, or when the session is closed.
    pub(crate) fn next(&self) -> Receiver<Infallible> {
        self.state.lock().replaced.clone()
    }

    fn healed(&self, core: &Core) {
        let waiting: Vec<_> = {
            let mut state = self.state.lock();
            if state.open.is_some() {
                let (present, replaced) = bounded(0);
                (state.present, state.replaced) = (Some(present), replaced);
            }
            state.subscribers.retain(|subscriber| core.tell_and_subscribe(subscriber.clone()));
            state.waiting.iter().filter_map(Weak::upgrade).collect()
        };
        for waiting in waiting {
            waiting.rejoin();
        }
    }
}

impl fmt::Debug for Healing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Healing").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// Makes a core on a new client.
pub(super) fn make(factory: &Arc<Factory>) -> Result<Arc<Core>> {
    let threads = Threads::start()?;
    let opened_after = Some(threads.now());
    let client = factory();
    let patience = client.as_ref().map_or(Duration::ZERO, |client| client.session_timeout());
    open_core(client, threads, opened_after, "the client of the factory", patience)
}

/// Starts the thread that replaces each lost core, until the handle is closed or dropped.
pub(super) fn start(
    handle: &Arc<Handle>,
    core: Arc<Core>,
    factory: Arc<Factory>,
    closed: Receiver<Infallible>,
) -> Result<()> {
    let handle = Arc::downgrade(handle);
    let thread = thread::Builder::new().name("zk-lock-healer".to_owned());
    thread.spawn(move || {
        let mut core = core;
        while let Some(next) = replace_when_lost(&handle, &core, &factory, &closed) {
            core = next;
        }
    })?;
    Ok(())
}

/// Returns the core that took the place of the lost one; `None` when there will be no more.
fn replace_when_lost(
    handle: &Weak<Handle>,
    lost: &Arc<Core>,
    factory: &Arc<Factory>,
    closed: &Receiver<Infallible>,
) -> Option<Arc<Core>> {
    select! {
        recv(lost.ended()) -> _ => {}
        recv(closed) -> _ => return None,
    }
    loop {
        match make(factory) {
            Ok(core) => return install(&handle.upgrade()?, lost, core),
            Err(error) => log::warn!("no new ZooKeeper session yet: {error}"),
        }
        if !matches!(closed.recv_timeout(RETRY), Err(RecvTimeoutError::Timeout)) {
            return None;
        }
    }
}

fn install(handle: &Arc<Handle>, lost: &Arc<Core>, core: Arc<Core>) -> Option<Arc<Core>> {
    for target in lost.take_orphans() {
        core.remove(target, None);
    }
    match handle.replace(Arc::clone(&core)) {
        Ok(()) => {
            log::info!("a new ZooKeeper session takes the place of the lost one");
            handle.healing.as_ref()?.healed(&core);
            Some(core)
        }
        Err(core) => {
            core.end(crate::error::LossReason::SessionClosed);
            None
        }
    }
}
