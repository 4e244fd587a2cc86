//! [`Descendants`] of a command, on Linux: all its processes, including those outside its process group, which
//! timeout(1) and setsid(1) create.
//!
//! When the parent of a descendant ends, this process adopts the descendant, unless another descendant is closer and
//! adopts it: a child subreaper such as a nested `zklock`, or the first process of a PID namespace. Either way, it
//! stays a descendant. A scan of `/proc` finds all generations, but may miss a process that is started, or whose parent
//! ends, during the scan.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, kill_process_group, pidfd_open,
    pidfd_send_signal, set_child_subreaper, waitpid,
};

use super::guardian;
use super::unix::is_shortage;

/// How long to look for processes that still have to be stopped, and the pause in between.
const MAX_STOPPING: Duration = Duration::from_secs(1);
const STOPPING_PAUSE: Duration = Duration::from_millis(1);

/// The pauses between two looks for remaining processes.
const MIN_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// The time after which a wait for killed processes is reported.
const UNREPORTED: Duration = Duration::from_secs(5);

/// How long to keep looking while some processes cannot be seen for lack of descriptors or memory.
const MAX_BLINDNESS: Duration = Duration::from_secs(60);

/// Whether something descends from this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    None,
    Some,
    /// Only looks at `/proc` can tell, which may miss a process.
    Unknown,
}

/// The descendants of a command.
#[derive(Debug, Default)]
pub(super) struct Descendants {
    /// The children that this process had before it started the command.
    others: HashSet<Identity>,
    /// The process between this one and the command, if there is one: its descendants are those of the command, but it
    /// is none itself.
    guardian: Option<Pid>,
    /// The processes that [`stop`](Descendants::stop) has stopped.
    stopped: HashSet<Identity>,
    /// Set by SIGCHLD.
    has_child_ended: Arc<AtomicBool>,
}

/// A process id, and the time at which the process was started, because the id may be used again.
pub(super) type Identity = (i32, u64);

/// A process, as `/proc/PID/stat` shows it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pid: i32,
    pub(super) parent: i32,
    group: i32,
    start: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Stopped,
    /// The first thread has ended.
    Headless,
    Ended,
}

/// What [`Descendants::kill`] has found.
#[derive(Debug, Default)]
pub(super) struct Killed {
    /// The processes that were running and can be killed.
    pub(super) found: HashSet<Identity>,
    /// Whether a child of this process has ended and was not waited for yet. It may have ended during the look, and have
    /// started a process that the look has missed.
    pub(super) has_child_ended: bool,
    /// Why some other process cannot be killed, or why there may be processes that cannot be seen.
    pub(super) failure: Option<io::Error>,
    /// Whether the failure may be temporary.
    pub(super) may_pass: bool,
}

impl Killed {
    fn fail(&mut self, what: &str, error: &io::Error) {
        self.may_pass |= is_shortage(error);
        self.failure = Some(io::Error::new(error.kind(), format!("{what}: {error}")));
    }
}

/// What repeated looks for descendants have shown.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// How many looks in a row have found no descendant.
    empty: u32,
    /// Since when each look has failed for a reason that may be temporary.
    blind_since: Option<Instant>,
}

impl Looks {
    /// Counts a look. Returns `true` if no descendant is left, or if there is no way to find out.
    ///
    /// One look may miss a process, so it takes two. A look shows nothing if it has failed for a reason that may be
    /// temporary, or if a process has ended meanwhile. Otherwise, a chain of short-lived processes, of which each starts
    /// the next one, could escape.
    pub(super) fn are_enough(&mut self, killed: &Killed, now: Instant) -> bool {
        self.blind_since = self.blind_since.or(Some(now)).filter(|_| killed.may_pass);
        let is_blind = self.blind_since.is_some_and(|since| now.duration_since(since) < MAX_BLINDNESS);
        let is_empty = killed.found.is_empty() && !killed.has_child_ended && !is_blind;
        self.empty = if is_empty { self.empty + 1 } else { 0 };
        self.empty >= 2
    }
}

