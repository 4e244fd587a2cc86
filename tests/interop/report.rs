//! The table and the verdict.

use std::process::ExitCode;

use crate::conductor::Killed;
use crate::pairs::{CONTENDERS, Expected, Pair};
use crate::referee::Course;

/// The smallest part of an equal share that each contender must have had, but at least one round. Contenders
/// that were killed miss some rounds.
const LEAST_SHARE: f64 = 0.25;
/// With a smaller equal share than this, nobody counts as starved. A contender whose process is killed misses the rounds
/// until its session has expired and another process has started. In a short run, these may be all.
const ROUNDS_TO_JUDGE: f64 = 4.0;

/// With fewer rounds than this, readers of the two sides may miss each other by chance.
const ROUNDS_TO_SHARE: usize = 100;

pub struct Row {
    pub pair: &'static Pair,
    pub course: Course,
    pub killed: Killed,
    /// Whether our log advised another scheme.
    pub is_advised: bool,
}

pub fn print(rows: &[Row], left_out: &[&'static Pair], failure: Option<&str>) -> ExitCode {
    println!(
        "{:<18} {:<35} {:<26} {:>6} {:>8} {:>11} {:>15} {:>6} {:>7} {:>7}",
        "directory",
        "theirs",
        "our names",
        "rounds",
        "overlaps",
        "least share",
        "killed in round",
        "missed",
        "shared",
        "advised",
    );
    for row in rows {
        let Row { pair, course, killed, .. } = row;
        println!(
            "{:<18} {:<35} {:<26} {:>6} {:>8} {:>10.0}% {:>15} {:>6} {:>7} {:>7}",
            pair.name,
            pair.theirs,
            row.names(),
            row.rounds(),
            course.overlaps,
            100.0 * row.least_share(),
            format!("{} of {}", killed.in_round, killed.all),
            course.missed,
            course.shared,
            if row.is_advised { "yes" } else { "no" },
        );
    }
    println!(
        "least share: of the contender with the fewest rounds, of an equal share; missed: releases that a\n\
         library missed, which left its waiter waiting until it looked again by hand; shared: readers, or\n\
         holders of a permit, that entered beside one of the other side; advised: our log names another scheme"
    );
    let rounds: usize = rows.iter().map(Row::rounds).sum();
    let killed: usize = rows.iter().map(|row| row.killed.all).sum();
    println!("exercised interop/rounds {rounds}\nexercised interop/processes-killed {killed}");
    for pair in left_out {
        println!("skipped: {}, which is not installed", pair.theirs);
    }
    let mut failures: Vec<String> = failure.map(str::to_owned).into_iter().collect();
    failures.extend(rows.iter().flat_map(Row::failures));
    for failure in &failures {
        println!("FAILED: {failure}");
    }
    if !failures.is_empty() {
        return ExitCode::FAILURE;
    }
    println!("interop: every pair behaved as expected");
    ExitCode::SUCCESS
}

impl Row {
    fn names(&self) -> String {
        let mut names: Vec<String> = self.pair.schemes.iter().map(|scheme| format!("{scheme:?}")).collect();
        names.sort();
        names.dedup();
        names.join(", ")
    }

    fn rounds(&self) -> usize {
        self.course.rounds.values().sum()
    }

    /// Returns the number of rounds of the contender with the fewest.
    fn least(&self) -> usize {
        match self.course.rounds.len() {
            count if count < 2 * CONTENDERS => 0,
            _ => self.course.rounds.values().copied().min().unwrap_or_default(),
        }
    }

    fn equal_share(&self) -> f64 {
        self.rounds() as f64 / (2 * CONTENDERS) as f64
    }

    fn least_share(&self) -> f64 {
        if self.least() == 0 { 0.0 } else { self.least() as f64 / self.equal_share() }
    }

    fn failures(&self) -> Vec<String> {
        let Row { pair, course, .. } = self;
        let mut failures = Vec::new();
        let wants_advice = pair.expected != Expected::Shared;
        if self.is_advised != wants_advice {
            let what = if wants_advice { "does not advise" } else { "advises" };
            failures.push(format!("{}: our log {what} another scheme", pair.name));
        }
        if pair.expected == Expected::Overlaps {
            if course.overlaps == 0 {
                failures.push(format!("{}: no overlap was seen, although the names are wrong", pair.name));
            }
            return failures;
        }
        if let Some(first) = &course.first_overlap {
            failures.push(format!("{}: {} overlaps; {first}", pair.name, course.overlaps));
        }
        let is_long = self.equal_share() >= ROUNDS_TO_JUDGE;
        if is_long && self.least() < ((LEAST_SHARE * self.equal_share()) as usize).max(1) {
            failures.push(format!("{}: a contender starved: {:?}", pair.name, course.rounds));
        }
        let shares = pair.reads("ours") || pair.permits() > 1;
        if shares && course.shared == 0 && self.rounds() >= ROUNDS_TO_SHARE {
            failures.push(format!("{}: the two sides never shared", pair.name));
        }
        failures
    }
}
