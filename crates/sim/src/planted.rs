//! Defects that are planted to prove that the checkers bite.

use protocol::aggregator;
use protocol::cleaner;
use protocol::detector;
use protocol::initiator;
use protocol::proposer;
use protocol::steward;
use protocol::target::Bug;
use protocol::wire;

/// A defect that is planted to prove that the checkers bite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A defect of the target machine.
    Target(Bug),
    /// A defect of the initiator machine.
    Initiator(initiator::Bug),
    /// A defect of the steps of a cleaner.
    Cleaner(cleaner::Bug),
    /// A defect of what judges other nodes' sessions.
    Session(wire::Bug),
    /// A restart forgets the newest records of the index.
    LoseIndexTail,
    /// A defect of the object layer.
    Object(object::Bug),
    /// A cleaner reads what refers to chunks at once after its mark.
    HurryCleaner,
    /// A node that was restarted uses the first map, whatever it learned of.
    OldMapAfterRestart,
    /// A defect of the store.
    Store(store::Bug),
    /// A defect of what has cluster maps decided.
    Proposer(proposer::Bug),
    /// A defect of the detector, which says which targets are down.
    Detector(detector::Bug),
    /// The authority decides cluster maps without looking at what they were made from.
    DecideWithoutComparing,
    /// Stores read a copy without its checksum, and what comes from another holder is not checked either.
    RepairFromBad,
    /// An initiator that cuts chunks into pieces computes a wrong parity.
    WrongParity,
    /// A defect of the aggregators.
    Aggregator(aggregator::Bug),
}

impl PlantedBug {
    /// Every defect.
    pub const ALL: [Self; 84] = [
        Self::Target(Bug::AckBeforeDurable),
        Self::Target(Bug::DropAck),
        Self::Target(Bug::SkipHashCheck),
        Self::Target(Bug::OverlapWindows),
        Self::Target(Bug::KeepLeftover),
        Self::Target(Bug::TrustGrants),
        Self::Target(Bug::KeepGrants),
        Self::Target(Bug::ClaimGranted),
        Self::Target(Bug::NeverExpire),
        Self::Target(Bug::ForgetPromise),
        Self::Initiator(initiator::Bug::NeverContent),
        Self::Session(wire::Bug::TrustSequences),
        Self::Session(wire::Bug::BelieveSessions),
        Self::Session(wire::Bug::BelieveBefore),
        Self::LoseIndexTail,
        Self::Store(store::Bug::IgnoreFailedSync),
        Self::HurryCleaner,
        Self::OldMapAfterRestart,
        Self::Target(Bug::TakeOldMap),
        Self::Target(Bug::VouchOldMap),
        Self::Initiator(initiator::Bug::TrustTheRest),
        Self::Initiator(initiator::Bug::IgnoreDomains),
        Self::Initiator(initiator::Bug::KeepMap),
        Self::Initiator(initiator::Bug::KeepCopies),
        Self::Initiator(initiator::Bug::KeepHolders),
        Self::Initiator(initiator::Bug::IgnoreRedundancy),
        Self::Initiator(initiator::Bug::ForgetPrevious),
        Self::Initiator(initiator::Bug::AckTooFew),
        Self::Initiator(initiator::Bug::NeverWaitForTheLast),
        Self::Initiator(initiator::Bug::WakeInVain),
        Self::Store(store::Bug::SkipSync),
        Self::Store(store::Bug::RetrySync),
        Self::Store(store::Bug::RollUnsynced),
        Self::Store(store::Bug::TrustCache),
        Self::Store(store::Bug::TrustClean),
        Self::Store(store::Bug::ResumeOverTorn),
        Self::Store(store::Bug::SkipTombstones),
        Self::Store(store::Bug::RemoveBeforeSync),
        Self::Store(store::Bug::DropTombstones),
        Self::Store(store::Bug::NameUnpromised),
        Self::Store(store::Bug::ForgetUnread),
        Self::Store(store::Bug::KeepBad),
        Self::Store(store::Bug::StaleStamps),
        Self::Store(store::Bug::ClearTail),
        Self::Store(store::Bug::NoReserve),
        Self::Store(store::Bug::MiscountAhead),
        Self::Object(object::Bug::HastyRow),
        Self::Object(object::Bug::ForgetRemoval),
        Self::Object(object::Bug::ForgetWithdrawal),
        Self::Object(object::Bug::NoLimit),
        Self::Object(object::Bug::SkipRenewal),
        Self::Object(object::Bug::SkipUploads),
        Self::Object(object::Bug::TrustEnded),
        Self::Cleaner(cleaner::Bug::IgnoreSilence),
        Self::Target(Bug::ObeyUnknown),
        Self::Target(Bug::Steward(steward::Bug::ForgetRange)),
        Self::Target(Bug::Steward(steward::Bug::TrustSums)),
        Self::Target(Bug::Steward(steward::Bug::CountCopies)),
        Self::Target(Bug::Steward(steward::Bug::ForgetWanted)),
        Self::Target(Bug::Steward(steward::Bug::LetGoEarly)),
        Self::Target(Bug::Steward(steward::Bug::LetGoAtOnce)),
        Self::Target(Bug::Steward(steward::Bug::TrustCount)),
        Self::Target(Bug::Steward(steward::Bug::DropBeforeDurable)),
        Self::Target(Bug::Steward(steward::Bug::MoveIntoDomain)),
        Self::Target(Bug::Steward(steward::Bug::MoveToAndFro)),
        Self::Store(store::Bug::ForgetWanted),
        Self::Store(store::Bug::CountUnread),
        Self::Target(Bug::Steward(steward::Bug::CountMoved)),
        Self::Proposer(proposer::Bug::UseUndecided),
        Self::DecideWithoutComparing,
        Self::Detector(detector::Bug::TakeOutAllSilent),
        Self::Detector(detector::Bug::CountAllTheTime),
        Self::Detector(detector::Bug::OverlookUnwatched),
        Self::RepairFromBad,
        Self::Target(Bug::Steward(steward::Bug::SilentIsEmpty)),
        Self::Target(Bug::NeverSeek),
        Self::Initiator(initiator::Bug::CountAnyPiece),
        Self::Initiator(initiator::Bug::SkipFragment),
        Self::Target(Bug::Steward(steward::Bug::StayByRank)),
        Self::WrongParity,
        Self::Aggregator(aggregator::Bug::WrongCoefficient),
        Self::Aggregator(aggregator::Bug::MixStripes),
        Self::Aggregator(aggregator::Bug::StaleSums),
        Self::Aggregator(aggregator::Bug::SwapPieces),
    ];

