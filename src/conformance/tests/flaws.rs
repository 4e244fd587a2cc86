//! Clients that violate one rule each, and the checks that must notice.

use parking_lot::Mutex;

use super::*;
use crate::client::{Acl, ClientEvent, CreateMode, Enqueued, EventSink, Granted, Op, Stat, Transacted};
use crate::error::{ZkError, ZkResult};
use crate::recipe::names::Names;

/// A violation, by clients that otherwise are the fake server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    NoSequenceNumber,
    EphemeralIsPersistent,
    DeleteIgnoresVersion,
    SetDataReturnsOldStat,
    MissingIsAnError,
    ChildrenAreFullPaths,
    NoAuthIsNoNode,
    ListsBeforeTheCreate,
    FailedCreateIsListed,
    DataAreCut,
    LongRequestHangs,
    TransactionIsPartial,
    ChecksAreIgnored,
    WantedWatchIsRemoved,
    EventTwice,
    EventOfTheParent,
    WatchStaysAfterAFailedRead,
    NoChildWatch,
    WatchWithoutAsking,
    LateDisconnected,
    NoDisconnected,
    NoConnected,
    ConnectedTwice,
    OldGrant,
    NoSessionLost,
    SessionLostTwice,
    LostIsConnectionLoss,
    WrongTimeout,
    WrongContact,
    EventAfterClose,
    CloseHangsWithoutContact,
    CloseKeepsTheSession,
    SecondClosePanics,
    SinkGoneAfterPanic,
}

use Flaw::*;

/// Each flaw, and a check that must fail for it.
const NOTICED: &[(Flaw, &str)] = &[
    (NoSequenceNumber, "sequence_numbers_are_appended_and_grow"),
    (EphemeralIsPersistent, "ephemeral_znodes_belong_to_their_session"),
    (DeleteIgnoresVersion, "delete_depends_on_version_and_children"),
    (SetDataReturnsOldStat, "set_data_depends_on_the_version"),
    (MissingIsAnError, "missing_znode_is_an_error_except_for_exists"),
    (ChildrenAreFullPaths, "children_are_names_without_paths"),
    (NoAuthIsNoNode, "permissions_are_enforced"),
    (ListsBeforeTheCreate, "create_and_list_includes_the_new_znode"),
    (FailedCreateIsListed, "create_and_list_fails_as_create_does"),
    (DataAreCut, "data_of_nearly_a_mebibyte_are_kept"),
    (LongRequestHangs, "request_that_is_too_long_fails"),
    (TransactionIsPartial, "failed_transaction_changes_nothing"),
    (ChecksAreIgnored, "failed_check_fails_a_transaction"),
    (WantedWatchIsRemoved, "wanted_watch_is_not_removed"),
    (EventTwice, "watch_set_twice_fires_once"),
    (EventOfTheParent, "own_change_fires_a_watch"),
    (WatchStaysAfterAFailedRead, "failed_read_sets_no_watch"),
    (NoChildWatch, "child_watch_fires_once_on_a_child"),
    (WatchWithoutAsking, "read_without_a_watch_sets_none"),
    (LateDisconnected, "disconnect_is_reported_before_a_call_fails"),
    (NoDisconnected, "calls_without_contact_end_with_an_error"),
    (NoConnected, "session_goes_on_after_a_reconnect"),
    (ConnectedTwice, "session_goes_on_after_a_reconnect"),
    (OldGrant, "connected_reports_the_grant"),
    (NoSessionLost, "expired_session_is_reported_once"),
    (SessionLostTwice, "expired_session_is_reported_once"),
    (LostIsConnectionLoss, "expired_session_fails_every_call_at_once"),
    (WrongTimeout, "session_timeout_is_the_granted_one"),
    (WrongContact, "connected_client_has_contact"),
    (EventAfterClose, "close_is_idempotent_and_silent"),
    (CloseHangsWithoutContact, "close_without_contact_returns"),
    (CloseKeepsTheSession, "close_ends_an_owned_session"),
    (SecondClosePanics, "close_is_idempotent_and_silent"),
    (SinkGoneAfterPanic, "sink_is_called_after_it_panicked"),
];

