//! Tests of the engine's parts, and of the engine itself, input by input.

mod budget;
mod explore;
mod strays;
mod window;

use std::num::NonZeroU32;
use std::sync::Arc;

use uuid::Uuid;

use super::alarms::Alarms;
use super::listings::Listings;
use super::own::OwnQueues;
use super::watchers::Watchers;
use super::window::Window;
use super::*;
use crate::client::Names;
use crate::client::{Call, ClientEvent, CreateMode, Enqueued, Granted, Reply, Stat};
use crate::engine::SessionEnd;
use crate::error::{ZkError, ZkResult};
use crate::recipe::access::Access;
use crate::recipe::naming_scheme::NamingScheme;
use crate::recipe::session_tag::SessionTag;
use crate::retry::RetryPolicy;

fn path(text: &str) -> ZNodePath {
    ZNodePath::parse(text).unwrap()
}

fn tag() -> SessionTag {
    SessionTag::new(Uuid::from_u128(0x0b2e_47a1 << 96))
}

const A: ParticipantId = ParticipantId(1);
const B: ParticipantId = ParticipantId(2);
const C: ParticipantId = ParticipantId(3);
const D: ParticipantId = ParticipantId(4);

#[test]
fn those_who_watch_a_path_are_woken_once_in_the_order_in_which_they_came() {
    let mut watchers = Watchers::default();
    let znode = path("/lock/x-0000000001");
    [B, A, B, C].into_iter().for_each(|id| watchers.add(&znode, id));
    watchers.remove(&znode, C);
    assert_eq!(watchers.take(&znode), [B, A]);
    assert_eq!(watchers.take(&znode), []);
    assert_eq!(watchers, Watchers::default());
}

#[test]
fn the_nearest_request_of_a_session_is_known_until_it_leaves() {
    let mut own = OwnQueues::default();
    let [first, second, third] = [1, 2, 3].map(|number| path(&format!("/lock/x-000000000{number}")));
    [&first, &second, &third].into_iter().for_each(|znode| own.add(znode));
    assert!(own.is_last_in_queue(&path("/lock")));
    assert_eq!(own.before(&third), Some(second.clone()));
    own.note_leaving(&second);
    assert_eq!(own.before(&third), None, "the deletion of the second znode may fail");
    assert!(own.is_leaving(&second) && !own.is_in_queue(&second));
    own.note_owner(&first);
    assert!(!own.remove(&second));
    assert!(own.is_in_queue(&first) && own.has_owned(&first));
    assert!(own.remove(&first), "its request has owned the lock");
    own.note_leaving(&third);
    assert!(!own.is_last_in_queue(&path("/lock")));
}

#[test]
fn requests_that_come_while_the_first_one_joins_will_follow_it() {
    let mut own = OwnQueues::default();
    let [dir, other] = ["/lock", "/other"].map(path);
    own.begin_joining(&dir, A);
    assert!(own.will_follow(&dir) && !own.will_follow(&other));
    own.end_joining(&dir, B);
    assert!(own.will_follow(&dir), "another request has ended");
    own.end_joining(&dir, A);
    assert_eq!(own, OwnQueues::default(), "nothing is left");
}

#[test]
fn refusal_of_a_deletion_is_news_once() {
    let mut own = OwnQueues::default();
    let znode = path("/lock/x-0000000001");
    own.add(&znode);
    own.note_leaving(&znode);
    assert!(own.refuse(&znode));
    assert!(!own.is_leaving(&znode), "it needs a watch");
    assert!(!own.refuse(&znode));
}

#[test]
fn numbers_of_a_directory_that_was_created_anew_do_not_hide_the_old_ones() {
    let mut own = OwnQueues::default();
    let [old, new] = ["a", "b"].map(|guid| path(&format!("/lock/x-{guid}-lock-0000000000")));
    own.add(&old);
    own.note_leaving(&old);
    own.add(&new);
    assert!(own.is_in_queue(&new));
    assert!(!own.remove(&old) && own.is_last_in_queue(&path("/lock")));
}

