//! [`Scheduler`]: takes one step at a time, chosen at random among all possible steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::baton::{Baton, Body, Pool, Report, Role, Wait};
use super::jobs::KEYS;
use super::link::Drift;
use super::profile::Weights;
use super::seen::saw;
use super::wire;
use super::world::{ClientState, World};
use crate::time::Moment;

/// The directories of the locks.
pub(super) const DIRS: [&str; 2] = ["/locks/a", "/locks/b"];

/// The directory of the semaphore, and the directories of its requests.
pub(super) const SEMAPHORE: &str = "/pool";
pub(super) const TURNS: &str = "/pool/locks";
pub(super) const LEASES: &str = "/pool/leases";

/// The directories of all requests.
pub(super) const ALL_DIRS: [&str; 6] = [DIRS[0], DIRS[1], TURNS, LEASES, KEYS[0], KEYS[1]];

/// The thread that replaces a lost session.
const REPLACEMENT: &str = "zk-lock-replacement";

pub(super) struct Scheduler<'a> {
    pub(super) world: Arc<World>,
    pool: &'a mut Pool,
    threads: BTreeMap<usize, Thread>,
    last_thread: usize,
}

struct Thread {
    name: String,
    client: usize,
    baton: Baton,
    wait: Wait,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A worker of a session.
    Worker,
    Callback,
    /// An application thread, working on this lock if on any.
    User(Option<usize>),
    /// An application thread that uses a blocking lock.
    Blocking,
    /// A thread that the library started, with its name.
    Spawned(&'static str),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Resume(usize),
    Work(usize),
    Start(usize),
    CallBack(usize),
    Notify(usize),
    Ping(usize),
    AnswerPing(usize),
    Fire(usize),
    Expire(usize),
    EndStall(usize),
    Wire(usize, wire::Step),
    PassTime,
    Use,
    Fault,
}

impl<'a> Scheduler<'a> {
    pub(super) fn new(world: Arc<World>, pool: &'a mut Pool) -> Scheduler<'a> {
        Scheduler { world, pool, threads: BTreeMap::new(), last_thread: 0 }
    }

    /// Takes any possible step. Returns whether the step counts. Pings do not: there are many, and they must
    /// not leave less time for faults.
    pub(super) fn step(&mut self) -> bool {
        let weights = self.world.profile.weights;
        let mut steps = self.possible_steps(&weights);
        let is_idle = steps.is_empty();
        if is_idle {
            let broken = self.world.check_that_losses_are_reported().or_else(|| self.world.check_tasks());
            if let Some(broken) = broken {
                self.world.fail(broken);
            }
            if self.world.profile.is_prompt() {
                if let Err(broken) = self.world.check_that_kept_locks_are_given_up() {
                    self.world.fail(broken);
                }
            }
        }
        if let Some(next) = self.next_time() {
            // If no other step is possible, time most likely passes; a user or a fault may come first.
            let weight = if is_idle { 1000 } else { weights.time };
            if next > self.world.now() && !self.must_return(&steps) && !self.is_wire_overdue() {
                steps.push((weight, Step::PassTime));
            }
        }
        steps.push((weights.user, Step::Use));
        steps.push((weights.fault, Step::Fault));
        let step = self.choose(&steps);
        let counts = !self.is_of_a_ping(step);
        self.take(step);
        counts
    }

    fn is_of_a_ping(&self, step: Step) -> bool {
        match step {
            Step::Ping(_) | Step::AnswerPing(_) => true,
            Step::Notify(client) => {
                let state = self.world.state();
                let event = state.clients[client].events.front();
                event.is_some_and(|(_, event)| {
                    matches!(event, crate::client::ClientEvent::PingAnswered { .. })
                })
            }
            _ => false,
        }
    }

    /// Returns whether a thread that must return from its call now can run.
    fn must_return(&self, steps: &[(u64, Step)]) -> bool {
        let now = self.world.now();
        let state = self.world.state();
        steps.iter().any(|(_, step)| match step {
            Step::Resume(number) => self
                .threads
                .get(number)
                .is_some_and(|thread| state.calls.values().any(|call| call.is_due(&thread.name, now))),
            _ => false,
        })
    }

    fn is_wire_overdue(&self) -> bool {
        let now = self.world.now();
        let state = self.world.state();
        self.world.profile.on_wire
            && (0..state.clients.len()).any(|client| state.is_wire_overdue(client, now))
    }

    /// Ends all waits for a moment in time.
    pub(super) fn end_timed_waits(&mut self) {
        for thread in self.threads.values_mut() {
            if matches!(thread.wait, Wait::Time(_)) {
                thread.wait = Wait::Turn;
            }
        }
    }

    /// Takes a step that advances work in progress. Returns `false` if there is no such step.
    pub(super) fn step_on(&mut self) -> bool {
        let steps = self.possible_steps(&Weights::ALIKE);
        if steps.is_empty() {
            return false;
        }
        let step = self.choose(&steps);
        self.take(step);
        true
    }

    fn choose(&self, steps: &[(u64, Step)]) -> Step {
        let total = steps.iter().map(|(weight, _)| weight).sum();
        let mut chosen = self.world.state().random.below(total);
        for (weight, step) in steps {
            match chosen.checked_sub(*weight) {
                Some(rest) => chosen = rest,
                None => return *step,
            }
        }
        Step::Use
    }

    fn possible_steps(&self, weights: &Weights) -> Vec<(u64, Step)> {
        let now = self.world.now();
        let mut steps = Vec::new();
        let mut waiting = Vec::new();
        {
            let sessions = self.world.zookeeper.sessions();
            let state = self.world.state();
            for (number, client) in state.clients.iter().enumerate() {
                if client.ends_on_the_server_at(now).is_some_and(|end| end <= now)
                    && sessions.contains(&client.simulated.session_id())
                {
                    steps.push((weights.expiry, Step::Expire(number)));
                }
                if client.link.stall.as_ref().is_some_and(|stall| stall.until <= now) {
                    steps.push((weights.network, Step::EndStall(number)));
                }
                if client.has_ping_to_answer() {
                    steps.push((weights.network, Step::AnswerPing(number)));
                }
                if client.wire.is_some() {
                    let of_wire = state.wire_steps(number, now).into_iter();
                    steps.extend(of_wire.map(|step| (weights.of_wire(step), Step::Wire(number, step))));
                }
                if client.paused_until > now {
                    continue;
                }
                if client.may_work() {
                    steps.push((weights.job, Step::Work(number)));
                }
                if !client.to_spawn.is_empty() {
                    steps.push((weights.job, Step::Start(number)));
                }
                if !client.callbacks.is_empty() {
                    steps.push((weights.job, Step::CallBack(number)));
                }
                if client.has_event() {
                    steps.push((weights.event, Step::Notify(number)));
                }
                if client.next_ping().is_some_and(|next| next <= now) {
                    steps.push((weights.timer, Step::Ping(number)));
                }
                if client.timers.first().is_some_and(|timer| timer.due <= now) {
                    steps.push((weights.timer, Step::Fire(number)));
                }
            }
            for (number, thread) in &self.threads {
                let client = &state.clients[thread.client];
                if client.paused_until <= now && client.may_continue(&thread.wait, now) {
                    waiting.push((*number, thread));
                }
            }
        }
        // Evaluated outside the lock, because the condition calls the library.
        let may_resume = |thread: &Thread| match &thread.wait {
            Wait::Until(holds) => holds(),
            Wait::Signals(signals, deadline) => {
                deadline.is_some_and(|deadline| deadline <= now) || signals.iter().any(|is_ready| is_ready())
            }
            _ => true,
        };
        let going_on = waiting.into_iter().filter(|(_, thread)| may_resume(thread));
        let weight = |thread: &Thread| match thread.wait {
            Wait::Send | Wait::Reply(_) => weights.network,
            _ => weights.thread,
        };
        steps.extend(going_on.map(|(number, thread)| (weight(thread), Step::Resume(number))));
        steps
    }

    /// Returns the next time at which the clock triggers something.
    fn next_time(&self) -> Option<Moment> {
        let now = self.world.now();
        let sessions = self.world.zookeeper.sessions();
        let state = self.world.state();
        let of_client = |client: &super::world::ClientState| {
            let timer = client.timers.first().map(|timer| timer.due.max(client.paused_until));
            let lives = sessions.contains(&client.simulated.session_id());
            let end = client.ends_on_the_server_at(now).filter(|_| lives);
            let later = [client.paused_until, client.link.slow_until, client.link.searches_until]
                .map(|end| Some(end).filter(|end| *end > now));
            let stall = client.link.stall.as_ref().map(|stall| stall.until).filter(|end| *end > now);
            [timer, end, client.next_ping(), stall].into_iter().chain(later).flatten().min()
        };
        let of_thread = |thread: &Thread| match thread.wait {
            Wait::Time(moment) | Wait::Signals(_, Some(moment)) => {
                Some(moment.max(state.clients[thread.client].paused_until))
            }
            _ => None,
        };
        let of_threads = self.threads.values().filter_map(of_thread);
        let of_wires = (0..state.clients.len()).filter_map(|client| state.next_wire_time(client, now));
        let of_calls = state.calls.values().filter_map(|call| call.next_deadline(now));
        state.clients.iter().filter_map(of_client).chain(of_threads).chain(of_wires).chain(of_calls).min()
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Resume(thread) => self.resume(thread),
            Step::Work(client) => self.work(client),
            Step::Start(client) => self.start(client),
            Step::CallBack(client) => self.call_back(client),
            Step::Notify(client) => self.notify(client),
            Step::Ping(client) => {
                let now = self.world.now();
                self.world.state().send_ping(client, now);
            }
            Step::AnswerPing(client) => self.answer_ping(client),
            Step::Fire(client) => self.fire(client),
            Step::Expire(client) => self.expire(client),
            Step::EndStall(client) => super::faults::end_stall(&self.world, client),
            Step::Wire(client, step) => self.world.take_wire_step(client, step),
            Step::PassTime => self.pass_time(),
            Step::Use => self.use_something(),
            Step::Fault => super::faults::inject(&self.world),
        }
    }

