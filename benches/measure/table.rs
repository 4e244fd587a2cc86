//! The report: tables in Markdown, with one row for each figure.

use std::fs;
use std::thread::available_parallelism;
use std::time::Duration;

use crate::survival::Survival;

/// The target of a figure.
pub(crate) enum Aim {
    /// No value larger than this.
    AtMost(f64),
    /// Not under this crate's control.
    None,
}

pub(crate) fn print_machine() {
    let cores = available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("unknown");
    println!("\n{cores} cores for client, server and all other programs; load average at the start {load}");
}

pub(crate) fn print_head() {
    println!("\n| | should be | median | worst | of runs | |\n|---|---|---|---|---|---|");
}

pub(crate) fn print_row(figure: &str, unit: &str, numbers: &[f64], aim: &Aim) {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (median, worst) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
    let (aim, verdict) = match aim {
        Aim::AtMost(limit) => (format!("≤ {limit} {unit}"), if worst <= *limit { "ok" } else { "over" }),
        Aim::None => ("–".to_owned(), ""),
    };
    let runs = numbers.len();
    println!("| {figure} | {aim} | {median:.2} {unit} | {worst:.2} {unit} | {runs} | {verdict} |");
}

pub(crate) fn print_survival(survived: &[Survival]) {
    println!("\n| session timeout | survived for certain | typically | moments tried |\n|---|---|---|---|");
    for Survival { session_timeout, certain, typical, moments } in survived {
        let certain = certain.map_or("nothing".to_owned(), |length| format!("{:.1} s", tenths_below(length)));
        let typical = tenths_below(*typical);
        println!("| {session_timeout:?} | {certain} | {typical:.1} s | {moments} |");
    }
}

/// In seconds, rounded down.
fn tenths_below(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).floor() / 10.0
}
