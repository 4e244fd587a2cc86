//! [`Wire`]: the client of a session, and the network between it and the simulated server.
//!
//! Every call returns the baton at least twice: when its request is in transit and when its reply is. Messages from
//! the server (replies and watch events) are numbered in the order in which they happened there. A lost
//! connection loses every message after some number. Earlier messages have arrived, even if the client has
//! not read them yet.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::baton::{Wait, pause, role};
use super::checks::has_number_in_doubt;
use super::faults;
use super::link::Fate;
use super::seen::saw;
use super::world::{World, short};
use crate::client::KEEP_ALIVE_PATH;
use crate::client::{
    Call, ClientEvent, CreateMode, EventSink, Op, Reply, Transacted, Verbs, ZooKeeperClient,
};
use crate::error::{ZkError, ZkResult};
use crate::fake::SimulatedClient;
use crate::recipe::session_tag::SessionTag;
use crate::recipe::znode_name::generated_sequence;
use crate::tests::BlockingClient;

pub(super) struct Wire {
    world: Arc<World>,
    client: usize,
    simulated: Arc<SimulatedClient>,
    min_idle_for_ping: Duration,
}

impl Wire {
    pub(super) fn new(world: &Arc<World>, client: usize, min_idle_for_ping: Duration) -> Arc<Wire> {
        let simulated = Arc::clone(&world.state().clients[client].simulated);
        let weak: Weak<World> = Arc::downgrade(world);
        simulated.subscribe(Arc::new(move |event| {
            if let Some(world) = weak.upgrade() {
                let mut state = world.state();
                let arrival = state.send_off(match event {
                    // The client library reports the other events itself.
                    ClientEvent::NodeChanged { .. } => Fate::OnItsWay,
                    _ => Fate::Arrived,
                });
                state.clients[client].events.push_back((arrival, event));
            }
        }));
        let world = Arc::clone(world);
        Arc::new(Wire { world, client, simulated, min_idle_for_ping })
    }

    fn make(
        &self,
        what: &str,
        path: &str,
        effect: impl FnOnce(&SimulatedClient) -> ZkResult<Reply>,
    ) -> ZkResult<Reply> {
        if role().is_none() {
            return self.call_outside(what, effect);
        }
        let begun = {
            let state = self.world.state();
            let link = &state.clients[self.client].link;
            link.connected.then_some(link.connection)
        };
        pause(Wait::Send);
        if let Err(error) = self.check_contact(begun) {
            if begun.is_some() {
                saw("request-lost");
            }
            return self.lose(what, path, error);
        }
        self.perhaps_panic(what, path);
        if self.fails_by_itself() {
            self.world.note(format!("{what} {} fails before its effect", short(path)));
            saw("call-fails-before-its-effect");
            return Err(ZkError::ConnectionLoss);
        }
        if let Some(connection) = self.connection_without_a_quorum(what) {
            saw("write-to-deposed-server");
            pause(Wait::Loss(connection));
            return self.lose(what, path, ZkError::ConnectionLoss);
        }
        let result = if self.is_denied(what, path) { Err(ZkError::NoAuth) } else { effect(&self.simulated) };
        let line = format!("{what} {} -> {}", short(path), outcome(&result));
        if path == KEEP_ALIVE_PATH {
            self.world.note_routine(line)
        } else {
            self.world.note(line)
        }
        let number = self.send_reply(what);
        let lists = u32::from(what == "list");
        self.world.state().clients[self.client].listings += lists;
        pause(Wait::Reply(number));
        self.world.state().clients[self.client].listings -= lists;
        if let Err(error) = self.receive(number) {
            return self.lose(what, path, error);
        }
        self.perhaps_lose_the_server(path);
        if path == KEEP_ALIVE_PATH {
            faults::perhaps_stall_after_keep_alive(&self.world, self.client);
        }
        self.perhaps_panic(what, path);
        self.perhaps_take_a_while(what);
        if self.fails_by_itself() || self.fails_during_a_listing(what) {
            self.world.note(format!("{what} {} fails after its effect", short(path)));
            saw("call-fails-after-its-effect");
            return Err(ZkError::ConnectionLoss);
        }
        result
    }

    /// Makes a call on the scheduler's thread. This is allowed only while a session is being opened.
    fn call_outside(
        &self,
        what: &str,
        effect: impl FnOnce(&SimulatedClient) -> ZkResult<Reply>,
    ) -> ZkResult<Reply> {
        if !self.world.state().clients[self.client].opening {
            self.world.fail(format!("{what} is called on a thread that must not block"));
        }
        effect(&self.simulated)
    }

    fn check_contact(&self, begun: Option<u64>) -> ZkResult<()> {
        let state = self.world.state();
        let link = &state.clients[self.client].link;
        match begun {
            _ if link.over => Err(ZkError::SessionExpired),
            Some(connection) if link.connected && link.connection == connection => Ok(()),
            _ => Err(ZkError::ConnectionLoss),
        }
    }

