//! [`SteppedClient`]: a client whose requests, replies and events move only on command.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::client::{Call, ClientEvent, Done, EventSink, Granted, Identity, ZooKeeperClient};
use crate::fake::SimulatedClient;

/// Moves requests to the server, and replies and events back, one at a time and in the order of one
/// connection. Until [`step_by_step`](SteppedClient::step_by_step) is called, everything moves at once.
pub(crate) struct SteppedClient {
    client: Arc<SimulatedClient>,
    wire: Arc<Mutex<Wire>>,
}

struct Wire {
    is_fast: bool,
    requests: VecDeque<(Request, Sent)>,
    arrivals: VecDeque<Arrival>,
    /// The outcomes that the client has not reported yet.
    late: VecDeque<Arrival>,
    /// The paths on which the client knows that it has a watch.
    watched: BTreeSet<String>,
}

/// The kind of a request, for tests that wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    List,
    Other,
}

type Sent = Box<dyn FnOnce(&SimulatedClient) -> Arrival + Send>;

/// A reply or an event on its way to the client.
struct Arrival {
    take_up: Box<dyn FnOnce() + Send>,
    is_event: bool,
    /// The path on which the request has set a watch, if any.
    sets: Option<String>,
    fires: Option<String>,
}

impl Wire {
    /// Takes the next arrival if it matches.
    fn arrive(&mut self, is_such: impl FnOnce(&Arrival) -> bool) -> Option<Arrival> {
        is_such(self.arrivals.front()?).then_some(())?;
        let arrival = self.arrivals.pop_front()?;
        self.watched.extend(arrival.sets.clone());
        self.forget(arrival.fires.as_deref());
        Some(arrival)
    }

    /// Forgets the watch on this path, which has fired.
    fn forget(&mut self, path: Option<&str>) {
        if let Some(path) = path {
            self.watched.remove(path);
        }
    }
}

impl SteppedClient {
    pub(crate) fn new(client: Arc<SimulatedClient>) -> Arc<SteppedClient> {
        let wire = Wire {
            is_fast: true,
            requests: VecDeque::new(),
            arrivals: VecDeque::new(),
            late: VecDeque::new(),
            watched: BTreeSet::new(),
        };
        Arc::new(SteppedClient { client, wire: Arc::new(Mutex::new(wire)) })
    }

    /// Makes everything wait for a command from now on.
    pub(crate) fn step_by_step(&self) {
        self.wire.lock().is_fast = false;
    }

    /// Makes everything move at once from now on.
    pub(crate) fn hurry(&self) {
        self.wire.lock().is_fast = true;
        self.move_all();
    }

    /// Moves everything that is waiting, and everything that follows from it.
    pub(crate) fn move_all(&self) {
        while self.deliver_late() || self.deliver() || self.serve().is_some() {}
    }

    /// Makes the server execute requests until it has executed one of this kind.
    pub(crate) fn serve_until(&self, kind: Request) {
        while self.serve().expect("a request of this kind must be waiting") != kind {}
    }

    /// Delivers the next reply or event to the client. Returns whether there was one.
    pub(crate) fn deliver(&self) -> bool {
        self.deliver_while(|_| true)
    }

    fn deliver_while(&self, may_move: fn(&Wire) -> bool) -> bool {
        let arrival = {
            let mut wire = self.wire.lock();
            if !may_move(&wire) {
                return false;
            }
            wire.arrive(|_| true)
        };
        arrival.map(|arrival| (arrival.take_up)()).is_some()
    }

    /// Delivers the next reply, but makes the client report its outcome later. Does nothing if an event is
    /// next.
    pub(crate) fn hold_back(&self) -> bool {
        let mut wire = self.wire.lock();
        let Some(reply) = wire.arrive(|arrival| !arrival.is_event) else { return false };
        wire.late.push_back(reply);
        true
    }

    /// Reports the oldest outcome that the client has held back. Returns whether there was one.
    pub(crate) fn deliver_late(&self) -> bool {
        let late = self.wire.lock().late.pop_front();
        late.map(|late| (late.take_up)()).is_some()
    }

    /// Returns the number of requests on their way to the server.
    pub(crate) fn requests(&self) -> usize {
        self.wire.lock().requests.len()
    }

    /// Makes the server execute the next request. Returns its kind, or `None` if there is none.
    pub(crate) fn serve(&self) -> Option<Request> {
        self.serve_while(|_| true)
    }

    /// Makes the server execute the next request if it is a listing. Returns whether it was.
    pub(crate) fn serve_listing(&self) -> bool {
        self.serve_while(|wire| matches!(wire.requests.front(), Some((Request::List, _)))).is_some()
    }

    fn serve_while(&self, may_move: fn(&Wire) -> bool) -> Option<Request> {
        let (kind, request) = {
            let mut wire = self.wire.lock();
            if !may_move(&wire) {
                return None;
            }
            wire.requests.pop_front()?
        };
        let arrival = request(&self.client);
        self.wire.lock().arrivals.push_back(arrival);
        Some(kind)
    }

    fn push(&self, kind: Request, request: Sent) {
        self.wire.lock().requests.push_back((kind, request));
        self.move_if_fast();
    }

    /// Moves everything at once, unless the client has been told to move step by step. It may be told so while another
    /// thread is still in this loop.
    fn move_if_fast(&self) {
        let is_fast = |wire: &Wire| wire.is_fast;
        while self.deliver_while(is_fast) || self.serve_while(is_fast).is_some() {}
    }
}

impl ZooKeeperClient for SteppedClient {
    fn submit(&self, call: Call, done: Done) {
        let kind = if matches!(call, Call::GetChildren { .. }) { Request::List } else { Request::Other };
        let request = move |client: &SimulatedClient| {
            let result = client.call(&call);
            let sets = match &call {
                Call::Exists { path, watch: true }
                | Call::GetData { path, watch: true }
                | Call::GetChildren { path, watch: true }
                    if result.is_ok() =>
                {
                    Some(path.to_string())
                }
                _ => None,
            };
            Arrival { take_up: Box::new(move || done.finish(result)), is_event: false, sets, fires: None }
        };
        self.push(kind, Box::new(request));
    }

    fn remove_watches(&self, path: &str) {
        {
            let mut wire = self.wire.lock();
            if !wire.watched.contains(path) {
                return;
            }
            wire.watched.remove(path);
        }
        let path = path.to_owned();
        let request = move |client: &SimulatedClient| {
            client.remove_watches(&path);
            Arrival { take_up: Box::new(|| {}), is_event: false, sets: None, fires: None }
        };
        self.push(Request::Other, Box::new(request));
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        let wire = Arc::clone(&self.wire);
        self.client.subscribe(Arc::new(move |event| {
            let fires = match &event {
                ClientEvent::NodeChanged { path, .. } => Some(path.clone()),
                _ => None,
            };
            let mut wire = wire.lock();
            if !wire.is_fast {
                let sink = Arc::clone(&sink);
                let take_up = Box::new(move || sink(event));
                return wire.arrivals.push_back(Arrival { take_up, is_event: true, sets: None, fires });
            }
            wire.forget(fires.as_deref());
            drop(wire);
            sink(event);
        }))
    }

    fn identity(&self) -> Identity {
        self.client.identity()
    }

    fn granted(&self) -> Granted {
        self.client.granted()
    }

    fn close(&self) {
        self.client.close();
    }
}
