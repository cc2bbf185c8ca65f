//! A get of a coded chunk: one question for all of its pieces, of which those of data are preferred unless others are
//! much sooner; and gets of single pieces in place of those that fail or are late. The driver decodes what was fetched.
//! For a range, only the pieces that have its bytes are fetched, unless one of them fails or is late: then as many of
//! any kind as decode it.

mod question;

use bytes::Bytes;
use erasure::Code;

use super::get::{self, Get};
use super::part::Part;
use super::{Active, Bid, Context, Event, Fetched, GetError, Initiator, Instant, NodeId, Step, Txn, TxnId};
use crate::machine::{Decoded, Effect, IgnoredReason};
use crate::redundancy::{Piece, Pieces};
use crate::wire::{Ack, Answer};
use question::{Chosen, Question, Wish};

/// Times that all pieces are asked for, with a target silent or busy, before the get fails.
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
    phase: Phase,
    /// The targets that offered a piece.
    holders: Vec<(Piece, NodeId)>,
    /// Pieces that were not asked for yet in this round.
    left: Pieces,
    /// Those that are under way, and their gets.
    open: Vec<(Piece, TxnId)>,
    /// Those of them that are late, so that others are asked for beside them.
    late: Pieces,
    /// What was said of those that could not be had.
    silent: Vec<NodeId>,
    corrupt: Vec<NodeId>,
    /// Pieces that no target has, in this round.
    absent: usize,
    rounds: u8,
    /// Whether pieces of what is wanted are fetched alone.
    is_partial: bool,
}

/// How far it is.
#[derive(Debug)]
enum Phase {
    /// The group was asked for any pieces, and none was chosen yet. Counts as so many transfers.
    Asking { question: Box<Question>, transfers: usize },
    /// Pieces are fetched. Then another is asked for, as one is late, or all are asked for again.
    Fetching { again: Instant },
    /// There are enough.
    Decoding,
}

impl Gather {
    /// Nothing is asked for yet. Some pieces may be `here`.
    pub(super) fn new(job: get::Job, code: Code, into: Decoded, here: Vec<Bytes>) -> Self {
        let numbers: Pieces =
            here.iter().filter_map(|piece| job.id.of_its_piece(core::slice::from_ref(piece)).piece()).collect();
        Self {
            phase: Phase::Fetching { again: job.asked },
            job,
            into,
            code,
            here,
            numbers,
            from: None,
            holders: Vec::new(),
            left: Pieces::first(code.fragments()).and_not(numbers),
            open: Vec::new(),
            late: Pieces::default(),
            silent: Vec::new(),
            corrupt: Vec::new(),
            absent: 0,
            rounds: 1,
            is_partial: into.fragments(code) != Pieces::first(code.data()),
        }
    }

    /// The fragments of data that are wanted.
    fn wanted(&self) -> Pieces {
        self.into.fragments(self.code)
    }

