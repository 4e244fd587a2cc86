//! [`Server`]: a small model of a ZooKeeper ensemble, as plain data.
//!
//! It has one directory, with ephemeral sequential znodes. A session's calls take effect in order, and each
//! event comes at the same place among the replies as its change among the calls. The tests of `tests/support/contract/`
//! and `tests/` check that real servers do the same.
//!
//! A session's server may lag behind the leader by one write of other sessions. It shows what it has applied, and
//! fires a watch when it applies the change. A write of the session goes through the leader, and is answered when the
//! session's server has applied everything before it.

use std::collections::{BTreeMap, BTreeSet};

use crate::client::Names;
use crate::client::{Call, CreateMode, Enqueued, Reply, Stat};
use crate::engine::CallId;
use crate::error::{ZkError, ZkResult};

/// The directory of the lock.
pub(super) const DIR: &str = "/lock";

/// What one server shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tree {
    /// The last transaction.
    pub(super) zxid: i64,
    has_dir: bool,
    /// The next sequence number.
    next: i32,
    /// The transaction that last created or deleted a child.
    pzxid: i64,
    /// The znodes in the directory, by name.
    pub(super) znodes: BTreeMap<String, ZNode>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ZNode {
    /// The session that has created it.
    session: usize,
    czxid: i64,
    mzxid: i64,
    version: i32,
}

/// A watch fires once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Watch {
    /// A watch on the data of the znode with this name, and on its deletion.
    Data(String),
    /// A watch on the creation of a znode with this name. It never fires, because that znode is gone and no number is
    /// issued twice.
    Creation(String),
    Children,
}

/// A session, as the ensemble knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub(super) is_alive: bool,
    pub(super) is_connected: bool,
    /// What the session's server shows, if it lags behind.
    pub(super) behind: Option<Tree>,
    pub(super) watches: BTreeSet<Watch>,
}

/// What a session's client sends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wire {
    Call(CallId, Call),
    /// The second half of a [`Call::CreateAndList`], whose first half has created this path.
    List(CallId, String, Stat),
    RemoveWatch(String),
}

/// What a session's server sends, with the last transaction that the server shows at that moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Item {
    Reply {
        call: CallId,
        /// The name of the znode that the call was about.
        name: String,
        answer: ZkResult<Answer>,
        /// The watch that the call has left.
        watch: Option<Watch>,
        zxid: i64,
    },
    Event {
        watch: Watch,
        is_deleted: bool,
        zxid: i64,
    },
}

/// A [`Reply`] that can be hashed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Created(String, Stat),
    Enqueued(String, Stat, ZkResult<Names>),
    Done,
    Found(Option<Stat>),
    Data(Stat),
    Children(Names),
}

/// Items, each with the session that receives it.
pub(super) type Sent = Vec<(usize, Item)>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Server {
    /// What the leader has applied.
    pub(super) tree: Tree,
    /// What the leader had applied before the last transaction, if servers may lag.
    previous: Option<Tree>,
    may_lag: bool,
    pub(super) links: Vec<Link>,
}

impl Tree {
    fn stat(&self, name: &str) -> Option<Stat> {
        let znode = self.znodes.get(name)?;
        let ephemeral_owner = i64::try_from(znode.session).unwrap() + 1;
        let ZNode { czxid, mzxid, version, .. } = *znode;
        Some(Stat { czxid, mzxid, version, ephemeral_owner, ..Stat::default() })
    }

    fn children(&self) -> ZkResult<Names> {
        if self.has_dir { Ok(self.znodes.keys().collect()) } else { Err(ZkError::NoNode) }
    }

    /// Creates a znode with the next number.
    fn enqueue(&mut self, session: usize, prefix: &str) -> (String, Stat) {
        let name = format!("{prefix}{:010}", self.next);
        self.next += 1;
        self.pzxid = self.zxid;
        let znode = ZNode { session, czxid: self.zxid, mzxid: self.zxid, version: 0 };
        self.znodes.insert(name.clone(), znode);
        let stat = self.stat(&name).unwrap();
        (path_of(&name), stat)
    }

    fn delete(&mut self, name: &str) {
        self.znodes.remove(name);
        self.pzxid = self.zxid;
    }
}

impl Server {
    pub(super) fn new(sessions: usize, has_dir: bool, may_lag: bool) -> Server {
        let tree = Tree { zxid: 1, has_dir, next: 0, pzxid: 0, znodes: BTreeMap::new() };
        let link = Link { is_alive: true, is_connected: true, behind: None, watches: BTreeSet::new() };
        Server { tree, previous: None, may_lag, links: vec![link; sessions] }
    }

    fn shown(&self, session: usize) -> &Tree {
        self.links[session].behind.as_ref().unwrap_or(&self.tree)
    }

    // ---- connections

    /// Returns whether a server that lacks the last transaction may resume a session that has seen this transaction.
    pub(super) fn may_connect_behind(&self, seen: i64) -> bool {
        self.previous.as_ref().is_some_and(|previous| previous.zxid >= seen)
    }