    // ---- threads

    fn work(&mut self, client: usize) {
        let job = {
            let mut state = self.world.state();
            let client = &mut state.clients[client];
            let Some((_, job)) = client.jobs.pop_front() else { return };
            client.at_work += 1;
            job
        };
        self.spawn(client, Kind::Worker, job);
    }

    fn start(&mut self, client: usize) {
        let spawned = self.world.state().clients[client].to_spawn.pop_front();
        if let Some((name, body)) = spawned {
            self.spawn(client, Kind::Spawned(name), body);
        }
    }

    fn call_back(&mut self, client: usize) {
        let callback = self.world.state().clients[client].callbacks.pop_front();
        if let Some(callback) = callback {
            self.spawn(client, Kind::Callback, callback);
        }
    }

    /// Starts an application thread.
    pub(super) fn spawn_user(&mut self, client: usize, lock: Option<usize>, body: Body) {
        if let Some(lock) = lock {
            self.world.state().locks[lock].users += 1;
        }
        self.spawn(client, Kind::User(lock), body);
    }

    fn spawn(&mut self, client: usize, kind: Kind, body: Body) {
        self.last_thread += 1;
        let number = self.last_thread;
        let name = match kind {
            Kind::Worker => "worker",
            Kind::Callback => "callback",
            Kind::User(_) | Kind::Blocking => "user",
            Kind::Spawned(name) => name,
        };
        let name = format!("client {client} {name} {number}");
        let (baton, report) = self.pool.begin(Role { name: name.clone() }, body);
        let thread = Thread { name, client, baton, wait: Wait::Turn, kind };
        self.on_report(number, thread, report);
    }

