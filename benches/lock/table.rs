//! The report: one line for each measurement.

use std::fs;
use std::thread::available_parallelism;

use crate::measure::Plan;
use crate::{SESSION_TIMEOUT, WARM_UP_CYCLES};

pub(crate) fn print_head(plan: &Plan) {
    let cores = available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("unknown");
    println!(
        "\n{} rounds, about {:?} a side in each; session timeout {SESSION_TIMEOUT:?}; {WARM_UP_CYCLES} cycles of warm-up\n\
         {cores} cores for client, server and all other programs; load average at the start {load}\n\
         numbers: median (least - most) over the rounds; ratio ours / raw: of the medians, and the median of the rounds'\n\
         own ratios, which is what the aim is for",
        plan.rounds, plan.leg,
    );
}

pub(crate) fn print_title(title: &str, unit: &str) {
    let title = if unit.is_empty() { title.to_owned() } else { format!("{title}: {unit}") };
    println!("\n{title}");
}

/// Prints series that were measured alternately, and the aim for the ratio of ours to the raw one. A varying
/// load affects all sides of a round, but not the medians evenly.
pub(crate) fn print_comparison(name: &str, ours: &[f64], raw: &[f64], floor: Option<&[f64]>, aim: f64) {
    let of_medians = median(ours) / median(raw);
    let of_rounds = ratio(ours, raw);
    println!(
        "  {name:<28} ours {:<26} raw {:<26} ratio {of_medians:.2}, {of_rounds:.2}   aim ≤ {aim:<5} {}",
        summary(ours),
        summary(raw),
        verdict(of_rounds <= aim),
    );
    if let Some(floor) = floor {
        println!(
            "  {:<28} floor {:<25} ours / floor {:.2}   raw / floor {:.2}",
            "",
            summary(floor),
            ratio(ours, floor),
            ratio(raw, floor),
        );
    }
}

/// Returns the median of the rounds' ratios.
fn ratio(one: &[f64], other: &[f64]) -> f64 {
    let of_rounds: Vec<f64> = one.iter().zip(other).map(|(one, other)| one / other).collect();
    median(&of_rounds)
}

/// Prints times divided by the time of a round trip.
pub(crate) fn print_round_trips(name: &str, round_trip: f64, sides: &[(&str, &[f64])]) {
    let sides: Vec<String> =
        sides.iter().map(|(side, times)| format!("{side} {:<10.2}", median(times) / round_trip)).collect();
    println!("  {name:<28} {}", sides.join(" "));
}

/// Prints one series, and the aim for its median.
pub(crate) fn print_numbers(name: &str, numbers: &[f64], aim: &str, is_met: impl FnOnce(f64) -> bool) {
    println!("  {name:<28} {:<80} aim {aim:<7} {}", summary(numbers), verdict(is_met(median(numbers))));
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { "ok" } else { "over" }
}

fn summary(numbers: &[f64]) -> String {
    let (least, most) = numbers.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), number| {
        (number.min(least), number.max(most))
    });
    format!("{:.1} ({least:.1} - {most:.1})", median(numbers))
}

pub(crate) fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}