/// Looks again and again for descendants, and kills them, until none is left.
#[derive(Debug, Default)]
pub(super) struct Hunt {
    known: HashSet<Identity>,
    looks: Looks,
    begun: Option<Instant>,
    is_reported: bool,
    /// How long to wait before the next look.
    pub(super) pause: Duration,
}

impl Hunt {
    /// Kills the descendants that it finds. Returns the outcome when nothing is left except what cannot be killed, or when
    /// it is clear that there is no way to find out.
    ///
    /// `rest` is what is known without looking. `report` gets, once, what is left after a while.
    pub(super) fn look(
        &mut self,
        descendants: &Descendants,
        rest: Rest,
        report: impl FnOnce(&Killed),
    ) -> Option<io::Result<()>> {
        if rest == Rest::None {
            return Some(Ok(()));
        }
        let (killed, now) = (descendants.kill(), Instant::now());
        let are_enough = self.looks.are_enough(&killed, now);
        if are_enough && (rest == Rest::Unknown || killed.failure.is_some()) {
            return Some(killed.failure.map_or(Ok(()), Err));
        }
        let begun = *self.begun.get_or_insert(now);
        if now.duration_since(begun) >= UNREPORTED && !mem::replace(&mut self.is_reported, true) {
            report(&killed);
        }
        // Killed processes may take a while to end. If new ones appear, look again at once.
        let has_new = killed.found.iter().any(|process| !self.known.contains(process));
        let is_empty = killed.found.is_empty() && !killed.may_pass;
        self.pause = if has_new || is_empty { MIN_PAUSE } else { MAX_PAUSE.min(self.pause * 2) };
        self.known.extend(killed.found);
        None
    }
}

impl Descendants {
    /// From now on, adopts descendants whose parents end.
    pub(super) fn adopt(has_child_ended: Arc<AtomicBool>) -> io::Result<Descendants> {
        set_child_subreaper(Some(getpid()))?;
        let others = match children() {
            // Earlier children that are not recorded here would be killed with the command.
            Err(error) if is_shortage(&error) => return Err(error),
            // The command runs even without /proc. When the lock is lost, the missing /proc is reported.
            others => others.unwrap_or_default(),
        };
        Ok(Descendants { others, has_child_ended, ..Descendants::default() })
    }

    /// Spares the guardian of the command.
    pub(super) fn spare(&mut self, guardian: Pid) {
        self.guardian = Some(guardian);
    }

    /// Waits for the children that have ended, so they do not stay zombies. Does not block. Leaves those alone that are
    /// `kept`, because their ids must stay in use.
    pub(super) fn reap(&self, kept: &[Pid]) {
        if self.has_child_ended.swap(false, Ordering::SeqCst) {
            // This fails only if /proc cannot be read. The zombies disappear with this process.
            let _ = reap_children(kept);
        }
    }

    /// Returns whether no descendant of this process is left, except for the ended `command`, which was not waited for.
    ///
    /// This process adopts each descendant whose parent ends. So if the command is its only child, the command is its only
    /// descendant. The kernel shows the children of a single-threaded process at one moment, if it shows them at all.
    pub(super) fn are_gone(&self) -> Rest {
        let Ok(proc) = Proc::open() else { return Rest::Unknown };
        match read(proc.me, &format!("task/{}/children", proc.me)) {
            Ok(Some(children)) if ids(&children).count() <= 1 => Rest::None,
            Ok(Some(_)) => Rest::Some,
            _ => Rest::Unknown,
        }
    }

    /// Sends SIGKILL to all running descendants.
    pub(super) fn kill(&self) -> Killed {
        let mut killed = Killed::default();
        let look = self.look(|proc, running, scan| {
            if proc.depth.is_none() && scan.failure.is_none() {
                kill_groups(running, &scan.entries);
            }
            for entry in running {
                match proc.signal(entry, Signal::KILL) {
                    Ok(()) => drop(killed.found.insert(entry.identity())),
                    Err(error) => killed.fail(&format!("process {}", entry.pid), &error),
                }
            }
        });
        if let Err(error) = look {
            killed.fail("/proc", &error);
        }
        killed.has_child_ended = self.has_child_ended.load(Ordering::SeqCst);
        killed
    }

