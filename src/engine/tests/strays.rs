//! Tests of lost creates, and of the strays that they leave.

use super::*;
use crate::engine::SessionEnd;
use crate::error::LossReason;

/// Starts a request whose create is answered with a lost connection. Returns the call that searches for its znode.
fn lost_create(engine: &mut Engine) -> (ParticipantId, CallId) {
    let (id, create) = start(engine);
    (id, lose_reply(engine, create))
}

/// Answers a create with a lost connection. Returns the call that searches for its znode.
fn lose_reply(engine: &mut Engine, create: CallId) -> CallId {
    engine.input(NOW, |engine| engine.handle_reply(create, Err(ZkError::ConnectionLoss)));
    // The third attempt and all later ones are delayed.
    engine.input(NOW.after(Duration::from_millis(1)), |_| ());
    let (write, _) = submitted(engine);
    engine.input(NOW, |engine| engine.handle_reply(write, Err(ZkError::NoNode)));
    submitted(engine).0
}

fn answer_listing(engine: &mut Engine, list: CallId, children: &[&str]) {
    let listed = Reply::Children(children.iter().copied().collect());
    engine.input(NOW, |engine| engine.handle_reply(list, Ok(listed)));
}

fn created_prefix(call: &Call) -> &str {
    let Call::CreateAndList { prefix, .. } = call else { panic!("{call:?}") };
    prefix
}

#[test]
fn request_whose_znode_was_deleted_since_it_was_found_again_does_not_own() {
    let mut engine = connected_engine();
    let (id, search) = lost_create(&mut engine);
    let name = named(id, 0);
    answer_listing(&mut engine, search, &[&name]);
    let (look, call) = submitted(&mut engine);
    assert!(matches!(call, Call::Exists { .. }), "{call:?}");
    engine.input(NOW, |engine| engine.handle_reply(look, Ok(Reply::Found(None))));
    let znode = path(&format!("/lock/{name}"));
    let how = Ending::Dropped(LossReason::NodeDeleted, None);
    let expected = [
        RequestEvent::Joined { znode, token: None },
        RequestEvent::Ended { place: Place::Unknown, how, time: Duration::ZERO },
    ];
    assert_eq!(reports(&mut engine), expected);
    assert_eq!(engine.place(id), None);
}

/// The directory is deleted and created again. Then a late create of the request gets the number of the znode that the
/// request has made since, behind a stranger. With the same name, it would pass for that znode.
#[test]
fn late_create_of_a_request_never_has_the_path_of_a_later_one() {
    let (ahead, stranger) = ("x-b-lock-0000000004", "x-stranger-lock-0000000000");
    for is_owner in [true, false] {
        let mut engine = connected_engine();
        let (id, search) = lost_create(&mut engine);
        answer_listing(&mut engine, search, &[]);
        let (create, call) = submitted(&mut engine);
        let (late, own) = (named(id, 5), format!("{}0000000005", created_prefix(&call)));
        let queue = if is_owner { vec![&*own] } else { vec![ahead, &own] };
        joined(&mut engine, create, &own, &queue);
        serve(&mut engine, &queue);
        assert_eq!(engine.place(id), Some(if is_owner { Place::Owner } else { Place::Queued }));
        let deletion = ClientEvent::NodeChanged { path: format!("/lock/{ahead}"), is_deleted: true };
        engine.input(NOW, |engine| engine.handle_event(NOW, deletion));
        engine.input(NOW, Engine::look_routinely);
        let mut all = Vec::new();
        for _ in 0..5 {
            let calls = all_submitted(&mut engine);
            for (call, asked) in &calls {
                let reply = match asked {
                    Call::GetData { path, .. } if **path == *format!("/lock/{late}") => data(),
                    Call::GetChildren { .. } => Ok(Reply::Children(Names::from_iter([stranger, &*late]))),
                    Call::Delete { .. } => continue,
                    _ => Err(ZkError::NoNode),
                };
                engine.input(NOW, |engine| engine.handle_reply(*call, reply));
            }
            all.extend(calls);
        }
        assert_eq!(engine.place(id), None, "its znode is gone");
        assert!(deleted(&all).contains(&&*format!("/lock/{late}")), "it belongs to nobody: {all:?}");
    }
}

