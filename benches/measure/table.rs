//! The report: tables in Markdown, with one row for each figure.

use std::fs;
use std::thread::available_parallelism;
use std::time::Duration;

use crate::survival::{Cut, Survival, Traffic};
use crate::transactions::Transactions;

/// The target of a figure.
pub(crate) enum Aim {
    /// No value may be larger than this.
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

pub(crate) fn print_survival(cut: Cut, survived: &[Survival]) {
    let how = match cut {
        Cut::Refused => "no server: connections are closed and refused",
        Cut::Silent => "a silent network: nothing passes, nothing is closed",
    };
    println!(
        "\nOutages that an owner survives, {how}\n\n\
         | servers | session timeout | session | survived for certain | by half of them | owners tried |\n\
         |---|---|---|---|---|---|"
    );
    for Survival { servers, session_timeout, traffic, certain, typical, owners } in survived {
        let traffic = match traffic {
            Traffic::Idle => "idle",
            Traffic::Busy => "busy",
        };
        let part = |length: &Option<Duration>| match length {
            Some(length) => {
                let part = length.as_secs_f64() / session_timeout.as_secs_f64();
                format!("{:.1} s, {part:.2} T", tenths_below(*length))
            }
            None => "nothing".to_owned(),
        };
        let (certain, typical) = (part(certain), part(typical));
        println!("| {servers} | {session_timeout:?} | {traffic} | {certain} | {typical} | {owners} |");
    }
}

pub(crate) fn print_transactions(length: Duration, measured: &[Transactions]) {
    println!(
        "\nTransactions a minute that a session causes, over {length:?}\n\n\
         | session timeout | idle | busy with reads | waiting for a lock | owning one | owning one, busy |\n\
         |---|---|---|---|---|---|"
    );
    for Transactions { session_timeout, idle, busy, waiting, owning, owning_busy } in measured {
        println!(
            "| {session_timeout:?} | {idle:.1} | {busy:.1} | {waiting:.1} | {owning:.1} | {owning_busy:.1} |"
        );
    }
}

pub(crate) fn print_packages(counted: &[(&str, usize)]) {
    println!("\n| features | packages that a build adds |\n|---|---|");
    for (features, packages) in counted {
        println!("| {features} | {packages} |");
    }
}

/// Returns the time in seconds, rounded down to tenths.
fn tenths_below(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).floor() / 10.0
}
