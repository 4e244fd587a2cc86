//! Compares each call's result with the server's history, while requests and replies are lost and
//! another client acts at every possible moment.

use crate::error::Result;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::{EFFECTS, LONG};
use crate::client::{self, Acl, CreateMode, Done, Reply, Stat, call_in_parts};
use crate::error::{ErrorReason, ZkError, ZkResult};
use crate::fake::{Effect, SimulatedClient, SimulatedZooKeeper};
use crate::recoverable::RecoverableZooKeeper;
use crate::tests::{Wrapped, open_wrapped};
use crate::{LockError, RetryPolicy, Session};

const DIR: &str = "/dir";
const ZNODE: &str = "/dir/znode";
/// The approximate number of requests that a call makes when one of them is lost.
const REQUESTS: usize = 10;

/// The call under test, on [`ZNODE`].
#[derive(Clone, Copy, Debug)]
enum Call {
    Create(CreateMode),
    Delete(Option<i32>),
    SetData(Option<i32>),
}

const CALLS: [Call; 9] = [
    Call::Create(CreateMode::Persistent),
    Call::Create(CreateMode::Ephemeral),
    Call::Create(CreateMode::PersistentSequential),
    Call::Delete(None),
    Call::Delete(Some(0)),
    Call::Delete(Some(1)),
    Call::SetData(None),
    Call::SetData(Some(0)),
    Call::SetData(Some(1)),
];

impl Call {
    fn make(self, zookeeper: &RecoverableZooKeeper) -> Result<()> {
        match self {
            Call::Create(mode) => zookeeper.create(ZNODE, b"mine", &Acl::open_unsafe(), mode).map(drop),
            Call::Delete(version) => zookeeper.delete(ZNODE, version),
            Call::SetData(version) => zookeeper.set_data(ZNODE, b"mine", version).map(drop),
        }
    }
}

/// The other client's action at one moment, if the server permits it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Create,
    Set,
    SetTwice,
    Delete,
    CreateAndDelete,
    Replace,
    ReplaceAndSet,
    DeleteDirectory,
    ReplaceDirectory,
    CreateSibling,
    ComeAndGoBeside,
}

const ACTS: [Act; 11] = [
    Act::Create,
    Act::Set,
    Act::SetTwice,
    Act::Delete,
    Act::CreateAndDelete,
    Act::Replace,
    Act::ReplaceAndSet,
    Act::DeleteDirectory,
    Act::ReplaceDirectory,
    Act::CreateSibling,
    Act::ComeAndGoBeside,
];

/// The other client.
struct Other(SimulatedZooKeeper);

impl Other {
    /// Returns the deleted znodes with the call's name.
    fn act(&self, act: Act) -> Vec<Stat> {
        match act {
            Act::Create => self.create(),
            Act::Set => self.set(),
            Act::SetTwice => {
                self.set();
                self.set();
            }
            Act::Delete => return self.delete(),
            Act::CreateAndDelete => {
                self.create();
                return self.delete();
            }
            Act::Replace => return self.replace(),
            Act::ReplaceAndSet => {
                let deleted = self.replace();
                self.set();
                return deleted;
            }
            Act::DeleteDirectory => return self.delete_directory(),
            Act::ReplaceDirectory => {
                let deleted = self.delete_directory();
                self.0.create(DIR, b"");
                return deleted;
            }
            Act::CreateSibling => drop(self.0.create_sequential(DIR, "sibling-", None)),
            Act::ComeAndGoBeside => self.0.delete(&self.0.create_sequential(DIR, "sibling-", None)),
        }
        Vec::new()
    }

    fn create(&self) {
        if !self.0.exists(ZNODE) {
            self.0.create(ZNODE, b"other");
        }
    }

    fn set(&self) {
        self.znodes().iter().for_each(|znode| self.0.set_data(znode, b"other"));
    }

    fn delete(&self) -> Vec<Stat> {
        let delete = |znode: String| {
            let stat = self.0.stat(&znode);
            self.0.delete(&znode);
            stat
        };
        self.znodes().into_iter().filter_map(delete).collect()
    }

    fn delete_directory(&self) -> Vec<Stat> {
        let deleted = self.delete();
        self.0.children(DIR).iter().for_each(|name| self.0.delete(&format!("{DIR}/{name}")));
        if self.0.exists(DIR) {
            self.0.delete(DIR);
        }
        deleted
    }

    fn replace(&self) -> Vec<Stat> {
        let deleted = self.delete();
        self.0.create(ZNODE, b"other");
        deleted
    }