    /// Fails a call. If contact is lost, first waits until the client has reported that.
    fn lose(&self, what: &str, path: &str, error: ZkError) -> ZkResult<Reply> {
        if error == ZkError::ConnectionLoss {
            pause(Wait::LossReported);
        }
        self.world.note(format!("{what} {} fails: {error:?}", short(path)));
        Err(error)
    }

    /// Returns the connection of a write that its server cannot commit, if the server has no quorum.
    fn connection_without_a_quorum(&self, what: &str) -> Option<u64> {
        let state = self.world.state();
        let link = &state.clients[self.client].link;
        (is_write(what) && link.deposed).then_some(link.connection)
    }

    /// Lets creates fail more often while the client lists a directory: the listing may not show what was created.
    fn fails_during_a_listing(&self, what: &str) -> bool {
        let mut state = self.world.state();
        let is_possible = self.world.in_trouble() && self.world.profile.faults.failing_calls;
        let client = &state.clients[self.client];
        let fails = is_possible && what == "create" && client.listings > 0;
        let fails = fails && state.random.one_in(2);
        if fails {
            saw("create-lost-during-a-listing");
        }
        fails
    }

    fn fails_by_itself(&self) -> bool {
        let mut state = self.world.state();
        let hit = state.random.one_in(2);
        let client = &mut state.clients[self.client];
        if client.calls_to_fail > 0 && hit {
            client.calls_to_fail -= 1;
            return true;
        }
        false
    }

    fn perhaps_panic(&self, what: &str, path: &str) {
        let panics = {
            let mut state = self.world.state();
            let hit = state.random.one_in(2);
            let calls = &mut state.clients[self.client].calls_to_panic;
            let panics = hit && *calls > 0;
            *calls -= u32::from(panics);
            panics
        };
        if panics {
            saw("client-panics");
            self.world.note(format!("{what} {} panics", short(path)));
            saw("client-panics-in-a-call");
            // Bypasses the panic hook, which would print the panic.
            std::panic::resume_unwind(Box::new("the client panics on purpose"));
        }
    }

    /// Returns whether the server currently refuses this call. For a znode that does not exist, it reports
    /// just that.
    fn is_denied(&self, what: &str, path: &str) -> bool {
        let needs_permission = matches!(what, "delete" | "list" | "watch" | "read" | "exists");
        let is_denied = needs_permission
            && self.world.zookeeper.exists(path)
            && self.world.now() < self.world.state().clients[self.client].denied_until;
        if is_denied {
            saw("permission-denied");
        }
        is_denied
    }

    /// Occupies the worker that receives a long listing.
    fn perhaps_take_a_while(&self, what: &str) {
        if what == "list" && self.world.profile.is_busy && self.world.in_trouble() {
            let length = {
                let mut state = self.world.state();
                let longest = state.clients[self.client].counted_timeout().as_nanos() as u64 / 4;
                Duration::from_nanos(state.random.below(longest))
            };
            saw("listing-takes-long");
            pause(Wait::Time(self.world.now().after(length)));
        }
    }

    /// Records that the server has heard from the session, and sends its reply.
    fn send_reply(&self, what: &str) -> u64 {
        let now = self.world.now();
        let mut state = self.world.state();
        if !state.clients[self.client].link.deposed {
            state.draw_grace(self.client);
            let races = !self.world.profile.is_calm() && state.random.one_in(3);
            state.clients[self.client].record_activity(now, races);
        }
        if self.world.profile.faults.slow_replies && self.world.in_trouble() {
            let longest = state.clients[self.client].session_timeout.as_nanos() as u64 / 8;
            let delay = Duration::from_nanos(state.random.below(longest));
            let link = &mut state.clients[self.client].link;
            link.slow_until = link.slow_until.max(now.after(delay));
            saw("reply-slow");
        }
        let arrival = state.send_off(Fate::OnItsWay);
        if is_write(what) {
            state.perhaps_hold_back(self.client, arrival);
        }
        state.clients[self.client].replies.insert(arrival.stamp, arrival);
        arrival.stamp
    }

    /// Sometimes crashes the server right after its reply, before it reports the session's activity. This happens most
    /// often when the reply would seem to prove something.
    fn perhaps_lose_the_server(&self, path: &str) {
        let faults = self.world.profile.faults;
        if !self.world.in_trouble() || !(faults.deaths || faults.slow_replies) {
            return;
        }
        let one_in = if path == KEEP_ALIVE_PATH { 2 } else { 8 };
        if self.world.state().random.one_in(one_in) {
            faults::lose_server(&self.world, self.client);
            saw("server-crashes-after-its-reply");
        }
    }

