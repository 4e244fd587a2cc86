//! Tests of the bound on the ephemeral znodes of a session.

use super::*;
use crate::client::{Acl, Op, OpOutcome, Transacted};
use crate::engine::border::Failure;
use crate::engine::budget::Budget;
use crate::error::LossReason;

/// The bytes of `/lock/x-<guid>-lock-`, of the longest number, and of the path's length.
const REQUEST: usize = 50 + 11 + 4;

/// Returns an engine in contact, with room for this many requests.
fn engine_for(requests: usize) -> Engine {
    let mut engine = connected_engine();
    // One eighth is reserved.
    engine.commons.calls.budget = Budget::new((requests * REQUEST).div_ceil(7) * 8, 0);
    engine
}

fn begin(engine: &mut Engine) -> ParticipantId {
    let id = engine.new_id();
    engine.input(NOW, |engine| {
        engine.start(id, spec(Access::Exclusive(NamingScheme::Recipe)), NOW);
    });
    id
}

fn is_refused(engine: &mut Engine, id: ParticipantId) -> bool {
    let effects: Vec<Effect> = std::iter::from_fn(|| engine.poll_effect()).collect();
    let is_full =
        |failure: &Failure| matches!(failure, Failure::Call { error: ZkError::SessionFull { .. }, .. });
    let refused = effects.iter().any(|effect| match effect {
        Effect::Happened(Event::Request(of, RequestEvent::Ended { how, .. })) => {
            let refused =
                matches!(how, Ending::Dropped(LossReason::Failed, Some(failure)) if is_full(failure));
            *of == id && refused
        }
        _ => false,
    });
    let sends = effects.iter().any(|effect| matches!(effect, Effect::Submit(..)));
    assert!(!(refused && sends), "nothing is sent: {effects:?}");
    refused
}

fn ask(engine: &mut Engine, call: Call) -> (ParticipantId, Vec<Effect>) {
    let id = engine.new_id();
    engine.input(NOW, |engine| engine.ask(id, call));
    (id, std::iter::from_fn(|| engine.poll_effect()).collect())
}

fn answer(engine: &mut Engine, effects: Vec<Effect>, outcome: ZkResult<Reply>) {
    let Some(Effect::Submit(call, ..)) = effects.into_iter().next() else { panic!("nothing was sent") };
    engine.input(NOW, |engine| engine.handle_reply(call, outcome));
    std::iter::from_fn(|| engine.poll_effect()).for_each(drop);
}

fn create(path: &str) -> Call {
    Call::create(path, [], [] as [Acl; 0], CreateMode::Ephemeral).call
}

#[test]
fn a_request_beyond_the_bound_is_refused_until_a_deletion_is_confirmed() {
    let mut engine = engine_for(1);
    let (first, create) = start(&mut engine);
    let second = begin(&mut engine);
    assert!(is_refused(&mut engine, second), "the create under way counts");
    const ALONE: &str = "x-a-lock-0000000000";
    joined(&mut engine, create, ALONE, &[ALONE]);
    serve(&mut engine, &[ALONE]);
    assert_eq!(engine.commons.calls.budget.used(), REQUEST);
    engine.input(NOW, |engine| engine.withdraw(first));
    let (deletion, _) = submitted(&mut engine);
    let third = begin(&mut engine);
    assert!(is_refused(&mut engine, third), "the znode may still exist");
    engine.input(NOW, |engine| engine.handle_reply(deletion, Ok(Reply::Done)));
    assert_eq!(engine.commons.calls.budget.used(), 0);
    let fourth = begin(&mut engine);
    assert!(!is_refused(&mut engine, fourth));
}

#[test]
fn create_that_was_refused_or_never_sent_does_not_count() {
    let mut engine = engine_for(2);
    let (_, create) = start(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(create, Err(ZkError::NoAuth)));
    assert_eq!(engine.commons.calls.budget.used(), 0);
    engine.commons.calls.window = Window::new(0);
    let waiting = begin(&mut engine);
    assert_eq!(engine.commons.calls.budget.used(), REQUEST);
    engine.input(NOW, |engine| engine.withdraw(waiting));
    assert_eq!(engine.commons.calls.budget.used(), 0);
}

#[test]
fn create_whose_reply_was_lost_counts_until_a_search_was_answered() {
    for (is_listed, used) in [(true, REQUEST), (false, 0)] {
        let mut engine = engine_for(3);
        let (id, create) = start(&mut engine);
        engine.input(NOW, |engine| engine.handle_reply(create, Err(ZkError::ConnectionLoss)));
        assert_eq!(engine.commons.calls.budget.used(), REQUEST);
        let (write, _) = submitted(&mut engine);
        engine.input(NOW, |engine| engine.handle_reply(write, Err(ZkError::NoNode)));
        let (list, _) = submitted(&mut engine);
        engine.commons.calls.window = Window::new(0);
        let children = is_listed.then(|| named(id, 0)).into_iter().collect();
        engine.input(NOW, |engine| engine.handle_reply(list, Ok(Reply::Children(children))));
        // If the listing is empty, the lost create no longer counts. But the request then submits another create,
        // which counts.
        assert_eq!(engine.commons.calls.budget.used(), used.max(REQUEST), "{is_listed}");
    }
}

