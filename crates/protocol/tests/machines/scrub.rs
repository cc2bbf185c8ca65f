//! A scrub has its turn on every target, and costs the others no more than a bid says.

use protocol::config::Config;
use protocol::id::ChunkId;
use protocol::machine::{Completion, Effect, Input, WriteFailure};
use protocol::target::{Event, Target};
use protocol::time::{Instant, Span};
use protocol::wire::{Message, OfferedWindow};

use crate::common::{self, at, get, put, step, target_with, tell, window};

/// What a stretch takes on the disk of these tests.
const TAKES: Span = Span::from_millis(30);

/// The bid that a request gets.
fn ask(target: &mut Target, now: Instant, request: &Message, found: Option<u32>) -> OfferedWindow {
    window(&tell(target, now, request, found).0)
}

fn scrubbed(next: Option<ChunkId>, bad: Vec<ChunkId>, result: Result<(), WriteFailure>) -> Completion {
    Completion::Scrubbed { next, bytes: 1 << 20, bad, result }
}

/// A target that has scrubbed once, and when.
fn after_one() -> (Target, Instant) {
    let mut target = target_with(Config::default());
    let (_, effects) = step(&mut target, at(0), Input::Wake);
    let [(op, Effect::Scrub { after: None, max_bytes })] = effects[..] else { panic!("{effects:?}") };
    assert_eq!(max_bytes, Config::default().scrub_bytes);
    let now = at(0) + TAKES;
    let next = Some(ChunkId::of_payload(b"next"));
    step(&mut target, now, Input::Done { op, completion: scrubbed(next, Vec::new(), Ok(())) });
    (target, now)
}

#[test]
fn a_target_that_is_never_quiet_still_scrubs() {
    let (mut target, begun) = after_one();
    let interval = Config::default().scrub_interval;
    let (mut now, mut txn) = (begun, 0);
    // A new window is offered before the last one expires.
    let at_last = loop {
        assert!(now < begun + interval.times(3), "it has been busy since {begun} and does not scrub");
        (now, txn) = (now + Span::from_millis(5), txn + 1);
        ask(&mut target, now, &put(txn, 1, ChunkId::of_payload(&txn.to_le_bytes()), 100), None);
        assert!(target.in_progress() > 0);
        if !step(&mut target, now, Input::Wake).1.is_empty() {
            break now;
        }
    };
    assert!(at_last >= begun + interval.times(2), "it did not wait for a quiet moment");
    // In a quiet moment it does not wait.
    let (mut target, begun) = after_one();
    let (_, effects) = step(&mut target, begun + interval, Input::Wake);
    assert!(matches!(effects[..], [(_, Effect::Scrub { after: Some(_), .. })]), "{effects:?}");
}

#[test]
fn bids_made_during_a_scrub_expect_its_end() {
    for request in [put(1, 1, ChunkId::of_payload(b"x"), 100), get(1, 1, ChunkId::of_payload(b"x"))] {
        let found = matches!(request, Message::GetRequest { .. }).then_some(100);
        let (mut target, begun) = after_one();
        let now = begun + Config::default().scrub_interval;
        let quiet = ask(&mut target, now - Span::from_nanos(1), &request, found);
        let (mut target, _) = after_one();
        let (_, effects) = step(&mut target, now, Input::Wake);
        let [(op, Effect::Scrub { .. })] = effects[..] else { panic!("{effects:?}") };
        let during = ask(&mut target, now + TAKES.div(3), &request, found);
        assert!(during.done >= TAKES.div(2) && quiet.done < TAKES.percent(10), "{quiet:?}, {during:?}");
        assert_eq!((during.start, during.length), (quiet.start, quiet.length), "the port is free all the same");
        // Over sooner than expected.
        let end = now + TAKES.div(2);
        step(&mut target, end, Input::Done { op, completion: scrubbed(None, Vec::new(), Ok(())) });
        let other = match request {
            Message::GetRequest { .. } => get(2, 1, ChunkId::of_payload(b"y")),
            _ => put(2, 1, ChunkId::of_payload(b"y"), 100),
        };
        assert!(ask(&mut target, end, &other, found).done < TAKES.percent(20));
    }
}

#[test]
fn a_disk_that_cannot_forget_a_bad_copy_has_failed() {
    let mut target = target_with(Config::default());
    let (_, effects) = step(&mut target, at(0), Input::Wake);
    let id = ChunkId::of_payload(b"bad");
    let completion = scrubbed(None, vec![id], Err(WriteFailure::Disk));
    let sent = common::hear(&mut target, at(1), Input::Done { op: effects[0].0, completion });
    assert_eq!(sent.events, [Event::Corrupt { id }, Event::DiskFailed]);
}
