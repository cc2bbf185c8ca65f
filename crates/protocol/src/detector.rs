//! Which targets are down, by what several witnesses say, and which of them are to be taken out of the cluster map.
//!
//! Down is not out. A target is taken out when it was down for [`Rules::out_after`], and what it had is made again
//! elsewhere. No target is taken out while more than one failure domain, or a third of all targets, fell silent at
//! about the same time: that is a switch or the power rather than disks, and copying would make it worse. Then a person
//! decides. A target that is still down when the others are back has all of that time again: the last server that boots
//! after a power failure is not lost. A target that does not answer, and whose witnesses do not answer either, may have
//! fallen silent together with others. It is not known to be down, but it counts among those that fell silent.
//!
//! Nothing that was acknowledged rests on this: when a target is taken out by mistake, others have copies of what it
//! had.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::NodeId;
use crate::map::ClusterMap;
use crate::time::{Instant, Span};
use crate::wire::HealthReport;

/// How many have to find a target silent. The gateway that asks, and that it does not answer either, is one of them: so
/// one witness is enough.
const VOICES: usize = 2;

/// When targets are taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How long a target is down before it is taken out; zero is never.
    pub out_after: Span,
    /// What falls silent within this may have one cause.
    pub together: Span,
}

impl Rules {
    /// Those with the usual time for what falls silent together.
    #[must_use]
    pub fn new(out_after: Span) -> Self {
        Self { out_after, together: Span::from_secs(60).min(out_after) }
    }
}

/// What one target says of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Testimony {
    /// The target that says it.
    pub witness: NodeId,
    /// The targets that it watches.
    pub watched: Vec<NodeId>,
    /// Those of them that are silent, and for how long.
    pub silent: Vec<(NodeId, Span)>,
}

/// Defects that can be planted to prove that the simulator's checkers bite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Take out all that are silent for long, also when they fell silent together.
    TakeOutAllSilent,
    /// A target that is still down when others are back that fell silent with it counts as having been down alone all
    /// the time.
    CountAllTheTime,
    /// Only targets that a witness calls silent count as having fallen silent together.
    OverlookUnwatched,
}

impl Testimony {
    /// What a target says in its report.
    #[must_use]
    pub fn of(witness: NodeId, report: &HealthReport) -> Self {
        let watched = report.watched.iter().map(|(id, _)| *id).collect();
        let silent = report.watched.iter().filter_map(|(id, silent)| Some((*id, (*silent)?))).collect();
        Self { witness, watched, silent }
    }
}

/// What is known of a target at one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    There,
    /// Its witnesses say so, and for how long.
    Down(Span),
    /// It does not answer, and no target that does answer watches it.
    Unwatched,
}

/// A target that is down, or may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Down {
    since: Instant,
    /// When it was there at a look last: it has not been silent for longer.
    there: Instant,
    /// From when on it counts: before, it was not alone.
    counts: Instant,
    /// Since when it is there again.
    back: Option<Instant>,
    /// Whether witnesses say so.
    is_sure: bool,
}

/// Why a target that was down for long enough stays in the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// Targets of several failure domains fell silent together.
    Domains(usize),
    /// So many of all targets are down.
    Many(usize),
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The targets that are down, and for how long.
    pub down: BTreeMap<NodeId, Span>,
    /// How long it takes until each of them is taken out, when nothing changes. Targets that may have fallen silent
    /// together are not among them.
    pub left: BTreeMap<NodeId, Span>,
    /// Those of them that are to be taken out now.
    pub out: Vec<NodeId>,
    /// Why none is.
    pub held: Option<Held>,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Detector {
    rules: Rules,
    down: BTreeMap<NodeId, Down>,
    /// When it looked last.
    looked: Option<Instant>,
    bug: Option<Bug>,
}

impl Detector {
    /// One that knows of nothing yet.
    #[must_use]
    pub const fn new(rules: Rules) -> Self {
        Self { rules, down: BTreeMap::new(), looked: None, bug: None }
    }

