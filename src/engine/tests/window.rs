//! Tests of the bound on the calls that are under way at once.

use std::collections::VecDeque;

use super::*;
use crate::client::{Ask, KEEP_ALIVE_PATH};
use crate::engine::SessionEnd;
use crate::time::Priority;

/// Returns an engine in contact, whose session is proven to live, with a window of this many calls.
fn engine_with_window(window: usize) -> Engine {
    let mut engine = connected_engine();
    engine.commons.calls.window = Window::new(window);
    engine
}

fn ask(engine: &mut Engine, call: Call) -> ParticipantId {
    let id = engine.new_id();
    engine.input(NOW, |engine| engine.ask(id, call));
    id
}

fn exists(path: &str) -> Call {
    Call::exists(path, false).call
}

fn paths(calls: &[(CallId, Call)]) -> Vec<&str> {
    calls.iter().filter_map(|(_, call)| call.path()).collect()
}

fn answer(engine: &mut Engine, call: CallId) {
    engine.input(NOW, |engine| engine.handle_reply(call, Ok(Reply::Found(None))));
}

#[test]
fn calls_beyond_the_window_wait_in_their_order_for_the_replies_to_others() {
    let mut engine = engine_with_window(2);
    for path in ["/a", "/b", "/c", "/d"] {
        ask(&mut engine, exists(path));
    }
    let first = all_submitted(&mut engine);
    assert_eq!(paths(&first), ["/a", "/b"]);
    answer(&mut engine, first[1].0);
    assert_eq!(paths(&all_submitted(&mut engine)), ["/c"]);
    ask(&mut engine, exists("/e"));
    answer(&mut engine, first[0].0);
    assert_eq!(paths(&all_submitted(&mut engine)), ["/d"]);
}

#[test]
fn proofs_pass_a_full_window() {
    let (mut engine, _) = owner();
    engine.commons.calls.window = Window::new(1);
    ask(&mut engine, exists("/a"));
    ask(&mut engine, exists("/b"));
    all_submitted(&mut engine);
    let is_proof = |(_, call): &(CallId, Call)| call.path() == Some(KEEP_ALIVE_PATH);
    let mut advance = |_| {
        let now = engine.poll_deadline().unwrap();
        engine.input(now, Engine::handle_deadline);
        all_submitted(&mut engine)
    };
    assert!((0..10).map(&mut advance).any(|calls| calls.iter().any(is_proof)));
}

#[test]
fn deletions_pass_a_window_full_of_other_calls_and_are_bounded_by_a_second_one() {
    let mut engine = engine_with_window(2);
    for path in ["/a", "/b", "/c"] {
        ask(&mut engine, exists(path));
    }
    let others = all_submitted(&mut engine);
    for number in 0..3 {
        let znode = path(&format!("/lock/x-a-lock-000000000{number}"));
        let _ = engine.input(NOW, |engine| engine.remove(znode));
    }
    let deletions = all_submitted(&mut engine);
    assert_eq!(paths(&deletions), ["/lock/x-a-lock-0000000000", "/lock/x-a-lock-0000000001"]);
    answer(&mut engine, others[0].0);
    assert_eq!(paths(&all_submitted(&mut engine)), ["/lock/x-a-lock-0000000002"], "before the read of /c");
    answer(&mut engine, others[1].0);
    engine.input(NOW, |engine| engine.handle_reply(deletions[0].0, Ok(Reply::Done)));
    engine.input(NOW, |engine| engine.handle_reply(deletions[1].0, Ok(Reply::Done)));
    assert_eq!(paths(&all_submitted(&mut engine)), ["/c"]);
}

#[test]
fn request_that_ends_before_its_create_was_sent_sends_nothing() {
    let mut engine = engine_with_window(1);
    ask(&mut engine, exists("/a"));
    let (other, _) = submitted(&mut engine);
    let id = engine.new_id();
    let access = Access::Exclusive(NamingScheme::Recipe);
    engine.input(NOW, |engine| engine.start(id, spec(access), NOW));
    assert_eq!(engine.place(id), Some(Place::Unknown));
    assert_eq!(engine.input(NOW, |engine| engine.withdraw(id)), None, "nothing is to be deleted");
    answer(&mut engine, other);
    assert_eq!(all_submitted(&mut engine), []);
    assert_eq!(engine.commons.calls.window, Window::new(1), "nothing is kept for it");
    assert_eq!(engine.census().0, 0);
}

#[test]
fn write_that_has_waited_proves_the_session_from_its_sending_on() {
    let mut engine = engine_with_window(1);
    ask(&mut engine, exists("/a"));
    ask(&mut engine, Call::set_data("/b", [], None).call);
    let (first, _) = submitted(&mut engine);
    let before = engine.lease().end();
    let later = NOW.after(Duration::from_secs(60));
    engine.input(later, |engine| engine.handle_reply(first, Ok(Reply::Found(None))));
    let (write, _) = submitted(&mut engine);
    let stat = Ok(Reply::Stat(Stat::default()));
    engine.input(later.after(Duration::from_secs(1)), |engine| engine.handle_reply(write, stat));
    assert_eq!(engine.lease().end(), before.after(Duration::from_secs(60)));
}