#[test]
fn numbers_without_an_order_are_left_to_watches() {
    let mut own = OwnQueues::default();
    let last = path("/lock/x-2147483647");
    own.add(&last);
    assert!(!own.is_in_queue(&last) && !own.is_last_in_queue(&path("/lock")));
}

#[test]
fn one_listing_at_a_time_serves_all_who_had_asked_when_it_was_sent() {
    let mut listings = Listings::default();
    let dir = path("/lock");
    listings.share_next(&dir, A);
    assert_eq!(listings.ask(&dir, B), [A, B]);
    assert_eq!(listings.ask(&dir, C), [], "the listing under way may be outdated for C");
    listings.share_next(&dir, D);
    assert_eq!(listings.on_ended(&dir), [C, D]);
    assert_eq!(listings.ask(&dir, A), []);
    listings.forget(&dir, A);
    assert_eq!(listings.on_ended(&dir), [], "nobody needs another listing");
    assert_eq!(listings.ask(&dir, A), [A]);
    assert_eq!(listings.on_ended(&dir), []);
    listings.share_next(&dir, B);
    assert_eq!(listings.readers(&dir), 1);
    listings.forget(&dir, B);
    assert_eq!(listings, Listings::default(), "nothing is left");
}

#[test]
fn earlier_alarm_replaces_a_later_one_and_each_rings_once() {
    let moment = Moment::from_nanos;
    let mut alarms = Alarms::default();
    [(A, 5), (A, 6), (B, 4), (A, 4), (C, 9)].into_iter().for_each(|(id, at)| alarms.set(id, moment(at)));
    assert_eq!(alarms.next(), Some(moment(4)));
    assert_eq!(alarms.take_due(moment(3)), None);
    assert_eq!([alarms.take_due(moment(8)), alarms.take_due(moment(8))], [Some(A), Some(B)]);
    assert_eq!(alarms.take_due(moment(8)), None);
    alarms.clear(C);
    assert_eq!(alarms, Alarms::default(), "nothing is left");
}

#[test]
fn census_counts_requests_and_pins() {
    let mut engine = connected_engine();
    start(&mut engine);
    let pinned = engine.new_id();
    engine.pin(pinned);
    assert_eq!(engine.census().0, 2);
    engine.unpin(pinned);
    assert_eq!(engine.census().0, 1);
}

fn seconds(seconds: u64) -> Moment {
    Moment::from_nanos(0).after(Duration::from_secs(seconds))
}

const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the engine of a session that a server has served since this moment.
fn served_since(now: Moment) -> Engine {
    let settings = Settings {
        chroot: None,
        routine_pause: Duration::from_secs(3600),
        window: 512,
        jute_max_buffer: 1 << 20,
        opened_after: None,
        tag: tag(),
        seed: 1,
    };
    let granted = Granted::new(TIMEOUT).with_report_delay(Duration::ZERO);
    let lease = Lease::unproven(granted, now);
    let mut engine = Engine::new(now, settings, lease);
    engine.input(now, |engine| engine.handle_event(now, ClientEvent::Connected(granted)));
    engine
}

impl Engine {
    fn input<T>(&mut self, now: Moment, input: impl FnOnce(&mut Engine) -> T) -> T {
        self.begin(now);
        let result = input(self);
        self.settle();
        result
    }
}

#[test]
fn session_that_was_silent_for_too_long_is_given_up_by_the_clock_whatever_comes_first() {
    let mut engine = served_since(seconds(1));
    let late = seconds(1).after(TIMEOUT);
    engine.input(late, |engine| engine.handle_event(late, ClientEvent::Disconnected));
    assert_eq!(engine.end_reason(), None, "there may be answers that nobody has handled yet");
    assert!(engine.poll_deadline().is_some_and(|due| due <= late), "{:?}", engine.poll_deadline());
    engine.input(late, Engine::handle_deadline);
    assert_eq!(engine.end_reason(), Some(SessionEnd::Silent));
}

