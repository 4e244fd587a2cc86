//! Standard output and tables.

use std::io::{self, Write};

use unicode_width::UnicodeWidthStr as _;
pub(crate) use zookeeper_recipes_lock::queue::one_line;

use crate::failure::Failure;

/// The number of characters of data that a table shows.
const MAX_TEXT: usize = 48;

/// Writes to standard output and flushes it.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Failure::output(&error))
}

/// Returns whether the reader of standard output has gone. A program that writes nothing would not notice otherwise.
#[cfg(unix)]
pub(crate) fn is_closed() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

#[cfg(not(unix))]
pub(crate) fn is_closed() -> bool {
    false
}

/// Like [`one_line`], but shortened to [`MAX_TEXT`] characters.
pub(crate) fn printable(text: &str) -> String {
    let end = text.char_indices().nth(MAX_TEXT).map(|(end, _)| end);
    let mut shown = one_line(&text[..end.unwrap_or(text.len())]);
    if end.is_some() {
        shown.push('…');
    }
    shown
}

/// Rows of cells in columns that are aligned to the left.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[&str]) -> Table {
        Table { rows: vec![heading.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width_of = |column| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell: &String| cell.width()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width_of).collect();
        let line = |row: &Vec<String>| {
            let padded = |(cell, width): (&String, &usize)| cell.clone() + &" ".repeat(width - cell.width());
            let line = row.iter().zip(&widths).map(padded).collect::<Vec<_>>().join("  ");
            format!("{}\n", line.trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::help_of;

    #[test]
    fn help_names_the_length_of_the_shown_data() {
        assert!(help_of("who").contains(&format!("The table shows its first {MAX_TEXT} characters")));
    }

    #[test]
    fn columns_are_aligned_without_trailing_spaces() {
        let mut table = Table::new(&["A", "LONG", "B"]);
        table.row(vec!["wide".to_owned(), "é".to_owned(), String::new()]);
        table.row(vec!["日本".to_owned(), "e\u{301}".to_owned(), "x".to_owned()]);
        assert_eq!(table.render(), "A     LONG  B\nwide  é\n日本  e\u{301}     x\n");
    }

    #[test]
    fn data_of_others_are_one_short_line() {
        assert_eq!(printable("a\nb\x1b[2J"), "a\\nb\\u{1b}[2J");
        assert_eq!(printable(&"x".repeat(100)), format!("{}…", "x".repeat(MAX_TEXT)));
    }
}