    /// Resumes a session, whose client sets these watches again. If something has changed since this transaction, the
    /// watches on it fire at once.
    pub(super) fn connect(
        &mut self,
        session: usize,
        is_behind: bool,
        watches: &BTreeSet<Watch>,
        since: i64,
    ) -> Sent {
        let previous = self.previous.clone().filter(|_| is_behind);
        let link = &mut self.links[session];
        link.is_connected = true;
        link.behind = previous;
        let shown = link.behind.as_ref().unwrap_or(&self.tree);
        let (mut kept, mut fired) = (BTreeSet::new(), Vec::new());
        for watch in watches {
            let is_news = match watch {
                Watch::Data(name) => shown.znodes.get(name).is_none_or(|znode| znode.mzxid > since),
                Watch::Creation(_) => false,
                Watch::Children => shown.pzxid > since,
            };
            match is_news {
                true => fired.push((session, event(watch, shown))),
                false => drop(kept.insert(watch.clone())),
            }
        }
        link.watches = kept;
        fired
    }

    pub(super) fn disconnect(&mut self, session: usize) {
        let link = &mut self.links[session];
        link.is_connected = false;
        link.behind = None;
        link.watches.clear();
    }

    /// Ends a session and deletes its znodes.
    pub(super) fn expire(&mut self, session: usize) -> Sent {
        self.disconnect(session);
        self.links[session].is_alive = false;
        self.write(None, |tree| {
            let left: Vec<String> = tree
                .znodes
                .iter()
                .filter(|(_, znode)| znode.session == session)
                .map(|(name, _)| name.clone())
                .collect();
            left.iter().for_each(|name| tree.delete(name));
        })
    }

    // ---- changes

    /// Makes a change. The servers of other sessions may apply it later.
    fn write(&mut self, by: Option<usize>, change: impl FnOnce(&mut Tree)) -> Sent {
        let mut sent = Vec::new();
        if let Some(by) = by {
            sent.extend(self.catch_up(by));
        }
        let before = self.tree.clone();
        self.tree.zxid += 1;
        change(&mut self.tree);
        for (session, link) in self.links.iter_mut().enumerate().filter(|(_, link)| link.is_connected) {
            match self.may_lag && by != Some(session) {
                true => {
                    // It lags by one write only.
                    if let Some(behind) = link.behind.replace(before.clone()) {
                        sent.extend(link.fire(session, &behind, &before));
                    }
                }
                false => sent.extend(link.fire(session, &before, &self.tree)),
            }
        }
        self.previous = self.may_lag.then_some(before);
        sent
    }

    /// Makes a session's server apply what the leader has applied.
    pub(super) fn catch_up(&mut self, session: usize) -> Sent {
        let link = &mut self.links[session];
        link.behind.take().map(|behind| link.fire(session, &behind, &self.tree)).unwrap_or_default()
    }

    /// Deletes a znode for another client.
    pub(super) fn delete(&mut self, name: &str) -> Sent {
        self.write(None, |tree| tree.delete(name))
    }

    /// Writes the data of a znode for another client.
    pub(super) fn touch(&mut self, name: &str) -> Sent {
        self.write(None, |tree| {
            let zxid = tree.zxid;
            if let Some(znode) = tree.znodes.get_mut(name) {
                znode.version += 1;
                znode.mzxid = zxid;
            }
        })
    }

    // ---- calls

    /// Handles what a session's client has sent. Also returns the part of it that is still to be handled.
    pub(super) fn take(&mut self, session: usize, wire: Wire) -> (Sent, Option<Wire>) {
        match wire {
            Wire::Call(call, Call::CreateAndList { prefix, .. }) if self.tree.has_dir => {
                let (sent, path, stat) = self.create(session, &prefix);
                (sent, Some(Wire::List(call, path, stat)))
            }
            Wire::Call(call, made) => {
                let (mut sent, watch, answer) = self.answer(session, &made);
                let zxid = self.shown(session).zxid;
                let name = made.path().map(name_of).unwrap_or_default().to_owned();
                sent.push((session, Item::Reply { call, name, answer, watch, zxid }));
                (sent, None)
            }
            Wire::List(call, path, stat) => {
                let shown = self.shown(session);
                let name = name_of(&path).to_owned();
                let answer = Ok(Answer::Enqueued(path, stat, shown.children()));
                (vec![(session, Item::Reply { call, name, answer, watch: None, zxid: shown.zxid })], None)
            }
            Wire::RemoveWatch(path) => {
                self.links[session].watches.retain(|watch| watch.path() != path);
                (Vec::new(), None)
            }
        }
    }

    /// Refuses, with this error, what a session's client has sent.
    pub(super) fn refuse(&mut self, session: usize, wire: Wire, error: ZkError) -> Sent {
        let zxid = self.shown(session).zxid;
        let (call, name, answer) = match wire {
            Wire::Call(call, made) => {
                (call, made.path().map(name_of).unwrap_or_default().to_owned(), Err(error))
            }
            Wire::List(call, path, stat) => {
                let name = name_of(&path).to_owned();
                (call, name, Ok(Answer::Enqueued(path, stat, Err(error))))
            }
            Wire::RemoveWatch(_) => return Vec::new(),
        };
        vec![(session, Item::Reply { call, name, answer, watch: None, zxid })]
    }

