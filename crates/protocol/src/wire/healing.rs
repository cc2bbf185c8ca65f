//! The messages of censuses and of making lost copies again, as bytes.

use bytes::BufMut;

use super::codec::{Reader, put_after, take_after};
use super::message::{CensusRequest, Fill, HealthReport, Message, Nowhere};
use crate::census::{Counted, Holding, IdRange, PARTS};
use crate::health::{Health, Lacks};
use crate::id::{Epoch, GroupId, NodeId, TxnId};
use crate::limits;
use crate::redundancy::Wanted;
use crate::time::Span;

/// Encodes one of them; others are of [`encoding`](super::encoding).
pub(super) fn put(message: &Message, out: &mut impl BufMut) {
    match message {
        Message::Census(request) => put_census(request, out),
        Message::Counted { txn, holding } => put_counted(*txn, holding, out),
        Message::Restore { txn, id, wanted, holders } => {
            out.put_u64_le(txn.0);
            out.put_slice(&id.encode());
            out.put_u8(wanted.code());
            if !holders.is_empty() {
                out.put_u8(holders.len() as u8);
                holders.iter().for_each(|holder| out.put_u32_le(holder.0));
            }
        }
        Message::Surplus { txn, id, wanted, note } => {
            out.put_u64_le(txn.0);
            out.put_slice(&id.encode());
            out.put_u8(wanted.code());
            out.put_u64_le(note.unwrap_or(0));
        }
        Message::Noted { txn, note } => {
            out.put_u64_le(txn.0);
            out.put_u64_le(*note);
        }
        Message::Health { txn } => out.put_u64_le(txn.0),
        Message::HealthReport { txn, report } => put_health(*txn, report, out),
        Message::Presence { here } => out.put_u8(u8::from(*here)),
        Message::Fill { txn } => out.put_u64_le(txn.0),
        Message::Filled { txn, fill } => {
            [txn.0, fill.live, fill.room, fill.chunks].into_iter().for_each(|number| out.put_u64_le(number));
        }
        Message::Move { txn, id, wanted, to } => {
            out.put_u64_le(txn.0);
            out.put_slice(&id.encode());
            out.put_u8(wanted.code());
            out.put_u32_le(to.0);
        }
        Message::Gone { id } => out.put_slice(&id.encode()),
        _ => {}
    }
}

/// Decodes the one of a code.
pub(super) fn take(code: u8, r: &mut Reader<'_>) -> Option<Message> {
    match code {
        28 => Some(Message::Census(take_census(r)?)),
        29 => take_counted(r),
        30 => {
            let (txn, id, wanted) = (TxnId(r.u64()?), r.chunk()?, Wanted::from_code(r.u8()?)?);
            let count = if r.at_end() { 0 } else { r.count(limits::PIECES).filter(|count| *count > 0)? };
            let holders = (0..count).map(|_| r.u32().map(NodeId)).collect::<Option<_>>()?;
            Some(Message::Restore { txn, id, wanted, holders })
        }
        31 => Some(Message::Health { txn: TxnId(r.u64()?) }),
        32 => take_health(r),
        33 => Some(Message::Surplus {
            txn: TxnId(r.u64()?),
            id: r.chunk()?,
            wanted: Wanted::from_code(r.u8()?)?,
            note: Some(r.u64()?).filter(|note| *note > 0),
        }),
        34 => Some(Message::Noted { txn: TxnId(r.u64()?), note: Some(r.u64()?).filter(|note| *note > 0)? }),
        35 => Some(Message::Presence { here: r.flag()? }),
        36 => Some(Message::Fill { txn: TxnId(r.u64()?) }),
        37 => {
            let (txn, live, room, chunks) = (TxnId(r.u64()?), r.u64()?, r.u64()?, r.u64()?);
            Some(Message::Filled { txn, fill: Fill { live, room, chunks } })
        }
        38 => Some(Message::Move {
            txn: TxnId(r.u64()?),
            id: r.chunk()?,
            wanted: Wanted::from_code(r.u8()?)?,
            to: NodeId(r.u32()?),
        }),
        39 => Some(Message::Gone { id: r.chunk()? }),
        _ => None,
    }
}

fn put_census(request: &CensusRequest, out: &mut impl BufMut) {
    out.put_u64_le(request.txn.0);
    out.put_u32_le(request.group.0);
    out.put_u8(request.range.depth());
    out.put_u32_le(request.range.bits());
    out.put_u64_le(request.salt);
    put_after(request.after.as_ref(), out);
}

fn take_census(r: &mut Reader<'_>) -> Option<CensusRequest> {
    Some(CensusRequest {
        txn: TxnId(r.u64()?),
        group: GroupId(r.u32()?),
        range: IdRange::new(r.u8()?, r.u32()?)?,
        salt: r.u64()?,
        after: take_after(r)?,
    })
}