impl Flaw {
    pub(super) fn wrap(self) -> impl Fn(Arc<SimulatedClient>) -> Arc<dyn ZooKeeperClient> {
        move |inner| {
            Arc::new(Flawed {
                inner,
                flaw: self,
                held: Arc::default(),
                sink: Mutex::default(),
                is_closed: Mutex::default(),
            })
        }
    }
}

struct Flawed {
    inner: Arc<SimulatedClient>,
    flaw: Flaw,
    /// An event that is delivered late.
    held: Arc<Mutex<Option<ClientEvent>>>,
    sink: Mutex<Option<EventSink>>,
    is_closed: Mutex<bool>,
}

impl Flawed {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn error(&self, error: ZkError) -> ZkError {
        match (self.flaw, error) {
            (NoAuthIsNoNode, ZkError::NoAuth) => ZkError::NoNode,
            (LostIsConnectionLoss, ZkError::SessionExpired) => ZkError::ConnectionLoss,
            (_, error) => error,
        }
    }
}

impl ZooKeeperClient for Flawed {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String> {
        let mode = match mode {
            CreateMode::Ephemeral if self.has(EphemeralIsPersistent) => CreateMode::Persistent,
            mode => mode,
        };
        let created = self.inner.create(path, data, acl, mode).map_err(|error| self.error(error))?;
        Ok(if self.has(NoSequenceNumber) { path.to_owned() } else { created })
    }

    fn delete(&self, path: &str, version: Option<i32>) -> ZkResult<()> {
        let version = version.filter(|_| !self.has(DeleteIgnoresVersion));
        self.inner.delete(path, version).map_err(|error| self.error(error))
    }

    fn exists(&self, path: &str, watch: bool) -> ZkResult<Option<Stat>> {
        match self.inner.exists(path, watch).map_err(|error| self.error(error)) {
            Ok(None) if self.has(MissingIsAnError) => Err(ZkError::NoNode),
            result => result,
        }
    }

    fn get_children(&self, path: &str, watch: bool) -> ZkResult<Names> {
        let listed = self.inner.get_children(path, watch && !self.has(NoChildWatch));
        let names = listed.map_err(|error| self.error(error))?;
        let full = |name| format!("{path}/{name}");
        Ok(if self.has(ChildrenAreFullPaths) { names.into_iter().map(full).collect() } else { names })
    }

