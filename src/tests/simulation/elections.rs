//! Candidates for leadership, and clients that ask others to release a lock.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::application::{self, Value};
use super::baton::{Wait as Pause, pause};
use super::faults::some_request;
use super::guards::User;
use super::holds::Holding;
use super::locks::options;
use super::seen::saw;
use super::world::{World, short};

use crate::queue::Revoker;
use crate::{BlockingWriteLock, Candidate, ErrorReason, Leadership, Wait};

impl User {
    /// Stands for election, mostly until it leads or its candidate ends, and then for a while longer.
    pub(super) fn stand(&self) {
        let lock = BlockingWriteLock::with_options(&self.session, self.dir, options(&self.world));
        let (world, has_led) = (Arc::downgrade(&self.world), Arc::new(AtomicBool::new(false)));
        let leads = Arc::clone(&has_led);
        self.world.note(format!("stands for election on {}", self.dir));
        let value = Value::new(&self.world, application::LEADER_DROP);
        let candidate = Candidate::start(lock.expect("a good path"), move |leadership| {
            let _ = &value;
            leads.store(true, Ordering::Relaxed);
            lead(&world, leadership)
        });
        let candidate = candidate.expect("threads can be started");
        if !self.world.state().random.one_in(3) {
            let ended = candidate.ended().clone();
            pause(Pause::Until(Box::new(move || {
                has_led.load(Ordering::Relaxed)
                    || ended.try_recv().is_err_and(|error| error.is_disconnected())
            })));
        }
        let awaits_loss = self.world.profile.misbehaves && self.world.state().application.one_in(2);
        if let Some(leadership) = candidate.leadership().filter(|_| awaits_loss) {
            saw("loss-of-leadership-awaited");
            self.await_loss(&leadership, self.some_time_from_now());
        }
        for _ in 0..4 {
            if self.world.in_trouble() {
                let length = self.world.state().random.below(2_000_000_000);
                pause(Pause::Time(self.world.now().after(Duration::from_nanos(length))));
            }
        }
        if self.world.state().random.one_in(4) {
            return; // dropped, which stops it
        }
        candidate.stop();
        if self.world.profile.misbehaves && self.world.state().application.one_in(2) {
            saw("end-of-a-candidate-awaited");
            self.run_task_until(candidate.ended_async(), None, None);
        }
        if !candidate.wait(Wait::forever()) {
            self.world.fail("a wait without a deadline ended before the candidate");
        }
        if candidate.is_leader() {
            self.world.fail("a candidate that has ended leads");
        }
        match candidate.error() {
            None => {}
            Some(error) if error.reason() == ErrorReason::LeaderPanicked => {}
            Some(error) => {
                self.check_error(error);
                self.check_loss(error);
            }
        }
    }

    /// Asks another client to release its lock, and perhaps takes it away.
    pub(super) fn revoke(&self) {
        let Some(path) = some_request(&self.world) else { return };
        let owner = self.world.zookeeper.stat(&path).map_or(0, |stat| stat.ephemeral_owner);
        self.world.state().asked.insert(owner);
        let forces = self.world.state().random.one_in(2);
        let grace = Duration::from_nanos(self.world.state().random.below(2_000_000_000));
        self.world.note(format!("asks for {}, by force: {forces}", short(&path)));
        let revoker = Revoker::with_options(&self.session, options(&self.world)).expect("good options");
        if forces {
            self.world.state().revoked.insert(path.clone());
            let outcome = revoker.force_revocation_after(&path, grace);
            self.world.note(format!("has revoked {}: {outcome:?}", short(&path)));
        } else {
            let outcome = revoker.request_revocation(&path);
            self.world.note(format!("has asked for {}: {outcome:?}", short(&path)));
        }
    }
}

/// The closure of a candidate.
fn lead(world: &Weak<World>, leadership: &Leadership) -> Result<(), Box<dyn Error + Send + Sync>> {
    let Some(world) = world.upgrade() else { return Ok(()) };
    world.note(format!("leads with {}", short(leadership.id())));
    world.state().acquisitions += 1;
    if !leadership.is_owner() && leadership.loss().is_none() {
        world.fail("a candidate's closure runs before it leads");
    }
    let _holding = Holding::of(&world, [leadership.request()]);
    application::run(&world, application::LEADER);
    let (terms, ends) = {
        let mut state = world.state();
        (state.random.of(&[1, 3, 10]), state.random.below(8))
    };
    for _ in 0..terms {
        let begun = world.now();
        let length = Duration::from_millis(world.state().random.of(&[1, 300, 1000]));
        let goes_on = leadership.wait(length);
        if goes_on && world.now() < begun.after(length) {
            world.fail("a leader that may go on did not wait for its time");
        }
        if goes_on == leadership.should_stop() {
            world.fail("a leader was misinformed about whether to stop");
        }
        if !goes_on {
            break;
        }
    }
    match ends {
        0 => {
            saw("leader-fails");
            Err("the leader fails on purpose".into())
        }
        1 => {
            saw("leader-panics");
            application::panic_on_purpose()
        }
        _ => Ok(()),
    }
}