    fn receive(&self, number: u64) -> ZkResult<()> {
        let mut state = self.world.state();
        let client = &mut state.clients[self.client];
        let lost = client.replies.remove(&number).is_some_and(|reply| reply.fate == Fate::Lost);
        match (lost, client.link.over) {
            (false, _) => Ok(()),
            (true, true) => Err(ZkError::SessionExpired),
            (true, false) => Err(ZkError::ConnectionLoss),
        }
    }
}

impl BlockingClient for Wire {
    fn call(&self, call: &Call) -> ZkResult<Reply> {
        let path = match call {
            Call::Multi(operations) => operations.last().map_or("", Op::path),
            call => call.path().unwrap_or_default(),
        };
        let what = match call {
            Call::Create { .. } | Call::CreateAndList { .. } => "create",
            Call::Delete { .. } => "delete",
            Call::Exists { .. } => "exists",
            Call::GetChildren { .. } => "list",
            Call::GetData { watch: true, .. } => "watch",
            Call::GetData { .. } => "read",
            Call::SetData { .. } => "write",
            Call::Multi(_) => "transact",
        };
        self.make(what, path, |client| match call {
            Call::Multi(operations) => {
                let transacted = self.world.transact(operations, || client.transact(operations));
                if let Ok(Transacted::Failed { position, error }) = &transacted {
                    self.world.note(format!("operation {position} of the transaction fails: {error:?}"));
                }
                transacted.map(Reply::Multi)
            }
            call => {
                let owner = self.world.zookeeper.stat(path).map_or(0, |stat| stat.ephemeral_owner);
                let reply = client.call(call);
                match (call, &reply) {
                    (Call::Create { data, mode, .. }, Ok(Reply::Created { path, .. })) => {
                        self.world.record_creation(path, data, *mode);
                    }
                    (Call::Delete { .. }, Ok(_)) => self.world.record_deletion(self.client, path, owner),
                    _ => {}
                }
                reply
            }
        })
    }

    fn remove_watches(&self, path: &str) {
        self.simulated.remove_watches(path);
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        self.world.state().clients[self.client].sink = Some(sink);
        true
    }

    fn session_timeout(&self) -> Duration {
        self.simulated.session_timeout()
    }

    fn report_delay(&self) -> Duration {
        self.simulated.report_delay()
    }

    fn reports_pings(&self) -> bool {
        self.world.state().clients[self.client].link.reported_pings.is_some()
    }

    fn min_idle_for_ping(&self) -> Duration {
        self.min_idle_for_ping
    }

    fn jute_max_buffer(&self) -> usize {
        self.world.profile.jute_max_buffer
    }

    fn close(&self) {
        pause(Wait::Send);
        self.world.note("close");
        self.simulated.close();
        let sink = {
            let mut state = self.world.state();
            let client = &mut state.clients[self.client];
            client.link.over = true;
            client.link.partitioned = false;
            client.events.clear();
            client.lose_the_rest();
            client.sink.take()
        };
        drop(sink);
        pause(Wait::Turn);
    }
}

impl World {
    /// Records that a client has created a znode.
    pub(super) fn record_creation(&self, path: &str, data: &[u8], mode: CreateMode) {
        let (dir, name) = path.rsplit_once('/').unwrap_or_default();
        if has_number_in_doubt(name) {
            // The other request may leave in the same step.
            self.record_end_of_counter(dir, &self.zookeeper.children(dir));
        }
        let mut state = self.state();
        if SessionTag::read(name).is_some() && !state.paths.insert(path.to_owned()) {
            drop(state);
            return self.fail(format!("{path} is created for a second time"));
        }
        *state.created.entry(data.to_vec()).or_default() += 1;
        // A downgrade chooses the name of its znode itself, and may not be completed.
        if mode == CreateMode::Ephemeral && generated_sequence(path).is_some() {
            state.tentative.insert(path.to_owned());
        }
    }

    /// Records that a client has deleted a znode that belonged to the session `owner`.
    pub(super) fn record_deletion(&self, client: usize, path: &str, owner: i64) {
        let state = self.state();
        let is_revoked = state.revoked.contains(path);
        let is_of_another = owner != state.clients[client].simulated.session_id();
        drop(state);
        if is_revoked || (is_of_another && generated_sequence(path).is_some()) {
            self.record_deletion_by_another(path, owner);
        }
    }
}

/// Returns whether a call passes through the leader.
fn is_write(what: &str) -> bool {
    matches!(what, "create" | "delete" | "write" | "transact")
}

fn outcome(result: &ZkResult<Reply>) -> String {
    match result {
        Ok(Reply::Children(names)) => {
            let requests = names.iter().filter(|name| generated_sequence(name).is_some());
            format!("[{}]", requests.map(short).collect::<Vec<_>>().join(" "))
        }
        Ok(Reply::Created { path, .. }) => short(path),
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}