#[test]
fn request_that_searches_for_its_second_znode_does_not_take_the_first_for_it() {
    let mut engine = connected_engine();
    let (id, search) = lost_create(&mut engine);
    answer_listing(&mut engine, search, &[]);
    let (second, call) = submitted(&mut engine);
    let (first, own) = (named(id, 0), format!("{}0000000001", created_prefix(&call)));
    let search = lose_reply(&mut engine, second);
    answer_listing(&mut engine, search, &[&first, &own]);
    let calls = all_submitted(&mut engine);
    assert_eq!(deleted(&calls), [format!("/lock/{first}")]);
    let looks = calls.iter().filter(|(_, call)| matches!(call, Call::Exists { .. }));
    let looks: Vec<_> = looks.filter_map(|(_, call)| call.path()).collect();
    assert_eq!(looks, [format!("/lock/{own}")]);
}

#[test]
fn a_listing_shows_the_strays_of_the_session_and_of_nobody_else() {
    let other = SessionTag::new(Uuid::from_u128(1 << 96));
    let mut engine = connected_engine();
    let gone = engine.new_id();
    let pinned = engine.new_id();
    engine.pin(pinned);
    let ((own, create), (joining, _)) = (start(&mut engine), start(&mut engine));
    let stranger = format!("x-{}-lock-0000000001", other.guid(gone.0, 0));
    let (stray, second) = (named(gone, 2), named(own, 3));
    let names = [&stranger, &stray, &second, &named(pinned, 4), &named(joining, 5), &named(own, 6)];
    let children: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    joined(&mut engine, create, children[5], &children);
    let calls = all_submitted(&mut engine);
    assert_eq!(deleted(&calls), [format!("/lock/{stray}"), format!("/lock/{second}")]);
    // While the strays are being deleted, another listing changes nothing.
    let read = Access::Read(NamingScheme::Recipe);
    let (reader, create) = start_as(&mut engine, read);
    let its_znode = format!("{}0000000007", read.prefix(tag().guid(reader.0, 0)));
    joined(&mut engine, create, &its_znode, &[children, vec![&its_znode]].concat());
    let ahead = engine.watched_by(reader);
    assert_eq!(ahead, Some(path(&format!("/lock/{}", named(own, 6)))), "it has read the listing");
    assert_eq!(deleted(&all_submitted(&mut engine)), [""; 0]);
}

/// Answers all calls, and those that follow, as a server that lists these children no matter what is deleted.
/// Returns the names of the znodes that the engine tried to delete.
fn deleted_in_vain(engine: &mut Engine, children: &[&str]) -> Vec<String> {
    let mut names = Vec::new();
    for _ in 0..20 {
        let calls = all_submitted(engine);
        names.extend(deleted(&calls).into_iter().map(|path| path.replace("/lock/", "")));
        for (id, call) in calls {
            let reply = match call {
                Call::GetData { .. } => data(),
                Call::GetChildren { .. } => Ok(Reply::Children(Names::from_iter(children.iter().copied()))),
                _ => Err(ZkError::NoNode),
            };
            engine.input(NOW, |engine| engine.handle_reply(id, reply));
        }
    }
    names
}

