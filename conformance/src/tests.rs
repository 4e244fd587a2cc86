//! Runs the checks against the simulated server, and against clients with one flaw each.

mod blocking;
mod flaws;
#[allow(unreachable_pub, reason = "shared with other crates")]
mod panics;
mod submit;
mod watchdog;

use std::collections::BTreeSet;

use std::sync::Arc;

use self::blocking::BlockingFake;
use super::*;
use zookeeper_recipes_lock::fake::{SimulatedClient, SimulatedZooKeeper};

const TIMEOUT: Duration = Duration::from_secs(6);
/// How long a check may wait for something that must happen, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A fixture for sessions on the simulated server. `wrap` wraps their clients.
struct Fake<W> {
    zookeeper: SimulatedZooKeeper,
    wrap: W,
    deadline: Duration,
}

impl<W: Fn(Arc<SimulatedClient>) -> Arc<dyn ZooKeeperClient>> Fixture for Fake<W> {
    fn connect(&self) -> Box<dyn Subject> {
        let fake = self.zookeeper.connect(TIMEOUT);
        Box::new(FakeSession { client: (self.wrap)(Arc::clone(&fake)), fake })
    }

    fn session_timeout(&self) -> Option<Duration> {
        Some(TIMEOUT)
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn contains_panics(&self) -> bool {
        true
    }
}

struct FakeSession {
    fake: Arc<SimulatedClient>,
    client: Arc<dyn ZooKeeperClient>,
}

impl Subject for FakeSession {
    fn client(&self) -> Arc<dyn ZooKeeperClient> {
        self.client.clone()
    }

    fn session_id(&self) -> Option<i64> {
        Some(self.fake.session_id())
    }

    fn disconnect(&self) -> bool {
        self.fake.disconnect();
        true
    }

    fn stall(&self) -> bool {
        self.fake.swallow();
        true
    }

    fn reconnect(&self) {
        self.fake.release();
        self.fake.reconnect();
    }

    fn expire(&self) -> bool {
        self.fake.expire();
        self.fake.release();
        true
    }
}

fn fake<W: Fn(Arc<SimulatedClient>) -> Arc<dyn ZooKeeperClient>>(deadline: Duration, wrap: W) -> Fake<W> {
    panics::watch();
    watchdog::watch_this_test(4 * DEADLINE);
    Fake { zookeeper: SimulatedZooKeeper::new(), wrap, deadline }
}

/// Asserts that the client passes all checks, except those that are skipped because the fixture lacks
/// something.
fn assert_conforms(wrap: impl Fn(Arc<SimulatedClient>) -> Arc<dyn ZooKeeperClient>, more_skipped: &[&str]) {
    let fixture = fake(DEADLINE, wrap);
    let report = check(&fixture);
    assert!(report.is_passed(), "{report}");
    let skipped = ["paths_begin_below_the_chroot", "watch_on_the_chroot_itself_fires"];
    assert_eq!(report.skipped().collect::<Vec<_>>(), [&skipped, more_skipped].concat());
    assert_eq!(fixture.zookeeper.children("/"), [""; 0], "the checks leave no znodes");
}

const OF_ORDERED_CLIENTS: &str = "submitted_calls_of_one_thread_take_effect_in_order";

#[test]
fn fake_server_conforms() {
    assert_conforms(|client| client, &[]);
}

#[test]
fn fake_server_conforms_without_order_and_pings() {
    let other_gear = |client: Arc<SimulatedClient>| {
        client.set_ordered(false);
        client.set_reports_pings(false);
        client as Arc<dyn ZooKeeperClient>
    };
    assert_conforms(other_gear, &[OF_ORDERED_CLIENTS]);
}

#[test]
fn fake_server_conforms_as_a_client_that_blocks() {
    assert_conforms(BlockingFake::on, &[OF_ORDERED_CLIENTS]);
}

#[test]
fn checks_have_different_names() {
    let names: BTreeSet<_> = checks().iter().map(Check::name).collect();
    assert_eq!(names.len(), checks().len());
}

#[test]
fn report_names_each_check_and_its_outcome() {
    let report = check(&fake(Duration::from_millis(200), flaws::Flaw::NoSequenceNumber.wrap()));
    let text = report.to_string();
    assert_eq!(text.lines().count(), checks().len(), "{text}");
    assert!(text.contains("\nFAILED   sequence_numbers_are_appended_and_grow: "), "{text}");
    assert!(text.contains("\nskipped  paths_begin_below_the_chroot (lacking: a chroot)\n"), "{text}");
    assert!(!report.is_passed());
}
