//! A get of a coded chunk: gets of as many of its pieces as it is read from, those of data first, and of another one for each that fails or is
//! late. What was fetched is decoded by the driver.

use bytes::Bytes;
use erasure::Code;

use super::get::{self, Get};
use super::{Active, Context, Event, Fetched, GetError, Initiator, Instant, NodeId, Txn, TxnId};
use crate::machine::{Decoded, Effect};
use crate::redundancy::{Piece, Pieces};

/// Times that all pieces are asked for, with somebody silent or busy, before the get fails.
const ROUNDS: u8 = 4;
/// So many times as long as a late answer takes an outstanding piece before another is asked for beside it.
const LATE: u64 = 2;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Gather {
    /// What was asked for: of a piece the same is asked for.
    job: get::Job,
    into: Decoded,
    code: Code,
    /// Pieces that are here, verified.
    here: Vec<Bytes>,
    numbers: Pieces,
    from: Option<NodeId>,
    /// Pieces that were not asked for yet in this round.
    left: Pieces,
    open: usize,
    /// What was said of those that could not be had.
    silent: Vec<NodeId>,
    corrupt: Vec<NodeId>,
    /// Pieces that nobody has, in this round.
    absent: usize,
    rounds: u8,
    /// When another piece is asked for, as one is late, or all are asked for again.
    again: Option<Instant>,
    is_decoding: bool,
}

impl Gather {
    /// Nothing is asked for yet. Some pieces may be `here`.
    pub(super) fn new(job: get::Job, code: Code, into: Decoded, here: Vec<Bytes>) -> Self {
        let numbers: Pieces =
            here.iter().filter_map(|piece| job.id.of_its_piece(core::slice::from_ref(piece)).piece()).collect();
        let left = Pieces::first(code.fragments()).and_not(numbers);
        let (silent, corrupt) = (Vec::new(), Vec::new());
        let (from, again) = (None, None);
        let (open, absent, rounds, is_decoding) = (0, 0, 1, false);
        Self { job, into, code, here, numbers, from, left, open, silent, corrupt, absent, rounds, again, is_decoding }
    }

    pub(super) const fn next_deadline(&self) -> Option<Instant> {
        self.again
    }

    /// The next piece that is to be asked for, if there are too few under way.
    fn next(&mut self, beside: usize) -> Option<Piece> {
        let next = self.left.lowest().filter(|_| self.here.len() + self.open < self.code.data() + beside)?;
        self.left = self.left.without(next);
        self.open += 1;
        Some(next)
    }

    fn answered(&mut self, piece: Piece, result: Result<Fetched, GetError>) {
        self.open -= 1;
        match result {
            Ok(fetched) if self.here.len() < self.code.data() => {
                self.from.get_or_insert(fetched.from);
                self.here.push(one(fetched.pieces));
                self.numbers = self.numbers.with(piece);
            }
            Ok(_) => {}
            Err(GetError::NotFound) => self.absent += 1,
            Err(GetError::Unavailable { silent, corrupt }) => {
                self.silent.extend(silent);
                self.corrupt.extend(corrupt);
            }
            Err(GetError::Busy) => {}
        }
    }

    /// Why it cannot be had.
    fn error(&mut self) -> GetError {
        let lost = self.code.fragments() - self.here.len();
        if self.here.is_empty() && self.absent == lost {
            return GetError::NotFound;
        }
        let sorted = |of: &mut Vec<NodeId>| {
            of.sort_unstable();
            of.dedup();
            core::mem::take(of)
        };
        GetError::Unavailable { silent: sorted(&mut self.silent), corrupt: sorted(&mut self.corrupt) }
    }

    /// How it ended is said.
    fn end(&self, context: &mut Context, result: Result<Vec<Bytes>, GetError>) {
        let handle = self.job.handle;
        context.event(match self.into {
            Decoded::Pieces => Event::Pieces { handle, result },
            Decoded::Chunk => {
                let took = context.now.since(self.job.asked);
                let (from, rounds) = (self.from.unwrap_or(context.id), self.rounds.into());
                Event::Get { handle, result: result.map(|pieces| Fetched { pieces, from, took, rounds }) }
            }
        });
    }
}

/// What came of one piece, in one.
fn one(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() == 1 { parts.remove(0) } else { parts.concat().into() }
}

impl Initiator {
    pub(super) fn begin_gather(&mut self, txn: TxnId, gather: Gather) {
        self.gathers.insert(txn, gather);
        self.gather_on(txn, 0);
    }

    /// What came of pieces.
    pub(super) fn gather_fetched(&mut self) {
        while let Some((txn, piece, result)) = self.context.fetched.pop_front() {
            if let Some(gather) = self.gathers.get_mut(&txn) {
                gather.answered(piece, result);
                self.gather_on(txn, 0);
            }
        }
    }

    pub(super) fn wake_gathers(&mut self) {
        let now = self.context.now;
        let is_due = |gather: &Gather| gather.again.is_some_and(|at| at <= now);
        let due: Vec<TxnId> = self.gathers.iter().filter(|(_, gather)| is_due(gather)).map(|(txn, _)| *txn).collect();
        for txn in due {
            let Some(gather) = self.gathers.get_mut(&txn) else { continue };
            let late = gather.open;
            if late == 0 {
                // What was said in the round before says nothing of this one.
                gather.rounds += 1;
                gather.absent = 0;
                (gather.silent, gather.corrupt) = (Vec::new(), Vec::new());
                gather.left = Pieces::first(gather.code.fragments()).and_not(gather.numbers);
            }
            self.gather_on(txn, late);
        }
    }

    /// Asks for what is needed, and for so many pieces beside; or decodes, or says that it cannot be had.
    fn gather_on(&mut self, txn: TxnId, beside: usize) {
        let now = self.context.now;
        let Some(gather) = self.gathers.get_mut(&txn) else { return };
        if gather.here.len() >= gather.code.data() {
            gather.again = None;
            if !core::mem::replace(&mut gather.is_decoding, true) {
                let effect = Effect::Decode { pieces: gather.here.clone(), into: gather.into };
                self.context.start(txn, effect);
            }
            return;
        }
        let mut begin = Vec::new();
        while let Some(piece) = gather.next(beside) {
            begin.push(piece);
        }
        gather.again = Some(now + self.context.patience().times(LATE).max(self.context.config.late));
        if gather.open == 0 {
            let is_over = gather.absent + gather.here.len() == gather.code.fragments();
            if is_over || gather.rounds >= ROUNDS || now >= gather.job.give_up_at {
                let error = gather.error();
                gather.end(&mut self.context, Err(error));
                self.gathers.remove(&txn);
            }
            return;
        }
        let whole = get::Job { gather: Some(txn), ..gather.job.clone() };
        for piece in begin {
            let own = self.new_txn();
            let job = get::Job { id: whole.id.of_piece(piece), ..whole.clone() };
            let get = Get::new(&mut self.context, own, job);
            self.active.insert(own, Active::new(Txn::Get(Box::new(get))));
            self.transfers += 1;
        }
    }

    /// They are decoded.
    pub(super) fn gather_decoded(&mut self, txn: TxnId, decoded: Option<Vec<Bytes>>) {
        let Some(mut gather) = self.gathers.remove(&txn) else { return };
        // All pieces were verified against the id of one chunk: whoever cut it computed a wrong parity.
        let result = decoded.ok_or_else(|| gather.error());
        gather.end(&mut self.context, result);
    }
}
