//! Opens what came from outside, whatever carried it. What is not good is counted, and reported where it matters.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use protocol::id::NodeId;
use protocol::map::ClusterMap;
use protocol::time::{Instant, Span};
use protocol::wire::{DATA_HEADER, DropReason, Opened, Session, is_answerable, is_data};

use crate::NodeError;
use crate::config::{CarrierChoice, ClusterConfig};
use crate::metrics::CarrierMetrics;
use crate::payload_cipher::{PayloadCipher, is_encrypted};
use crate::reachability::{DropWarnings, Obstacle, Reachability};

/// The least time between refusals: what is sent to a node must not make it send as much.
const REFUSALS: Span = Span::from_millis(100);

/// A node's session with each other, and what is known of what came.
#[derive(Debug)]
pub(crate) struct Gate {
    session: Session,
    /// None where payload is not encrypted, or the connection is.
    cipher: Option<PayloadCipher>,
    refused_at: Instant,
    warnings: DropWarnings,
    /// What was counted.
    pub(crate) metrics: CarrierMetrics,
    /// What is known of each target.
    pub(crate) reachability: Reachability,
}

/// What became of something that came.
#[derive(Debug)]
pub(crate) enum Passed {
    /// It is good.
    In(Bytes),
    /// It goes no further; this is sent back where it came from.
    Answered(Vec<Bytes>),
}

impl Gate {
    /// That of a node which begins now.
    pub(crate) fn new(config: &ClusterConfig, map: &ClusterMap, id: NodeId, began: Instant) -> Result<Self, NodeError> {
        let encrypts = config.network.encrypt && config.network.carrier == CarrierChoice::Udp;
        let cipher = if encrypts { PayloadCipher::new(config.key()?, crate::random()?) } else { None };
        Ok(Self {
            session: Session::new(config.key()?, map.cluster, id, crate::random()?),
            cipher,
            refused_at: Instant::ZERO,
            warnings: DropWarnings::default(),
            metrics: CarrierMetrics::default(),
            reachability: Reachability::new(config, began),
        })
    }

    /// A message as it goes out.
    pub(crate) fn seal(&mut self, message: &Bytes) -> Bytes {
        self.session.seal(message)
    }

    /// Writes a datagram of payload as it goes out behind what is in `out`.
    pub(crate) fn seal_data(&mut self, header: &[u8; DATA_HEADER], payload: &[u8], out: &mut BytesMut) {
        if let Some(cipher) = &mut self.cipher {
            return cipher.seal(header, payload, out);
        }
        out.extend_from_slice(header);
        out.extend_from_slice(payload);
    }

    /// Whether payload is encrypted, and longer for it.
    pub(crate) const fn encrypts(&self) -> bool {
        self.cipher.is_some()
    }

    /// Decrypts payload; a message is left as it is.
    fn decrypt(&mut self, datagram: Bytes) -> Option<Bytes> {
        match &mut self.cipher {
            _ if !is_data(&datagram) => Some(datagram),
            Some(cipher) => cipher.open(&datagram),
            None => Some(datagram).filter(|datagram| !is_encrypted(datagram)),
        }
    }

    /// Opens what came from this address, and was read at this moment.
    pub(crate) fn open(&mut self, now: Instant, datagram: Bytes, from: SocketAddr) -> Passed {
        self.metrics.received(is_data(&datagram), 1, datagram.len() as u64);
        let answerable = is_answerable(&datagram);
        match self.session.open(now, datagram) {
            Ok(Opened::Good(datagram)) => {
                let Some(datagram) = self.decrypt(datagram) else {
                    self.metrics.dropped("not_encrypted", 1);
                    self.reachability.met(from, Obstacle::Encryption, now);
                    return Passed::Answered(Vec::new());
                };
                if let Some(id) = sender(&datagram).filter(|id| !id.is_initiator()) {
                    self.reachability.mark_alive(id, now);
                }
                Passed::In(datagram)
            }
            Ok(Opened::Between(replies)) => Passed::Answered(replies),
            Ok(Opened::Unproven(replies)) => {
                // Every node begins like this: it says nothing of why a target is silent.
                self.metrics.dropped(DropReason::Unproven.name(), 1);
                Passed::Answered(replies)
            }
            Err(reason) => Passed::Answered(self.refuse(now, reason, answerable, from).into_iter().collect()),
        }
    }

    /// Counts what is dropped, and says why: in the log, in the answer to a question for the target that should be
    /// there, and to the other side where it may not know.
    fn refuse(&mut self, now: Instant, reason: DropReason, answerable: bool, from: SocketAddr) -> Option<Bytes> {
        self.metrics.dropped(reason.name(), 1);
        let target = self.reachability.met(from, Obstacle::Dropped(reason), now);
        self.warnings.dropped(reason, from, target, now);
        let strange = matches!(reason, DropReason::Version | DropReason::OtherCluster | DropReason::Forged);
        if !strange || !answerable || now.since(self.refused_at) < REFUSALS {
            return None;
        }
        self.refused_at = now;
        Some(self.session.refusal())
    }
}

/// The sender of a message that was opened; payload does not say so in a way that was proven.
pub(crate) fn sender(datagram: &Bytes) -> Option<NodeId> {
    let id = datagram.get(12..16).filter(|_| !is_data(datagram))?;
    Some(NodeId(u32::from_le_bytes(id.try_into().ok()?)))
}