#[test]
fn create_whose_reply_was_lost_counts_until_a_deletion_has_searched() {
    let mut engine = engine_for(3);
    let (id, create) = start(&mut engine);
    engine.input(NOW, |engine| engine.withdraw(id));
    engine.input(NOW, |engine| engine.handle_reply(create, Err(ZkError::ConnectionLoss)));
    let (write, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(write, Err(ZkError::NoNode)));
    let (list, _) = submitted(&mut engine);
    assert_eq!(engine.commons.calls.budget.used(), REQUEST);
    engine.input(NOW, |engine| engine.handle_reply(list, Ok(Reply::Children(Names::default()))));
    assert_eq!(engine.commons.calls.budget.used(), 0);
}

#[test]
fn stray_that_a_search_lists_counts_until_it_is_gone() {
    let mut engine = engine_for(3);
    let (id, create) = start(&mut engine);
    engine.input(NOW, |engine| engine.withdraw(id));
    engine.input(NOW, |engine| engine.handle_reply(create, Err(ZkError::ConnectionLoss)));
    let (write, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(write, Err(ZkError::NoNode)));
    let (list, _) = submitted(&mut engine);
    let children = Names::from_iter([named(id, 0)]);
    engine.input(NOW, |engine| engine.handle_reply(list, Ok(Reply::Children(children))));
    assert_eq!(engine.commons.calls.budget.used(), REQUEST, "its deletion is under way");
    let event = ClientEvent::NodeChanged { path: format!("/lock/{}", named(id, 0)), is_deleted: true };
    engine.input(NOW, |engine| engine.handle_event(NOW, event));
    assert_eq!(engine.commons.calls.budget.used(), 0);
}

/// The listing of the search that is under way may have been made before the lost create took effect. So if the znode
/// is missing from that listing, it may still exist.
#[test]
fn create_that_is_lost_while_a_search_is_under_way_counts_until_the_next_one_is_answered() {
    let mut engine = engine_for(3);
    let (_, first) = start(&mut engine);
    let (_, second) = start(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(second, Err(ZkError::ConnectionLoss)));
    let (write, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(write, Err(ZkError::NoNode)));
    let (list, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(first, Err(ZkError::ConnectionLoss)));
    engine.commons.calls.window = Window::new(0);
    let nothing = || Ok(Reply::Children(Names::default()));
    engine.input(NOW, |engine| engine.handle_reply(list, nothing()));
    assert_eq!(
        engine.commons.calls.budget.used(),
        2 * REQUEST,
        "the first create counts, and the second one is made again"
    );
}

#[test]
fn znode_that_another_client_deletes_does_not_count() {
    const ALONE: &str = "x-a-lock-0000000000";
    let mut engine = engine_for(2);
    let (_, create) = start(&mut engine);
    joined(&mut engine, create, ALONE, &[ALONE]);
    let event = ClientEvent::NodeChanged { path: format!("/lock/{ALONE}"), is_deleted: true };
    engine.input(NOW, |engine| engine.handle_event(NOW, event));
    assert_eq!(engine.commons.calls.budget.used(), 0);
}

#[test]
fn what_the_application_creates_counts_with_its_chroot() {
    let mut engine = connected_engine();
    // The limit is 35 bytes, and each znode below takes 16.
    engine.commons.calls.budget = Budget::new(40, 10);
    let created = |path: &str| Ok(Reply::Created { path: path.to_owned(), stat: None });
    let (_, effects) = ask(&mut engine, create("/a"));
    answer(&mut engine, effects, created("/a"));
    assert_eq!(engine.commons.calls.budget.used(), 10 + 2 + 4);
    let (_, effects) = ask(&mut engine, create("/a"));
    answer(&mut engine, effects, Err(ZkError::NodeExists));
    assert_eq!(engine.commons.calls.budget.used(), 10 + 2 + 4);
    // The reply to another create is lost. Its znode counts until a read shows that it does not exist.
    let (_, effects) = ask(&mut engine, create("/b"));
    answer(&mut engine, effects, Err(ZkError::ConnectionLoss));
    assert_eq!(engine.commons.calls.budget.used(), 2 * (10 + 2 + 4));
    let (id, effects) = ask(&mut engine, create("/c"));
    assert_eq!(effects, [Effect::Answered(id, Err(ZkError::SessionFull { limit: 35 }))]);
    let (_, effects) = ask(&mut engine, Call::exists("/b", false).call);
    answer(&mut engine, effects, Ok(Reply::Found(None)));
    assert_eq!(engine.commons.calls.budget.used(), 10 + 2 + 4);
    let swap = [
        Op::Delete { path: "/a".to_owned(), version: None },
        Op::Create { path: "/c".to_owned(), data: Vec::new(), acl: Vec::new(), mode: CreateMode::Ephemeral },
        Op::Create {
            path: "/d/d".to_owned(),
            data: Vec::new(),
            acl: Vec::new(),
            mode: CreateMode::Persistent,
        },
    ];
    let (_, effects) = ask(&mut engine, Call::multi(&swap[..]).call);
    assert_eq!(engine.commons.calls.budget.used(), 2 * (10 + 2 + 4));
    let outcomes =
        vec![OpOutcome::Deleted, OpOutcome::Created("/c".to_owned()), OpOutcome::Created("/d/d".to_owned())];
    answer(&mut engine, effects, Ok(Reply::Multi(Transacted::Committed(outcomes))));
    assert_eq!(engine.commons.calls.budget.used(), 10 + 2 + 4);
    let (_, effects) = ask(&mut engine, Call::delete("/c", None).call);
    answer(&mut engine, effects, Err(ZkError::NoNode));
    assert_eq!(engine.commons.calls.budget.used(), 0);
    let (_, effects) = ask(&mut engine, Call::multi(&swap[1..]).call);
    answer(
        &mut engine,
        effects,
        Ok(Reply::Multi(Transacted::Failed { position: 0, error: ZkError::NoNode })),
    );
    assert_eq!(engine.commons.calls.budget.used(), 0);
}

