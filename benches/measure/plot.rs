//! Lines over the minutes of a run, as SVG.

use std::fmt::Write;

use crate::svg::{COLOURS, TEXT, WIDTH, document, text};

pub(crate) struct Line {
    pub(crate) name: &'static str,
    /// Pairs of the minute and the value as a multiple of the first value.
    pub(crate) points: Vec<(f64, f64)>,
}

const HEIGHT: f64 = 260.0;
const LEFT: f64 = 40.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 30.0;

/// Higher values are cut off at this height.
const HIGHEST: f64 = 1.5;

pub(crate) fn plot(title: &str, lines: &[Line]) -> String {
    let minutes = lines.iter().flat_map(|line| &line.points).map(|(minute, _)| *minute).fold(1.0, f64::max);
    let x = |minute: f64| LEFT + (WIDTH - LEFT) * minute / minutes;
    let y = |part: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - part.min(HIGHEST) / HIGHEST);
    let mut body = String::new();
    text(&mut body, 0.0, 14.0, "bold", title);
    for part in [0.0, 0.5, 1.0, HIGHEST] {
        let y = y(part);
        let _ = writeln!(body, "<path d=\"M{LEFT} {y:.1}H{WIDTH}\" stroke=\"{TEXT}\" stroke-width=\"0.3\"/>");
        text(&mut body, 0.0, y + 4.0, "normal", &format!("{part:.1}"));
    }
    for minute in (0..).map(|step| f64::from(step) * 10.0).take_while(|minute| *minute <= minutes) {
        text(&mut body, x(minute), HEIGHT - 10.0, "normal", &format!("{minute:.0}"));
    }
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<String> =
            line.points.iter().map(|(minute, part)| format!("{:.1},{:.1}", x(*minute), y(*part))).collect();
        let points = points.join(" ");
        // Writing to a string does not fail.
        let _ = writeln!(
            body,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        );
        let left = LEFT + number as f64 * 122.0;
        let _ = writeln!(body, "<rect x=\"{left}\" y=\"26\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
        text(&mut body, left + 15.0, 35.0, "normal", line.name);
    }
    document(HEIGHT, &body)
}
