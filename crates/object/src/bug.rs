//! Defects that are planted to prove that a checker bites.

/// A defect. No daemon has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The catalog's row does not wait for the copies of the manifest.
    HastyRow,
    /// A removal is not stored as a manifest.
    ForgetRemoval,
    /// What the catalog refused is not withdrawn.
    ForgetWithdrawal,
    /// A put may take as long as it likes.
    NoLimit,
    /// A copy counts on chunks that nobody promised to it.
    SkipRenewal,
    /// A cleaner does not read the uploads of the catalog.
    SkipUploads,
    /// A catalog takes changes of runs that have ended.
    TrustEnded,
}