fn put_counted(txn: TxnId, holding: &Holding, out: &mut impl BufMut) {
    out.put_u64_le(txn.0);
    match holding {
        Holding::Sums(sums) => {
            out.put_u8(0);
            sums.iter().for_each(|sum| out.put_u64_le(*sum));
        }
        Holding::Copies { copies, more } => {
            out.put_u8(1 + u8::from(*more));
            out.put_u8(copies.len() as u8);
            for copy in copies {
                out.put_slice(&copy.id.encode());
                out.put_u8(copy.wanted.code());
            }
        }
    }
}

fn take_counted(r: &mut Reader<'_>) -> Option<Message> {
    let (txn, kind) = (TxnId(r.u64()?), r.u8()?);
    let holding = match kind {
        0 => {
            let mut sums = Box::new([0; PARTS]);
            for sum in sums.iter_mut() {
                *sum = r.u64()?;
            }
            Holding::Sums(sums)
        }
        1 | 2 => {
            let copy = |r: &mut Reader<'_>| Some(Counted { id: r.chunk()?, wanted: Wanted::from_code(r.u8()?)? });
            let copies = (0..r.count(limits::COUNTED)?).map(|_| copy(r)).collect::<Option<_>>()?;
            Holding::Copies { copies, more: kind == 2 }
        }
        _ => return None,
    };
    Some(Message::Counted { txn, holding })
}

fn put_health(txn: TxnId, report: &HealthReport, out: &mut impl BufMut) {
    out.put_u64_le(txn.0);
    out.put_u32_le(report.epoch.0);
    out.put_u16_le(report.restoring);
    out.put_u64_le(report.restored);
    out.put_u64_le(report.restored_bytes);
    out.put_u8(report.groups.len() as u8);
    for (group, Health { lacks, whole }) in &report.groups {
        out.put_u32_le(group.0);
        out.put_u8(u8::from(*whole));
        lacks.at_risk.iter().for_each(|chunks| out.put_u32_le(*chunks));
        out.put_u32_le(lacks.strayed);
    }
    let has_sought = report.nowhere.as_ref() != Some(&Nowhere::default());
    let has_moved = report.moving > 0 || report.moved > 0 || has_sought;
    // Left out where no target is watched, as from targets that do not know of it.
    if !report.watched.is_empty() || has_moved {
        out.put_u8(report.watched.len() as u8);
        for (id, silent) in &report.watched {
            out.put_u32_le(id.0);
            out.put_u32_le(silent.map_or(0, |silent| (silent.as_nanos() / 1_000_000) as u32 + 1));
        }
    }
    // The same where nothing moved.
    if has_moved {
        out.put_u16_le(report.moving);
        out.put_u64_le(report.moved);
        out.put_u64_le(report.moved_bytes);
    }
    // And where nothing is missing.
    if has_sought {
        let nowhere = report.nowhere.clone().unwrap_or_default();
        out.put_u8(u8::from(report.nowhere.is_some()));
        out.put_u32_le(nowhere.lost);
        out.put_u32_le(nowhere.sought);
        out.put_u8(nowhere.silent.len() as u8);
        nowhere.silent.iter().for_each(|id| out.put_u32_le(id.0));
    }
}

fn take_health(r: &mut Reader<'_>) -> Option<Message> {
    let (txn, epoch, restoring) = (TxnId(r.u64()?), Epoch(r.u32()?), r.u16()?);
    let (restored, restored_bytes) = (r.u64()?, r.u64()?);
    let mut groups = Vec::new();
    for _ in 0..r.count(limits::STEWARDED)? {
        let (group, whole) = (GroupId(r.u32()?), r.flag()?);
        let mut lacks = Lacks::default();
        for chunks in &mut lacks.at_risk {
            *chunks = r.u32()?;
        }
        lacks.strayed = r.u32()?;
        groups.push((group, Health { lacks, whole }));
    }
    let mut watched = Vec::new();
    let count = if r.at_end() { 0 } else { r.count(limits::WATCHED)? };
    for _ in 0..count {
        let (id, millis) = (NodeId(r.u32()?), r.u32()?);
        watched.push((id, millis.checked_sub(1).map(|millis| Span::from_millis(millis.into()))));
    }
    let (moving, moved, moved_bytes) = if r.at_end() { (0, 0, 0) } else { (r.u16()?, r.u64()?, r.u64()?) };
    let nowhere = if r.at_end() { Some(Nowhere::default()) } else { take_nowhere(r)? };
    let report = HealthReport {
        epoch,
        groups,
        restoring,
        restored,
        restored_bytes,
        watched,
        moving,
        moved,
        moved_bytes,
        nowhere,
    };
    Some(Message::HealthReport { txn, report })
}

fn take_nowhere(r: &mut Reader<'_>) -> Option<Option<Nowhere>> {
    let (is_known, lost, sought) = (r.flag()?, r.u32()?, r.u32()?);
    let silent = (0..r.count(limits::SOUGHT)?).map(|_| r.u32().map(NodeId)).collect::<Option<_>>()?;
    let nowhere = Nowhere { lost, sought, silent };
    // Left out where it is known that nothing is missing.
    let is_right = if is_known { nowhere != Nowhere::default() } else { nowhere == Nowhere::default() };
    is_right.then(|| is_known.then_some(nowhere))
}