#[test]
fn session_that_is_only_taken_up_again_and_never_served_is_given_up() {
    let mut engine = served_since(seconds(1));
    let lost = seconds(2);
    engine.input(lost, |engine| engine.handle_event(lost, ClientEvent::Disconnected));
    let given_up = seconds(1).after(TIMEOUT);
    let mut now = lost;
    while now < given_up {
        let event = ClientEvent::TakenUp { session_timeout: TIMEOUT };
        engine.input(now, |engine| engine.handle_event(now, event));
        assert_eq!(engine.end_reason(), None);
        now = now.after(TIMEOUT / 16);
    }
    engine.input(given_up, Engine::handle_deadline);
    assert_eq!(engine.end_reason(), Some(SessionEnd::Silent));
}

const NOW: Moment = Moment::from_nanos(1_000_000_000_000);

/// Returns an engine in contact, for which one write is a proof.
fn connected_engine() -> Engine {
    let granted = Granted::new(Duration::from_secs(3600)).with_report_delay(Duration::ZERO);
    let mut engine = unproven_engine(granted);
    let (proof, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(proof, Err(ZkError::NoNode)));
    engine
}

/// Returns an engine in contact, which waits for the reply to its first call.
fn unproven_engine(granted: Granted) -> Engine {
    let settings = Settings {
        chroot: None,
        routine_pause: Duration::from_secs(3600),
        window: 512,
        jute_max_buffer: 1 << 20,
        opened_after: Some(NOW),
        tag: tag(),
        seed: 1,
    };
    let mut engine = Engine::new(NOW, settings, Lease::unproven(granted, NOW));
    engine.input(NOW, |engine| engine.handle_event(NOW, ClientEvent::Connected(granted)));
    engine
}

/// Returns an engine in contact, and its only request, which owns the lock.
fn owner() -> (Engine, ParticipantId) {
    const ALONE: &str = "x-a-lock-0000000000";
    let mut engine = connected_engine();
    let (id, create) = start(&mut engine);
    joined(&mut engine, create, ALONE, &[ALONE]);
    serve(&mut engine, &[ALONE]);
    assert_eq!(engine.place(id), Some(Place::Owner));
    (engine, id)
}

#[test]
fn owners_look_before_those_who_wait_after_a_reconnect() {
    const OTHER: &str = "x-0-lock-0000000000";
    let mut engine = connected_engine();
    let (waiter, create) = start(&mut engine);
    let waiting = [OTHER, "x-b-lock-0000000001"];
    joined(&mut engine, create, waiting[1], &waiting);
    serve(&mut engine, &waiting);
    // An owner in another directory.
    let owner = engine.new_id();
    let of_owner =
        RequestSpec { dir: path("/other"), ..(*spec(Access::Exclusive(NamingScheme::Recipe))).clone() };
    engine.input(NOW, |engine| engine.start(owner, Arc::new(of_owner), NOW));
    let (create, _) = submitted(&mut engine);
    let reply =
        Enqueued::new("/other/x-c-lock-0000000000".to_owned(), Ok(Names::from_iter(["x-c-lock-0000000000"])));
    engine.input(NOW, |engine| engine.handle_reply(create, Ok(Reply::Enqueued(reply))));
    serve(&mut engine, &[]);
    assert_eq!((engine.place(waiter).is_some(), engine.place(owner)), (true, Some(Place::Owner)));

    engine.input(NOW, |engine| engine.handle_event(NOW, ClientEvent::Disconnected));
    all_submitted(&mut engine);
    let granted = Granted::new(Duration::from_secs(3600)).with_report_delay(Duration::ZERO);
    engine.input(NOW, |engine| engine.handle_event(NOW, ClientEvent::Connected(granted)));
    let (proof, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(proof, Err(ZkError::NoNode)));
    let calls = all_submitted(&mut engine);
    assert_eq!(calls[0].1.path(), Some("/other/x-c-lock-0000000000"), "{calls:?}");
}

