//! Tests of the engine's parts, and of the engine itself, input by input.

mod budget;
mod explore;
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
use crate::client::port::Names;
use crate::client::{Call, ClientEvent, CreateMode, Enqueued, Granted, Reply, Stat};
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
fn census_counts_everybody_who_keeps_a_session_open() {
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
        is_ordered: true,
        owns_session: true,
        min_idle_for_ping: Duration::ZERO,
        chroot: None,
        routine_pause: Duration::from_secs(3600),
        window: 512,
        jute_max_buffer: 1 << 20,
        opened_after: None,
        tag: tag(),
        seed: 1,
    };
    let granted = Granted::new(TIMEOUT).with_report_delay(Duration::ZERO);
    let lease = Lease::unproven(granted, now).proven_for_owners_only();
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
    assert_eq!(engine.end_reason(), Some(LossReason::LeaseExpired));
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
    assert_eq!(engine.end_reason(), Some(LossReason::LeaseExpired));
}

const NOW: Moment = Moment::from_nanos(1_000_000_000_000);

#[test]
fn session_that_was_closed_without_contact_asks_the_clock_for_nothing_that_has_passed() {
    let (mut engine, _) = owner(false);
    engine.input(NOW, |engine| engine.handle_event(NOW, ClientEvent::Disconnected));
    engine.input(NOW, |engine| engine.end(LossReason::SessionClosed));
    engine.input(NOW, Engine::complete_end);
    // The deletion is pending until the server has ended the session.
    let end = NOW.after(Duration::from_secs(3600));
    assert_eq!(engine.poll_deadline(), Some(end));
    let beyond_the_lease = NOW.after(Duration::from_secs(3599));
    engine.input(beyond_the_lease, Engine::handle_deadline);
    assert_eq!(engine.poll_deadline(), Some(end));
}

/// Returns an engine in contact, for which one write is a proof.
fn connected_engine() -> Engine {
    engine_that_owns_its_session(true)
}

fn engine_that_owns_its_session(owns_session: bool) -> Engine {
    let granted = Granted::new(Duration::from_secs(3600)).with_report_delay(Duration::ZERO);
    let mut engine = unproven_engine(owns_session, granted);
    let (proof, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(proof, Err(ZkError::NoNode)));
    engine
}

