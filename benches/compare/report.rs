//! The results as a table in Markdown, and all numbers in JSON.

use std::fmt::Write;
use std::fs;
use std::thread::available_parallelism;

use crate::DELAY;
use crate::options::Options;
use crate::peer::{Library, Run};
use crate::rows::Row;

/// The measurements of one library in the rounds of a row.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series {
    /// Microseconds per cycle.
    times: Vec<f64>,
    /// Microseconds per cycle of the other process.
    waits: Vec<f64>,
    stalls: f64,
    /// Whether the process failed, in which case rounds are missing.
    pub(crate) has_failed: bool,
}

/// A line of the table.
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) is_far: bool,
    pub(crate) cells: Vec<Cell>,
}

/// The numbers of one library in a line.
pub(crate) struct Cell {
    pub(crate) library: Library,
    /// Microseconds per cycle, one number for each round; empty if the library failed.
    pub(crate) times: Vec<f64>,
    /// The median of the rounds' ratios to the first library.
    pub(crate) ratio: Option<f64>,
    stalls: f64,
}

impl Series {
    pub(crate) fn add(&mut self, run: Run, other: Option<Run>) {
        self.stalls += run.stalls;
        let mut cycles = run.cycles;
        if let Some(other) = other {
            cycles += other.cycles;
            self.stalls += other.stalls;
            self.waits.push(other.seconds * 1e6 / other.cycles);
        }
        self.times.push(run.seconds * 1e6 / cycles);
    }
}

/// Returns the table lines for a row.
pub(crate) fn measured(row: Row, is_far: bool, libraries: &[Library], series: Vec<Series>) -> Vec<Measured> {
    let line = |name: String, title: &str, of: fn(&Series) -> &Vec<f64>| {
        let times = |series: &Series| if series.has_failed { Vec::new() } else { of(series).clone() };
        let first = times(&series[0]);
        let cells = libraries.iter().zip(&series).map(|(library, series)| {
            let times = times(series);
            let ratios: Vec<f64> = times.iter().zip(&first).map(|(time, first)| time / first).collect();
            Cell { library: library.clone(), ratio: median(&ratios), times, stalls: series.stalls }
        });
        Measured { name, title: title.to_owned(), is_far, cells: cells.collect() }
    };
    let mut lines = vec![line(row.name.to_owned(), row.title, |series| &series.times)];
    if row.is_contended {
        let name = format!("{}-other", row.name);
        lines.push(line(name, "… how long a cycle of that thread takes", |series| &series.waits));
    }
    lines
}

pub(crate) fn print_head(options: &Options) {
    let cores = available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("unknown");
    let releases: Vec<String> =
        options.releases.iter().map(|(name, release)| format!("{name}={release}")).collect();
    println!(
        "\nreleases: {}\n\
         turns of {:?}, {} for each library in each row, after one to warm up\n\
         {cores} cores for clients, server and all other programs; load average at the start {load}\n\
         numbers: the median microseconds per lock and unlock; in parentheses, the ratio to the first column\n\
         (the median of the ratios of the individual rounds)",
        releases.join(" "),
        options.length,
        options.rounds,
    );
}

pub(crate) fn print_title(options: &Options, is_far: bool) {
    let place = if is_far { format!("{DELAY:?} away in each direction") } else { "nearby".to_owned() };
    let names: Vec<&str> = options.libraries.iter().map(|library| &*library.title).collect();
    println!("\n| a server {place} | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
}

pub(crate) fn print_row(measured: &Measured) {
    let mut line = format!("| {} |", measured.title);
    for cell in &measured.cells {
        let text = match (median(&cell.times), cell.ratio) {
            (Some(time), Some(ratio)) => format!(" {time:.0} ({ratio:.2}) |"),
            (Some(time), None) => format!(" {time:.0} |"),
            (None, _) => " failed |".to_owned(),
        };
        line.push_str(&text);
    }
    println!("{line}");
}

pub(crate) fn print_notes(measured: &[Measured]) {
    println!();
    for line in measured {
        let place = if line.is_far { "far" } else { "near" };
        for cell in line.cells.iter().filter(|cell| cell.stalls > 0.0 && !line.name.ends_with("-other")) {
            let (library, stalls, name) = (&cell.library.title, cell.stalls, &line.name);
            println!(
                "{name}, {place}: {library} missed {stalls} releases, and its caller called lock() again"
            );
        }
    }
}

/// Returns all numbers as JSON.
pub(crate) fn json(options: &Options, measured: &[Measured]) -> String {
    let releases: Vec<String> =
        options.releases.iter().map(|(name, release)| format!("\"{name}\": \"{release}\"")).collect();
    let mut text = format!(
        "{{\n  \"releases\": {{{}}},\n  \"unit\": \"µs\", \"rounds\": {}, \"seconds\": {},\n  \"rows\": [\n",
        releases.join(", "),
        options.rounds,
        options.length.as_secs_f64()
    );
    for (number, line) in measured.iter().enumerate() {
        let cells: Vec<String> = line.cells.iter().map(json_cell).collect();
        let comma = if number + 1 < measured.len() { "," } else { "" };
        let (name, is_far, cells) = (&line.name, line.is_far, cells.join(", "));
        // Writing to a string does not fail.
        let _ = writeln!(text, "    {{\"row\": \"{name}\", \"far\": {is_far}, {cells}}}{comma}");
    }
    text + "  ]\n}\n"
}

fn json_cell(cell: &Cell) -> String {
    // A process that never got a turn has an infinite time, which JSON cannot express.
    let number = |time: &f64| if time.is_finite() { format!("{time:.1}") } else { "null".to_owned() };
    let times: Vec<String> = cell.times.iter().map(number).collect();
    format!("\"{}\": [{}]", cell.library.name, times.join(", "))
}

/// Returns the median, or `None` if there are no numbers.
pub(crate) fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { (sorted[middle - 1] + upper) / 2.0 })
}