    /// The defect of the target machines.
    pub(crate) const fn of_target(self) -> Option<Bug> {
        match self {
            Self::Target(bug) => Some(bug),
            Self::RepairFromBad => Some(Bug::TrustRestored),
            _ => None,
        }
    }

    /// The defect of the stores.
    pub(crate) const fn of_store(self) -> Option<store::Bug> {
        match self {
            Self::Store(bug) => Some(bug),
            Self::RepairFromBad => Some(store::Bug::ReadUnchecked),
            _ => None,
        }
    }

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Target(Bug::AckBeforeDurable) => "ack-before-durable",
            Self::Target(Bug::DropAck) => "drop-ack",
            Self::Target(Bug::SkipHashCheck) => "skip-hash-check",
            Self::Target(Bug::OverlapWindows) => "overlap-windows",
            Self::Target(Bug::KeepLeftover) => "keep-leftover",
            Self::Target(Bug::TrustGrants) => "trust-grants",
            Self::Target(Bug::KeepGrants) => "keep-grants",
            Self::Target(Bug::ClaimGranted) => "claim-granted",
            Self::Target(Bug::NeverSeek) => "never-seek",
            Self::Target(Bug::NeverExpire) => "never-expire",
            Self::Target(Bug::ForgetPromise) => "forget-promise",
            Self::Target(Bug::ObeyUnknown) => "obey-unknown",
            Self::Target(Bug::TrustRestored) => "trust-restored",
            Self::Cleaner(cleaner::Bug::IgnoreSilence) => "ignore-silence",
            Self::Initiator(initiator::Bug::NeverContent) => "never-content",
            Self::Session(wire::Bug::TrustSequences) => "trust-sequences",
            Self::Session(wire::Bug::BelieveSessions) => "believe-sessions",
            Self::Session(wire::Bug::BelieveBefore) => "believe-before",
            Self::Initiator(initiator::Bug::TrustTheRest) => "trust-the-rest",
            Self::Initiator(initiator::Bug::IgnoreDomains) => "ignore-domains",
            Self::HurryCleaner => "hurry-cleaner",
            Self::OldMapAfterRestart => "old-map-after-restart",
            Self::Target(Bug::TakeOldMap) => "take-old-map",
            Self::Target(Bug::VouchOldMap) => "vouch-old-map",
            Self::Initiator(initiator::Bug::KeepMap) => "keep-map",
            Self::Initiator(initiator::Bug::KeepCopies) => "keep-copies",
            Self::Initiator(initiator::Bug::KeepHolders) => "keep-holders",
            Self::Initiator(initiator::Bug::IgnoreRedundancy) => "ignore-redundancy",
            Self::Initiator(initiator::Bug::ForgetPrevious) => "forget-previous",
            Self::Initiator(initiator::Bug::AckTooFew) => "ack-too-few",
            Self::Initiator(initiator::Bug::CountAnyPiece) => "count-any-piece",
            Self::Initiator(initiator::Bug::SkipFragment) => "skip-fragment",
            Self::Initiator(initiator::Bug::NeverWaitForTheLast) => "never-wait-for-the-last",
            Self::Initiator(initiator::Bug::WakeInVain) => "wake-in-vain",
            Self::Object(object::Bug::HastyRow) => "hasty-row",
            Self::Object(object::Bug::ForgetRemoval) => "forget-removal",
            Self::Object(object::Bug::ForgetWithdrawal) => "forget-withdrawal",
            Self::Object(object::Bug::NoLimit) => "no-limit",
            Self::Object(object::Bug::SkipRenewal) => "skip-renewal",
            Self::Object(object::Bug::SkipUploads) => "skip-uploads",
            Self::Object(object::Bug::TrustEnded) => "trust-ended",
            Self::Target(Bug::Steward(steward::Bug::ForgetRange)) => "forget-range",
            Self::Target(Bug::Steward(steward::Bug::TrustSums)) => "trust-sums",
            Self::Target(Bug::Steward(steward::Bug::CountCopies)) => "count-copies",
            Self::Target(Bug::Steward(steward::Bug::SilentIsEmpty)) => "silent-is-empty",
            Self::Target(Bug::Steward(steward::Bug::ForgetWanted)) => "restore-by-map",
            Self::Target(Bug::Steward(steward::Bug::LetGoEarly)) => "let-go-early",
            Self::Target(Bug::Steward(steward::Bug::LetGoAtOnce)) => "let-go-at-once",
            Self::Target(Bug::Steward(steward::Bug::TrustCount)) => "trust-count",
            Self::Target(Bug::Steward(steward::Bug::DropBeforeDurable)) => "drop-before-durable",
            Self::Target(Bug::Steward(steward::Bug::MoveIntoDomain)) => "move-into-domain",
            Self::Target(Bug::Steward(steward::Bug::MoveToAndFro)) => "move-to-and-fro",
            Self::Target(Bug::Steward(steward::Bug::StayByRank)) => "stay-by-rank",
            Self::Target(Bug::Steward(steward::Bug::CountMoved)) => "count-moved",
            Self::Proposer(proposer::Bug::UseUndecided) => "two-maps-of-one-epoch",
            Self::DecideWithoutComparing => "decide-without-comparing",
            Self::Detector(detector::Bug::TakeOutAllSilent) => "take-out-all-silent",
            Self::Detector(detector::Bug::CountAllTheTime) => "count-all-the-time",
            Self::Detector(detector::Bug::OverlookUnwatched) => "overlook-unwatched",
            Self::LoseIndexTail => "lose-index-tail",
            Self::RepairFromBad => "repair-from-bad",
            Self::WrongParity => "wrong-parity",
            Self::Aggregator(aggregator::Bug::WrongCoefficient) => "wrong-coefficient",
            Self::Aggregator(aggregator::Bug::MixStripes) => "mix-stripes",
            Self::Aggregator(aggregator::Bug::StaleSums) => "stale-sums",
            Self::Aggregator(aggregator::Bug::SwapPieces) => "swap-pieces",
            Self::Store(bug) => bug.name(),
        }
    }
}

/// A defect by its [name](PlantedBug::name).
impl std::str::FromStr for PlantedBug {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|planted| planted.name() == name).ok_or_else(|| format!("choose one of {}", names()))
    }
}
