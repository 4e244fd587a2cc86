//! [`Transport`]: the two streams of bytes between a client and a server, and what has happened to them.

use std::time::Duration;

use super::server::Peer;
use crate::tests::simulation::random::Random;
use crate::tests::simulation::seen::saw;
use crate::time::Moment;
use zookeeper_connection::machine::LinkId;

/// How long what a client has sent may arrive after the client has left the connection. The engine counts on a little
/// more.
const ARRIVES_WITHIN: Duration = Duration::from_secs(100);

/// The bytes in transit in one direction.
#[derive(Debug, Default)]
pub(super) struct Stream {
    bytes: Vec<u8>,
    /// Whether the sender has ended the stream.
    pub(super) has_ended: bool,
}

impl Stream {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if !self.has_ended {
            self.bytes.extend_from_slice(bytes);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes the next segment, which may be of any length up to `longest`.
    pub(super) fn take(&mut self, random: &mut Random, splits: bool, longest: usize) -> Vec<u8> {
        let length = self.bytes.len().min(longest);
        let length = if splits && random.one_in(3) { 1 + random.index(length) } else { length };
        self.bytes.drain(..length.min(self.bytes.len())).collect()
    }

    /// Loses everything after some byte.
    fn cut(&mut self, random: &mut Random, what: &'static str) {
        let kept = if random.one_in(2) { self.bytes.len() } else { random.index(self.bytes.len() + 1) };
        self.lose_all_after(kept, what);
    }

    fn lose_all_after(&mut self, kept: usize, what: &'static str) {
        if kept < self.bytes.len() {
            saw(what);
        }
        self.bytes.truncate(kept);
    }

    pub(super) fn take_byte(&mut self) -> Vec<u8> {
        self.bytes.drain(..1.min(self.bytes.len())).collect()
    }
}

pub(super) struct Transport {
    pub(super) link: LinkId,
    pub(super) server: usize,
    /// Whether it is open; `false` while it is being opened.
    pub(super) is_open: bool,
    pub(super) up: Stream,
    pub(super) down: Stream,
    /// The number of bytes that the client has received.
    pub(super) received: u64,
    /// Whether the network swallows both streams without either side knowing.
    pub(super) is_swallowed: bool,
    /// Whether it swallows only the stream to the server, or only the stream to the client.
    pub(super) swallows_up: bool,
    pub(super) swallows_down: bool,
    /// When the client left it.
    pub(super) left_at: Option<Moment>,
    /// When the next byte from the server may arrive, if its bytes arrive slowly.
    pub(super) trickles_at: Option<Moment>,
    /// The moment until which a narrow link is transmitting to the server, and to the client.
    pub(super) transmits_until: Option<Moment>,
    pub(super) receives_until: Option<Moment>,
    pub(super) peer: Peer,
}

impl Transport {
    pub(super) fn new(link: LinkId, server: usize, peer: Peer) -> Transport {
        Transport {
            link,
            server,
            is_open: false,
            up: Stream::default(),
            down: Stream::default(),
            received: 0,
            is_swallowed: false,
            swallows_up: false,
            swallows_down: false,
            left_at: None,
            trickles_at: None,
            transmits_until: None,
            receives_until: None,
            peer,
        }
    }

    /// Breaks the connection. Parts of both streams still arrive.
    pub(super) fn cut(&mut self, random: &mut Random) {
        self.up.cut(random, "request-lost");
        self.up.has_ended = true;
        self.down.cut(random, "reply-lost");
        self.end_down();
    }

    /// Loses the server. Returns whether the client notices. It does not if nothing is left to answer it.
    pub(super) fn lose_server(&mut self, random: &mut Random) -> bool {
        self.up.lose_all_after(0, "request-lost");
        self.up.has_ended = true;
        self.down.cut(random, "reply-lost");
        self.peer.close();
        let is_noticed = random.one_in(2);
        saw(if is_noticed { "server-loss-noticed" } else { "server-loss-not-noticed" });
        match is_noticed {
            true => self.end_down(),
            false => self.peer.is_mute = true,
        }
        is_noticed
    }

    /// Makes the server end the connection after everything that it has sent.
    pub(super) fn end_down(&mut self) {
        self.down.has_ended = true;
        self.peer.is_mute = true;
    }

    /// Returns whether its segments have to wait for each other.
    pub(super) fn is_narrow(&self) -> bool {
        self.transmits_until.is_some() || self.receives_until.is_some()
    }

    /// Returns whether the next segment to the server may be sent.
    pub(super) fn may_send(&self, now: Moment) -> bool {
        !self.up.is_empty() && !self.swallows_up && self.transmits_until.is_none_or(|until| until <= now)
    }

    /// Returns whether the next segment to the client may arrive.
    pub(super) fn may_receive(&self, now: Moment) -> bool {
        let waits_until = [self.trickles_at, self.receives_until];
        !self.swallows_down && waits_until.into_iter().flatten().all(|until| until <= now)
    }

    /// Returns whether the client has left it.
    pub(super) fn is_late(&self) -> bool {
        self.left_at.is_some()
    }

    /// Returns whether what the client has sent on it may still arrive.
    pub(super) fn may_arrive(&self, now: Moment) -> bool {
        self.left_at.is_none_or(|left_at| now < left_at.after(ARRIVES_WITHIN))
    }

    /// Returns whether any packets are lost on the way, without either side knowing.
    pub(super) fn loses_packets(&self) -> bool {
        self.is_swallowed || self.swallows_up || self.swallows_down
    }

    /// Returns whether the client has something to read.
    pub(super) fn has_arrivals(&self) -> bool {
        self.is_open && (!self.down.is_empty() || self.down.has_ended)
    }
}