    /// Pieces that are of use.
    fn useful(&self) -> Pieces {
        if self.is_partial { self.wanted() } else { Pieces::first(self.code.fragments()) }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Asking { question, .. } => Some(question.next_deadline()),
            Phase::Fetching { again } => Some(*again),
            Phase::Decoding => None,
        }
    }

    const fn question(&mut self) -> Option<&mut Question> {
        match &mut self.phase {
            Phase::Asking { question, .. } => Some(question),
            Phase::Fetching { .. } | Phase::Decoding => None,
        }
    }

    /// The question is over; and as how many transfers it counted.
    fn end_question(&mut self) -> (Option<Box<Question>>, usize) {
        let again = self.job.asked;
        match core::mem::replace(&mut self.phase, Phase::Fetching { again }) {
            Phase::Asking { question, transfers } => (Some(question), transfers),
            before => {
                self.phase = before;
                (None, 0)
            }
        }
    }

    /// How many pieces are still to come.
    fn needs(&self) -> usize {
        let missing = self.wanted().and_not(self.numbers).len();
        if self.is_partial || missing == 0 { missing } else { self.to_decode() }
    }

    /// How many are still to come until any can be decoded.
    const fn to_decode(&self) -> usize {
        self.code.data().saturating_sub(self.here.len())
    }

    /// The next piece that is to be asked for, if there are too few under way that are not late; and the target to ask,
    /// if it is known which one has it.
    fn next(&mut self) -> Option<(Piece, Option<NodeId>)> {
        if self.open.len() >= self.needs() + self.late.len() {
            return None;
        }
        let left = self.left.and(self.useful());
        let known = self.holders.iter().copied().find(|(piece, _)| left.contains(*piece));
        let (piece, holder) =
            known.map(|(piece, holder)| (piece, Some(holder))).or(left.lowest().map(|piece| (piece, None)))?;
        self.takes(piece);
        Some((piece, holder))
    }

    /// This piece is asked for now.
    fn takes(&mut self, piece: Piece) {
        self.left = self.left.without(piece);
        self.holders.retain(|(of, _)| *of != piece);
    }

    fn part(&mut self, piece: Piece, part: Part) {
        let result = match part {
            Part::Late => {
                let is_open = self.open.iter().any(|(of, _)| *of == piece);
                self.late = if is_open { self.late.with(piece) } else { self.late };
                self.is_partial = false;
                return;
            }
            Part::Over(result) => result,
        };
        self.open.retain(|(of, _)| *of != piece);
        self.late = self.late.without(piece);
        self.is_partial &= result.is_ok();
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
            Decoded::Data(_) => {
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
        let txn = txn.whole();
        self.gathers.insert(txn, gather);
        self.ask_for_any(txn, true);
        self.gather_on(txn);
    }

    /// Asks the group for any pieces. The conventional store asks the first of a ranking for each piece.
    fn ask_for_any(&mut self, txn: TxnId, may_remember: bool) {
        let Some(gather) = self.gathers.get_mut(&txn) else { return };
        if self.context.config.transport.is_ranked() || gather.needs() == 0 {
            return;
        }
        // It is not remembered which target has which piece, so the few that have enough of any may be asked.
        let enough = may_remember.then_some(gather.to_decode());
        let (before, transfers) = gather.end_question();
        self.transfers -= transfers;
        if let Some(question) = Question::ask(&mut self.context, txn, &gather.job, before.as_deref(), enough) {
            // It counts as the transfers that will come of it.
            let transfers = gather.needs();
            self.transfers += transfers;
            gather.phase = Phase::Asking { question: Box::new(question), transfers };
        }
    }

    /// An answer to a question for any pieces. An answer that came when others were chosen still says which target has
    /// a piece.
    pub(super) fn gather_bid(&mut self, from: NodeId, bid: Bid) {
        let txn = bid.txn.whole();
        let Some(gather) = self.gathers.get_mut(&txn) else { return };
        let is_taken = gather.question().is_some_and(|question| question.bid(&mut self.context, from, &bid));
        if is_taken {
            return self.choose_pieces(txn, false);
        }
        self.context.event(Event::Ignored(IgnoredReason::Late));
        // The same answer again is not taken back.
        let is_open = gather.question().is_some_and(|question| question.has_answered(from));
        if let (false, Answer::Window(_), Some(piece)) = (is_open, bid.answer, bid.txn.piece()) {
            if gather.left.contains(piece) && !gather.holders.contains(&(piece, from)) {
                gather.holders.push((piece, from));
            }
            self.context.release(bid.txn, bid.round, [from]);
        }
    }

    /// A target that was chosen knows nothing of it: its offer had expired.
    pub(super) fn gather_refused(&mut self, txn: TxnId, from: NodeId, ack: Ack) {
        let open = self.gathers.get(&txn).map(|gather| gather.open.clone()).unwrap_or_default();
        let is_served = |own: &TxnId| match self.active.get(own).map(|active| &active.txn) {
            Some(Txn::Get(get)) => get.is_served_by(from),
            _ => false,
        };
        let served: Vec<TxnId> = open.into_iter().map(|(_, own)| own).filter(is_served).collect();
        if served.is_empty() {
            self.context.event(Event::Ignored(IgnoredReason::Late));
        }
        for own in served {
            self.step(own, |active, context| match active {
                Txn::Get(get) => get.refused(context, from, ack),
                _ => Step::Continue,
            });
        }
    }

    /// Chooses among what was offered, if it is time.
    fn choose_pieces(&mut self, txn: TxnId, woken: bool) {
        let Some(gather) = self.gathers.get_mut(&txn) else { return };
        let wish = Wish {
            here: gather.numbers,
            first: gather.wanted(),
            useful: gather.useful(),
            need: gather.needs(),
            to_decode: gather.to_decode(),
        };
        let Some(question) = gather.question() else { return };
        let Some(chosen) = question.choose(&mut self.context, wish, woken) else { return };
        if chosen.is_empty() && question.is_narrow {
            self.ask_for_any(txn, false);
            return self.gather_on(txn);
        }
        let (Some(question), transfers) = gather.end_question() else { return };
        self.transfers -= transfers;
        gather.holders.extend(question.offered());
        gather.is_partial &= chosen.iter().all(|chosen| wish.first.contains(chosen.piece)) && chosen.len() == wish.need;
        if self.context.config.remember && chosen.len() == gather.needs() && !question.is_narrow {
            let holders = question.offered().map(|(_, holder)| holder).collect();
            self.context.memory.remember(gather.job.id, holders);
        }
        for Chosen { piece, .. } in &chosen {
            gather.takes(*piece);
        }
        for Chosen { piece, round, offer, start } in chosen {
            self.fetch_piece(txn, txn.of_piece(piece), (piece, Some(offer.0)), |context, own, job| {
                Get::accepted(context, own, job, round, offer, start)
            });
        }
        self.gather_on(txn);
    }

    /// What came of pieces.
    pub(super) fn gather_parts(&mut self) {
        while let Some((txn, piece, part)) = self.context.gathered.pop_front() {
            if let Some(gather) = self.gathers.get_mut(&txn) {
                gather.part(piece, part);
                self.gather_on(txn);
            }
        }
    }

    pub(super) fn wake_gathers(&mut self) {
        let now = self.context.now;
        let is_due = |gather: &Gather| gather.next_deadline().is_some_and(|at| at <= now);
        let due: Vec<TxnId> = self.gathers.iter().filter(|(_, gather)| is_due(gather)).map(|(txn, _)| *txn).collect();
        for txn in due {
            let Some(gather) = self.gathers.get_mut(&txn) else { continue };
            if gather.question().is_some() {
                self.choose_pieces(txn, true);
                continue;
            }
            if gather.open.is_empty() {
                // What was said in the round before says nothing of this one.
                gather.rounds += 1;
                gather.absent = 0;
                (gather.silent, gather.corrupt) = (Vec::new(), Vec::new());
                gather.left = Pieces::first(gather.code.fragments()).and_not(gather.numbers);
            }
            // Those that no target has promised yet are late; the others say so themselves.
            let is_promised = |own: &TxnId| match self.active.get(own).map(|active| &active.txn) {
                Some(Txn::Get(get)) => get.is_promised(),
                _ => false,
            };
            let late = gather.open.iter().filter(|(_, own)| !is_promised(own)).map(|(piece, _)| *piece);
            gather.late = late.chain(gather.late.iter()).collect();
            gather.is_partial &= gather.late.is_empty();
            self.gather_on(txn);
        }
    }

    /// Asks for what is needed, and for so many pieces beside as are late; or decodes, or says that it cannot be had.
    fn gather_on(&mut self, txn: TxnId) {
        let now = self.context.now;
        let Some(gather) = self.gathers.get_mut(&txn) else { return };
        if gather.needs() == 0 {
            self.transfers -= gather.end_question().1;
            if !matches!(core::mem::replace(&mut gather.phase, Phase::Decoding), Phase::Decoding) {
                let effect = Effect::Decode { pieces: gather.here.clone(), into: gather.into };
                self.context.start(txn, effect);
                self.cancel_pieces(txn);
            }
            return;
        }
        if gather.question().is_some() {
            return;
        }
        while let Some((piece, holder)) = self.gathers.get_mut(&txn).and_then(Gather::next) {
            let own = self.new_txn();
            self.fetch_piece(txn, own, (piece, holder), Get::new);
        }
        let again = now + self.context.patience().times(LATE).max(self.context.config.late);
        let Some(gather) = self.gathers.get_mut(&txn) else { return };
        gather.phase = Phase::Fetching { again };
        if gather.open.is_empty() {
            let is_over = gather.absent + gather.here.len() == gather.code.fragments();
            if is_over || gather.rounds >= ROUNDS || now >= gather.job.give_up_at {
                let error = gather.error();
                gather.end(&mut self.context, Err(error));
                self.gathers.remove(&txn);
            }
        }
    }

    /// Begins the get of a piece; the target that is known to have it is asked first.
    fn fetch_piece(
        &mut self,
        txn: TxnId,
        own: TxnId,
        (piece, holder): (Piece, Option<NodeId>),
        begin: impl FnOnce(&mut Context, TxnId, get::Job) -> Get,
    ) {
        let Some(gather) = self.gathers.get_mut(&txn) else { return };
        gather.open.push((piece, own));
        let holders = holder.map_or_else(|| gather.job.holders.clone(), |holder| vec![holder]);
        let id = gather.job.id.of_piece(piece);
        let job = get::Job { id, holders, gather: Some(txn), ..gather.job.clone() };
        let get = begin(&mut self.context, own, job);
        self.active.insert(own, Active::new(Txn::Get(Box::new(get))));
        self.transfers += 1;
    }

    /// There are enough pieces: the others need not come.
    fn cancel_pieces(&mut self, txn: TxnId) {
        let open = self.gathers.get_mut(&txn).map(|gather| core::mem::take(&mut gather.open)).unwrap_or_default();
        for (_, own) in open {
            self.step(own, |active, context| {
                if let Txn::Get(get) = active {
                    get.cancel(context);
                }
                Step::Over
            });
        }
    }

    /// They are decoded.
    pub(super) fn gather_decoded(&mut self, txn: TxnId, decoded: Option<Vec<Bytes>>) {
        let Some(mut gather) = self.gathers.remove(&txn) else { return };
        // All pieces were verified against the id of one chunk: the node that cut it computed a wrong parity.
        let result = decoded.ok_or_else(|| gather.error());
        gather.end(&mut self.context, result);
    }
}