    /// Goes by other rules from now on. What was seen before counts by them, too.
    pub const fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// The same with a planted defect.
    #[must_use]
    pub const fn with_bug(mut self, bug: Option<Bug>) -> Self {
        self.bug = bug;
        self
    }

    /// Looks at the `testimonies` of targets that answer, and at the targets that did not answer the asker itself
    /// (`unanswered`).
    pub fn look(
        &mut self,
        now: Instant,
        map: &ClusterMap,
        testimonies: &[Testimony],
        unanswered: &[NodeId],
    ) -> Verdict {
        let mut voices: BTreeMap<NodeId, (usize, usize, Span)> = BTreeMap::new();
        for testimony in testimonies.iter().filter(|testimony| !unanswered.contains(&testimony.witness)) {
            for watched in &testimony.watched {
                let silent = testimony.silent.iter().find(|(id, _)| id == watched).map(|(_, span)| *span);
                let (all, of_silence, longest) = voices.entry(*watched).or_default();
                *all += 1;
                *of_silence += usize::from(silent.is_some());
                *longest = (*longest).max(silent.unwrap_or(Span::ZERO));
            }
        }
        for target in map.targets() {
            let id = target.id;
            let (all, of_silence, longest) = voices.get(&id).copied().unwrap_or_default();
            // A target that answers anybody is there.
            let seen = match (unanswered.contains(&id), all) {
                (true, 0) => Seen::Unwatched,
                (true, all) if of_silence == all && of_silence + 1 >= VOICES => Seen::Down(longest),
                _ => Seen::There,
            };
            self.note(now, id, seen);
        }
        self.looked = Some(now);
        self.down.retain(|id, _| map.target(*id).is_some());
        self.verdict(now, map)
    }

    fn note(&mut self, now: Instant, id: NodeId, seen: Seen) {
        let silent_for = if let Seen::Down(span) = seen { span } else { Span::ZERO };
        let since = Instant::from_nanos(now.as_nanos().saturating_sub(silent_for.as_nanos()));
        // Whatever a witness says that was cut off itself.
        let there = self.down.get(&id).map_or(self.looked.unwrap_or(Instant::ZERO), |down| down.there);
        let since = since.max(there);
        // A target that comes back only for a moment was down all the time.
        let moment = self.rules.out_after.div(8);
        let is_back = |down: &Down| down.back.is_some_and(|back| since.since(back) >= moment);
        if self.down.get(&id).is_some_and(is_back) {
            self.down.remove(&id);
        }
        let is_sure = seen != Seen::Unwatched;
        match self.down.get_mut(&id) {
            Some(down) if seen == Seen::There => (down.back, down.there) = (down.back.or(Some(now)), now),
            Some(down) => {
                // Only witnesses know since when.
                if is_sure && !down.is_sure {
                    let was_alone = down.counts == down.since;
                    down.since = down.since.min(since);
                    down.counts = if was_alone { down.since } else { down.counts };
                }
                (down.back, down.is_sure) = (None, is_sure);
            }
            None if seen == Seen::There => {}
            None => drop(self.down.insert(id, Down { since, there, counts: since, back: None, is_sure })),
        }
    }

    fn verdict(&mut self, now: Instant, map: &ClusterMap) -> Verdict {
        let is_away = |down: &Down| down.back.is_none() && (down.is_sure || self.bug != Some(Bug::OverlookUnwatched));
        let away: Vec<(NodeId, Down)> =
            self.down.iter().filter(|(_, down)| is_away(down)).map(|(id, down)| (*id, *down)).collect();
        let (mut out, mut held, mut left) = (Vec::new(), None, BTreeMap::new());
        let out_after = self.rules.out_after;
        for (id, mut down) in away.iter().copied() {
            let why = self.held(map, &away, down.since).filter(|_| self.bug != Some(Bug::TakeOutAllSilent));
            if why.is_some() && self.bug != Some(Bug::CountAllTheTime) {
                down.counts = now;
                self.down.insert(id, down);
            }
            if out_after == Span::ZERO {
                continue;
            }
            if down.is_sure && why.is_none() {
                let left_of = out_after.as_nanos().saturating_sub(now.since(down.counts).as_nanos());
                left.insert(id, Span::from_nanos(left_of));
            }
            if down.is_sure && now.since(down.counts) >= out_after {
                out.push(id);
            }
            if now.since(down.since) >= out_after {
                held = held.or(why);
            }
        }
        if held.is_some() {
            out.clear();
        }
        let sure = away.into_iter().filter(|(_, down)| down.is_sure);
        Verdict { down: sure.map(|(id, down)| (id, now.since(down.since))).collect(), left, out, held }
    }