    /// Returns whether a descendant, even one that has ended, is in a process group, or whether there is no way to find
    /// out.
    pub(super) fn include_group(&self, group: Pid) -> bool {
        let mut includes = false;
        let look = self.look(|proc, _, scan| {
            let is_member = |entry: &&Entry| entry.group == group.as_raw_nonzero().get();
            includes = proc.depth.is_some() || self.below(proc.me, &scan.entries).iter().any(is_member);
        });
        includes || look.is_err()
    }

    /// Stops all running descendants until [`go_on`](Descendants::go_on). Returns whether all of them are stopped. One
    /// look may miss a process, so it takes two.
    pub(super) fn stop(&mut self) -> bool {
        let (begun, mut quiet) = (Instant::now(), 0);
        while begun.elapsed() < MAX_STOPPING {
            let (mut moving, mut stopped) = (None, HashSet::new());
            let look = self.look(|proc, running, _| {
                let running: Vec<_> = running
                    .iter()
                    .filter(|entry| !entry.is_stopped().unwrap_or(false) && !entry.is_guardian())
                    .collect();
                for entry in &running {
                    if proc.signal(entry, Signal::STOP).is_ok() {
                        stopped.insert(entry.identity());
                    }
                }
                moving = Some(running.len());
            });
            self.stopped.extend(stopped);
            quiet = if moving == Some(0) { quiet + 1 } else { 0 };
            match look {
                Err(error) if is_shortage(&error) => quiet = 0,
                _ if quiet == 2 => return true,
                // Nothing was seen, and nothing will be.
                Err(_) if moving.is_none() => return false,
                _ => {}
            }
            thread::sleep(STOPPING_PAUSE);
        }
        false
    }

    /// Continues the processes that [`stop`](Descendants::stop) has stopped. After a failure, call this again: it
    /// continues those that may still be stopped.
    pub(super) fn go_on(&mut self) -> io::Result<()> {
        if self.stopped.is_empty() {
            return Ok(());
        }
        let in_proc = |error: io::Error| io::Error::new(error.kind(), format!("/proc: {error}"));
        let proc = Proc::open().map_err(in_proc)?;
        let mut outcome = Ok(());
        self.stopped.retain(|process| match proc.go_on(*process) {
            Ok(()) => false,
            Err(error) => {
                outcome = Err(in_proc(error));
                true
            }
        });
        outcome
    }

    /// Reads `/proc`, and passes the running descendants and all processes to `see`. After that, fails if there may be
    /// more processes than `/proc` has shown.
    fn look(&self, see: impl FnOnce(&Proc, &[&Entry], &Scan)) -> io::Result<()> {
        let proc = Proc::open()?;
        let mut scan = Scan::new()?;
        scan.adjust_parents();
        let mut running = self.below(proc.me, &scan.entries);
        running.retain(|entry| entry.is_running() && !self.is_guardian(&proc, entry));
        see(&proc, &running, &scan);
        scan.failure.map_or(Ok(()), Err)
    }

    fn is_guardian(&self, proc: &Proc, entry: &Entry) -> bool {
        self.guardian.is_some()
            && entry.parent == proc.me
            && proc.id_here(entry.pid).unwrap_or_default() == self.guardian
    }

    /// The descendants of a process, with those that have ended. The children that it had before the command do not
    /// count, nor do their descendants, except for orphans: this process has adopted them, and cannot tell them from
    /// orphans of the command.
    fn below<'a>(&self, ancestor: i32, entries: &'a [Entry]) -> Vec<&'a Entry> {
        let mut children: HashMap<i32, Vec<&Entry>> = HashMap::new();
        for entry in entries {
            children.entry(entry.parent).or_default().push(entry);
        }
        let mut found = Vec::new();
        let mut ancestors = vec![ancestor];
        while let Some(ancestor) = ancestors.pop() {
            // The entries were read one after another, so they may contain a cycle.
            for child in children.remove(&ancestor).unwrap_or_default() {
                if !self.others.contains(&child.identity()) {
                    ancestors.push(child.pid);
                    found.push(child);
                }
            }
        }
        found
    }
}