#[test]
fn a_waiter_reads_alone_because_of_a_reconnect() {
    const QUEUE: [&str; 3] = ["x-0-lock-0000000000", "x-1-lock-0000000001", "x-a-lock-0000000002"];
    let mut engine = served_since(NOW);
    let answer = |engine: &mut Engine, is_gone: fn(&str) -> bool| {
        let calls = all_submitted(engine);
        for (call, made) in &calls {
            let answer = if made.path().is_some_and(is_gone) { Err(ZkError::NoNode) } else { data() };
            engine.input(NOW, |engine| engine.handle_reply(*call, answer));
        }
        calls.into_iter().map(|(_, made)| made).collect::<Vec<_>>()
    };
    answer(&mut engine, |path| path == crate::client::KEEP_ALIVE_PATH);
    let (waiter, create) = start(&mut engine);
    joined(&mut engine, create, QUEUE[2], &QUEUE);
    answer(&mut engine, |_| false);
    assert_eq!(engine.place(waiter), Some(Place::Queued));

    engine.input(NOW, |engine| engine.handle_event(NOW, ClientEvent::Disconnected));
    let granted = Granted::new(TIMEOUT).with_report_delay(Duration::ZERO);
    engine.input(NOW, |engine| engine.handle_event(NOW, ClientEvent::Connected(granted)));
    let looks = answer(&mut engine, |path| path.ends_with(QUEUE[0]));
    assert!(matches!(looks.as_slice(), [Call::GetData { .. }, Call::GetData { .. }, Call::GetData { .. }]));
    let calls: Vec<Call> = all_submitted(&mut engine).into_iter().map(|(_, made)| made).collect();
    assert!(matches!(calls.as_slice(), [Call::GetChildren { .. }]), "{calls:?}");
}

/// A client that breaks its contract may connect to another server without having reported the disconnect.
#[test]
fn the_next_in_line_looks_at_its_znode_if_the_connection_has_changed_since_its_watch() {
    const QUEUE: [&str; 2] = ["x-0-lock-0000000000", "x-a-lock-0000000001"];
    let mut engine = served_since(NOW);
    let (proof, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(proof, Err(ZkError::NoNode)));
    let (waiter, create) = start(&mut engine);
    joined(&mut engine, create, QUEUE[1], &QUEUE);
    serve(&mut engine, &QUEUE);
    let granted = Granted::new(TIMEOUT).with_report_delay(Duration::ZERO);
    engine.input(NOW, |engine| engine.handle_event(NOW, ClientEvent::Connected(granted)));
    all_submitted(&mut engine);
    let gone = ClientEvent::NodeChanged { path: format!("/lock/{}", QUEUE[0]), is_deleted: true };
    engine.input(NOW, |engine| engine.handle_event(NOW, gone));
    assert_eq!(engine.place(waiter), Some(Place::Queued), "its znode may have gone between the connections");
    let (look, call) = submitted(&mut engine);
    assert!(call.path().is_some_and(|path| path.ends_with(QUEUE[1])), "{call:?}");
    engine.input(NOW, |engine| engine.handle_reply(look, data()));
    assert_eq!(engine.place(waiter), Some(Place::Owner));
}

#[test]
fn of_many_requests_that_begin_at_once_only_the_first_lists_the_queue() {
    let mut engine = connected_engine();
    let ids = [engine.new_id(), engine.new_id(), engine.new_id()];
    let exclusive = spec(Access::Exclusive(NamingScheme::Recipe));
    engine.input(NOW, |engine| ids.map(|id| engine.start(id, Arc::clone(&exclusive), NOW)));
    let calls = all_submitted(&mut engine);
    let lists: Vec<bool> = calls.iter().map(|(_, call)| call.listed_dir().is_some()).collect();
    assert_eq!(lists, [true, false, false]);
    let names: Vec<String> = ids.iter().zip(0..).map(|(id, number)| named(*id, number)).collect();
    joined(&mut engine, calls[0].0, &names[0], &[&names[0]]);
    for ((create, _), name) in calls.iter().zip(&names).skip(1) {
        let created = Reply::Created { path: format!("/lock/{name}"), stat: Some(stat()) };
        engine.input(NOW, |engine| engine.handle_reply(*create, Ok(created)));
    }
    let places = ids.map(|id| engine.place(id).unwrap());
    assert_eq!(places, [Place::Owner, Place::Queued, Place::Queued]);
    assert_eq!(all_submitted(&mut engine), [], "the others wait for requests of this session");
}

