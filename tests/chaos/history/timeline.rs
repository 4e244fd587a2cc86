//! Pictures of a history as SVG: one row for each client thread, and rows for the faults.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use super::columns::{Column, Look, Scale, runs};
use super::{Actor, History, HoldEnd};
use crate::clock::seconds;
use crate::nemesis::record::{Fault, Record, Target};
use crate::plan::{CLIENTS, LOCKS, SERVERS, THREADS};

/// A period without faults, in which every thread had to acquire each lock.
#[derive(Clone, Copy, Debug)]
pub struct Calm {
    pub began: u64,
    pub ended: u64,
}

/// The length of the detailed picture.
const WINDOW: u64 = 60_000_000_000;

const WIDTH: usize = 1_700;
const LEFT: usize = 118;
const COLUMNS: usize = WIDTH - LEFT - 20;
const TOP: usize = 66;
const FAULT_ROW: usize = 15;
const THREAD_ROW: usize = 24;
const GAP: usize = 9;

/// The colours for each lock: held exclusively, held as a reader, and waited for.
const COLOURS: [[&str; 3]; LOCKS.len()] = [
    ["#1d5fa6", "#74a9e0", "#d5e5f5"],
    ["#1c7a45", "#6cc08e", "#d3eedd"],
    ["#b9520c", "#f2a15f", "#fce4cf"],
    ["#8a1c6b", "#8a1c6b", "#f3d9ea"],
];

/// Draws the whole run and, if it is long, also the most eventful part.
pub fn draw_all(
    dir: &Path,
    history: &History,
    faults: &[Record],
    calms: &[Calm],
    begin: u64,
) -> io::Result<()> {
    let end = calms.last().map_or(begin, |calm| calm.ended);
    let draw = |from, to, name: &str| {
        let scale = Scale { from, to, columns: COLUMNS };
        let picture = Picture { history, faults, calms, begin, scale, text: String::new() };
        fs::write(dir.join(name), picture.draw())
    };
    draw(begin, end, "timeline.svg")?;
    if end - begin > 2 * WINDOW {
        let from = most_eventful(history, faults, begin, end);
        draw(from, from + WINDOW, "timeline-detail.svg")?;
    }
    Ok(())
}

/// Returns the start of the window with the most new faults and losses.
fn most_eventful(history: &History, faults: &[Record], begin: u64, end: u64) -> u64 {
    let lost = history.holds.iter().filter(|hold| hold.end == HoldEnd::Lost).map(|hold| hold.last.before);
    let events: Vec<u64> = faults.iter().map(|fault| fault.began).chain(lost).collect();
    let count = |from: u64| events.iter().filter(|at| (from..from + WINDOW).contains(at)).count();
    (begin..end - WINDOW).step_by(1_000_000_000).max_by_key(|from| count(*from)).unwrap_or(begin)
}

struct Picture<'a> {
    history: &'a History,
    faults: &'a [Record],
    calms: &'a [Calm],
    begin: u64,
    scale: Scale,
    text: String,
}