    /// The znode of the call, or the znodes that a sequential create has made.
    fn znodes(&self) -> Vec<String> {
        let names = self.0.children(DIR).into_iter();
        names.filter(|name| name.starts_with("znode")).map(|name| format!("{DIR}/{name}")).collect()
    }
}

/// The events during one call. Requests are counted from 0, beginning with the call.
#[derive(Clone, Debug, Default)]
struct Script {
    losses: BTreeMap<usize, Effect>,
    /// The requests that a server holds back, each with the later request before which the server passes
    /// it on. If there is no such later request, the server passes it on after the call has returned.
    held_back: BTreeMap<usize, usize>,
    /// The other client's action after the call has returned, before the server passes on what it still holds back.
    afterwards: Option<Act>,
    /// The other client's actions, each keyed by the number of a request. The flag is `false` before that request
    /// reaches the server, and `true` between its effect and its reply.
    acts: BTreeMap<(usize, bool), Act>,
}

/// A client whose requests follow a script.
struct Scripted {
    client: Arc<SimulatedClient>,
    other: Other,
    script: Mutex<Script>,
    seen: Mutex<Seen>,
    /// The `czxid` of the znode that existed, at version 1, before the call.
    present: Mutex<Option<i64>>,
    /// The calls that a server holds back, by the request before which it passes them on.
    held_back: Mutex<BTreeMap<usize, Vec<client::Call>>>,
}

#[derive(Debug, Default)]
struct Seen {
    requests: usize,
    /// The number of attempts at the call that were not answered.
    lost_attempts: usize,
    /// How often the call had taken effect when it returned, and how often it did afterwards.
    effects: usize,
    late_effects: usize,
    others_acts: usize,
    /// For each znode that the other client deleted, its versions during the call.
    versions_deleted: Vec<RangeInclusive<i32>>,
}

impl Scripted {
    fn request(&self, call: &client::Call) -> ZkResult<Reply> {
        let number = {
            let mut seen = self.seen.lock();
            seen.requests += 1;
            seen.requests - 1
        };
        self.pass_on_until(number);
        self.interfere((number, false));
        let (loss, held_until) = {
            let script = self.script.lock();
            (script.losses.get(&number).copied(), script.held_back.get(&number).copied())
        };
        let is_lost = loss.is_some() || held_until.is_some();
        self.seen.lock().lost_attempts += usize::from(is_lost && is_attempt(call));
        if let Some(later) = held_until.filter(|_| call.is_write()) {
            self.held_back.lock().entry(later.max(number + 1)).or_default().push(call.clone());
            return Err(ZkError::ConnectionLoss);
        }
        if loss == Some(Effect::Before) {
            return Err(ZkError::ConnectionLoss);
        }
        let answer = self.client.call(call);
        self.seen.lock().effects += usize::from(answer.is_ok() && is_attempt(call));
        self.interfere((number, true));
        if is_lost { Err(ZkError::ConnectionLoss) } else { answer }
    }

    /// Passes on the calls that a server was to hold back until this request.
    fn pass_on_until(&self, number: usize) {
        let later = self.held_back.lock().split_off(&number.saturating_add(1));
        let due = std::mem::replace(&mut *self.held_back.lock(), later);
        for call in due.into_values().flatten() {
            let took_effect = self.client.call(&call).is_ok() && is_attempt(&call);
            self.seen.lock().effects += usize::from(took_effect);
        }
    }

    /// Passes on all remaining calls, after the call under test has returned.
    fn pass_on_late(&self, afterwards: Option<Act>) {
        if let Some(act) = afterwards {
            self.act(act);
        }
        let effects = self.seen.lock().effects;
        self.pass_on_until(usize::MAX);
        let mut seen = self.seen.lock();
        seen.late_effects = seen.effects - effects;
        seen.effects = effects;
    }

    fn interfere(&self, moment: (usize, bool)) {
        let act = self.script.lock().acts.get(&moment).copied();
        if let Some(act) = act {
            self.act(act);
        }
    }

    fn act(&self, act: Act) {
        let deleted = self.other.act(act).into_iter().map(|stat| self.versions_of(&stat));
        let mut seen = self.seen.lock();
        seen.others_acts += 1;
        seen.versions_deleted.extend(deleted);
    }

    /// The versions of a znode since the call began.
    fn versions_of(&self, stat: &Stat) -> RangeInclusive<i32> {
        let was_there = *self.present.lock() == Some(stat.czxid);
        if was_there { 1..=stat.version } else { 0..=stat.version }
    }
}

/// Returns whether a request is an attempt at the call under test.
fn is_attempt(call: &client::Call) -> bool {
    call.is_write() && call.path().is_some_and(|path| path.starts_with(ZNODE))
}