#[test]
fn request_behind_a_first_one_that_fails_lists_the_queue() {
    let exclusive = Access::Exclusive(NamingScheme::Recipe);
    let mut engine = connected_engine();
    let ((first, enqueue), (second, create)) = (start(&mut engine), start(&mut engine));
    engine.input(NOW, |engine| engine.handle_reply(enqueue, Err(ZkError::NoAuth)));
    assert_eq!(engine.place(first), None);
    let created = Reply::Created { path: format!("/lock/{}", named(second, 1)), stat: Some(stat()) };
    engine.input(NOW, |engine| engine.handle_reply(create, Ok(created)));
    let (list, call) = submitted(&mut engine);
    assert!(call.listed_dir().is_some(), "{call:?}");
    let children = Names::from_iter([&named(second, 1)]);
    engine.input(NOW, |engine| engine.handle_reply(list, Ok(Reply::Children(children))));
    assert_eq!(engine.place(second), Some(Place::Owner));
    let _ = engine.input(NOW, |engine| engine.withdraw(second));
    let (deletion, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(deletion, Ok(Reply::Done)));
    engine.input(NOW, |engine| engine.start(ParticipantId(1000), spec(exclusive), NOW));
    let (_, call) = submitted(&mut engine);
    assert!(call.listed_dir().is_some(), "the session has no request in the queue: {call:?}");
}

#[test]
fn deletion_that_a_close_leaves_behind_is_not_reported_as_done() {
    let (mut engine, id) = owner();
    let removal = engine.input(NOW, |engine| engine.withdraw(id)).unwrap();
    submitted(&mut engine);
    engine.input(NOW, |engine| engine.end(SessionEnd::Closed));
    engine.input(NOW, Engine::complete_end);
    let effects: Vec<Effect> = std::iter::from_fn(|| engine.poll_effect()).collect();
    let of_removal = effects.iter().find(|effect| {
        matches!(effect, Effect::RemovalAnswered(number, _) | Effect::LeftBehind(number, _) if *number == removal)
    });
    assert_eq!(
        of_removal,
        Some(&Effect::RemovalAnswered(removal, Err(ZkError::SessionExpired))),
        "{effects:?}"
    );
}

/// The reply to each listing is as long as the queue.
#[test]
fn owners_that_share_a_lock_look_for_other_libraries_once() {
    let mut engine = connected_engine();
    let names = ["read-a-0000000000", "read-b-0000000001"];
    for count in 1..=2 {
        let (id, create) = start_as(&mut engine, Access::Read(NamingScheme::Recipe));
        joined(&mut engine, create, names[count - 1], &names[..count]);
        serve(&mut engine, &names[..count]);
        assert_eq!(engine.place(id), Some(Place::Owner));
    }
    let mut lists = |answers: bool| {
        engine.input(NOW, Engine::look_routinely);
        let is_list = |(_, call): &(CallId, Call)| matches!(call, Call::GetChildren { .. });
        let lists: Vec<_> = all_submitted(&mut engine).into_iter().filter(is_list).collect();
        for (id, _) in lists.iter().filter(|_| answers) {
            engine.input(NOW, |engine| engine.handle_reply(*id, Err(ZkError::ConnectionLoss)));
        }
        lists.len()
    };
    assert_eq!([lists(true), lists(false), lists(false)], [1, 1, 0]);
}

fn spec(access: Access) -> Arc<RequestSpec> {
    Arc::new(RequestSpec {
        dir: path("/lock"),
        data: Arc::from([]),
        acl: Arc::from([]),
        retry: RetryPolicy::constant(Duration::ZERO),
        access,
        directory_mode: CreateMode::Persistent,
        max_hold: None,
    })
}

/// Starts an exclusive request, which creates its znode.
fn start(engine: &mut Engine) -> (ParticipantId, CallId) {
    start_as(engine, Access::Exclusive(NamingScheme::Recipe))
}

