//! What a machine answers, and what it makes of answers.

mod common;

use common::{at, get, get_accepted, hear, step, target, tell};
use protocol::id::ChunkId;
use protocol::machine::{Completion, Effect, Input, ReadFailure};
use protocol::target::Event;

#[test]
fn a_copy_that_was_read_damaged_is_scrubbed_and_only_then_called_dropped() {
    let mut target = target();
    let id = ChunkId::of_payload(b"rotten");
    tell(&mut target, at(1), &get(1, 1, id), Some(6));
    let (_, effects) = step(&mut target, at(2), get_accepted(1, 1));
    let [(op, Effect::Read { .. })] = effects[..] else { panic!("{effects:?}") };
    let completion = Completion::Read(Err(ReadFailure::Corrupt));
    let said = hear(&mut target, at(3), Input::Done { op, completion });
    assert!(!said.events.iter().any(|event| matches!(event, Event::Corrupt { .. })), "{:?}", said.events);
    let [(op, Effect::Scrub { after: Some(after), max_bytes: 1 })] = said.effects[..] else {
        panic!("{:?}", said.effects)
    };
    assert!(after < id, "the scrub begins behind the copy");
    let completion = Completion::Scrubbed { next: Some(id), bytes: 0, bad: vec![id] };
    let said = hear(&mut target, at(4), Input::Done { op, completion });
    assert_eq!(said.events, [Event::Corrupt { id }]);
}