    fn resume(&mut self, number: usize) {
        let Some(thread) = self.threads.remove(&number) else { return };
        let report = self.pool.resume(&thread.baton);
        self.on_report(number, thread, report);
    }

    fn on_report(&mut self, number: usize, mut thread: Thread, report: Report) {
        match report {
            Report::Paused(wait) => {
                thread.wait = wait;
                self.threads.insert(number, thread);
                return;
            }
            Report::Done => {}
            Report::Panicked(message) => self.world.fail(format!("{} panicked: {message}", thread.name)),
            Report::Stuck => {
                self.world.fail(format!("{} blocks where no thread wakes it", thread.name));
                // The thread keeps the baton.
                return;
            }
        }
        let mut state = self.world.state();
        match thread.kind {
            Kind::Worker => state.clients[thread.client].at_work -= 1,
            Kind::User(Some(lock)) => state.locks[lock].users -= 1,
            Kind::Callback | Kind::User(None) | Kind::Blocking | Kind::Spawned(_) => {}
        }
        drop(state);
        self.pool.recycle(thread.baton);
    }

    pub(super) fn spawn_blocking(&mut self, client: usize, body: Body) {
        self.spawn(client, Kind::Blocking, body);
    }

    pub(super) fn blocking_users(&self) -> usize {
        self.threads.values().filter(|thread| thread.kind == Kind::Blocking).count()
    }

    pub(super) fn users_at_work(&self) -> usize {
        self.threads.values().filter(|thread| matches!(thread.kind, Kind::User(_))).count()
    }

    pub(super) fn threads(&self) -> Vec<String> {
        self.threads.values().map(|thread| thread.name.clone()).collect()
    }

    /// Returns the threads, except those that wait to replace a session.
    pub(super) fn busy_threads(&self) -> Vec<String> {
        let busy = self.threads.values().filter(|thread| thread.kind != Kind::Spawned(REPLACEMENT));
        busy.map(|thread| thread.name.clone()).collect()
    }

    // ---- other steps