/// A server that has diverged from the others behaves like this.
#[test]
fn stray_that_is_listed_after_its_deletion_is_passed_over_until_a_listing_is_without_it_or_on_another_connection()
 {
    let mut engine = connected_engine();
    let gone = engine.new_id();
    let (own, create) = start(&mut engine);
    let (first, second, name) = (named(gone, 1), named(gone, 2), named(own, 3));
    let with_both = [&*first, &*second, &*name];
    joined(&mut engine, create, &name, &with_both);
    let mut listing = Ok(Reply::Children(Names::from_iter(with_both)));
    engine.pass_over_phantoms(&path("/lock"), &mut listing);
    assert_eq!(listing, Ok(Reply::Children(Names::from_iter(with_both))), "their deletion may be refused");
    assert_eq!(deleted_in_vain(&mut engine, &with_both), [&*first, &*second]);
    assert_eq!(engine.place(own), Some(Place::Owner), "phantoms ahead do not count");
    let mut look = |children: &[&str]| {
        engine.input(NOW, Engine::look_routinely);
        deleted_in_vain(&mut engine, children)
    };
    assert_eq!(look(&with_both), [""; 0]);
    assert_eq!(look(&[&first, &name]), [""; 0]);
    assert_eq!(look(&with_both), [&*second], "the last listing was without it");
    let granted = Granted::new(Duration::from_secs(3600)).with_report_delay(Duration::ZERO);
    for event in [ClientEvent::Disconnected, ClientEvent::Connected(granted)] {
        engine.input(NOW, |engine| engine.handle_event(NOW, event));
    }
    assert_eq!(deleted_in_vain(&mut engine, &with_both), [""; 0], "an owner only reads its znode");
    engine.input(NOW, Engine::look_routinely);
    assert_eq!(deleted_in_vain(&mut engine, &with_both), [&*first, &*second], "the new server may be right");
}

#[test]
fn stray_that_is_listed_again_after_its_deletion_is_deleted_again() {
    let mut engine = connected_engine();
    let gone = engine.new_id();
    let (own, create) = start(&mut engine);
    let (stray, name) = (named(gone, 1), named(own, 2));
    joined(&mut engine, create, &name, &[&stray, &name]);
    for _ in 0..2 {
        let mut names = Vec::new();
        for _ in 0..20 {
            let calls = all_submitted(&mut engine);
            names.extend(deleted(&calls).into_iter().map(str::to_owned));
            for (id, call) in calls {
                let reply = match call {
                    Call::GetData { .. } => data(),
                    Call::GetChildren { .. } => Ok(Reply::Children(Names::from_iter([&*stray, &*name]))),
                    Call::Delete { .. } => Ok(Reply::Done),
                    _ => Err(ZkError::NoNode),
                };
                engine.input(NOW, |engine| engine.handle_reply(id, reply));
            }
        }
        assert_eq!(names, [format!("/lock/{stray}")]);
        engine.input(NOW, Engine::look_routinely);
    }
}

#[test]
fn every_listing_of_a_lock_is_searched_for_strays() {
    let permit = Access::Permit(NonZeroU32::MIN);
    let exclusive = Access::Exclusive(NamingScheme::Recipe);
    let children = ["x-0-lock-0000000000", "x-b-lock-0000000001", "x-a-lock-0000000002"];
    let permits = ["_c_0-lease-0000000000", "_c_a-lease-0000000001"];
    type Ask = fn(&mut Engine);
    let departure: Ask = |engine| {
        let path = "/lock/x-b-lock-0000000001".to_owned();
        engine.handle_event(NOW, ClientEvent::NodeChanged { path, is_deleted: true });
    };
    let routine: Ask = Engine::look_routinely;
    let cases = [
        // The shared listing of the waiters, the listing for permits, and an owner's search for peers.
        (exclusive, &children[..], departure),
        (permit, &permits[..], routine),
        (exclusive, &children[2..], routine),
    ];
    for (access, children, ask) in cases {
        let mut engine = connected_engine();
        let stray = named(engine.new_id(), 2);
        let (_, create) = start_as(&mut engine, access);
        joined(&mut engine, create, children[children.len() - 1], children);
        serve(&mut engine, children);
        engine.input(NOW, ask);
        let shown = [children, &[&stray]].concat();
        let mut calls = Vec::new();
        for _ in 0..4 {
            let sent = all_submitted(&mut engine);
            for (id, call) in &sent {
                let reply = match call {
                    Call::GetData { .. } => data(),
                    Call::GetChildren { .. } => Ok(Reply::Children(Names::from_iter(shown.iter().copied()))),
                    Call::Delete { .. } => continue,
                    _ => Err(ZkError::NoNode),
                };
                engine.input(NOW, |engine| engine.handle_reply(*id, reply));
            }
            calls.extend(sent);
        }
        assert_eq!(deleted(&calls), [format!("/lock/{stray}")], "{access:?} {calls:?}");
    }
}

