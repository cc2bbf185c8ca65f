//! Bounds that more than one part of the protocol holds to, or that others see, each with what happens when it is
//! reached. A bound of one part alone is a constant beside its use.
//!
//! A message that names more of something than its bound is dropped as invalid.

/// Longest document of a cluster map; a longer one is not handed on.
pub const MAP_BYTES: usize = 4 << 20;
/// Largest chunk, in bytes. Larger requests are refused.
pub const CHUNK_BYTES: u32 = 8 << 20;
/// Most targets in a negotiating group: a [`MemberSet`](crate::map::MemberSet) has 32 bits. A map with a larger group
/// is refused, and the planner splits cells before a group gets there.
pub const GROUP_MEMBERS: usize = 32;
/// Most targets in a group whose subsets have multicast addresses; larger groups negotiate by unicast.
pub const ADDRESSED: u32 = 16;
/// Ids of cells are below this; a map with others is refused.
pub const CELL_IDS: u32 = 1 << 20;
/// Most shares into which chunks are divided; a map with more is refused.
pub const SHARES: u32 = 1 << 22;
/// Most copies of a chunk, and most targets that a grant names. A map or a storage class with more is refused. So is a
/// code with as many fragments of parity, as the manifests that name its chunks need one copy more than that.
pub const COPIES: usize = 8;
/// Most pieces of a chunk, be they copies or fragments of a code. A code with more fragments is refused.
pub const PIECES: usize = erasure::FRAGMENTS;
/// Reservations that a target keeps at once; further requests get `Busy`.
pub const RESERVATIONS: usize = 256;
/// Reads that a target serves at once; further get requests get `Busy`.
pub const SERVINGS: usize = 64;
/// Effects a target has under way when it answers further requests and lists with `Busy`, and probes with `Pending`.
pub const LOOKUPS: usize = 1_024;
/// Finished transactions that a target remembers, to repeat how they failed when asked.
pub const FINISHED: usize = 1_024;
/// Puts, gets and finds that wait at an initiator for a free place; further ones are refused with `Busy`.
pub const WAITING: usize = 4_096;
/// Missing ranges named in one repair message; the rest follow in the next.
pub const RANGES: usize = 8;
/// Chunk ids in one list answer, or in one discard. Of more, a list answer says that there are more, which are asked
/// for next; a discard is sent page by page.
pub const LISTED: usize = 30;
/// Copies in one answer to a census; of more the sums are told.
pub const COUNTED: usize = 28;
/// Other targets of which one message says whether they are there. A target that watches more says nothing of the
/// others: their other witnesses do.
pub const WATCHED: usize = 32;
/// Targets of which one message says that they may have the last copy of something. With so many there may be more, and
/// no target is taken out meanwhile.
pub const SOUGHT: usize = 8;
/// Groups of which one message says how they are. Nothing would be said of others, and they would count as unknown. But
/// no target is in more: it is in as many groups as a group has cells, each of which has a target, so [`GROUP_MEMBERS`]
/// bounds them.
pub const STEWARDED: usize = 32;
/// Chunks whose lost copies a target makes at the same time. The steward of a further one is answered `Pending` all the
/// same, and asks again until there is room.
pub const RESTORES: usize = 16;
/// Marks of cleaners that a target remembers; the oldest is forgotten first, and what refers to it is refused.
pub const MARKS: usize = 16;
/// Senders whose replay window is remembered; the one that was silent for longest is forgotten first.
pub const SENDERS: usize = 4_096;
/// Sessions that wait for a proof, in all and of one sender: when there are as many, further ones are dropped, or
/// replace the one that has not answered for longest, and for 20 ms.
pub const UNPROVEN: usize = 1_024;
/// See [`UNPROVEN`].
pub const UNPROVEN_OF_A_SENDER: usize = 4;
/// Messages of an unproven session that its sender is asked to send again; others are lost.
pub const MISSED: usize = 8;
/// Nodes to which a session sends again what they dropped before its proof; others miss it.
pub const ANSWERED: usize = 16_384;
/// Times a choosy initiator gives windows back for one put because they begin too late; then it takes what it gets.
pub const CANCELS: u8 = 3;
