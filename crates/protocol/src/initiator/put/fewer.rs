//! Puts while failure domains are down: fewer copies than wanted are enough then, but never fewer than the map says.
//! The group's stewards have the missing copies made later, as the number that is wanted is written with every copy.

use super::{Context, Event, NodeId, Phase, Put, Step, Stored};
use crate::goal::Goal;
use crate::initiator::{Bug, PutError};

impl Put {
    /// What is enough now: all that is wanted, or, while members are down, what the domains of the others can have. No
    /// other target is an excuse: one that is full or busy answers, and has room or time again only if it is waited
    /// for.
    pub(super) fn enough(&self, context: &Context) -> Goal {
        let goal = self.progress.goal;
        if self.job.restores() {
            return goal;
        }
        let least = context.map.least(self.job.own());
        match context.bug {
            Some(Bug::AckTooFew) => return goal.at_most(1),
            Some(Bug::NeverWaitForTheLast) => return goal.at_most(least),
            _ if !context.has_down() => return goal,
            _ => {}
        }
        let alive: Vec<NodeId> = self.ranked.iter().copied().filter(|n| !context.is_down(*n)).collect();
        // While no target answers, our own connection may be cut, and that heals.
        if alive.is_empty() {
            return goal;
        }
        let (mut possible, any) = (goal, goal.redundancy().all());
        for member in alive {
            context.hold(&mut possible, member, any);
        }
        let domains = possible.domains().len();
        if domains < least { goal } else { goal.at_most(domains) }
    }

    /// Whether as many pieces are durable as are enough; if so, says so.
    pub(super) fn finish_if_enough(&mut self, context: &mut Context) -> Step {
        if !self.enough(context).is_met() {
            return Step::Continue;
        }
        let held = core::mem::take(&mut self.progress.holders);
        let mut holders: Vec<NodeId> = held.iter().map(|(holder, _)| *holder).collect();
        holders.sort_unstable();
        holders.dedup();
        context.memory.remember(self.job.id, holders.clone());
        let rounds = if self.progress.sent { self.progress.rounds } else { 0 };
        let (copies, wanted) = self.progress.reached();
        let stored = Stored { holders, copies, wanted, took: context.now.since(self.job.asked), rounds };
        context.event(Event::Put { handle: self.job.handle, result: Ok(stored) });
        Step::Over
    }

    /// A member stops: neither its bid nor its acknowledgement is waited for any more.
    pub(in crate::initiator) fn left(&mut self, context: &mut Context, member: NodeId) -> Step {
        if self.leader.asked == Some(member) && matches!(self.phase, Phase::Asking { .. }) {
            return self.ask_directly(context);
        }
        match &mut self.phase {
            Phase::Asking { .. } => {
                self.offers.remove(&member);
                self.choose(context, false)
            }
            Phase::Resting { .. } => Step::Continue,
            Phase::Transferring { waiting, .. } => {
                if waiting.remove(&member).is_none() {
                    return Step::Continue;
                }
                self.progress.failed.push(member);
                self.go_on(context)
            }
        }
    }

    pub(super) fn give_up(&mut self, context: &mut Context) -> Step {
        // A target that could still answer when everything else was lost is not silent.
        let patient = self.lacks_space(context);
        let silent = |n: &NodeId| {
            !self.round.answered.contains(n) && !self.progress.full.contains(n) && (!patient || context.is_suspect(*n))
        };
        let silent: Vec<NodeId> = self.round.asked_of.iter().copied().filter(silent).collect();
        let have =
            core::mem::take(&mut self.progress.holders).into_iter().map(|(holder, _)| holder).collect::<Vec<_>>();
        let full = core::mem::take(&mut self.progress.full);
        let mut possible = self.ranked.clone();
        possible.retain(|n| !silent.contains(n) && !full.contains(n) && !context.is_suspect(*n));
        possible.extend(&have);
        let (domains, possible) = (context.domains(&have), context.domains(&possible));
        let want = self.progress.goal.redundancy().pieces() as u8;
        let least = if self.job.restores() { want } else { context.map.least(self.job.own()) as u8 };
        let error = PutError::TooFewCopies { have, domains, possible, want, least, silent, full };
        context.event(Event::Put { handle: self.job.handle, result: Err(error) });
        Step::Over
    }

    /// Whether too few are left that may have room.
    pub(super) fn lacks_space(&self, context: &Context) -> bool {
        if self.progress.full.is_empty() {
            return false;
        }
        let left = self.ranked.iter().copied().filter(|n| !self.progress.full.contains(n));
        !context.would_meet(self.enough(context), left)
    }

    /// Whether so many are down or full that too few domains are left. While no target answers, our own connection may
    /// be cut, and that heals.
    pub(super) fn lacks_domains(&self, context: &Context) -> bool {
        let alive: Vec<NodeId> = self.ranked.iter().copied().filter(|n| !context.is_down(*n)).collect();
        let is_alive = !alive.is_empty() || self.job.to().is_some();
        let left = alive.into_iter().filter(|n| !self.progress.full.contains(n));
        self.progress.counted >= super::ASKED && is_alive && !context.would_meet(self.enough(context), left)
    }
}