fn start_as(engine: &mut Engine, access: Access) -> (ParticipantId, CallId) {
    let id = engine.new_id();
    engine.input(NOW, |engine| engine.start(id, spec(access), NOW));
    (id, submitted(engine).0)
}

/// Answers the create of a request, which joins the queue with this znode among these children.
fn joined(engine: &mut Engine, create: CallId, znode: &str, children: &[&str]) {
    let children = Ok(Names::from_iter(children.iter().copied()));
    let mut enqueued = Enqueued::new(format!("/lock/{znode}"), children);
    enqueued.stat = Some(stat());
    let reply = Reply::Enqueued(enqueued);
    engine.input(NOW, |engine| engine.handle_reply(create, Ok(reply)));
}

/// Returns what the server shows of an ephemeral znode.
fn stat() -> Stat {
    Stat { czxid: 7, ephemeral_owner: 1, ..Stat::default() }
}

/// Returns what a read of an ephemeral znode shows.
fn data() -> ZkResult<Reply> {
    Ok(Reply::Data(Vec::new(), stat()))
}

/// Answers all calls, and those that follow: every listing shows these children, every read of data finds an ephemeral
/// znode, every deletion succeeds, and everything else finds no znode.
fn serve(engine: &mut Engine, children: &[&str]) {
    loop {
        let calls = all_submitted(engine);
        if calls.is_empty() {
            return;
        }
        for (id, call) in calls {
            let reply = match call {
                Call::GetData { .. } => data(),
                Call::GetChildren { .. } => Ok(Reply::Children(Names::from_iter(children.iter().copied()))),
                Call::Delete { .. } => Ok(Reply::Done),
                _ => Err(ZkError::NoNode),
            };
            engine.input(NOW, |engine| engine.handle_reply(id, reply));
        }
    }
}

/// Takes all effects, and returns the calls among them.
fn all_submitted(engine: &mut Engine) -> Vec<(CallId, Call)> {
    let call = |effect| match effect {
        Effect::Submit(id, call, _) => Some((id, call)),
        _ => None,
    };
    std::iter::from_fn(|| engine.poll_effect()).filter_map(call).collect()
}

/// Does what [`all_submitted`] does, for a single call.
fn submitted(engine: &mut Engine) -> (CallId, Call) {
    let mut calls = all_submitted(engine);
    assert_eq!(calls.len(), 1, "{calls:?}");
    calls.remove(0)
}

/// Returns the name of the znode that a request's first attempt makes.
fn named(id: ParticipantId, sequence: i32) -> String {
    format!("{}{sequence:010}", Access::Exclusive(NamingScheme::Recipe).prefix(tag().guid(id.0, 0)))
}

fn deleted(calls: &[(CallId, Call)]) -> Vec<&str> {
    let deletes = calls.iter().map(|(_, call)| call).filter(|call| matches!(call, Call::Delete { .. }));
    deletes.filter_map(Call::path).collect()
}

/// Returns the id of the call that reads a znode.
fn look_at(calls: &[(CallId, Call)], znode: &str) -> CallId {
    let is_it = |call: &Call| matches!(call, Call::GetData { path, watch: true } if **path == *znode);
    calls.iter().find(|(_, call)| is_it(call)).unwrap_or_else(|| panic!("{calls:?}")).0
}

fn reports(engine: &mut Engine) -> Vec<RequestEvent> {
    let report = |effect| match effect {
        Effect::Happened(Event::Request(_, event)) => Some(event),
        _ => None,
    };
    std::iter::from_fn(|| engine.poll_effect()).filter_map(report).collect()
}

