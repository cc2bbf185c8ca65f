//! Any bytes through the openers and decoders: what decodes is canonical, nothing is authentic by accident, and no
//! sequence number of a sender is accepted twice.

#![no_main]

use std::collections::BTreeSet;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use protocol::id::{ClusterId, Epoch, NodeId, TxnId};
use protocol::wire::{
    CONTROL_HEADER, DATA_HEADER, DataHeader, DropReason, Head, MAX_CONTROL, Message, Opener, Sealer, TAG,
    decode_message, encode_message, is_data,
};

const KEY: [u8; 32] = [9; 32];

fuzz_target!(|data: &[u8]| {
    let datagram = Bytes::copy_from_slice(data);
    control(data);
    payload(&datagram);
    let cluster = data.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    // Another key than that of the seeds.
    if let Ok(opened) = Opener::new([8; 32], ClusterId(cluster)).open(datagram) {
        assert!(is_data(&opened), "a control datagram was forged");
    }
    replays(data);
});

/// What decodes encodes to the same bytes, but for the flags and the sequence number; sealed it opens once, and not
/// when it was changed.
fn control(data: &[u8]) {
    let Some((head, message)) = decode_message(data) else { return };
    let mut canonical = data.to_vec();
    canonical[3] = 0;
    canonical[16..24].fill(0);
    let encoded = encode_message(head, &message);
    assert_eq!(encoded, canonical, "{message:?}");
    assert!(encoded.len() + TAG <= MAX_CONTROL, "{message:?} takes {} bytes", encoded.len());
    let sealed = Sealer::new(KEY, 6).seal(&encoded);
    let mut opener = Opener::new(KEY, head.cluster);
    let at = data[data.len() - 1] as usize % sealed.len();
    let mut changed = sealed.to_vec();
    changed[at] ^= 1 << (data[16] % 8);
    let opened = opener.open(changed.into());
    assert!(opened.as_ref().map_or(true, |opened| is_data(opened)), "byte {at} is not protected");
    assert!(opener.open(sealed.slice(..sealed.len() - 1)).is_err(), "a cut datagram was taken");
    let opened = opener.open(sealed.clone()).expect("it is authentic");
    assert_eq!(decode_message(&opened), Some((head, message)));
    assert_eq!(opener.open(sealed), Err(DropReason::Replayed));
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

/// The bytes as senders and their sequence numbers, in the order of arrival.
fn replays(data: &[u8]) {
    let mut opener = Opener::new(KEY, ClusterId(1));
    let mut accepted = BTreeSet::new();
    for word in data.chunks_exact(4) {
        let (sender, step) = (u32::from(word[0] % 3), u16::from_le_bytes([word[1], word[2]]));
        // Most numbers are close together, so that the window is used; some are at its ends.
        let sequence = match word[3] {
            255 => u64::MAX - u64::from(step),
            n => (u64::from(n / 64) << 40) + u64::from(step % 4_096),
        };
        let head = Head { cluster: ClusterId(1), epoch: Epoch(1), from: NodeId(sender) };
        let message = encode_message(head, &Message::Ping { txn: TxnId(0) });
        let sealed = Sealer::new(KEY, sequence.saturating_sub(1)).seal(&message);
        if opener.open(sealed).is_ok() {
            assert!(accepted.insert((sender, sequence.max(1))), "{sequence} of {sender} was taken twice");
        }
    }
    assert_eq!(CONTROL_HEADER, 24, "the offsets above");
}
