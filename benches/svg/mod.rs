//! What the pictures of the benchmarks have in common.

use std::fmt::Write;

pub(crate) const WIDTH: f64 = 760.0;

/// Colours that are distinct on a white and on a black page, and for readers who see few colours.
pub(crate) const COLOURS: [&str; 6] = ["#d55e00", "#e69f00", "#0072b2", "#56b4e9", "#009e73", "#999999"];
pub(crate) const TEXT: &str = "#777777";

/// Returns a picture of this height.
pub(crate) fn document(height: f64, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n{body}</svg>\n"
    )
}

pub(crate) fn text(body: &mut String, x: f64, y: f64, weight: &str, text: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(
        body,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{TEXT}\" font-weight=\"{weight}\">{text}</text>"
    );
}