    fn notify(&mut self, client: usize) {
        let (sink, event) = {
            let mut state = self.world.state();
            let client = &mut state.clients[client];
            let (Some(sink), Some((_, event))) = (client.sink.clone(), client.events.pop_front()) else {
                return;
            };
            client.learn(&event);
            (sink, event)
        };
        let line = format!("client {client} gets {}", describe(&event));
        match event {
            crate::client::ClientEvent::PingAnswered { .. } => self.world.note_routine(line),
            _ => self.world.note(line),
        }
        sink(event);
    }

    fn answer_ping(&mut self, client: usize) {
        let now = self.world.now();
        let mut state = self.world.state();
        let races = !self.world.profile.is_calm() && state.random.one_in(3);
        state.answer_ping(client, races, now);
        drop(state);
        super::faults::perhaps_lose_server_after_ping(&self.world, client);
    }

    fn fire(&mut self, client: usize) {
        let timer = self.world.state().clients[client].timers.remove(0);
        self.world.note_routine(format!("client {client}: a timer fires"));
        (timer.job)();
    }

    fn expire(&mut self, number: usize) {
        self.world.note(format!("the server ends the session of client {number}"));
        saw("session-expires");
        match self.world.state().clients[number].link.heard.drift {
            Drift::None => {}
            Drift::Faster => saw("session-expires-by-a-faster-clock"),
            Drift::Slower => saw("session-expires-by-a-slower-clock"),
        }
        if self.world.profile.on_wire {
            return self.world.expire_on_wire(number);
        }
        let mut state = self.world.state();
        let notices = state.random.one_in(2);
        state.clients[number].lose_what_waits();
        let client = &state.clients[number];
        let simulated = Arc::clone(&client.simulated);
        let link = &client.link;
        let over = link.over;
        let in_contact = link.connected && !link.partitioned && !link.deposed && !over;
        if in_contact {
            state.cut_stream(number);
            let client = &mut state.clients[number];
            client.lose_the_rest();
            client.link.connected = false;
            client.link.over = notices;
        }
        drop(state);
        match (over, in_contact) {
            (true, _) => self.world.zookeeper.expire_session(simulated.session_id()),
            (false, true) if notices => simulated.expire(),
            (false, true) => {
                // The connection is lost first. The client learns of the expiry when it reconnects.
                simulated.disconnect();
                simulated.expire();
            }
            (false, false) => simulated.expire_silently(),
        }
    }

    fn pass_time(&mut self) {
        let Some(next) = self.next_time() else { return };
        let now = self.world.now();
        let ahead = next.since(now);
        let by = {
            let random = &mut self.world.state().random;
            match random.below(3) {
                0 => ahead.mul_f64(random.below(1000) as f64 / 1000.0),
                _ => ahead,
            }
        };
        self.note_delays(by);
        self.world.set_now(now.after(by));
    }

    /// Records delays. Work or an answer that is held up for more than a quarter of the session timeout counts as a
    /// fault.
    fn note_delays(&self, by: Duration) {
        let is_long = |client: &ClientState| by > client.counted_timeout() / 4;
        if !self.world.state().clients.iter().any(is_long) {
            return;
        }
        for (_, step) in self.possible_steps(&Weights::ALIKE) {
            let mut state = self.world.state();
            let client = self.client_of(step).and_then(|client| state.clients.get_mut(client));
            if let Some(client) = client.filter(|client| is_long(client)) {
                client.long_delays += 1;
                saw("client-held-up-for-long");
            }
        }
    }

    /// Returns the client whose work a step continues.
    fn client_of(&self, step: Step) -> Option<usize> {
        match step {
            Step::Resume(thread) => self.threads.get(&thread).map(|thread| thread.client),
            Step::Work(client)
            | Step::Start(client)
            | Step::CallBack(client)
            | Step::Notify(client)
            | Step::Ping(client)
            | Step::AnswerPing(client)
            | Step::Fire(client)
            | Step::Expire(client)
            | Step::EndStall(client)
            | Step::Wire(client, _) => Some(client),
            Step::PassTime | Step::Use | Step::Fault => None,
        }
    }

    /// Lets time pass until the clock next triggers something, but not beyond `until`. Returns `false` if
    /// nothing is triggered.
    pub(super) fn wait_for_the_clock(&mut self, until: Moment) -> bool {
        match self.next_time().filter(|next| *next <= until) {
            Some(next) => {
                self.world.set_now(next.max(self.world.now()));
                true
            }
            None => false,
        }
    }
}

pub(super) fn describe(event: &crate::client::ClientEvent) -> String {
    match event {
        crate::client::ClientEvent::NodeChanged { path, is_deleted } => {
            let what = if *is_deleted { "the deletion" } else { "a change" };
            format!("{what} of {}", super::world::short(path))
        }
        event => format!("{event:?}"),
    }
}
