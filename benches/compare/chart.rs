//! The results as bars in SVG. Each bar shows a library's time as a multiple of the first library's.

use std::fmt::Write;

use crate::DELAY;
use crate::report::{Cell, Measured};
use crate::svg::{COLOURS, WIDTH, document, text};

/// Longer bars are cut off at this length, and their value is written beside them.
const LONGEST: f64 = 8.0;

const LABELS: f64 = 250.0;
const NUMBERS: f64 = 60.0;
const BAR: f64 = 11.0;
const GAP: f64 = 14.0;
const TITLE: f64 = 30.0;

pub(crate) fn svg(measured: &[Measured]) -> String {
    let mut body = String::new();
    let mut y = TITLE;
    if let Some(first) = measured.first() {
        y = legend(&mut body, &first.cells, y);
    }
    for is_far in [false, true] {
        let lines: Vec<&Measured> = measured.iter().filter(|line| line.is_far == is_far).collect();
        if lines.is_empty() {
            continue;
        }
        let place = if is_far { format!("{DELAY:?} away in each direction") } else { "nearby".to_owned() };
        text(&mut body, 0.0, y, "bold", &format!("a server {place}"));
        y += GAP;
        for line in lines {
            y = group(&mut body, line, y);
        }
        y += GAP;
    }
    document(y, &body)
}

/// Draws the names of the libraries. Returns where the next part begins.
fn legend(body: &mut String, cells: &[Cell], y: f64) -> f64 {
    let first = cells.first().map_or("", |cell| &cell.library.title);
    text(
        body,
        0.0,
        14.0,
        "bold",
        &format!("time of a lock and unlock, as a multiple of the first ({first})"),
    );
    for (number, cell) in cells.iter().enumerate() {
        let x = number as f64 * WIDTH / cells.len() as f64;
        rect(body, x, y - 9.0, BAR, number);
        text(body, x + BAR + 5.0, y, "normal", &cell.library.title);
    }
    y + 2.0 * GAP
}

/// Draws the bars of a row.
fn group(body: &mut String, line: &Measured, y: f64) -> f64 {
    text(body, 0.0, y + BAR, "normal", &line.title);
    let scale = (WIDTH - LABELS - NUMBERS) / LONGEST;
    let mut bottom = y;
    for (number, cell) in line.cells.iter().enumerate() {
        let label = match cell.ratio {
            Some(ratio) => {
                // A process that never got a turn has no finite ratio.
                rect(body, LABELS, bottom, scale * ratio.min(LONGEST), number);
                format!("{ratio:.2}")
            }
            None => "failed".to_owned(),
        };
        let end = LABELS + scale * cell.ratio.unwrap_or(0.0).min(LONGEST);
        text(body, end + 5.0, bottom + BAR - 1.5, "normal", &label);
        bottom += BAR + 1.0;
    }
    bottom + GAP
}

fn rect(body: &mut String, x: f64, y: f64, width: f64, number: usize) {
    let colour = COLOURS[number % COLOURS.len()];
    // Writing to a string does not fail.
    let _ = writeln!(
        body,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>"
    );
}