impl Picture<'_> {
    fn draw(mut self) -> String {
        let servers = (SERVERS + 1) * FAULT_ROW + GAP;
        let client = 2 * FAULT_ROW + THREADS * THREAD_ROW + GAP;
        let height = TOP + servers + CLIENTS * client + 34;
        let bottom = height - 34;
        let _ = write!(
            self.text,
            "<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}' \
             font-family='DejaVu Sans, Helvetica, sans-serif' font-size='11'>\n\
             <rect width='{WIDTH}' height='{height}' fill='white'/>\n"
        );
        self.legend();
        self.axis(bottom);
        let mut y = TOP;
        for server in 0..SERVERS {
            self.label(y, FAULT_ROW, &format!("server {server}"), "#333");
            let concerned = |fault: &&Record| match fault.target {
                Target::Server(one) => one == server,
                Target::AllBut(other) => other != server,
                Target::Kdc | Target::Client(_) => false,
            };
            self.fault_row(y, concerned);
            y += FAULT_ROW;
        }
        self.label(y, FAULT_ROW, "KDC", "#333");
        self.fault_row(y, |fault| fault.target == Target::Kdc);
        y += FAULT_ROW + GAP;
        for client in 0..CLIENTS {
            for of_process in [true, false] {
                let what = if of_process { "process" } else { "network" };
                self.label(y, FAULT_ROW, &format!("client {client} {what}"), "#333");
                self.fault_row(y, |fault| {
                    fault.target == Target::Client(client) && fault.fault.is_of_a_process() == of_process
                });
                y += FAULT_ROW;
            }
            for thread in 0..THREADS {
                let kind = if thread + 1 == THREADS { "listener" } else { "guards" };
                self.label(y, THREAD_ROW, &format!("thread {thread}, {kind}"), "#777");
                self.thread_row(y, client, thread);
                y += THREAD_ROW;
            }
            y += GAP;
        }
        self.text.push_str("</svg>\n");
        self.text
    }

    // ---- positions

    fn x(&self, time: u64) -> f64 {
        LEFT as f64 + self.scale.place(time)
    }

    // ---- parts

    fn label(&mut self, y: usize, height: usize, text: &str, colour: &str) {
        let (x, y) = (LEFT - 6, y + height / 2 + 4);
        let _ = writeln!(
            self.text,
            "<text x='{x}' y='{y}' text-anchor='end' font-size='10' fill='{colour}'>{text}</text>"
        );
    }

    fn legend(&mut self) {
        let (from, to) = (seconds(self.scale.from - self.begin), seconds(self.scale.to - self.begin));
        let _ = writeln!(
            self.text,
            "<text x='{LEFT}' y='18' font-size='14' font-weight='bold' fill='#222'>Chaos, {from:.0} s to {to:.0} s</text>"
        );
        let mut x = LEFT;
        for ([held, shared, waited], name) in COLOURS.into_iter().zip(LOCKS) {
            x = self.key(x, held, &format!("{name} held"), 80);
            // A permit of the semaphore is always one of several.
            if shared != held {
                x = self.key(x, shared, "shared", 42);
            }
            x = self.key(x, waited, "waited for", 68);
        }
        for (colour, what, width) in [
            ("#b3202c", "killed", 60),
            ("#5a5a5a", "stopped", 70),
            ("#7440a3", "network fault", 108),
            ("#e2f3e2", "calm: every thread acquires all", 170),
        ] {
            x = self.key(x, colour, what, width);
        }
        let _ = writeln!(
            self.text,
            "<path d='M{} 27 l8 11 m0 -11 l-8 11' stroke='#d00' stroke-width='2'/><text x='{}' y='37'>lock lost</text>",
            x + 4,
            x + 18
        );
    }

    /// Draws one entry of the legend and returns the start of the next.
    fn key(&mut self, x: usize, colour: &str, what: &str, width: usize) -> usize {
        let _ = writeln!(
            self.text,
            "<rect x='{x}' y='27' width='16' height='11' fill='{colour}'/><text x='{}' y='37'>{what}</text>",
            x + 20
        );
        x + width + 24
    }

    fn axis(&mut self, bottom: usize) {
        let length = seconds(self.scale.to - self.scale.from);
        let step = [1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0]
            .into_iter()
            .find(|step| length / step <= 26.0)
            .unwrap_or(300.0);
        let calms = self.calms;
        for calm in calms {
            if !self.scale.shows(calm.began, calm.ended) {
                continue;
            }
            let (from, to) = (self.x(calm.began), self.x(calm.ended));
            let _ = writeln!(
                self.text,
                "<rect x='{from:.1}' y='{}' width='{:.1}' height='{}' fill='#e2f3e2'/>",
                TOP - 4,
                (to - from).max(1.0),
                bottom - TOP
            );
        }
        let mut second = (seconds(self.scale.from - self.begin) / step).ceil() * step;
        while second <= seconds(self.scale.to - self.begin) {
            let x = self.x(self.begin + (second * 1e9) as u64);
            let _ = writeln!(
                self.text,
                "<path d='M{x:.1} {} V{bottom}' stroke='#e4e4e4'/>\
                 <text x='{x:.1}' y='{}' text-anchor='middle' fill='#666' font-size='10'>{second} s</text>\
                 <text x='{x:.1}' y='{}' text-anchor='middle' fill='#666' font-size='10'>{second} s</text>",
                TOP - 4,
                TOP - 8,
                bottom + 14
            );
            second += step;
        }
    }

    fn fault_row(&mut self, y: usize, concerned: impl Fn(&&Record) -> bool) {
        let mut shown: Vec<&Record> = self.faults.iter().filter(concerned).collect();
        shown.retain(|fault| self.scale.shows(fault.began, fault.ended));
        shown.sort_by_key(|fault| fault.began);
        for (place, fault) in shown.iter().enumerate() {
            let (from, to) = (self.x(fault.began), self.x(fault.ended));
            let width = (to - from).max(2.0);
            let (colour, strong) = colour_of(fault.fault);
            let _ = writeln!(
                self.text,
                "<rect x='{from:.1}' y='{}' width='{width:.1}' height='{}' fill='{colour}'/>\
                 <rect x='{from:.1}' y='{}' width='2' height='{}' fill='{strong}'/>",
                y + 1,
                FAULT_ROW - 3,
                y + 1,
                FAULT_ROW - 3
            );
            // The name goes inside the band, or after it if there is room before the next band.
            let end = shown.get(place + 1).map_or((LEFT + COLUMNS) as f64, |next| self.x(next.began));
            let label = fault.fault.label();
            if end - from > 5.6 * label.len() as f64 + 6.0 {
                let (x, y) = (from + 4.0, y + FAULT_ROW - 5);
                let _ = writeln!(
                    self.text,
                    "<text x='{x:.1}' y='{y}' font-size='9' fill='{strong}'>{label}</text>"
                );
            }
        }
    }

    fn thread_row(&mut self, y: usize, client: usize, thread: usize) {
        let columns = self.columns(client, thread);
        let high = THREAD_ROW - 4;
        for (from, to, Look { held, is_shared, quarters, waited }) in runs(&columns) {
            let (x, width) = (LEFT + from, to - from);
            if let Some(lock) = waited {
                let [.., colour] = COLOURS[lock];
                let _ = writeln!(
                    self.text,
                    "<rect x='{x}' y='{}' width='{width}' height='{high}' fill='{colour}'/>",
                    y + 2
                );
            }
            if let Some(lock) = held {
                // The height shows for how much of the column's time the lock was held.
                let part = high * quarters / 4;
                let (y, colour) = (y + 2 + high - part, COLOURS[lock][usize::from(is_shared)]);
                let _ = writeln!(
                    self.text,
                    "<rect x='{x}' y='{y}' width='{width}' height='{part}' fill='{colour}'/>"
                );
            }
        }
        self.losses(y, client, thread);
    }

    fn losses(&mut self, y: usize, client: usize, thread: usize) {
        let of_row = |actor: &Actor| actor.client == client && actor.thread == thread;
        let lost = self.history.holds.iter().filter(|hold| hold.end == HoldEnd::Lost && of_row(&hold.actor));
        let times: Vec<u64> =
            lost.map(|hold| hold.last.after).filter(|at| self.scale.shows(*at, *at)).collect();
        for time in times {
            let (x, y) = (self.x(time) - 4.0, y + 6);
            let _ = writeln!(
                self.text,
                "<path d='M{x:.1} {y} l8 11 m0 -11 l-8 11' stroke='#d00' stroke-width='2'/>"
            );
        }
    }

    fn columns(&self, client: usize, thread: usize) -> Vec<Column> {
        let mut columns = vec![Column::default(); COLUMNS];
        let of_row = |actor: &Actor| actor.client == client && actor.thread == thread;
        for wait in self.history.waits.iter().filter(|wait| of_row(&wait.actor)) {
            self.scale
                .spread(wait.began, wait.ended, |place, share| columns[place].waited[wait.lock] += share);
        }
        for hold in self.history.holds.iter().filter(|hold| of_row(&hold.actor)) {
            self.scale.spread(hold.first.before, hold.last.after, |place, share| {
                let column = &mut columns[place];
                let held = if hold.shares { &mut column.shared } else { &mut column.held };
                held[hold.lock] += share;
            });
        }
        columns
    }
}

/// The colours of the band, and of its edge and name.
fn colour_of(fault: Fault) -> (&'static str, &'static str) {
    if fault.is_a_kill() {
        ("#f6cfd2", "#b3202c")
    } else if fault.is_of_a_process() {
        ("#d8d8d8", "#3c3c3c")
    } else {
        ("#e3d5f1", "#7440a3")
    }
}
