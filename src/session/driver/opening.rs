//! How a session begins, and how its client's events are received.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::announcer::Announcer;
use super::orphans::Orphans;
use super::{Core, Driver};
use crate::client::{ClientEvent, Identity, ZooKeeperClient};
use crate::engine::lease::Lease;
use crate::engine::{Engine, SessionEnd, Settings};
use crate::external::External;
use crate::lock_order::Mutex;
use crate::logging;
use crate::process::Process;
use crate::recipe::session_tag::SessionTag;
use crate::session::alarm::Alarm;
use crate::session::mailbox::Mailbox;
use crate::time::{Moment, Runtime, Setter};

/// An event of the client, with the moment of its arrival.
pub(super) struct Arrival {
    event: ClientEvent,
    at: Moment,
    /// Set for [`ClientEvent::Connected`].
    identity: Option<Identity>,
}

impl Core {
    /// Creates a core on a client, and subscribes to the client's events. A write then proves that a server serves the
    /// session.
    ///
    /// `opened_after` is a moment after which the session was opened, if one is known. Once that write is answered, the
    /// first proof that the session is alive counts from this moment.
    pub(crate) fn start(
        client: Arc<dyn ZooKeeperClient>,
        runtime: Arc<dyn Runtime>,
        opened_after: Option<Moment>,
    ) -> Arc<Core> {
        let client = External::new("a ZooKeeper client", client, &runtime);
        let (end, finish) = (Setter::new(), Setter::new());
        let (ended, finished) = (end.latch().clone(), finish.latch().clone());
        let now = runtime.now();
        let lease = Lease::unproven(client.granted(), now);
        let Identity { server, chroot, jute_max_buffer, .. } = client.identity();
        let settings = Settings {
            chroot,
            routine_pause: runtime.routine_pause(),
            window: runtime.window(),
            jute_max_buffer,
            opened_after,
            tag: SessionTag::new(runtime.new_guid()),
            seed: runtime.new_guid().as_u64_pair().0,
        };
        let announcer = Announcer::new(server.is_some());
        let core = Arc::new(Core {
            client,
            runtime,
            process: Process::current(),
            driver: Mutex::new(Driver {
                engine: Engine::new(now, settings, lease),
                seats: BTreeMap::new(),
                awaited: BTreeMap::new(),
                trackers: BTreeMap::new(),
                askers: BTreeMap::new(),
                first_outcomes: BTreeMap::new(),
                early: Some(Vec::new()),
                identity: Identity::default(),
                announcer,
                alarm: Alarm::default(),
                end,
                finish: Some(finish),
            }),
            outbox: Mailbox::new(),
            steps: Mailbox::new(),
            orphans: Mutex::new(Orphans::Kept(Vec::new())),
            events: OnceLock::new(),
            replaced_until: OnceLock::new(),
            ended,
            finished,
        });
        core.listen();
        core
    }

    /// Sets the outage that a lock should survive.
    pub(crate) fn set_survived_outage(self: &Arc<Self>, outage: Duration) {
        self.feed(|driver| driver.engine.set_survived_outage(outage));
    }

    /// Creates a core that has ended. It logs nothing, because in a forked child the logger may block forever.
    pub(in crate::session) fn ended_on(
        client: Arc<dyn ZooKeeperClient>,
        runtime: Arc<dyn Runtime>,
    ) -> Arc<Core> {
        let core = Core::start(client, runtime, None);
        let mut driver = core.driver_now();
        driver.announcer.skip_end();
        driver.engine.end(SessionEnd::Expired);
        driver.engine.complete_end();
        while driver.engine.poll_effect().is_some() {}
        driver.end.set();
        driver.finish = None;
        drop(driver);
        core
    }

    fn listen(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        let before = self.runtime.now();
        let in_contact = self.client.subscribe(Arc::new(move |event| {
            if let Some(core) = weak.upgrade() {
                core.on_event(event);
            }
        }));
        if in_contact {
            let connected = ClientEvent::Connected(self.client.granted());
            let connected = Arrival { at: before, identity: self.identity_at(&connected), event: connected };
            self.feed(|driver| driver.handle_event(connected));
        }
        // Events that arrive during this loop queue up behind the early ones.
        while self.feed(Driver::take_early) {}
    }

    fn on_event(self: &Arc<Self>, event: ClientEvent) {
        let at = self.runtime.now();
        let arrival = Arrival { at, identity: self.identity_at(&event), event };
        self.feed(|driver| match &mut driver.early {
            Some(early) => early.push(arrival),
            None => driver.handle_event(arrival),
        });
    }

    /// Asks the client which server serves it, if this event says that it is connected. Later, the client may be on
    /// another server.
    fn identity_at(&self, event: &ClientEvent) -> Option<Identity> {
        if !matches!(event, ClientEvent::Connected(_)) {
            return None;
        }
        let identity = self.client.call(|client| client.identity()).inspect_err(|message| {
            logging::error!("the ZooKeeper client panicked, so events name no server: {message}");
        });
        Some(identity.unwrap_or_default())
    }
}

impl Driver {
    fn handle_event(&mut self, Arrival { event, at, identity }: Arrival) {
        if let Some(identity) = identity {
            self.identity = identity;
        }
        self.engine.handle_event(at, event);
    }

    /// Handles the next early event. Returns `false` if there is none. From then on, events are no longer queued.
    fn take_early(&mut self) -> bool {
        match &mut self.early {
            Some(early) if !early.is_empty() => {
                let arrival = early.remove(0);
                self.handle_event(arrival);
                true
            }
            _ => {
                self.early = None;
                false
            }
        }
    }
}