#[test]
fn a_sweep_lists_again_and_again_until_a_lost_create_cannot_come_any_more() {
    let mut engine = connected_engine();
    engine.input(NOW, |engine| engine.note_failed_create(&path("/lock"), ZkError::ConnectionLoss));
    let (mut now, mut rounds) = (NOW, Vec::new());
    while let Some(due) = engine.poll_deadline().filter(|due| due.since(NOW) < Duration::from_secs(600)) {
        now = now.max(due);
        engine.input(now, |_| {});
        let calls = all_submitted(&mut engine);
        for (id, call) in calls {
            if call.path() == Some(crate::client::KEEP_ALIVE_PATH) {
                engine.input(now, |engine| engine.handle_reply(id, Err(ZkError::NoNode)));
                let (list, _) = submitted(&mut engine);
                engine.input(now, |engine| engine.handle_reply(list, Ok(Reply::Children(Names::default()))));
                rounds.push(now.since(NOW).as_secs());
            }
        }
    }
    assert_eq!(rounds, [1, 2, 4, 8, 16, 31, 46, 61, 76, 91, 106, 121]);
    assert!(engine.commons.sweeps.is_empty(), "nothing is left");
}

/// Whoever waits until nothing is left of a request waits for its sweep, too.
#[test]
fn a_sweep_counts_as_a_participant_until_its_first_round_is_over() {
    let mut engine = connected_engine();
    engine.input(NOW, |engine| engine.commons.sweep(&path("/lock")));
    assert_eq!(engine.census().0, 1);
    let (write, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(write, Err(ZkError::NoNode)));
    let (list, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(list, Ok(Reply::Children(Names::default()))));
    assert_eq!(engine.census().0, 0);
}

/// Lets time pass until a sweep begins its next round. Returns the write with which the round begins.
fn next_round(engine: &mut Engine, now: &mut Moment) -> CallId {
    let due = engine.poll_deadline().filter(|due| due.since(*now) < Duration::from_secs(60));
    *now = due.expect("a sweep that is put off has a deadline").max(*now);
    engine.input(*now, |_| {});
    let calls = all_submitted(engine);
    let is_write = |call: &Call| call.path() == Some(crate::client::KEEP_ALIVE_PATH);
    calls.iter().find(|(_, call)| is_write(call)).unwrap_or_else(|| panic!("{calls:?}")).0
}

#[test]
fn a_sweep_whose_reply_is_lost_without_a_disconnect_begins_again() {
    let mut engine = connected_engine();
    engine.input(NOW, |engine| engine.note_failed_create(&path("/lock"), ZkError::ConnectionLoss));
    let mut now = NOW;
    for _ in 0..3 {
        let write = next_round(&mut engine, &mut now);
        engine.input(now, |engine| engine.handle_reply(write, Err(ZkError::ConnectionLoss)));
    }
}

#[test]
fn a_sweep_that_fails_is_reported_once_for_each_error() {
    let mut engine = connected_engine();
    engine.input(NOW, |engine| engine.note_failed_create(&path("/lock"), ZkError::ConnectionLoss));
    let (mut now, mut reported) = (NOW, Vec::new());
    for error in [ZkError::NoAuth, ZkError::NoAuth, ZkError::Throttled, ZkError::Throttled, ZkError::NoAuth] {
        let write = next_round(&mut engine, &mut now);
        engine.input(now, |engine| engine.handle_reply(write, Err(ZkError::NoNode)));
        let (list, _) = submitted(&mut engine);
        engine.input(now, |engine| engine.handle_reply(list, Err(error)));
        reported.extend(std::iter::from_fn(|| engine.poll_effect()).filter_map(|effect| match effect {
            Effect::Happened(Event::CannotSweep { error, .. }) => Some(error),
            _ => None,
        }));
    }
    assert_eq!(reported, [ZkError::NoAuth, ZkError::Throttled, ZkError::NoAuth]);
}