fn reap_children(kept: &[Pid]) -> io::Result<()> {
    let proc = Proc::open()?;
    for child in proc.children()? {
        if let Some(child) = proc.id_here(child).unwrap_or_default().filter(|child| !kept.contains(child)) {
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
    }
    Ok(())
}

/// The children of this process.
fn children() -> io::Result<HashSet<Identity>> {
    let children = Proc::open()?.children()?.into_iter().filter_map(Pid::from_raw).map(Entry::read);
    Ok(children.collect::<io::Result<Vec<_>>>()?.iter().flatten().map(Entry::identity).collect())
}

/// The processes that `/proc` shows.
#[derive(Debug)]
struct Scan {
    entries: Vec<Entry>,
    /// Why some entry cannot be read, although its process may not have ended.
    failure: Option<io::Error>,
}

impl Scan {
    fn new() -> io::Result<Scan> {
        let mut scan = Scan { entries: Vec::new(), failure: None };
        let mut pids = pids_in("/proc")?;
        // The newest process first: one that lives for only a moment must not have ended when its turn comes.
        pids.sort_unstable_by(|one, other| other.cmp(one));
        for pid in pids.into_iter().filter_map(Pid::from_raw) {
            let entry = scan.read(pid);
            scan.entries.extend(entry);
        }
        Ok(scan)
    }

    /// Reads the entry of a process, or returns `None` if it has gone or if this fails.
    fn read(&mut self, process: Pid) -> Option<Entry> {
        Entry::read(process).unwrap_or_else(|error| {
            // With the mount option hidepid, /proc hides the processes of other users.
            let is_hidden = error.kind() == io::ErrorKind::PermissionDenied;
            // If one of two failures may be temporary, it is worth looking again.
            if !is_hidden && (is_shortage(&error) || self.failure.is_none()) {
                self.failure = Some(error);
            }
            None
        })
    }

    /// Rereads each entry whose parent is missing. The parent has ended in the meantime, and another process has
    /// adopted the child.
    fn adjust_parents(&mut self) {
        let present: HashSet<i32> = self.entries.iter().map(|entry| entry.pid).collect();
        for index in 0..self.entries.len() {
            let Entry { pid, parent, .. } = self.entries[index];
            if !present.contains(&parent) {
                if let Some(now) = Pid::from_raw(pid).and_then(|pid| self.read(pid)) {
                    self.entries[index] = now;
                }
            }
        }
    }
}

/// Sends SIGKILL to each process group whose members are all descendants. No member can escape this signal by forking.
fn kill_groups(running: &[&Entry], entries: &[Entry]) {
    let ours: HashSet<i32> = running.iter().map(|entry| entry.pid).collect();
    let mut groups: HashSet<i32> = running.iter().map(|entry| entry.group).collect();
    groups.remove(&nix::unistd::getpgrp().as_raw());
    for entry in entries.iter().filter(|entry| entry.is_running() && !ours.contains(&entry.pid)) {
        groups.remove(&entry.group);
    }
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        // Each process also gets the signal by its own id, and a failure is noticed there.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// `/proc`. It may belong to an outer PID namespace, in which the same processes have other ids.
#[derive(Debug)]
struct Proc {
    /// The id of this process in `/proc`.
    me: i32,
    /// How many levels the PID namespace of this process is below that of `/proc`, if they are not the same.
    depth: Option<usize>,
}

impl Proc {
    fn open() -> io::Result<Proc> {
        let link = fs::read_link("/proc/self")?;
        let me = link.to_str().and_then(|pid| pid.parse().ok());
        let me = me.ok_or_else(|| io::Error::other("it does not show this process"))?;
        if me == getpid().as_raw_nonzero().get() {
            return Ok(Proc { me, depth: None });
        }
        let ids =
            namespace_ids(me)?.ok_or_else(|| io::Error::other("it does not show the ids of this process"))?;
        Ok(Proc { me, depth: Some(ids.len() - 1) })
    }

    /// The children of this process, as `/proc` shows them. Those that have ended belong to them until they were waited
    /// for.
    fn children(&self) -> io::Result<Vec<i32>> {
        let mut children = Vec::new();
        for thread in pids_in("/proc/self/task")? {
            let Some(list) = read(self.me, &format!("task/{thread}/children"))? else {
                // The kernel does not show them.
                let Scan { entries, failure } = Scan::new()?;
                let children =
                    entries.iter().filter(|entry| entry.parent == self.me).map(|entry| entry.pid).collect();
                return failure.filter(is_shortage).map_or(Ok(children), Err);
            };
            children.extend(ids(&list));
        }
        Ok(children)
    }

    fn go_on(&self, (pid, start): Identity) -> io::Result<()> {
        match Pid::from_raw(pid).map_or(Ok(None), Entry::read)? {
            Some(entry) if entry.start == start => self.signal(&entry, Signal::CONT),
            _ => Ok(()),
        }
    }

    /// Sends a signal to a process, if it has not ended in the meantime.
    fn signal(&self, entry: &Entry, signal: Signal) -> io::Result<()> {
        let Some(process) = self.id_here(entry.pid)? else { return Ok(()) };
        match self.send(entry, process, signal) {
            Err(Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    fn send(&self, entry: &Entry, process: Pid, signal: Signal) -> rustix::io::Result<()> {
        if entry.parent == self.me {
            // Only this process waits for its children, so the id is still in use.
            return kill_process(process, signal);
        }
        match pidfd_open(process, PidfdFlags::empty()) {
            Ok(descriptor) => match entry.read_again() {
                // The id still belongs to the same process now, so the descriptor does, too.
                Ok(Some(now)) if now.start == entry.start => pidfd_send_signal(descriptor, signal),
                Ok(_) => Err(Errno::SRCH),
                // The pidfd may have taken the last descriptor. The entry was right a moment ago.
                Err(_) => kill_process(process, signal),
            },
            // The kernel is too old, no descriptor is left, or a filter of system calls forbids the call.
            Err(Errno::NOSYS | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::PERM) => {
                kill_process(process, signal)
            }
            Err(error) => Err(error),
        }
    }

    /// The id of a process in the PID namespace of this one, or `None` if the process has gone.
    fn id_here(&self, pid: i32) -> io::Result<Option<Pid>> {
        let Some(depth) = self.depth else { return Ok(Pid::from_raw(pid)) };
        let Some(ids) = namespace_ids(pid)? else { return Ok(None) };
        // A process that is just being reaped has the id 0.
        let id = ids.get(depth).map(|id| Pid::from_raw(*id));
        id.ok_or_else(|| io::Error::other("it has no id in this PID namespace"))
    }
}

/// The ids of a process in its PID namespaces, from that of `/proc` inwards: at least one. Returns `None` if the
/// process has gone.
fn namespace_ids(pid: i32) -> io::Result<Option<Vec<i32>>> {
    let Some(status) = read(pid, "status")? else { return Ok(None) };
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"NSpid:"));
    let ids = line.and_then(|line| std::str::from_utf8(line).ok()).unwrap_or_default().split_whitespace();
    let ids: Option<Vec<i32>> = ids.map(|id| id.parse().ok()).collect();
    let ids = ids.filter(|ids| !ids.is_empty());
    ids.map(Some).ok_or_else(|| io::Error::other(format!("{pid}/status has no NSpid")))
}

impl Entry {
    /// Reads the entry of a process, or returns `None` if it has gone.
    pub(super) fn read(process: Pid) -> io::Result<Option<Entry>> {
        let pid = process.as_raw_nonzero().get();
        let Some(stat) = read(pid, "stat")? else { return Ok(None) };
        let entry = Entry::parse(pid, &stat);
        entry.map(Some).ok_or_else(|| io::Error::other(format!("{pid}/stat has an unknown format")))
    }

    fn read_again(&self) -> io::Result<Option<Entry>> {
        Pid::from_raw(self.pid).map_or(Ok(None), Entry::read)
    }

    /// Parses `/proc/PID/stat`. The name in parentheses may contain anything, even invalid UTF-8: the kernel cuts it
    /// after 15 bytes.
    fn parse(pid: i32, stat: &[u8]) -> Option<Entry> {
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        let fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
        let id = |field: usize| fields.get(field)?.parse::<i32>().ok();
        // The state is that of the first thread, and other threads may outlive it.
        let state = match *fields.first()? {
            "Z" | "X" | "x" if number(17)? < 2 => State::Ended,
            "Z" | "X" | "x" => State::Headless,
            "T" | "t" => State::Stopped,
            _ => State::Running,
        };
        Some(Entry { pid, parent: id(1)?, group: id(2)?, start: number(19)?, state })
    }

    /// Returns whether the process has not ended. A stopped process counts as running.
    fn is_running(&self) -> bool {
        self.state != State::Ended
    }

    /// Returns whether the process is the guardian of another `zklock`, whose lock may be lost first.
    fn is_guardian(&self) -> bool {
        read(self.pid, "cmdline")
            .is_ok_and(|line| line.is_some_and(|line| line.starts_with(guardian::NAME.as_bytes())))
    }

    fn is_stopped(&self) -> io::Result<bool> {
        if self.state == State::Running {
            return Ok(false);
        }
        // A debugger may have stopped only the first thread. A signal may not have stopped the other threads yet.
        let threads: io::Result<Vec<_>> = pids_in(&format!("/proc/{}/task", self.pid))?
            .into_iter()
            .map(|thread| read(self.pid, &format!("task/{thread}/stat")))
            .collect();
        let mut states = threads?.into_iter().flatten().map(|stat| Entry::parse(self.pid, &stat));
        Ok(states.all(|thread| thread.is_some_and(|thread| thread.state != State::Running)))
    }

    fn identity(&self) -> Identity {
        (self.pid, self.start)
    }
}

/// The process or thread ids in a directory of `/proc`. The directory is closed before any file in it is opened, so a
/// single descriptor is enough.
fn pids_in(directory: &str) -> io::Result<Vec<i32>> {
    let names: io::Result<Vec<_>> = fs::read_dir(directory)?.map(|file| Ok(file?.file_name())).collect();
    Ok(names?.into_iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// The process ids in a list of them.
fn ids(list: &[u8]) -> impl Iterator<Item = i32> + '_ {
    list.split(u8::is_ascii_whitespace).filter_map(|id| std::str::from_utf8(id).ok()?.parse().ok())
}

/// Reads a file of `/proc/PID`, or returns `None` if the process has gone.
fn read(pid: i32, name: &str) -> io::Result<Option<Vec<u8>>> {
    match fs::read(format!("/proc/{pid}/{name}")) {
        Ok(content) => Ok(Some(content)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::SRCH) => Ok(None),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The content of `/proc/PID/stat`, up to two fields after the start time.
    fn stat(name: &[u8], state: &str, parent: i32, threads: u32) -> Vec<u8> {
        let rest = format!(") {state} {parent} 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0 4711 1 2\n");
        [b"42 (", name, rest.as_bytes()].concat()
    }

    #[test]
    fn name_of_a_process_may_be_anything() {
        for name in [&b"sh"[..], b"a) Z 1 (b", b"\n) ", "ЖЖЖЖЖЖЖЖ".as_bytes().split_at(15).0, b""] {
            let entry = Entry::parse(42, &stat(name, "S", 23, 1)).unwrap();
            assert_eq!((entry.identity(), entry.parent, entry.group), ((42, 4711), 23, 7), "{name:?}");
            assert_eq!(entry.state, State::Running, "{name:?}");
        }
        assert!(Entry::parse(42, b"").is_none() && Entry::parse(42, b"42 (sh) S 1").is_none());
    }

    /// The state in `/proc/PID/stat` is that of the first thread.
    #[test]
    fn process_has_ended_when_all_its_threads_have() {
        let entry = |state, threads| Entry::parse(42, &stat(b"sh", state, 1, threads)).unwrap();
        assert!(!entry("Z", 1).is_running() && entry("Z", 2).is_running());
        assert!(entry("T", 1).is_running());
    }

    /// A debugger, for example, may have stopped only the first thread.
    #[test]
    fn process_is_stopped_when_all_its_threads_are() {
        let mut entry = Entry::read(getpid()).unwrap().unwrap();
        for state in [State::Running, State::Stopped, State::Headless] {
            entry.state = state;
            assert!(!entry.is_stopped().unwrap(), "{state:?}");
        }
    }

    #[test]
    fn descendants_of_all_generations_are_found_but_for_those_of_before() {
        let entry = |pid, parent, is_running| Entry {
            pid,
            parent,
            group: pid,
            start: 1,
            state: if is_running { State::Running } else { State::Ended },
        };
        // 3 has ended, 5 is older than the command, and 8 and 9 were read at different moments.
        let entries = [
            entry(1, 0, true),
            entry(2, 1, true),
            entry(3, 2, false),
            entry(4, 3, true),
            entry(5, 1, true),
            entry(6, 5, true),
            entry(7, 0, true),
            entry(8, 9, true),
            entry(9, 8, true),
            entry(10, 4, true),
        ];
        let others = HashSet::from([(5, 1)]);
        let descendants = Descendants { others, ..Descendants::default() };
        let mut found: Vec<i32> = descendants.below(1, &entries).iter().map(|entry| entry.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [2, 3, 4, 10]);
        // Another process has the id of 5 now.
        let entries = [entry(1, 0, true), Entry { start: 2, ..entry(5, 1, true) }];
        assert_eq!(descendants.below(1, &entries).len(), 1);
    }

    #[test]
    fn own_entry_is_found() {
        let proc = Proc::open().unwrap();
        let entry = Entry::read(Pid::from_raw(proc.me).unwrap()).unwrap().unwrap();
        assert!(
            entry.is_running()
                && Scan::new().unwrap().entries.iter().any(|other| other.identity() == entry.identity())
        );
        assert_eq!(proc.id_here(entry.pid).unwrap(), Some(getpid()));
        // As if `/proc` belonged to another namespace that happens to have the same ids.
        assert_eq!(Proc { depth: Some(0), ..proc }.id_here(entry.pid).unwrap(), Some(getpid()));
    }

    #[test]
    fn look_without_descriptors_shows_nothing_for_a_minute() {
        let (second, begun) = (Duration::from_secs(1), Instant::now());
        let killed = |found: &[Identity], error: Option<Errno>| {
            let mut killed = Killed { found: found.iter().copied().collect(), ..Killed::default() };
            error.into_iter().for_each(|error| killed.fail("/proc", &error.into()));
            killed
        };
        let (empty, blind) = (killed(&[], None), killed(&[], Some(Errno::MFILE)));
        let mut looks = Looks::default();
        let mut are_enough =
            |killed: &Killed, seconds: u32| looks.are_enough(killed, begun + second * seconds);
        assert!(!are_enough(&empty, 0) && !are_enough(&killed(&[(1, 1)], None), 0) && !are_enough(&empty, 0));
        // A failure for lack of descriptors may be temporary, and it interrupts the row of empty looks.
        assert!(!are_enough(&blind, 1) && !are_enough(&blind, 60) && !are_enough(&empty, 61));
        assert!(!are_enough(&blind, 62) && !are_enough(&blind, 121));
        assert!(!are_enough(&blind, 122) && are_enough(&blind, 122));
        // A process that has ended may have started another one, which the look has missed.
        let mut looks = Looks::default();
        let ended = Killed { has_child_ended: true, ..Killed::default() };
        assert!(!looks.are_enough(&empty, begun) && !looks.are_enough(&ended, begun));
        assert!(!looks.are_enough(&empty, begun) && looks.are_enough(&empty, begun));
        // Any other failure is permanent.
        let mut looks = Looks::default();
        let refused = killed(&[], Some(Errno::PERM));
        assert!(!looks.are_enough(&refused, begun) && looks.are_enough(&refused, begun));
    }
}
