//! The steps that lead to a broken promise, printed in readable form.

use stateright::Model;

use super::member::{Member, Seat, Stage};
use super::server::{Answer, Item, Wire};
use super::system::{Action, Exploration, State};

/// Prints each step, and what it has changed for the requests.
pub(super) fn print(model: &Exploration, steps: Vec<(State, Option<Action>)>) {
    println!("    requests: {}", requests(model));
    for (number, (state, action)) in steps.iter().enumerate() {
        let Some(action) = action else {
            println!("    broken: {}", model.violation(state).unwrap_or_default());
            continue;
        };
        println!("    {:>3}. {}", number + 1, describe(state, action));
        let next = steps.get(number + 1).map(|(next, _)| next);
        let next = next.cloned().or_else(|| model.next_state(state, action.clone()));
        for change in next.iter().flat_map(|next| changes(state, next)) {
            println!("         -> {change}");
        }
    }
}

fn requests(model: &Exploration) -> String {
    let of = |(number, (session, access)): (usize, &(usize, _))| {
        format!("{} of session {}: {access:?}", number + 1, session + 1)
    };
    model.case.requests.iter().enumerate().map(of).collect::<Vec<_>>().join("; ")
}

fn describe(state: &State, action: &Action) -> String {
    match action {
        Action::Take(session) => {
            format!(
                "session {}: the server handles {}",
                session + 1,
                wire(state.members[*session].calls.front())
            )
        }
        Action::Receive(session) => {
            format!("session {}: receives {}", session + 1, item(state.members[*session].inbox.front()))
        }
        Action::CatchUp(session) => format!("session {}: its server catches up", session + 1),
        Action::CompleteEnd(session) => format!("session {}: its end is completed", session + 1),
        Action::Start(request) => format!("request {} starts", request + 1),
        Action::Ring(session) => format!("session {}: its alarm rings", session + 1),
        Action::Reconnect { session, is_behind } => {
            let behind = if *is_behind { ", to a server that lags behind" } else { "" };
            format!("session {}: reconnects{behind}", session + 1)
        }
        Action::Cut { session, is_listing_lost } => {
            let half = if *is_listing_lost { ", between the replies to a create and a listing" } else { "" };
            format!("session {}: its connection is lost{half}", session + 1)
        }
        Action::TakeLate(session) => {
            let late = wire(state.members[*session].late.front());
            format!("session {}: the server handles {late} of a former connection", session + 1)
        }
        Action::Refuse(session) => {
            let call = wire(state.members[*session].calls.front());
            format!("session {}: the server refuses {call}", session + 1)
        }
        Action::Expire(session) => format!("session {}: expires", session + 1),
        Action::Withdraw(request) => format!("request {} is withdrawn", request + 1),
        Action::Close(session) => format!("session {}: is closed", session + 1),
        Action::Delete(name) => format!("another client deletes {name}"),
        Action::Change(name) => format!("another client writes {name}"),
    }
}

fn wire(wire: Option<&Wire>) -> String {
    match wire {
        Some(Wire::Call(_, call)) => format!("{call:?}"),
        Some(Wire::List(..)) => "the listing after a create".to_owned(),
        Some(Wire::RemoveWatch(path)) => format!("the removal of the watch on {path}"),
        None => String::new(),
    }
}

fn item(item: Option<&Item>) -> String {
    match item {
        Some(Item::Reply { name, answer, .. }) => match answer {
            Ok(Answer::Created(..) | Answer::Enqueued(_, _, Err(_))) => format!("that it has created {name}"),
            Ok(Answer::Enqueued(_, _, Ok(names))) => {
                format!("that it has created {name}, and the listing {names:?}")
            }
            Ok(Answer::Done) => format!("that it has deleted {name}"),
            Ok(Answer::Data(_) | Answer::Found(Some(_))) => format!("that {name} exists"),
            Ok(Answer::Found(None)) => format!("that {name} does not exist"),
            Ok(Answer::Children(names)) => format!("the listing {names:?}"),
            Err(error) => format!("{error:?} for {name}"),
        },
        Some(Item::Event { watch, is_deleted: true, .. }) => {
            format!("the event that {} was deleted", watch.path())
        }
        Some(Item::Event { watch, .. }) => format!("the event that {} has changed", watch.path()),
        None => String::new(),
    }
}

fn changes(before: &State, after: &State) -> Vec<String> {
    let mut changes = Vec::new();
    for (old, new) in before.members.iter().zip(&after.members) {
        for (was, is) in old.seats.iter().zip(&new.seats) {
            changes.extend(change((old, was), (new, is)));
        }
    }
    changes
}

fn change((old, was): (&Member, &Seat), (new, is): (&Member, &Seat)) -> Vec<String> {
    let mut changes = Vec::new();
    let request = is.request + 1;
    if let Some(znode) = is.znode.as_ref().filter(|_| was.znode.is_none()) {
        changes.push(format!("request {request} is {znode}"));
    }
    match (old.owns(was), new.owns(is)) {
        (false, true) => changes.push(format!("request {request} owns the lock")),
        (true, false) => changes.push(format!("request {request} no longer owns the lock")),
        _ => {}
    }
    if let (Stage::Live, Stage::Ended(reason)) = (was.stage, is.stage) {
        changes.push(format!("request {request} has ended: {reason}"));
    }
    changes
}
