//! What holders of copies promise, and what they know of the copies' use (`docs/cleaning.md`).

use crate::redundancy::Wanted;

/// What is promised to an initiator that counts on a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The mark after which it is promised.
    pub mark: u32,
    /// What the copy is to be kept for.
    pub wanted: Wanted,
    /// Whether it brings nothing new that counts on the copy, as when a holder makes copies that were lost. Then
    /// nothing is promised, or chunks that nothing needs would be promised again and again. But a copy that was
    /// condemned is so no more, as it may be needed.
    pub restores: bool,
}

impl Promise {
    /// What the stamps of a copy are that is made now.
    #[must_use]
    pub fn stamps(self) -> Stamps {
        Stamps::promised(if self.restores { 0 } else { self.mark })
    }
}

/// To keep it as the map says.
impl From<u32> for Promise {
    fn from(mark: u32) -> Self {
        Self { mark, wanted: Wanted::BY_MAP, restores: false }
    }
}

/// What a target knows of a copy's use, in numbers of its marks. In memory only: a restart forgets the marks as well, and
/// so refuses what refers to an older one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// The mark after which it was last promised that the copy is here.
    promised: u32,
    /// The mark with which it was condemned; 0 when it was not, or was promised again. With [`CERTAIN`]: in 32 bits, as there is
    /// one for each chunk in memory.
    condemned: u32,
}

/// With the mark: it was found by a pass that had waited for a grace time. A cleaner's first pass has not, and takes for
/// unreferenced what is about to be referred to.
const CERTAIN: u32 = 1 << 31;

/// What becomes of a copy that nothing refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was promised since the mark.
    Keep,
    /// It may go when it is found unreferenced again.
    Condemn,
    /// It goes.
    Drop,
}

impl Stamps {
    /// The stamps of a copy that was promised after mark `mark`.
    #[must_use]
    pub fn promised(mark: u32) -> Self {
        Self { promised: mark, condemned: 0 }
    }

    /// Whether a cleaner is certain that nothing refers to the chunk, and nothing has counted on the copy since.
    #[must_use]
    pub const fn is_unreferenced(&self) -> bool {
        self.condemned & CERTAIN > 0
    }

    /// What is promised, and what asks for it.
    pub fn keep(&mut self, promise: Promise) {
        if promise.restores {
            self.condemned = 0;
        } else {
            self.promise(promise.mark);
        }
    }

    /// A node counts on the copy, after mark `mark`.
    pub fn promise(&mut self, mark: u32) {
        *self = Self::promised(self.promised.max(mark));
    }

    /// Nothing that was begun before `mark` refers to the copy. It goes if it was condemned with mark `since` (0 for none) or
    /// an earlier one, by whatever cleaner, and was not promised since.
    pub fn judge(&mut self, mark: u32, since: u32) -> Verdict {
        if self.promised >= mark {
            self.condemned = 0;
            return Verdict::Keep;
        }
        if self.condemned == 0 {
            self.condemned = mark;
        }
        if since > 0 {
            self.condemned |= CERTAIN;
        }
        if self.condemned & !CERTAIN <= since { Verdict::Drop } else { Verdict::Condemn }
    }
}