/// Returns an engine in contact, which waits for the reply to its first call.
fn unproven_engine(owns_session: bool, granted: Granted) -> Engine {
    let settings = Settings {
        is_ordered: true,
        owns_session,
        min_idle_for_ping: Duration::ZERO,
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
fn owner(owns_session: bool) -> (Engine, ParticipantId) {
    const ALONE: &str = "x-a-lock-0000000000";
    let mut engine = engine_that_owns_its_session(owns_session);
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
fn deletion_that_a_close_leaves_behind_is_not_reported_as_done() {
    let (mut engine, id) = owner(true);
    let removal = engine.input(NOW, |engine| engine.withdraw(id)).unwrap();
    submitted(&mut engine);
    engine.input(NOW, |engine| engine.end(LossReason::SessionClosed));
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

#[test]
fn closed_session_that_lives_on_deletes_its_znodes_for_as_long_as_there_is_contact() {
    let (mut engine, _) = owner(false);
    engine.input(NOW, |engine| engine.end(LossReason::SessionClosed));
    engine.input(NOW, Engine::complete_end);
    let mut now = NOW;
    let (mut deletion, call) = submitted(&mut engine);
    assert!(matches!(call, Call::Delete { .. }), "once at first, not twice: {call:?}");
    // The deletion is refused for longer than a session timeout.
    for _ in 0..200 {
        engine.input(now, |engine| engine.handle_reply(deletion, Err(ZkError::Throttled)));
        now = engine.poll_deadline().unwrap();
        engine.input(now, Engine::handle_deadline);
        deletion = submitted(&mut engine).0;
    }
    assert!(now > NOW.after(Duration::from_secs(3600)));
    engine.input(now, |engine| engine.handle_event(now, ClientEvent::Disconnected));
    let effects: Vec<Effect> = std::iter::from_fn(|| engine.poll_effect()).collect();
    assert!(
        !effects.contains(&Effect::Happened(Event::Suspended)),
        "the session had already ended: {effects:?}"
    );
    assert_eq!(
        engine.poll_deadline(),
        Some(now.after(Duration::from_secs(3600))),
        "the server ends the session then"
    );
    engine.input(now.after(Duration::from_secs(3600)), Engine::handle_deadline);
    assert!(engine.has_completed_end() && engine.poll_deadline().is_none());
}

#[test]
fn closed_session_that_lives_on_ends_with_its_end_at_the_server() {
    let (mut engine, _) = owner(false);
    engine.input(NOW, |engine| engine.end(LossReason::SessionClosed));
    engine.input(NOW, Engine::complete_end);
    let (deletion, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(deletion, Err(ZkError::SessionExpired)));
    assert_eq!(engine.poll_deadline(), None);
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

// ---- strays

/// Returns the name of the znode that a request's first attempt makes.
fn named(id: ParticipantId, sequence: i32) -> String {
    format!("{}{sequence:010}", Access::Exclusive(NamingScheme::Recipe).prefix(tag().guid(id.0, 0)))
}

fn deleted(calls: &[(CallId, Call)]) -> Vec<&str> {
    let deletes = calls.iter().map(|(_, call)| call).filter(|call| matches!(call, Call::Delete { .. }));
    deletes.filter_map(Call::path).collect()
}

#[test]
fn a_listing_shows_the_strays_of_the_session_and_of_nobody_else() {
    let other = SessionTag::new(Uuid::from_u128(1 << 96));
    let mut engine = connected_engine();
    let gone = engine.new_id();
    let pinned = engine.new_id();
    engine.pin(pinned);
    let ((joining, _), (own, create)) = (start(&mut engine), start(&mut engine));
    let stranger = format!("x-{}-lock-0000000001", other.guid(gone.0, 0));
    let (stray, second) = (named(gone, 2), named(own, 3));
    let names = [&stranger, &stray, &second, &named(pinned, 4), &named(joining, 5), &named(own, 6)];
    let children: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    joined(&mut engine, create, children[5], &children);
    let calls = all_submitted(&mut engine);
    assert_eq!(deleted(&calls), [format!("/lock/{stray}"), format!("/lock/{second}")]);
    // While the strays are being deleted, another listing changes nothing.
    let (_, create) = start(&mut engine);
    joined(&mut engine, create, &named(ParticipantId(own.0 + 1), 7), &children);
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
    engine.pass_over_phantoms(CallId(u64::MAX), &path("/lock"), &mut listing);
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

/// A client that reorders replies may deliver a listing that is older than the owner's downgrade, which it does not show.
#[test]
fn a_listing_from_before_the_deletion_of_a_stray_makes_nobody_an_owner() {
    let mut engine = connected_engine();
    let gone = engine.new_id();
    let (own, late) = start(&mut engine);
    let (another, create) = start(&mut engine);
    let (stray, name, last) = (named(gone, 1), named(own, 2), named(another, 3));
    let children = [&*stray, &*name, &*last];
    joined(&mut engine, create, &last, &children);
    assert_eq!(deleted_in_vain(&mut engine, &children), [&*stray]);
    joined(&mut engine, late, &name, &children[..2]);
    assert_ne!(engine.place(own), Some(Place::Owner), "the listing is too old");
}

/// A client that reorders replies may deliver an older listing.
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
    assert!(engine.is_idle(), "nothing is left");
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
    engine.input(NOW, |engine| engine.end(LossReason::SessionExpired));
    engine.input(NOW, Engine::complete_end);
    let left = |effect| if let Effect::LeftBehind(_, left) = effect { Some(left) } else { None };
    let left: Vec<Target> = std::iter::from_fn(|| engine.poll_effect()).filter_map(left).collect();
    assert_eq!(left, [Target::Strays { dir: path("/lock"), tags: BTreeSet::from([tag()]) }]);

    let granted = Granted::new(Duration::from_secs(3600)).with_report_delay(Duration::ZERO);
    let mut next = unproven_engine(true, granted);
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
