//! The switch of all mutants: this file becomes a module of the copy's `protocol`.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Not read from the environment yet.
const UNSET: u32 = u32::MAX;
/// None is on, and those that are reached are recorded.
const WATCHING: u32 = u32::MAX - 1;
/// None is on.
const NONE: u32 = u32::MAX - 2;
/// Most mutants.
const MOST: usize = 65_536;

static ON: AtomicU32 = AtomicU32::new(UNSET);
static SEEN: [AtomicU8; MOST] = [const { AtomicU8::new(0) }; MOST];
static LIST: OnceLock<Option<Mutex<File>>> = OnceLock::new();

/// Whether this mutant is on.
#[inline]
pub fn is(number: u32) -> bool {
    let on = ON.load(Ordering::Relaxed);
    on == number || on >= WATCHING && record(number)
}

#[cold]
fn record(number: u32) -> bool {
    if ON.load(Ordering::Relaxed) == UNSET {
        let wanted = std::env::var("MUTANT").ok().and_then(|number| number.parse().ok());
        let idle = if std::env::var_os("MUTANTS_SEEN").is_some() { WATCHING } else { NONE };
        ON.store(wanted.unwrap_or(idle), Ordering::Relaxed);
        return is(number);
    }
    if SEEN[number as usize].swap(1, Ordering::Relaxed) == 0 {
        let list = LIST.get_or_init(|| {
            let path = std::env::var_os("MUTANTS_SEEN")?;
            File::options().create(true).append(true).open(path).ok().map(Mutex::new)
        });
        let file = list.as_ref().expect("the list of the seen can be written");
        writeln!(file.lock().unwrap_or_else(PoisonError::into_inner), "{number}").expect("the list can be written");
    }
    false
}