    /// Whether what fell silent about then may have a cause that no copies mend.
    fn held(&self, map: &ClusterMap, away: &[(NodeId, Down)], since: Instant) -> Option<Held> {
        if away.len() * 3 >= map.targets().count() {
            return Some(Held::Many(away.len()));
        }
        let together = away.iter().filter(|(_, down)| {
            let (first, last) = (down.since.min(since), down.since.max(since));
            last.since(first) <= self.rules.together
        });
        let domains: BTreeSet<u16> = together.filter_map(|(id, _)| map.domain(*id)).collect();
        (domains.len() > 1).then_some(Held::Domains(domains.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ClusterId, Epoch};
    use crate::map::TargetEntry;

    /// Two targets a domain.
    fn map() -> ClusterMap {
        let entry = |n: u32| TargetEntry { id: NodeId(n), domain: (n / 2) as u16, capacity: 1 << 30 };
        ClusterMap::new(ClusterId(1), Epoch(1), 3, 3, (0..12).map(entry).collect()).expect("a good map")
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Span::from_secs(seconds)
    }

    fn detector() -> Detector {
        Detector::new(Rules::new(Span::from_secs(600)))
    }

    /// All that answer watch all others, and find these silent.
    fn look(detector: &mut Detector, seconds: u64, dead: &[u32]) -> Verdict {
        let dead: Vec<NodeId> = dead.iter().copied().map(NodeId).collect();
        let map = map();
        let alive = map.targets().map(|target| target.id).filter(|id| !dead.contains(id));
        let testimony = |witness| Testimony {
            witness,
            watched: map.targets().map(|target| target.id).filter(|id| *id != witness).collect(),
            silent: dead.iter().map(|id| (*id, Span::from_secs(1))).collect(),
        };
        let said: Vec<Testimony> = alive.map(testimony).collect();
        detector.look(at(seconds), &map, &said, &dead)
    }

    #[test]
    fn who_is_down_for_long_is_taken_out_and_who_comes_back_is_not() {
        let mut detector = detector();
        let verdict = look(&mut detector, 100, &[3]);
        assert_eq!((verdict.down, verdict.out), ([(NodeId(3), Span::from_secs(1))].into(), vec![]));
        assert_eq!(look(&mut detector, 698, &[3]).out, []);
        assert_eq!(look(&mut detector, 699, &[3]).out, [NodeId(3)]);
        assert!(look(&mut detector, 800, &[]).down.is_empty());
        assert_eq!(look(&mut detector, 900, &[3]).out, []);
        let verdict = look(&mut detector, 1_498, &[3]);
        assert_eq!((verdict.out, verdict.down[&NodeId(3)]), (vec![], Span::from_secs(599)), "it counts anew");
    }

    #[test]
    fn who_is_back_for_a_moment_only_was_down_all_the_time() {
        let mut detector = detector();
        for seconds in 0..599 {
            let back = seconds % 100 > 90;
            assert_eq!(look(&mut detector, seconds, if back { &[] } else { &[3] }).out, [], "{seconds}");
        }
        assert_eq!(look(&mut detector, 600, &[3]).out, [NodeId(3)]);
    }

    #[test]
    fn what_was_there_a_moment_ago_has_not_been_silent_for_as_long_as_a_witness_that_was_cut_off_says() {
        let mut detector = detector();
        look(&mut detector, 100, &[]);
        look(&mut detector, 690, &[]);
        // The asker lost its connection to the target, and all that watch it were on the other side of a switch.
        let silent = vec![(NodeId(3), Span::from_secs(650))];
        let said = [Testimony { witness: NodeId(5), watched: vec![NodeId(3)], silent }];
        let verdict = detector.look(at(700), &map(), &said, &[NodeId(3)]);
        assert_eq!((verdict.down, verdict.out), ([(NodeId(3), Span::from_secs(10))].into(), vec![]));
        // Nor when it was not known at first why it does not answer.
        let mut detector = self::detector();
        look(&mut detector, 690, &[]);
        assert!(detector.look(at(695), &map(), &[], &[NodeId(3)]).out.is_empty());
        let verdict = detector.look(at(700), &map(), &said, &[NodeId(3)]);
        assert_eq!((verdict.down, verdict.out), ([(NodeId(3), Span::from_secs(10))].into(), vec![]));
        // One that has not looked before believes the witness.
        let verdict = self::detector().look(at(700), &map(), &said, &[NodeId(3)]);
        assert_eq!(verdict.out, [NodeId(3)]);
    }

    #[test]
    fn nobody_is_taken_out_when_several_domains_or_many_fell_silent_together() {
        let mut detector = detector();
        look(&mut detector, 100, &[2, 3]);
        assert_eq!(look(&mut detector, 700, &[2, 3]).out, [NodeId(2), NodeId(3)], "one domain");
        let mut detector = self::detector();
        look(&mut detector, 100, &[3]);
        look(&mut detector, 130, &[3, 8]);
        let verdict = look(&mut detector, 900, &[3, 8]);
        assert_eq!((verdict.out, verdict.held), (vec![], Some(Held::Domains(2))));
        let mut detector = self::detector();
        look(&mut detector, 100, &[3]);
        look(&mut detector, 200, &[3, 8]);
        let verdict = look(&mut detector, 750, &[3, 8]);
        assert_eq!((verdict.out, verdict.held), (vec![NodeId(3)], None), "one after the other");
        let mut detector = self::detector();
        for (n, dead) in [&[0][..], &[0, 2], &[0, 2, 4], &[0, 2, 4, 6]].into_iter().enumerate() {
            look(&mut detector, 100 * n as u64, dead);
        }
        let verdict = look(&mut detector, 1_000, &[0, 2, 4, 6]);
        assert_eq!((verdict.out, verdict.held), (vec![], Some(Held::Many(4))));
    }

    #[test]
    fn who_is_still_down_when_others_are_back_has_all_the_time_again() {
        let mut detector = detector();
        look(&mut detector, 100, &[2, 3, 8]);
        let verdict = look(&mut detector, 800, &[2, 3, 8]);
        assert_eq!((verdict.held, verdict.left), (Some(Held::Domains(2)), [].into()));
        // The first server has booted, the second one takes longer.
        let verdict = look(&mut detector, 810, &[8]);
        assert_eq!((verdict.out, verdict.held), (vec![], None));
        assert_eq!(verdict.down, [(NodeId(8), Span::from_secs(711))].into());
        assert_eq!(verdict.left, [(NodeId(8), Span::from_secs(590))].into());
        assert_eq!(look(&mut detector, 1_399, &[8]).out, []);
        assert_eq!(look(&mut detector, 1_400, &[8]).out, [NodeId(8)]);
    }

    #[test]
    fn one_voice_is_not_enough_and_who_answers_anybody_is_there() {
        let (map, mut detector) = (map(), detector());
        let says = |witness: u32, silent: &[u32]| Testimony {
            witness: NodeId(witness),
            watched: vec![NodeId(3)],
            silent: silent.iter().map(|id| (NodeId(*id), Span::from_secs(9))).collect(),
        };
        let three = [NodeId(3)];
        for (said, unanswered) in [
            // Only the asker himself.
            (vec![], &three[..]),
            // It answers one of its witnesses, or the asker.
            (vec![says(5, &[3]), says(7, &[])], &three),
            (vec![says(5, &[3]), says(7, &[3])], &[]),
            // None of its witnesses answers.
            (vec![says(5, &[3])], &[NodeId(3), NodeId(5)]),
        ] {
            assert!(detector.look(at(100), &map, &said, unanswered).down.is_empty(), "{said:?}");
        }
        // It did not answer ten seconds ago already.
        let verdict = detector.look(at(110), &map, &[says(5, &[3])], &three);
        assert_eq!(verdict.down, [(NodeId(3), Span::from_secs(10))].into());
    }

    /// A switch cuts off two servers and half of a third one's witnesses: no witness of one server is left that could
    /// say anything.
    #[test]
    fn who_does_not_answer_and_is_not_watched_by_who_does_may_have_fallen_silent_with_others() {
        let map = map();
        let says = |silent: u64| Testimony {
            witness: NodeId(5),
            watched: vec![NodeId(2), NodeId(3)],
            silent: [2, 3].map(|id| (NodeId(id), Span::from_secs(silent))).into(),
        };
        let all = [2, 3, 8].map(NodeId);
        let look = |bug, unanswered: &[NodeId], then: &[NodeId]| {
            let mut detector = detector().with_bug(bug);
            detector.look(at(100), &map, &[says(1)], unanswered);
            assert_eq!(detector.look(at(690), &map, &[says(591)], then).out, []);
            detector.look(at(750), &map, &[says(651)], then)
        };
        let verdict = look(None, &all, &all);
        assert_eq!((verdict.out, verdict.held), (vec![], Some(Held::Domains(2))));
        assert_eq!((verdict.left, verdict.down.len()), ([].into(), 2), "nobody knows whether the third one is down");
        assert_eq!(look(Some(Bug::OverlookUnwatched), &all, &all).out, [NodeId(2), NodeId(3)]);
        assert_eq!(look(None, &all[..2], &all[..2]).out, [NodeId(2), NodeId(3)], "alone");
        assert_eq!(look(None, &all[..2], &all).out, [NodeId(2), NodeId(3)], "and the third one much later");
    }

    #[test]
    fn what_witnesses_say_later_counts_from_when_it_was() {
        let (map, mut detector) = (map(), detector());
        let three = [NodeId(3)];
        assert!(detector.look(at(100), &map, &[], &three).down.is_empty());
        let says =
            Testimony { witness: NodeId(5), watched: three.into(), silent: vec![(NodeId(3), Span::from_secs(90))] };
        let verdict = detector.look(at(150), &map, std::slice::from_ref(&says), &three);
        assert_eq!(
            (verdict.down, verdict.left[&NodeId(3)]),
            ([(NodeId(3), Span::from_secs(90))].into(), Span::from_secs(510))
        );
        // Its witness is away for a moment: it is not back for that.
        assert!(detector.look(at(160), &map, &[], &three).down.is_empty());
        assert_eq!(detector.look(at(170), &map, &[says], &three).down[&NodeId(3)], Span::from_secs(110));
    }

    #[test]
    fn without_a_time_nobody_is_taken_out() {
        let mut detector = Detector::new(Rules::new(Span::ZERO));
        look(&mut detector, 1, &[3]);
        let verdict = look(&mut detector, 1_000_000, &[3]);
        assert_eq!((verdict.down.len(), verdict.left.len(), verdict.out.len()), (1, 0, 0));
    }

    #[test]
    fn other_rules_count_from_when_a_target_fell_silent() {
        let mut detector = detector();
        look(&mut detector, 100, &[3]);
        let verdict = look(&mut detector, 160, &[3]);
        assert_eq!((verdict.out, verdict.left), (vec![], [(NodeId(3), Span::from_secs(539))].into()));
        detector.set_rules(Rules::new(Span::from_secs(70)));
        let verdict = look(&mut detector, 162, &[3]);
        assert_eq!((verdict.out, verdict.left), (vec![], [(NodeId(3), Span::from_secs(7))].into()));
        detector.set_rules(Rules::new(Span::ZERO));
        let verdict = look(&mut detector, 500, &[3]);
        assert_eq!((verdict.down.len(), verdict.left.len(), verdict.out.len()), (1, 0, 0));
        detector.set_rules(Rules::new(Span::from_secs(60)));
        assert_eq!(look(&mut detector, 502, &[3]).out, [NodeId(3)]);
    }
}