#[test]
fn calls_that_wait_end_with_the_session() {
    let mut engine = connected_engine();
    engine.commons.calls.window = Window::new(1);
    ask(&mut engine, exists("/a"));
    let waiting = ask(&mut engine, exists("/b"));
    let id = engine.new_id();
    let access = Access::Exclusive(NamingScheme::Recipe);
    engine.input(NOW, |engine| engine.start(id, spec(access), NOW));
    submitted(&mut engine);
    engine.input(NOW, |engine| engine.end(SessionEnd::Closed));
    engine.input(NOW, Engine::complete_end);
    let effects: Vec<Effect> = std::iter::from_fn(|| engine.poll_effect()).collect();
    let answered = Effect::Answered(waiting, Err(ZkError::SessionExpired));
    assert!(effects.contains(&answered), "{effects:?}");
    let leaves = |effect: &Effect| matches!(effect, Effect::LeftBehind(..) | Effect::Submit(..));
    assert!(!effects.iter().any(leaves), "no create was sent: {effects:?}");
}

#[test]
fn long_calls_fill_a_window_by_their_bytes() {
    let mut engine = engine_with_window(512);
    let long = || Call::set_data("/a", vec![0; 200 * 1024], None).call;
    for _ in 0..4 {
        ask(&mut engine, long());
    }
    let sent = all_submitted(&mut engine);
    assert_eq!(sent.len(), 2, "a call may be sent while any room is left");
    engine.input(NOW, |engine| engine.handle_reply(sent[0].0, Ok(Reply::Stat(Stat::default()))));
    assert_eq!(all_submitted(&mut engine).len(), 1);
}

#[test]
fn proofs_do_not_count() {
    let mut window = Window::new(1);
    let Ask { call, .. } = Call::exists(KEEP_ALIVE_PATH, false);
    window.enter(&call, Priority::Session);
    assert!(window.has_room(Priority::Other));
    window.enter(&call, Priority::Other);
    assert!(!window.has_room(Priority::Other) && window.has_room(Priority::Owner));
    window.leave(&call, Priority::Other);
    assert_eq!(window, Window::new(1));
}

/// A connection on which calls are answered in order, a fixed number of them in each step.
struct Link {
    under_way: VecDeque<(CallId, Call)>,
    answers: usize,
}

impl Link {
    fn transmit(&mut self, engine: &mut Engine, now: Moment) {
        self.under_way.extend(all_submitted(engine));
        for _ in 0..self.answers {
            let Some((id, call)) = self.under_way.pop_front() else { return };
            let reply = match call {
                Call::CreateAndList { dir, prefix, .. } => {
                    let name = format!("{prefix}{:010}", id.0);
                    let children = ["x-0-lock-0000000000", &name];
                    let children = Ok(Names::from_iter(children));
                    Ok(Reply::Enqueued(Enqueued::new(format!("{dir}/{name}"), children)))
                }
                Call::GetData { .. } => data(),
                Call::Delete { .. } => Ok(Reply::Done),
                _ => Err(ZkError::NoNode),
            };
            engine.input(now, |engine| engine.handle_reply(id, reply));
            self.under_way.extend(all_submitted(engine));
        }
    }
}

/// The application begins more requests than the server answers, and gives up each one at once. Another lock
/// of the session does not suffer, and nothing piles up.
#[test]
fn an_owner_in_contact_keeps_its_lock_whatever_else_its_session_starts() {
    const STEP: Duration = Duration::from_millis(2);
    const ALONE: &str = "x-a-lock-0000000000";
    let begun = NOW;
    let mut engine = served_since(begun);
    serve(&mut engine, &[]);
    let (held, create) = start(&mut engine);
    joined(&mut engine, create, ALONE, &[ALONE]);
    serve(&mut engine, &[ALONE]);
    assert_eq!(engine.place(held), Some(Place::Owner));
    let other = Arc::new(RequestSpec {
        dir: path("/other"),
        ..(*spec(Access::Exclusive(NamingScheme::Recipe))).clone()
    });
    let mut link = Link { under_way: VecDeque::new(), answers: 4 };
    let (mut now, mut least, mut longest) = (begun, TIMEOUT, 0);
    while now < begun.after(2 * TIMEOUT) {
        for _ in 0..16 {
            let id = engine.new_id();
            engine.input(now, |engine| engine.start(id, Arc::clone(&other), now));
            engine.input(now, |engine| engine.withdraw(id));
        }
        link.transmit(&mut engine, now);
        assert_eq!(engine.place(held), Some(Place::Owner), "after {:?}", now.since(begun));
        if now > begun.after(TIMEOUT) {
            least = least.min(engine.lease().end().since(now));
        }
        longest = longest.max(link.under_way.len());
        now = now.after(STEP);
        engine.input(now, Engine::handle_deadline);
    }
    assert!(least > TIMEOUT / 4, "{least:?}");
    assert!(longest <= 3 * 512, "{longest} calls");
}
