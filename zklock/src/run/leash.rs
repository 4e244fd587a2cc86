//! [`Leash`]: when the guardian ends a command. A pure function of time, of what the holder says, and of what the command
//! does: no clock, no I/O.

use std::mem;
use std::time::Duration;

/// A moment, as the time since the beginning of the clock that the holder and the guardian share.
pub(super) type Moment = Duration;

/// How long the command may run, as far as the holder knows. Each term replaces the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Term {
    /// When to ask the command to end. `None` if the holder has asked it already.
    pub(super) ask_at: Option<Moment>,
    /// When to kill the command, because the lock may be lost soon after.
    pub(super) kill_at: Moment,
}

impl Term {
    /// When the guardian must do something.
    fn end(self) -> Moment {
        self.ask_at.map_or(self.kill_at, |ask_at| ask_at.min(self.kill_at))
    }
}

/// What the guardian must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before this moment. `None` means that nothing is left to do.
    Wait(Option<Moment>),
    /// Ask the command to end.
    Ask,
    /// Kill the command and everything that descends from it.
    Kill,
}

/// See the [module](self).
///
/// Whether the holder was killed, stopped, frozen or swapped out makes no difference: its terms do not come in time. Once
/// the guardian has begun to end the command, no term gives the command more time.
#[derive(Clone, Debug)]
pub(super) struct Leash {
    /// How long the command may take to end after the guardian has asked it to.
    grace: Duration,
    state: State,
    /// Whether the launcher has become the command.
    is_launched: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Held(Term),
    /// The command is to be ended.
    Ending {
        kill_at: Moment,
        is_asked: bool,
    },
    /// Everything was killed, or the command has ended by itself, and what it has left behind may live on.
    Over,
}

impl Leash {
    pub(super) fn new(term: Term, grace: Duration) -> Leash {
        Leash { grace, state: State::Held(term), is_launched: false }
    }

    /// Handles a term that the holder has sent.
    pub(super) fn handle_term(&mut self, term: Term) {
        match &mut self.state {
            State::Held(held) => *held = term,
            State::Ending { kill_at, .. } => *kill_at = term.kill_at.min(*kill_at),
            State::Over => {}
        }
    }

    /// Handles the news that the holder asks the command to end.
    pub(super) fn handle_asked(&mut self) {
        if let State::Held(term) = &mut self.state {
            term.ask_at = None;
        }
    }

    /// Handles the order to kill the command.
    pub(super) fn handle_kill(&mut self) {
        self.state = State::Ending { kill_at: Moment::ZERO, is_asked: true };
    }

    /// Handles the order to launch the command. Returns whether it may begin.
    pub(super) fn launch(&mut self, now: Moment) -> bool {
        self.is_launched |= matches!(self.state, State::Held(term) if now < term.end());
        self.is_launched
    }

    /// Handles the end of the holder.
    pub(super) fn handle_holder_end(&mut self, now: Moment) {
        if let State::Held(term) = self.state {
            self.end(term, now);
        }
    }

    /// Handles the end of the command. What it leaves behind is killed if the command was to be ended. If the holder has
    /// asked it to end, the holder decides, as long as it can.
    pub(super) fn handle_command_end(&mut self, now: Moment) {
        match &mut self.state {
            State::Held(term) if term.ask_at.is_some() && now < term.end() => self.state = State::Over,
            State::Held(_) => self.grace = Duration::ZERO,
            State::Ending { kill_at, .. } => *kill_at = now.min(*kill_at),
            State::Over => {}
        }
    }

    /// Returns what to do at this moment.
    pub(super) fn poll(&mut self, now: Moment) -> Step {
        if let State::Held(term) = self.state {
            if now < term.end() {
                return Step::Wait(Some(term.end()));
            }
            self.end(term, now);
        }
        let State::Ending { kill_at, is_asked } = &mut self.state else { return Step::Wait(None) };
        // A launcher may have been started to ignore SIGTERM.
        if *kill_at <= now || !self.is_launched {
            self.state = State::Over;
            return Step::Kill;
        }
        if mem::replace(is_asked, true) { Step::Wait(Some(*kill_at)) } else { Step::Ask }
    }

