//! Clients that violate one rule each, and the checks that must notice the violation.

use parking_lot::Mutex;

use super::blocking::{BlockingClient, port};
use super::*;
use zookeeper_recipes_lock::client::CreateMode;
use zookeeper_recipes_lock::client::port::{
    Ask, Call, ClientEvent, EventSink, Granted, Op, Reply, Transacted, Verbs, ZooKeeperClient,
};
use zookeeper_recipes_lock::client::{ZkError, ZkResult};

/// A violation by a client that otherwise behaves like the simulated server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    NoSequenceNumber,
    EphemeralIsPersistent,
    DeleteIgnoresVersion,
    SetDataReturnsOldStat,
    MissingIsAnError,
    ChildrenAreFullPaths,
    NoAuthIsNoNode,
    DataAreCut,
    LongRequestHangs,
    LongRequestCostsTheConnection,
    TransactionIsPartial,
    ChecksAreIgnored,
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
    (DataAreCut, "data_of_nearly_a_mebibyte_are_kept"),
    (LongRequestHangs, "request_that_is_too_long_is_refused"),
    (LongRequestCostsTheConnection, "request_that_is_too_long_is_refused"),
    (TransactionIsPartial, "failed_transaction_changes_nothing"),
    (ChecksAreIgnored, "failed_check_fails_a_transaction"),
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
            port(Arc::new(Flawed {
                inner,
                flaw: self,
                held: Arc::default(),
                sink: Mutex::default(),
                is_closed: Mutex::default(),
            }))
        }
    }
}

struct Flawed {
    inner: Arc<SimulatedClient>,
    flaw: Flaw,
    /// An event whose delivery is delayed.
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

impl Flawed {
    fn ask<T>(&self, ask: Ask<T>) -> ZkResult<T> {
        self.inner.ask(ask).map_err(|error| self.error(error))
    }

    fn get_data(&self, path: &str, watch: bool) -> ZkResult<Reply> {
        if self.has(WatchStaysAfterAFailedRead) && watch {
            let _ = self.inner.exists(path, true);
        }
        let watch = watch || self.has(WatchWithoutAsking);
        let (mut data, stat) = self.ask(Call::get_data(path, watch))?;
        if self.has(DataAreCut) {
            data.truncate(1 << 19);
        }
        Ok(Reply::Data(data, stat))
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> ZkResult<Reply> {
        match self.flaw {
            LongRequestHangs if data.len() > 1 << 20 => loop {
                std::thread::park();
            },
            LongRequestCostsTheConnection if data.len() > 1 << 20 => {
                self.inner.disconnect();
                self.inner.reconnect();
                return Err(ZkError::ConnectionLoss);
            }
            _ => {}
        }
        let before = self.inner.exists(path, false);
        let stat = self.ask(Call::set_data(path, data, version))?;
        Ok(Reply::Stat(if self.has(SetDataReturnsOldStat) { before?.unwrap_or_default() } else { stat }))
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
}

impl BlockingClient for Flawed {
    fn call(&self, call: &Call) -> ZkResult<Reply> {
        match call {
            Call::Create { path, data, acl, mode } => {
                let mode = match *mode {
                    CreateMode::Ephemeral if self.has(EphemeralIsPersistent) => CreateMode::Persistent,
                    mode => mode,
                };
                let (created, stat) = self.ask(Call::create(&**path, &**data, &**acl, mode))?;
                let path = if self.has(NoSequenceNumber) { path.to_string() } else { created };
                Ok(Reply::Created { path, stat })
            }
            Call::Delete { path, version } => {
                let version = version.filter(|_| !self.has(DeleteIgnoresVersion));
                self.ask(Call::delete(&**path, version)).map(|()| Reply::Done)
            }
            Call::Exists { path, watch } => match self.ask(Call::exists(&**path, *watch))? {
                None if self.has(MissingIsAnError) => Err(ZkError::NoNode),
                stat => Ok(Reply::Found(stat)),
            },
            Call::GetChildren { path, watch } => {
                let names = self.ask(Call::get_children(&**path, *watch && !self.has(NoChildWatch)))?;
                let full = |name| format!("{path}/{name}");
                let is_full = self.has(ChildrenAreFullPaths);
                Ok(Reply::Children(if is_full { names.into_iter().map(full).collect() } else { names }))
            }
            Call::GetData { path, watch } => self.get_data(path, *watch),
            Call::SetData { path, data, version } => self.set_data(path, data, *version),
            Call::Multi(operations) => self.transact(operations).map(Reply::Multi),
            Call::CreateAndList { .. } => Err(ZkError::Unimplemented),
        }
    }

    fn remove_watches(&self, path: &str) {
        self.inner.remove_watches(path);
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
        assert!(!is_closed || !self.has(SecondClosePanics), "the client was closed twice");
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
    for (flaw, name) in NOTICED {
        let fixture = fake(Duration::from_millis(300), flaw.wrap());
        let check = checks().into_iter().find(|check| check.name() == *name).unwrap();
        let outcome = check.run(&fixture);
        assert!(outcome.is_err(), "{name} did not notice {flaw:?}: {outcome:?}");
    }
}
