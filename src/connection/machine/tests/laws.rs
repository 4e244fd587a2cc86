//! What holds for the machine whatever a server sends, and whenever its transport fails.

use std::time::Duration;

use proptest::prelude::*;

use super::scripted::{ID, Scripted, accepted, config, data, read, watch};
use crate::connection::codec::{ConnectAnswer, Reply};
use crate::connection::machine::{Action, Event};

#[derive(Clone, Debug)]
enum Input {
    Submit(bool),
    Opened,
    Failed,
    Bytes(Vec<u8>),
    Accept,
    Refuse,
    Reply,
    Pong,
    Advance(u16),
    Timer,
    Close,
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        4 => any::<bool>().prop_map(Input::Submit),
        4 => Just(Input::Opened),
        2 => Just(Input::Failed),
        1 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(Input::Bytes),
        4 => Just(Input::Accept),
        1 => Just(Input::Refuse),
        4 => Just(Input::Reply),
        2 => Just(Input::Pong),
        3 => any::<u16>().prop_map(Input::Advance),
        3 => Just(Input::Timer),
        1 => Just(Input::Close),
    ]
}

/// What the owner of a machine relies on.
#[derive(Default)]
struct Owner {
    has_transport: bool,
    is_connected: bool,
    has_ended: bool,
    is_closing: bool,
    unanswered: Vec<u32>,
}

impl Owner {
    fn take(&mut self, action: Action<u32>) {
        assert!(!self.has_ended, "{action:?} after the end");
        match action {
            Action::Open => {
                assert!(!self.has_transport);
                self.has_transport = true;
            }
            Action::Drop => {
                assert!(self.has_transport);
                self.has_transport = false;
            }
            Action::Event(event) => {
                assert!(!self.is_closing, "{event:?} after the close");
                match event {
                    Event::Connected { .. } => {
                        assert!(!self.is_connected);
                        self.is_connected = true;
                    }
                    Event::Disconnected => assert!(std::mem::take(&mut self.is_connected)),
                    _ => {}
                }
            }
            Action::Reply(number, _) => {
                let position = self.unanswered.iter().position(|unanswered| *unanswered == number);
                self.unanswered.remove(position.expect("each request has one outcome"));
            }
            Action::Ended => {
                assert!(!self.has_transport);
                self.has_ended = true;
            }
        }
    }
}

fn check(inputs: Vec<Input>) {
    let mut scripted = Scripted::new(config());
    let mut owner = Owner::default();
    let mut next = 0;
    for input in inputs {
        let has_transport = owner.has_transport;
        match input {
            Input::Submit(is_watch) => {
                next += 1;
                let request = if is_watch { watch("/a") } else { read("/a") };
                if scripted.machine.submit(scripted.now, &request, next).is_ok() {
                    owner.unanswered.push(next);
                }
            }
            Input::Opened if has_transport => scripted.machine.opened(scripted.now),
            Input::Failed if has_transport => {
                owner.has_transport = false;
                scripted.machine.failed(scripted.now);
            }
            Input::Bytes(bytes) if has_transport => scripted.machine.received(scripted.now, &bytes),
            Input::Accept if has_transport => scripted.answer(&accepted(ID)),
            Input::Refuse if has_transport => scripted.answer(&ConnectAnswer::Refused),
            Input::Reply if has_transport => {
                if let Some(xid) = scripted.machine.traffic.next_reply() {
                    let reply = if xid == -8 { Reply::Empty } else { data() };
                    scripted.reply(xid, 7, &reply);
                }
            }
            Input::Pong if has_transport => scripted.pong(),
            Input::Advance(millis) => scripted.advance(Duration::from_millis(millis.into())),
            Input::Timer => {
                scripted.machine.timer(scripted.now);
                // A deadline that stays in the past would keep a thread busy.
                let deadline = scripted.machine.deadline();
                assert!(deadline.is_none_or(|deadline| deadline > scripted.now), "{deadline:?}");
            }
            Input::Close => {
                scripted.machine.close(scripted.now);
                owner.is_closing = true;
            }
            _ => {}
        }
        for action in scripted.actions() {
            owner.take(action);
        }
    }
    // Whatever has happened, a close ends it, and every request has an outcome.
    scripted.machine.close(scripted.now);
    owner.is_closing = true;
    for _ in 0..1000 {
        scripted.actions().into_iter().for_each(|action| owner.take(action));
        match scripted.machine.deadline() {
            Some(_) => scripted.run_to_deadline(),
            None => break,
        }
    }
    assert!(owner.has_ended && owner.unanswered.is_empty(), "{:?}", owner.unanswered);
}

proptest! {
    #[test]
    fn every_request_has_one_outcome_and_actions_fit_the_state(inputs in proptest::collection::vec(input(), 0..80)) {
        check(inputs);
    }

    #[test]
    fn bytes_of_a_serving_server_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0_usize..200) {
        let mut scripted = Scripted::serving();
        scripted.submit(1, &read("/a"));
        let (first, second) = bytes.split_at(cut.min(bytes.len()));
        scripted.machine.received(scripted.now, first);
        scripted.machine.received(scripted.now, second);
        scripted.actions();
    }
}