#[test]
fn late_reply_to_a_look_leaves_the_watch_of_a_newer_look_at_the_same_znode() {
    const AHEAD: &str = "/lock/x-b-lock-0000000000";
    const OWN: &str = "/lock/x-a-lock-0000000001";
    let children = ["x-b-lock-0000000000", "x-a-lock-0000000001"];
    let changed = |engine: &mut Engine, is_deleted| {
        let event = ClientEvent::NodeChanged { path: OWN.to_owned(), is_deleted };
        engine.input(NOW, |engine| engine.handle_event(NOW, event));
    };
    let mut engine = connected_engine();
    let (id, create) = start(&mut engine);
    joined(&mut engine, create, children[1], &children);
    let looks = all_submitted(&mut engine);
    let (first, ahead) = (look_at(&looks, OWN), look_at(&looks, AHEAD));
    // This is the event of a watch that was set earlier.
    changed(&mut engine, false);
    engine.input(NOW, |engine| engine.handle_reply(ahead, data()));
    let (list, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(list, Ok(Reply::Children(Names::from_iter(children)))));
    let newer = look_at(&all_submitted(&mut engine), OWN);
    engine.input(NOW, |engine| engine.handle_reply(first, data()));
    engine.input(NOW, |engine| engine.handle_reply(newer, data()));
    assert_eq!(engine.place(id), Some(Place::Queued));
    changed(&mut engine, true);
    assert_eq!(engine.place(id), None, "its znode is gone");
}

#[test]
fn reply_that_shows_the_last_one_ahead_gone_is_no_reason_to_own_without_a_look() {
    let children = ["x-b-lock-0000000000", "x-a-lock-0000000001"];
    let mut engine = connected_engine();
    let (id, create) = start(&mut engine);
    joined(&mut engine, create, children[1], &children);
    let looks = all_submitted(&mut engine);
    let (own, ahead) =
        (look_at(&looks, "/lock/x-a-lock-0000000001"), look_at(&looks, "/lock/x-b-lock-0000000000"));
    engine.input(NOW, |engine| engine.handle_reply(own, data()));
    // A client may deliver this reply before the event of an earlier change of the waiter's own znode.
    engine.input(NOW, |engine| engine.handle_reply(ahead, Err(ZkError::NoNode)));
    assert_ne!(engine.place(id), Some(Place::Owner));
    let look = look_at(&all_submitted(&mut engine), "/lock/x-a-lock-0000000001");
    engine.input(NOW, |engine| engine.handle_reply(look, Err(ZkError::NoNode)));
    assert_eq!(engine.place(id), None, "its znode is gone");
}

#[test]
fn writer_does_not_take_over_from_one_that_is_a_reader_now() {
    let (writer, reader) = (Access::Write(NamingScheme::Recipe), Access::Read(NamingScheme::Recipe));
    let [first_name, name, reader_name] = ["write-a-0000000000", "write-b-0000000001", "read-c-0000000000"];
    let mut engine = connected_engine();
    let (first, create) = start_as(&mut engine, writer);
    joined(&mut engine, create, first_name, &[first_name]);
    assert_eq!(engine.place(first), Some(Place::Owner));
    let (second, create) = start_as(&mut engine, writer);
    joined(&mut engine, create, name, &[first_name, name]);
    serve(&mut engine, &[first_name, name]);
    let downgraded = engine.new_id();
    let znode = path(&format!("/lock/{reader_name}"));
    engine.input(NOW, |engine| {
        assert!(engine.start_as_owner(downgraded, spec(reader), znode, first));
        engine.withdraw(first);
    });
    serve(&mut engine, &[name, reader_name]);
    assert_eq!(engine.place(downgraded), Some(Place::Owner));
    assert_eq!(engine.place(second), Some(Place::Queued), "the reader excludes it");
}

#[test]
fn change_among_the_permits_while_they_are_listed_frees_none() {
    let children = ["_c_b-lease-0000000000", "_c_a-lease-0000000001"];
    let mut engine = connected_engine();
    let (id, create) = start_as(&mut engine, Access::Permit(NonZeroU32::MIN));
    joined(&mut engine, create, children[1], &children);
    let (list, _) = submitted(&mut engine);
    let event = ClientEvent::NodeChanged { path: "/lock".to_owned(), is_deleted: false };
    engine.input(NOW, |engine| engine.handle_event(NOW, event));
    engine.input(NOW, |engine| engine.handle_reply(list, Ok(Reply::Children(Names::from_iter(children)))));
    assert_eq!(engine.place(id), Some(Place::Queued));
    let (_, call) = submitted(&mut engine);
    assert!(matches!(call, Call::GetChildren { watch: true, .. }), "{call:?}");
}