/// The sweep that a session leaves to the next one.
fn strays_of_this_session() -> Target {
    Target::Strays { dir: path("/lock"), tags: BTreeSet::from([tag()]) }
}

/// Takes all effects, and returns the calls among them, and what is left to the next session.
fn submitted_and_left(engine: &mut Engine) -> (Vec<(CallId, Call)>, Vec<Target>) {
    let (mut calls, mut left) = (Vec::new(), Vec::new());
    while let Some(effect) = engine.poll_effect() {
        match effect {
            Effect::Submit(id, call, _) => calls.push((id, call)),
            Effect::LeftBehind(_, target) => left.push(target),
            _ => {}
        }
    }
    (calls, left)
}

#[test]
fn a_listing_is_the_last_only_if_its_round_began_when_no_lost_create_could_come_any_more() {
    let mut engine = connected_engine();
    engine.input(NOW, |engine| engine.note_failed_create(&path("/lock"), ZkError::ConnectionLoss));
    let mut round = |begins: u64, is_answered: u64, is_last: bool| {
        let [begins, is_answered] =
            [begins, is_answered].map(|seconds| NOW.after(Duration::from_secs(seconds)));
        engine.input(begins, |_| {});
        let (write, _) = submitted(&mut engine);
        engine.input(is_answered, |engine| engine.handle_reply(write, Err(ZkError::NoNode)));
        let (list, _) = submitted(&mut engine);
        engine.input(is_answered, |engine| engine.handle_reply(list, Ok(Reply::Children(Names::default()))));
        assert_eq!(engine.commons.sweeps.is_empty(), is_last, "{begins:?}");
    };
    round(1, 121, false);
    round(123, 123, true);
}

#[test]
fn requests_whose_creates_were_lost_share_the_search() {
    const MANY: usize = 1000;
    let mut engine = connected_engine();
    engine.commons.calls.window = Window::new(MANY);
    let creates: Vec<(ParticipantId, CallId)> = (0..MANY).map(|_| start(&mut engine)).collect();
    for (_, create) in &creates {
        engine.input(NOW, |engine| engine.handle_reply(*create, Err(ZkError::ConnectionLoss)));
    }
    // The first request has begun a round that it shares with no other request.
    let mut lists = 0;
    let names: Vec<String> = creates.iter().zip(0..).map(|((id, _), number)| named(*id, number)).collect();
    loop {
        let calls = all_submitted(&mut engine);
        if calls.is_empty() {
            break;
        }
        for (id, call) in calls {
            let reply = match call {
                Call::GetChildren { .. } => {
                    lists += 1;
                    Ok(Reply::Children(names.iter().collect()))
                }
                Call::Exists { .. } => Ok(Reply::Found(Some(stat()))),
                Call::GetData { .. } => data(),
                Call::Delete { path, .. } => panic!("{path} is deleted"),
                _ => Err(ZkError::NoNode),
            };
            engine.input(NOW, |engine| engine.handle_reply(id, reply));
        }
    }
    assert_eq!(lists, 5, "two searches, and three to learn the places");
    let places = creates.iter().map(|(id, _)| engine.place(*id));
    let owners = places.filter(|place| *place == Some(Place::Owner)).count();
    assert_eq!((engine.contenders.len(), owners), (MANY, 1));
}