    fn end(&mut self, term: Term, now: Moment) {
        let kill_at = term.kill_at.min(now.saturating_add(self.grace));
        self.state = State::Ending { kill_at, is_asked: term.ask_at.is_none() };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GRACE: Duration = Duration::from_secs(5);

    fn at(second: u64) -> Moment {
        Duration::from_secs(second)
    }

    fn term(ask_at: u64, kill_at: u64) -> Term {
        Term { ask_at: Some(at(ask_at)), kill_at: at(kill_at) }
    }

    /// A term after the holder has asked the command to end.
    fn asked(kill_at: u64) -> Term {
        Term { ask_at: None, kill_at: at(kill_at) }
    }

    fn launched(term: Term) -> Leash {
        let mut leash = Leash::new(term, GRACE);
        assert!(leash.launch(Moment::ZERO));
        leash
    }

    #[derive(Clone, Copy, Debug)]
    enum Input {
        Term(Term),
        HolderEnd,
        CommandEnd,
        Asked,
        Kill,
    }

    use Input::{Asked, CommandEnd, HolderEnd, Kill};

    fn to(term: Term) -> Input {
        Input::Term(term)
    }

    fn feed(leash: &mut Leash, input: Input, now: Moment) {
        match input {
            Input::Term(term) => leash.handle_term(term),
            HolderEnd => leash.handle_holder_end(now),
            CommandEnd => leash.handle_command_end(now),
            Asked => leash.handle_asked(),
            Kill => leash.handle_kill(),
        }
    }

    /// What happens to a command whose first term is asked at 10 and killed at 15, in seconds: inputs at their moments,
    /// and then the steps until nothing is left to do, each at its moment.
    type Row<'a> = (&'a str, &'a [(u64, Input)], &'a [(u64, Step)]);

    #[test]
    fn command_is_ended_as_the_table_says() {
        let rows: &[Row<'_>] = &[
            ("no term comes", &[], &[(10, Step::Ask), (15, Step::Kill)]),
            ("the terms stop", &[(5, to(term(15, 18)))], &[(15, Step::Ask), (18, Step::Kill)]),
            // The command has the grace at most, however long the lease lasts.
            ("a long lease", &[(5, to(term(15, 90)))], &[(15, Step::Ask), (20, Step::Kill)]),
            ("a shorter term", &[(5, to(term(6, 7)))], &[(6, Step::Ask), (7, Step::Kill)]),
            ("no grace", &[(5, to(term(9, 9)))], &[(9, Step::Kill)]),
            // As after a freeze of the whole machine.
            ("a term of the past", &[(9, to(term(2, 3)))], &[(9, Step::Kill)]),
            ("the holder ends", &[(1, HolderEnd)], &[(1, Step::Ask), (6, Step::Kill)]),
            ("both end", &[(1, HolderEnd), (2, CommandEnd)], &[(1, Step::Ask), (2, Step::Kill)]),
            // What the command has left behind may live on.
            ("the command ends", &[(1, CommandEnd), (2, HolderEnd)], &[]),
            // After a revocation, the command may take its time while the lease lasts.
            ("asked by the holder", &[(1, to(asked(20)))], &[(20, Step::Kill)]),
            ("asked, then more time", &[(1, to(asked(20))), (19, to(asked(30)))], &[(30, Step::Kill)]),
            ("asked, then left alone", &[(1, to(asked(20))), (3, HolderEnd)], &[(8, Step::Kill)]),
            // The holder decides what becomes of the rest, as long as it can.
            ("asked, ends", &[(1, to(asked(20))), (2, CommandEnd)], &[(20, Step::Kill)]),
            (
                "asked, ends, left alone",
                &[(1, to(asked(20))), (2, CommandEnd), (3, HolderEnd)],
                &[(3, Step::Kill)],
            ),
            ("asked, and ends at once", &[(1, Asked), (1, CommandEnd), (3, HolderEnd)], &[(3, Step::Kill)]),
            ("asked, and ends at once, no term", &[(1, Asked), (1, CommandEnd)], &[(15, Step::Kill)]),
            ("killed by the holder", &[(1, Kill)], &[(1, Step::Kill)]),
            ("killed after its end", &[(1, CommandEnd), (2, Kill)], &[(2, Step::Kill)]),
            ("killed when left alone", &[(1, HolderEnd), (1, Kill)], &[(1, Step::Kill)]),
        ];
        for (name, inputs, expected) in rows {
            let (mut leash, mut steps) = (launched(term(10, 15)), Vec::new());
            let mut inputs = inputs.iter().peekable();
            for now in 0..100 {
                while let Some((_, input)) = inputs.next_if(|(moment, _)| *moment == now) {
                    feed(&mut leash, *input, at(now));
                }
                while let step @ (Step::Ask | Step::Kill) = leash.poll(at(now)) {
                    steps.push((now, step));
                }
            }
            assert_eq!(steps, *expected, "{name}");
        }
    }