    fn get_data(&self, path: &str, watch: bool) -> ZkResult<(Vec<u8>, Stat)> {
        if self.has(WatchStaysAfterAFailedRead) && watch {
            let _ = self.inner.exists(path, true);
        }
        let watch = watch || self.has(WatchWithoutAsking);
        let (mut data, stat) = self.inner.get_data(path, watch).map_err(|error| self.error(error))?;
        if self.has(DataAreCut) {
            data.truncate(1 << 19);
        }
        Ok((data, stat))
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> ZkResult<Stat> {
        if self.has(LongRequestHangs) && data.len() > 1 << 20 {
            loop {
                std::thread::park();
            }
        }
        let before = self.inner.exists(path, false);
        let stat = self.inner.set_data(path, data, version).map_err(|error| self.error(error))?;
        Ok(if self.has(SetDataReturnsOldStat) { before?.unwrap_or_default() } else { stat })
    }

    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl]) -> ZkResult<Enqueued> {
        let before = self.get_children(dir, false);
        let mode = CreateMode::EphemeralSequential;
        let created = match self.create(&format!("{dir}/{prefix}"), data, acl, mode) {
            Err(error) if self.has(FailedCreateIsListed) => {
                return Ok(Enqueued::new(String::new(), Err(error)));
            }
            created => created?,
        };
        let listed = if self.has(ListsBeforeTheCreate) { before } else { self.get_children(dir, false) };
        Ok(Enqueued::new(created, listed))
    }

    fn transact(&self, operations: &[Op]) -> ZkResult<Transacted> {
        match self.flaw {
            TransactionIsPartial => {
                let mut outcome = Ok(Transacted::Committed(Vec::new()));
                for (position, operation) in operations.iter().enumerate() {
                    outcome = self.inner.transact(std::slice::from_ref(operation));
                    if let Ok(Transacted::Failed { error, .. }) = outcome {
                        return Ok(Transacted::Failed { position, error });
                    }
                }
                outcome
            }
            ChecksAreIgnored => {
                let changes = operations.iter().filter(|operation| !matches!(operation, Op::Check { .. }));
                self.inner.transact(&changes.cloned().collect::<Vec<_>>())
            }
            _ => self.inner.transact(operations),
        }
    }

    fn remove_watches(&self, path: &str, is_unwanted: &dyn Fn() -> bool) {
        let is_forced = self.has(WantedWatchIsRemoved);
        self.inner.remove_watches(path, &|| is_forced || is_unwanted());
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        *self.sink.lock() = Some(Arc::clone(&sink));
        let (flaw, held) = (self.flaw, Arc::clone(&self.held));
        let has_panicked = Mutex::new(false);
        let has_contact = self.inner.subscribe(Arc::new(move |event| {
            let times = match (flaw, &event) {
                (NoDisconnected, ClientEvent::Disconnected)
                | (NoConnected, ClientEvent::Connected(_))
                | (NoSessionLost, ClientEvent::SessionLost) => 0,
                (LateDisconnected, ClientEvent::Disconnected) => {
                    *held.lock() = Some(event);
                    return;
                }
                (EventTwice, ClientEvent::NodeChanged { .. })
                | (ConnectedTwice, ClientEvent::Connected(_))
                | (SessionLostTwice, ClientEvent::SessionLost) => 2,
                _ => 1,
            };
            let event = match (flaw, event) {
                (EventOfTheParent, ClientEvent::NodeChanged { path, is_deleted }) => {
                    let parent = path.rsplit_once('/').unwrap_or_default().0.to_owned();
                    ClientEvent::NodeChanged { path: parent, is_deleted }
                }
                (OldGrant, ClientEvent::Connected(_)) => ClientEvent::Connected(Granted::new(2 * TIMEOUT)),
                (_, event) => event,
            };
            if flaw == SinkGoneAfterPanic && std::mem::replace(&mut *has_panicked.lock(), true) {
                return;
            }
            for late in held.lock().take().into_iter().chain(vec![event; times]) {
                sink(late);
            }
        }));
        has_contact && !self.has(WrongContact)
    }

    fn session_timeout(&self) -> Duration {
        self.inner.session_timeout() * if self.has(WrongTimeout) { 2 } else { 1 }
    }

    fn report_delay(&self) -> Duration {
        self.inner.report_delay()
    }

    fn close(&self) {
        if self.has(CloseHangsWithoutContact) && !self.inner.subscribe(Arc::new(|_| {})) {
            loop {
                std::thread::park();
            }
        }
        let is_closed = std::mem::replace(&mut *self.is_closed.lock(), true);
        assert!(!is_closed || !self.has(SecondClosePanics), "closed twice");
        match self.flaw {
            CloseKeepsTheSession => self.inner.give_up(),
            _ => self.inner.close(),
        }
        if let (Some(sink), EventAfterClose) = (self.sink.lock().take(), self.flaw) {
            if is_closed {
                sink(ClientEvent::Disconnected);
            }
            *self.sink.lock() = Some(sink);
        }
    }
}

#[test]
fn each_flaw_is_noticed() {
    crate::testing::begin();
    for (flaw, name) in NOTICED {
        let fixture = fake(Duration::from_millis(300), flaw.wrap());
        let check = checks().into_iter().find(|check| check.name() == *name).unwrap();
        let outcome = check.run(&fixture);
        assert!(outcome.is_err(), "{flaw:?} is not noticed by {name}: {outcome:?}");
    }
}