impl Wrapped for Scripted {
    fn simulated(&self) -> &Arc<SimulatedClient> {
        &self.client
    }

    /// Makes the call on this thread.
    fn submit(&self, call: client::Call, done: Done) {
        done.finish(call_in_parts(&call, |part| self.request(part)));
    }
}

/// One call and its result.
struct Run {
    call: Call,
    start: Start,
    outcome: Result<()>,
    seen: Seen,
}

/// The state before the call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    Nothing,
    Directory,
    /// At version 1.
    ZNode,
}

const STARTS: [Start; 3] = [Start::Nothing, Start::Directory, Start::ZNode];

/// A server and a session on it, for any number of runs.
struct Fixture {
    server: SimulatedZooKeeper,
    client: Arc<Scripted>,
    session: Session,
}

impl Fixture {
    fn new() -> Fixture {
        let server = SimulatedZooKeeper::new();
        let client = Arc::new(Scripted {
            client: server.connect(LONG),
            other: Other(server.clone()),
            script: Mutex::default(),
            seen: Mutex::default(),
            present: Mutex::default(),
            held_back: Mutex::default(),
        });
        let session = open_wrapped(Arc::clone(&client)).unwrap();
        Fixture { server, client, session }
    }

    fn run(&self, call: Call, is_plain: bool, start: Start, script: Script) -> Run {
        self.client.other.delete_directory();
        match start {
            Start::Nothing => {}
            Start::Directory => self.server.create(DIR, b""),
            Start::ZNode => {
                self.server.create(ZNODE, b"old");
                self.server.set_data(ZNODE, b"older");
            }
        }
        let policy = RetryPolicy::constant(Duration::ZERO).with_attempts(8);
        let mut zookeeper = RecoverableZooKeeper::new(&self.session, policy);
        if is_plain {
            zookeeper = zookeeper.with_plain_data();
        }
        *self.client.present.lock() = self.server.stat(ZNODE).map(|stat| stat.czxid);
        *self.client.seen.lock() = Seen::default();
        let afterwards = script.afterwards;
        *self.client.script.lock() = script;
        let outcome = call.make(&zookeeper);
        *self.client.script.lock() = Script::default();
        self.client.pass_on_late(afterwards);
        let seen = std::mem::take(&mut *self.client.seen.lock());
        Run { call, start, outcome, seen }
    }

    /// Runs the call and fails if the outcome violates a rule.
    fn check(&self, call: Call, is_plain: bool, start: Start, script: &Script) -> Run {
        let run = self.run(call, is_plain, start, script.clone());
        let broken = run.broken_rule();
        assert!(
            broken.is_none(),
            "{}: {call:?}, plain={is_plain}, {start:?}, {script:?}: {:?} after {:?}",
            broken.unwrap_or_default(),
            run.outcome,
            run.seen
        );
        run
    }
}

impl Run {
    /// The rule that the outcome violates.
    fn broken_rule(&self) -> Option<&'static str> {
        let Seen { lost_attempts, effects, late_effects, others_acts, ref versions_deleted, .. } = self.seen;
        // The deletion of a znode leaves no trace of the client that did it; the docs explain this.
        let could_be_own = |versions: &RangeInclusive<i32>| match self.call {
            Call::Delete(version) => version.is_none_or(|version| versions.contains(&version)),
            Call::Create(_) | Call::SetData(_) => false,
        };
        let is_gone = effects == 0 && versions_deleted.iter().any(could_be_own);
        let is_write = matches!(self.call, Call::SetData(_));
        // A new znode may have the version that a lost write requires; the docs explain this, too.
        let may_write_again = is_write && !versions_deleted.is_empty();
        let outcome = self.outcome.as_ref().map_err(LockError::reason);
        match outcome {
            _ if effects > 1 && !may_write_again => Some("it took effect more than once"),
            Ok(()) | Err(ErrorReason::Server(_)) if late_effects > 0 && !may_write_again && !is_gone => {
                Some("it took effect after it had returned")
            }
            Ok(()) if effects > 0 || is_gone => None,
            Ok(()) => Some("it did not take effect, but reports that it did"),
            Err(ErrorReason::OutcomeUnknown) if lost_attempts == 0 => Some("no attempt was lost"),
            Err(ErrorReason::OutcomeUnknown) if others_acts > 0 => None,
            Err(ErrorReason::OutcomeUnknown) if effects == 1 => Some("its effect is visible"),
            Err(ErrorReason::OutcomeUnknown) if is_write && self.start == Start::ZNode => {
                Some("no other client acted, and a repetition could not do any harm")
            }
            Err(ErrorReason::OutcomeUnknown) => None,
            Err(ErrorReason::Server(_)) if effects == 0 || may_write_again => None,
            Err(ErrorReason::Server(_)) => Some("it took effect, but reports that it did not"),
            Err(_) => Some("an unexpected error"),
        }
    }
}

