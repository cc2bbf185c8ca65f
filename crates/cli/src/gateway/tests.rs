#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use super::*;

/// What the blocking side reads when the async side has sent `parts` and is gone.
fn read_all(parts: Vec<io::Result<Part>>, length: Option<u64>) -> io::Result<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(parts.len().max(1));
    parts.into_iter().for_each(|part| assert!(sender.try_send(part).is_ok()));
    drop(sender);
    let mut read = Vec::new();
    let mut incoming = Incoming { receiver, part: Bytes::new(), length, taken: 0, ended: false };
    incoming.read_to_end(&mut read).map(|_| read)
}

#[test]
fn a_body_ends_only_where_its_client_said_so() {
    let bytes = || Ok(Part::Bytes(Bytes::from_static(b"abc")));
    assert_eq!(read_all(vec![bytes(), bytes(), Ok(Part::End)], Some(6)).unwrap(), b"abcabc");
    assert_eq!(read_all(vec![Ok(Part::End)], None).unwrap(), b"");
    for (parts, length) in [
        (vec![], None),
        (vec![bytes()], None),
        (vec![bytes()], Some(3)),
        (vec![bytes(), Ok(Part::End)], Some(4)),
        (vec![bytes(), bytes(), Ok(Part::End)], Some(4)),
    ] {
        let count = parts.len();
        let error = read_all(parts, length).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{count} parts, {length:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_nothing_is_given_up() {
    let first = stream::iter([Ok::<_, io::Error>(Bytes::from_static(b"abc"))]);
    let (sender, mut receiver) = mpsc::channel(4);
    let begin = tokio::time::Instant::now();
    pump(first.chain(stream::pending()), sender).await;
    assert_eq!(begin.elapsed().as_secs(), IDLE.as_secs());
    assert!(matches!(receiver.recv().await, Some(Ok(Part::Bytes(part))) if part == "abc"));
    assert!(matches!(receiver.recv().await, Some(Err(error)) if error.kind() == io::ErrorKind::TimedOut));
    assert!(receiver.recv().await.is_none(), "an end after the time was up");
}
