//! Any bytes through the openers and decoders: what decodes is canonical, nothing is authentic by accident, and no
//! sequence number of a sender is accepted twice.

#![no_main]

use std::collections::BTreeSet;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use protocol::id::{ClusterId, Epoch, NodeId, TxnId};
use protocol::time::{Instant, Span};
use protocol::wire::{
    CONTROL_HEADER, DATA_HEADER, DataHeader, DropReason, Head, MAX_CONTROL, Message, Opened, Session, TAG,
    decode_message, encode_message, is_data,
};

const KEY: [u8; 32] = [9; 32];

fuzz_target!(|data: &[u8]| {
    let datagram = Bytes::copy_from_slice(data);
    control(data);
    payload(&datagram);
    let cluster = data.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    // Another key than that of the seeds.
    let opened = session([8; 32], ClusterId(cluster), 1).open(Instant::ZERO, datagram);
    assert!(!matches!(&opened, Ok(Opened::Good(opened)) if !is_data(opened)), "a control datagram was forged");
    assert!(!matches!(opened, Ok(Opened::Between(_) | Opened::Unproven(_))), "a control datagram was forged");
    replays(data);
});

fn session(key: [u8; 32], cluster: ClusterId, node: u32) -> Session {
    Session::new(key, cluster, NodeId(node), u64::from(node))
}

/// What decodes encodes to the same bytes, but for the flags and the sequence number; sealed it opens once, and not
/// when it was changed.
fn control(data: &[u8]) {
    let Some((head, message)) = decode_message(data) else { return };
    let mut canonical = data.to_vec();
    canonical[3] = 0;
    canonical[16..32].fill(0);
    let encoded = encode_message(head, &message);
    assert_eq!(encoded, canonical, "{message:?}");
    assert!(encoded.len() + TAG <= MAX_CONTROL, "{message:?} takes {} bytes", encoded.len());
    let (mut one, mut other) = (session(KEY, head.cluster, head.from.0), session(KEY, head.cluster, !head.from.0));
    let sealed = one.seal(&encoded);
    let at = data[data.len() - 1] as usize % sealed.len();
    let mut changed = sealed.to_vec();
    changed[at] ^= 1 << (data[16] % 8);
    let opened = other.open(Instant::ZERO, changed.into());
    assert!(
        matches!(&opened, Err(_)) || matches!(&opened, Ok(Opened::Good(data)) if is_data(data)),
        "byte {at} is open"
    );
    assert!(other.open(Instant::ZERO, sealed.slice(..sealed.len() - 1)).is_err(), "a cut datagram was taken");
    let good = taken(&mut one, &mut other, Instant::ZERO, &sealed);
    // It was dropped before the proof, and is said again where that fits.
    if sealed.len() + 44 <= MAX_CONTROL {
        assert_eq!(good.iter().map(|good| decode_message(good)).collect::<Vec<_>>(), [Some((head, message))]);
    }
    assert_eq!(other.open(Instant::ZERO, sealed), Err(DropReason::Replayed));
}

/// What `to` takes of a datagram of `from`, after all that they have to say to each other.
fn taken(from: &mut Session, to: &mut Session, now: Instant, datagram: &Bytes) -> Vec<Bytes> {
    let (mut way, mut all) = (vec![(true, datagram.clone())], Vec::new());
    for _ in 0..6 {
        for (there, datagram) in core::mem::take(&mut way) {
            match if there { to.open(now, datagram) } else { from.open(now, datagram) } {
                Ok(Opened::Good(message)) if there => all.push(message),
                Ok(Opened::Between(replies) | Opened::Unproven(replies)) => {
                    way.extend(replies.into_iter().map(|reply| (!there, reply)))
                }
                _ => {}
            }
        }
    }
    assert!(way.is_empty(), "they never stop");
    all
}

fn payload(datagram: &Bytes) {
    let Some((header, body)) = DataHeader::decode(datagram) else { return };
    assert!(header.offset as usize + body.len() <= header.size as usize && !body.is_empty());
    let mut canonical = datagram[..DATA_HEADER].to_vec();
    canonical[3] = 0;
    canonical[28..].fill(0);
    assert_eq!(header.encode()[..], canonical);
    assert_eq!(body, datagram[DATA_HEADER..]);
}

/// The bytes as senders that speak, begin anew, and are played back: nothing is taken twice, and nothing of a life after
/// a later one was heard.
fn replays(data: &[u8]) {
    let mut listener = session(KEY, ClusterId(1), 9);
    let mut speakers = [0, 1, 2].map(|n| (session(KEY, ClusterId(1), n), 0_u8));
    let mut sent = Vec::new();
    let (mut taken_all, mut lives) = (BTreeSet::new(), [0_u8; 3]);
    for (n, step) in data.chunks_exact(3).take(2_000).enumerate() {
        let now = Instant::ZERO + Span::from_millis(n as u64 * u64::from(step[2] % 32));
        let which = usize::from(step[0] % 3);
        let (speaker, life) = &mut speakers[which];
        let datagram = match step[1] {
            0 => {
                *life = life.saturating_add(1);
                let (cluster, node) = (ClusterId(1), NodeId(which as u32));
                *speaker = Session::new(KEY, cluster, node, u64::from(*life) << 8 | which as u64);
                continue;
            }
            1..128 if !sent.is_empty() => {
                let (_, _, datagram): &(usize, u8, Bytes) = &sent[usize::from(step[1]) % sent.len()];
                datagram.clone()
            }
            _ => {
                let head = Head { cluster: ClusterId(1), epoch: Epoch(1), from: NodeId(which as u32) };
                let ping = Message::Ping { txn: TxnId(sent.len() as u64 | u64::from(*life) << 32) };
                let datagram = speaker.seal(&encode_message(head, &ping));
                sent.push((which, *life, datagram.clone()));
                datagram
            }
        };
        for message in taken(speaker, &mut listener, now, &datagram) {
            let (head, message) = decode_message(&message).expect("it was sealed");
            let (from, Message::Ping { txn }) = (head.from.0 as usize, message) else { unreachable!() };
            let life = (txn.0 >> 32) as u8;
            assert!(life >= lives[from], "{from} is heard of an earlier life");
            lives[from] = life;
            assert!(taken_all.insert((from, txn)), "{txn:?} of {from} was taken twice");
        }
    }
    assert_eq!(CONTROL_HEADER, 32, "the offsets above");
}