    /// Handles a call of a previous connection, whose reply nobody gets.
    pub(super) fn take_late(&mut self, session: usize, made: &Call) -> Sent {
        match made {
            Call::CreateAndList { prefix, .. } => self.create(session, prefix).0,
            made => self.answer(session, made).0,
        }
    }

    fn create(&mut self, session: usize, prefix: &str) -> (Sent, String, Stat) {
        let mut created = None;
        let sent = self.write(Some(session), |tree| created = Some(tree.enqueue(session, prefix)));
        let (path, stat) = created.unwrap();
        (sent, path, stat)
    }

    fn answer(&mut self, session: usize, made: &Call) -> (Sent, Option<Watch>, ZkResult<Answer>) {
        let name = made.path().map(name_of).unwrap_or_default();
        let mut sent = Vec::new();
        if made.is_write() {
            sent.extend(self.catch_up(session));
        }
        let mut set = None;
        let answer = match made {
            Call::Create { mode: CreateMode::EphemeralSequential, .. } if self.tree.has_dir => {
                let (events, path, stat) = self.create(session, name);
                sent.extend(events);
                Ok(Answer::Created(path, stat))
            }
            Call::Create { mode: CreateMode::EphemeralSequential, .. } | Call::CreateAndList { .. } => {
                Err(ZkError::NoNode)
            }
            Call::Create { .. } if self.tree.has_dir => Err(ZkError::NodeExists),
            Call::Create { path, .. } => {
                sent.extend(self.write(Some(session), |tree| tree.has_dir = true));
                Ok(Answer::Created(path.to_string(), Stat::default()))
            }
            Call::Delete { .. } if self.tree.znodes.contains_key(name) => {
                sent.extend(self.write(Some(session), |tree| tree.delete(name)));
                Ok(Answer::Done)
            }
            // The write that proves the session changes nothing.
            Call::Delete { .. } | Call::SetData { .. } => Err(ZkError::NoNode),
            Call::Exists { watch, .. } => {
                let found = self.shown(session).stat(name);
                let left = if found.is_some() { Watch::Data } else { Watch::Creation };
                set = watch.then(|| left(name.to_owned()));
                Ok(Answer::Found(found))
            }
            Call::GetData { watch, .. } => {
                let found = self.shown(session).stat(name);
                set = found.filter(|_| *watch).map(|_| Watch::Data(name.to_owned()));
                found.map(Answer::Data).ok_or(ZkError::NoNode)
            }
            Call::GetChildren { watch, .. } => {
                let children = self.shown(session).children();
                set = children.is_ok().then_some(Watch::Children).filter(|_| *watch);
                children.map(Answer::Children)
            }
            Call::Multi(_) => Err(ZkError::Unimplemented),
        };
        self.links[session].watches.extend(set.clone());
        (sent, set, answer)
    }
}

impl Link {
    /// Fires the watches on what has changed.
    fn fire(&mut self, session: usize, before: &Tree, after: &Tree) -> Sent {
        let version = |tree: &Tree, name: &str| tree.znodes.get(name).map(|znode| znode.version);
        let is_fired = |watch: &Watch| match watch {
            Watch::Data(name) => version(before, name) != version(after, name),
            Watch::Creation(_) => false,
            Watch::Children => before.pzxid != after.pzxid,
        };
        let (fired, kept) = std::mem::take(&mut self.watches).into_iter().partition(is_fired);
        self.watches = kept;
        let fired: BTreeSet<Watch> = fired;
        fired.iter().map(|watch| (session, event(watch, after))).collect()
    }
}

impl Item {
    pub(super) fn zxid(&self) -> i64 {
        match self {
            Item::Reply { zxid, .. } | Item::Event { zxid, .. } => *zxid,
        }
    }
}

impl Watch {
    pub(super) fn path(&self) -> String {
        match self {
            Watch::Data(name) | Watch::Creation(name) => path_of(name),
            Watch::Children => DIR.to_owned(),
        }
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Reply {
        match answer {
            Answer::Created(path, stat) => Reply::Created { path, stat: Some(stat) },
            Answer::Enqueued(path, stat, children) => {
                Reply::Enqueued(Enqueued::new(path, children).with_stat(stat))
            }
            Answer::Done => Reply::Done,
            Answer::Found(stat) => Reply::Found(stat),
            Answer::Data(stat) => Reply::Data(Vec::new(), stat),
            Answer::Children(names) => Reply::Children(names),
        }
    }
}

fn event(watch: &Watch, shown: &Tree) -> Item {
    let is_deleted = matches!(watch, Watch::Data(name) if !shown.znodes.contains_key(name));
    Item::Event { watch: watch.clone(), is_deleted, zxid: shown.zxid }
}

pub(super) fn watch_at(path: &str) -> Watch {
    if path == DIR { Watch::Children } else { Watch::Data(name_of(path).to_owned()) }
}

fn path_of(name: &str) -> String {
    format!("{DIR}/{name}")
}

pub(super) fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}