/// The sequential znodes of a transaction share their paths without the number, even with those of other clients.
#[test]
fn lost_sequential_znodes_of_a_transaction_count_although_others_of_the_same_name_are_gone() {
    let each = "/q/t-".len() + 11 + 4;
    let mut engine = engine_for(3);
    let item = || Op::Create {
        path: "/q/t-".to_owned(),
        data: Vec::new(),
        acl: Vec::new(),
        mode: CreateMode::EphemeralSequential,
    };
    let used = |engine: &Engine| engine.commons.calls.budget.used();
    for lost in [2, 4] {
        let (_, effects) = ask(&mut engine, Call::multi(&[item(), item()][..]).call);
        answer(&mut engine, effects, Err(ZkError::ConnectionLoss));
        assert_eq!(used(&engine), lost * each);
    }
    for call in [Call::delete("/q/t-0000000003", None).call, Call::delete("/q/t-", None).call] {
        let (_, effects) = ask(&mut engine, call);
        answer(&mut engine, effects, Err(ZkError::NoNode));
    }
    let path = "/q/t-0000000004".to_owned();
    engine.input(NOW, |engine| {
        engine.handle_event(NOW, ClientEvent::NodeChanged { path, is_deleted: true });
    });
    assert_eq!(used(&engine), 4 * each);
}

/// A name with a GUID is that of one znode.
#[test]
fn lost_sequential_znode_with_a_guid_counts_until_it_is_gone() {
    let mut engine = engine_for(3);
    let guid = "0c5a1cf0-5b8a-4f3e-9a54-6dd0a3d5a6b7";
    let lost = [format!("/q/item-{guid}-"), format!("/q/{}-", guid.replace('-', ""))];
    for path in lost {
        let create = Call::create(&*path, [], [] as [Acl; 0], CreateMode::EphemeralSequential).call;
        let (_, effects) = ask(&mut engine, create);
        answer(&mut engine, effects, Err(ZkError::ConnectionLoss));
        assert_eq!(engine.commons.calls.budget.used(), path.len() + 11 + 4);
        let (_, effects) = ask(&mut engine, Call::delete(&*format!("{path}0000000007"), None).call);
        answer(&mut engine, effects, Ok(Reply::Done));
        assert_eq!(engine.commons.calls.budget.used(), 0);
    }
}

#[test]
fn znode_that_was_found_again_counts_until_its_deletion_was_answered() {
    let mut engine = engine_for(3);
    let (id, create) = start(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(create, Err(ZkError::ConnectionLoss)));
    let search = |engine: &mut Engine, found: &[&str]| {
        let (write, _) = submitted(engine);
        engine.input(NOW, |engine| engine.handle_reply(write, Err(ZkError::NoNode)));
        let (list, _) = submitted(engine);
        let children = Names::from_iter(found.iter().copied());
        engine.input(NOW, |engine| engine.handle_reply(list, Ok(Reply::Children(children))));
    };
    search(&mut engine, &[&named(id, 0)]);
    let (look, _) = submitted(&mut engine);
    engine.input(NOW, |engine| engine.handle_reply(look, Ok(Reply::Found(Some(Stat::default())))));
    all_submitted(&mut engine);
    assert_eq!(engine.commons.calls.budget.used(), REQUEST);
    engine.input(NOW, |engine| engine.withdraw(id));
    let calls = all_submitted(&mut engine);
    let (deletion, _) = calls.into_iter().find(|(_, call)| matches!(call, Call::Delete { .. })).unwrap();
    engine.input(NOW, |engine| engine.handle_reply(deletion, Err(ZkError::NoNode)));
    assert_eq!(engine.commons.calls.budget.used(), 0);
}