    #[test]
    fn command_runs_as_long_as_terms_come_in_time() {
        let mut leash = launched(term(10, 15));
        for second in 0..100 {
            leash.handle_term(term(second + 10, second + 15));
            assert_eq!(leash.poll(at(second)), Step::Wait(Some(at(second + 10))));
        }
    }

    #[test]
    fn late_term_frees_nothing() {
        let mut leash = launched(term(10, 13));
        assert_eq!(leash.poll(at(10)), Step::Ask);
        leash.handle_term(term(100, 200));
        assert_eq!(leash.poll(at(12)), Step::Wait(Some(at(13))));
        leash.handle_term(term(11, 12));
        assert_eq!(leash.poll(at(12)), Step::Kill);
        leash.handle_term(term(100, 200));
        assert_eq!(leash.poll(at(12)), Step::Wait(None));
    }

    #[test]
    fn command_is_launched_only_while_it_may_run() {
        assert!(Leash::new(term(10, 15), GRACE).launch(at(9)));
        assert!(!Leash::new(term(10, 15), GRACE).launch(at(10)));
        let mut leash = Leash::new(term(10, 15), GRACE);
        leash.handle_holder_end(at(1));
        assert!(!leash.launch(at(1)));
        assert_eq!(leash.poll(at(1)), Step::Kill, "it is not even asked");
    }

    fn any_input() -> impl Strategy<Value = Option<Input>> {
        let term = (proptest::option::of(0..40_u64), 0..40_u64)
            .prop_map(|(ask, kill)| to(Term { ask_at: ask.map(at), kill_at: at(kill) }));
        prop_oneof![
            8 => term.prop_map(Some),
            1 => Just(Some(HolderEnd)),
            1 => Just(Some(CommandEnd)),
            1 => Just(Some(Asked)),
            1 => Just(Some(Kill)),
            8 => Just(None),
        ]
    }

    proptest! {
        /// Whatever comes in whatever order: everything is dead by the end of the last term that came before the guardian
        /// began to end the command, and within the grace after the end of the holder.
        #[test]
        fn nothing_runs_beyond_the_last_term_that_came_in_time(
            inputs in proptest::collection::vec((any_input(), 0..5_u64), 0..40)
        ) {
            let (mut now, mut last) = (0, 20);
            let mut leash = launched(term(15, last));
            let (mut is_over, mut has_holder_ended) = (false, false);
            for (input, pause) in inputs {
                match input {
                    Some(Input::Term(Term { ask_at, kill_at })) if !has_holder_ended => {
                        last = if matches!(leash.state, State::Ending { .. }) { last.min(now + kill_at.as_secs()) } else { now + kill_at.as_secs() };
                        leash.handle_term(Term { ask_at: ask_at.map(|ask| at(now) + ask), kill_at: at(now) + kill_at });
                    }
                    Some(HolderEnd) => {
                        last = last.min(now + GRACE.as_secs());
                        has_holder_ended = true;
                        leash.handle_holder_end(at(now));
                    }
                    Some(CommandEnd) => {
                        is_over |= matches!(leash.state, State::Held(term) if term.ask_at.is_some() && at(now) < term.end());
                        leash.handle_command_end(at(now));
                    }
                    Some(Asked) if !has_holder_ended => leash.handle_asked(),
                    Some(Kill) if !has_holder_ended => {
                        (is_over, last) = (false, now);
                        leash.handle_kill();
                    }
                    _ => {}
                }
                loop {
                    match leash.poll(at(now)) {
                        Step::Wait(Some(until)) => {
                            prop_assert!(!is_over && at(now) < until && until <= at(last));
                            break;
                        }
                        Step::Wait(None) => {
                            prop_assert!(is_over);
                            break;
                        }
                        Step::Ask => prop_assert!(!is_over && now < last),
                        Step::Kill => {
                            prop_assert!(!is_over);
                            is_over = true;
                        }
                    }
                }
                prop_assert!(is_over || now < last, "{now} {last}");
                now += pause;
            }
        }
    }
}
