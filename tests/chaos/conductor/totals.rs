//! The sums of many runs, in a file to which each run adds a line.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// The figures of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    pub seconds: u64,
    pub acquisitions: usize,
    pub by_futures: usize,
    pub with_kerberos: usize,
    pub by_tls: usize,
    pub faults: usize,
    pub complaints: usize,
}

/// Adds a run to the file. Returns the sums as a sentence.
pub fn add(file: &Path, run: Run) -> io::Result<String> {
    let Run { seconds, acquisitions, by_futures, with_kerberos, by_tls, faults, complaints } = run;
    let commit = env::var("CHAOS_COMMIT").unwrap_or_else(|_| "unknown".to_owned());
    let mut lines = OpenOptions::new().create(true).append(true).open(file)?;
    writeln!(
        lines,
        "seconds={seconds} acquisitions={acquisitions} futures={by_futures} kerberos={with_kerberos} tls={by_tls} faults={faults} complaints={complaints} commit={commit}"
    )?;
    let text = fs::read_to_string(file)?;
    let sum = |key: &str| -> usize {
        let values = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        values.filter(|(name, _)| *name == key).filter_map(|(_, value)| value.parse::<usize>().ok()).sum()
    };
    Ok(format!(
        "in all: {} runs, {} s, {} acquisitions ({} by futures, {} with Kerberos, {} by TLS), {} faults, {} complaints",
        text.lines().count(),
        sum("seconds"),
        sum("acquisitions"),
        sum("futures"),
        sum("kerberos"),
        sum("tls"),
        sum("faults"),
        sum("complaints")
    ))
}
