//! Why datagrams are dropped.

/// Why a datagram was dropped before a machine saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// Too short, too long, or not ours.
    Malformed,
    /// A version that this build does not speak.
    Version,
    /// Of another cluster.
    OtherCluster,
    /// The tag is wrong: forged, or sealed with another key.
    Forged,
    /// Seen before, or too old to tell, or an answer to what was not asked.
    Replayed,
    /// Of a session that its sender has not proven.
    Unproven,
    /// A node of this cluster says that it cannot take what came to it from here.
    Refused,
}

impl DropReason {
    /// Every reason.
    pub const ALL: [Self; 7] = [
        Self::Malformed,
        Self::Version,
        Self::OtherCluster,
        Self::Forged,
        Self::Replayed,
        Self::Unproven,
        Self::Refused,
    ];

    /// A short name, for counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Version => "version",
            Self::OtherCluster => "other_cluster",
            Self::Forged => "forged",
            Self::Replayed => "replayed",
            Self::Unproven => "unproven",
            Self::Refused => "refused",
        }
    }
}