/// Runs `check` for each call, with the number of requests that the call makes when nothing is lost.
fn every_call(check: impl Fn(&Fixture, Call, bool, Start, usize)) {
    let fixture = Fixture::new();
    for call in CALLS {
        for start in STARTS {
            for is_plain in [false, true] {
                let undisturbed = fixture.check(call, is_plain, start, &Script::default());
                check(&fixture, call, is_plain, start, undisturbed.seen.requests);
            }
        }
    }
}

fn losing(request: usize, when: Effect) -> Script {
    Script { losses: BTreeMap::from([(request, when)]), ..Script::default() }
}

fn holding_back(request: usize, until: usize) -> Script {
    Script { held_back: BTreeMap::from([(request, until)]), ..Script::default() }
}

fn moments(requests: usize) -> impl Iterator<Item = (usize, bool)> {
    (0..requests).flat_map(|number| [(number, false), (number, true)])
}

#[test]
fn one_loss_does_not_change_the_outcome() {
    every_call(|fixture, call, is_plain, start, requests| {
        let undisturbed = fixture.run(call, is_plain, start, Script::default()).outcome;
        for (number, when) in (0..requests).flat_map(|number| EFFECTS.map(|when| (number, when))) {
            let outcome = fixture.check(call, is_plain, start, &losing(number, when)).outcome;
            let is_known =
                !matches!(outcome, Err(ref error) if error.reason() == ErrorReason::OutcomeUnknown);
            let is_same = outcome.is_ok() == undisturbed.is_ok();
            assert!(is_same || !is_known, "{call:?} {start:?} {number} {when:?}: {outcome:?}");
        }
    });
}

#[test]
fn outcome_agrees_with_the_history_for_any_action_at_any_moment() {
    every_call(|fixture, call, is_plain, start, requests| {
        for (number, when) in (0..requests).flat_map(|number| EFFECTS.map(|when| (number, when))) {
            let lossy = losing(number, when);
            let requests = fixture.check(call, is_plain, start, &lossy).seen.requests;
            for (moment, act) in moments(requests).flat_map(|moment| ACTS.map(|act| (moment, act))) {
                let acts = BTreeMap::from([(moment, act)]);
                fixture.check(call, is_plain, start, &Script { acts, ..lossy.clone() });
            }
        }
    });
}

#[test]
fn outcome_agrees_with_the_history_of_a_znode_created_during_the_probe() {
    every_call(|fixture, call, is_plain, start, requests| {
        let last = requests - 1;
        for (created, act) in moments(requests).flat_map(|moment| ACTS.map(|act| (moment, act))) {
            let acts = BTreeMap::from([(created, Act::Create), ((last, true), act)]);
            fixture.check(call, is_plain, start, &Script { acts, ..losing(last, Effect::After) });
        }
    });
}

#[test]
fn outcome_agrees_with_the_history_when_a_server_passes_the_request_on_late() {
    every_call(|fixture, call, is_plain, start, requests| {
        let attempt = requests - 1;
        for until in [attempt + 2, attempt + 3, usize::MAX] {
            let script = holding_back(attempt, until);
            let requests = fixture.check(call, is_plain, start, &script).seen.requests;
            for act in ACTS {
                fixture.check(call, is_plain, start, &Script { afterwards: Some(act), ..script.clone() });
            }
            for (moment, act) in moments(requests).flat_map(|moment| ACTS.map(|act| (moment, act))) {
                let acts = BTreeMap::from([(moment, act)]);
                fixture.check(call, is_plain, start, &Script { acts, ..script.clone() });
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn outcome_agrees_with_the_history_over_several_losses_and_actions(
        call in prop::sample::select(&CALLS[..]),
        is_plain: bool,
        start in prop::sample::select(&STARTS[..]),
        losses in prop::collection::btree_map(0..REQUESTS, prop::sample::select(&EFFECTS[..]), 1..4),
        acts in prop::collection::btree_map(
            (0..REQUESTS, any::<bool>()),
            prop::sample::select(&ACTS[..]),
            0..4,
        ),
        held_back in prop::collection::btree_map(0..REQUESTS, 0..2 * REQUESTS, 0..3),
        afterwards in prop::option::of(prop::sample::select(&ACTS[..])),
    ) {
        let run = Fixture::new().run(call, is_plain, start, Script { losses, held_back, acts, afterwards });
        prop_assert_eq!(run.broken_rule(), None, "{:?} after {:?}", run.outcome, run.seen);
    }
}