#[test]
fn a_session_that_has_ended_leaves_its_sweeps_to_the_next() {
    let mut engine = connected_engine();
    engine.input(NOW, |engine| engine.note_failed_create(&path("/lock"), ZkError::ConnectionLoss));
    engine.input(NOW, |engine| engine.end(SessionEnd::Expired));
    engine.input(NOW, Engine::complete_end);
    let (_, left) = submitted_and_left(&mut engine);
    assert_eq!(left, [strays_of_this_session()]);
    engine.input(NOW, |engine| left.into_iter().for_each(|left| engine.delete_left_behind(left)));
    let (_, left) = submitted_and_left(&mut engine);
    assert_eq!(left, [strays_of_this_session()], "a sweep that comes late is passed on as it is");

    let granted = Granted::new(Duration::from_secs(3600)).with_report_delay(Duration::ZERO);
    let mut next = unproven_engine(granted);
    next.commons.settings.tag = SessionTag::new(Uuid::from_u128(2 << 96));
    all_submitted(&mut next);
    next.input(NOW, |engine| left.into_iter().for_each(|left| engine.delete_left_behind(left)));
    let (write, _) = submitted(&mut next);
    next.input(NOW, |engine| engine.handle_reply(write, Err(ZkError::NoNode)));
    let (list, _) = submitted(&mut next);
    let stray = named(ParticipantId(7), 0);
    next.input(NOW, |engine| engine.handle_reply(list, Ok(Reply::Children(Names::from_iter([&stray])))));
    assert_eq!(deleted(&all_submitted(&mut next)), [format!("/lock/{stray}")]);
}

// ---- deletions of znodes that the leader does not have

/// Withdraws an owner whose znode the leader does not have. The server shows znodes with these czxids, one in each look.
/// During the look with the number `moved`, the session connects to a server. Returns the numbers of deletions and of
/// reports that the server has diverged.
fn withdrawn_in_vain(shown: &[i64], moved: Option<usize>) -> (usize, usize) {
    let (mut engine, id) = owner();
    engine.input(NOW, |engine| engine.withdraw(id)).unwrap();
    let (mut deletions, mut looks, mut reports) = (0, 0, 0);
    for _ in 0..20 {
        let effects: Vec<Effect> = std::iter::from_fn(|| engine.poll_effect()).collect();
        for effect in effects {
            let (call, reply) = match effect {
                Effect::Submit(call, Call::Delete { .. }, _) => {
                    deletions += 1;
                    (call, Err(ZkError::NoNode))
                }
                Effect::Submit(call, Call::Exists { .. }, _) => {
                    let found = shown.get(looks).map(|czxid| Stat { czxid: *czxid, ..Stat::default() });
                    if moved == Some(looks) {
                        let granted = Granted::new(TIMEOUT).with_report_delay(Duration::ZERO);
                        let connected = ClientEvent::Connected(granted);
                        engine.input(NOW, |engine| engine.handle_event(NOW, connected));
                    }
                    looks += 1;
                    (call, Ok(Reply::Found(found)))
                }
                Effect::Diverged(path) => {
                    assert_eq!(path.name(), "x-a-lock-0000000000");
                    reports += 1;
                    continue;
                }
                _ => continue,
            };
            engine.input(NOW, |engine| engine.handle_reply(call, reply));
        }
    }
    assert_eq!(engine.census().0, 0, "the leader's answer counts");
    (deletions, reports)
}

#[test]
fn server_has_diverged_if_it_shows_a_znode_before_and_after_the_leader_says_that_there_is_none() {
    assert_eq!(withdrawn_in_vain(&[], None), (1, 0));
    assert_eq!(withdrawn_in_vain(&[5], None), (2, 0), "a late create, which another client has undone");
    assert_eq!(withdrawn_in_vain(&[5, 5], None), (2, 1));
    assert_eq!(withdrawn_in_vain(&[5, 6, 6], None), (3, 1), "6 was created after the first answer");
    // The second server may lag behind.
    assert_eq!(withdrawn_in_vain(&[5, 5], Some(1)), (3, 0));
    assert_eq!(withdrawn_in_vain(&[5, 5, 5], Some(1)), (3, 1));
}
