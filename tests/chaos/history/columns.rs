//! A thread's activity in each column of a picture.

use crate::plan::LOCKS;

/// A period of time that is divided into the columns of a picture.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub from: u64,
    pub to: u64,
    pub columns: usize,
}

/// The fractions of a column's time in which each lock was held exclusively, held as a reader, and waited for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Column {
    pub held: [f64; LOCKS.len()],
    pub shared: [f64; LOCKS.len()],
    pub waited: [f64; LOCKS.len()],
}

/// How a column is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The lock held for the longest time, whether it was held as a reader, and for how many quarters of the
    /// column's time, at least one.
    pub held: Option<usize>,
    pub is_shared: bool,
    pub quarters: usize,
    /// The lock waited for longest.
    pub waited: Option<usize>,
}

impl Scale {
    pub fn shows(&self, began: u64, ended: u64) -> bool {
        began < self.to && ended >= self.from
    }

    /// Returns the position of a moment in columns, or the nearest edge if the moment is outside.
    pub fn place(&self, time: u64) -> f64 {
        let share = (time.clamp(self.from, self.to) - self.from) as f64 / (self.to - self.from) as f64;
        share * self.columns as f64
    }

    /// Distributes a period of time over the columns.
    pub fn spread(&self, began: u64, ended: u64, mut add: impl FnMut(usize, f64)) {
        if !self.shows(began, ended) {
            return;
        }
        let (from, to) = (self.place(began), self.place(ended));
        for column in from as usize..=(to as usize).min(self.columns - 1) {
            let (left, right) = (from.max(column as f64), to.min(column as f64 + 1.0));
            // Visible, however short the period is.
            add(column, (right - left).max(0.01));
        }
    }
}

impl Column {
    fn look(&self) -> Look {
        let (alone, shared) = (most(&self.held), most(&self.shared));
        let share_of = |held: Option<(usize, f64)>| held.map_or(0.0, |(_, share)| share);
        let is_shared = share_of(shared) > share_of(alone);
        let held = if is_shared { shared } else { alone };
        let quarters = held.map_or(0, |(_, share)| ((share * 4.0).ceil() as usize).clamp(1, 4));
        let (held, waited) = (held.map(|(lock, _)| lock), most(&self.waited).map(|(lock, _)| lock));
        Look { held, is_shared, quarters, waited }
    }
}

/// Returns the runs of adjacent columns that look the same: the first column, the one after the last, and the
/// look.
pub fn runs(columns: &[Column]) -> Vec<(usize, usize, Look)> {
    let mut runs: Vec<(usize, usize, Look)> = Vec::new();
    for (place, column) in columns.iter().enumerate() {
        let look = column.look();
        match runs.last_mut() {
            Some((_, end, last)) if *last == look => *end = place + 1,
            _ => runs.push((place, place + 1, look)),
        }
    }
    runs
}

fn most(shares: &[f64; LOCKS.len()]) -> Option<(usize, f64)> {
    let all = shares.iter().enumerate().filter(|(_, share)| **share > 0.0);
    all.max_by(|a, b| a.1.total_cmp(b.1)).map(|(lock, share)| (lock, *share))
}
