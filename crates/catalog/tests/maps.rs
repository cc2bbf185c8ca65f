//! Cluster maps that are decided in a real PostgreSQL: one of each epoch, whoever asks at once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::sync::Barrier;

use catalog::{DecidedMap, Postgres as Table};
use testkit::Postgres;

/// Who ask at once.
const RIVALS: u32 = 20;
/// Epochs for which they do.
const EPOCHS: u32 = 12;

fn map(epoch: u32, who: u32) -> DecidedMap {
    DecidedMap {
        epoch,
        document: vec![who as u8; 9_000],
        decided_by: format!("operator {who}"),
        micros: u64::from(epoch),
    }
}

/// Columns and indexes of all tables, a line each.
const LAYOUT: &str = "SELECT line FROM (
  SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || COALESCE(collation_name, '') AS line
    FROM information_schema.columns WHERE table_schema = 'public'
  UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public') AS lines ORDER BY line COLLATE \"C\"";

#[test]
fn the_tables_are_frozen() {
    let Ok(server) = Postgres::start().inspect_err(|why| println!("skipped: {why:#}")) else { return };
    let url = server.database().unwrap();
    drop(Table::open(&url, None, "c").unwrap());
    let mut client = postgres::Client::connect(&url, postgres::NoTls).unwrap();
    let lines = client.query(LAYOUT, &[]).unwrap();
    let layout: String = lines.iter().map(|line| line.get::<_, String>(0) + "\n").collect();
    assert!(layout.contains("maps.document bytea NO"), "{layout}");
    assert_eq!(
        blake3::hash(layout.as_bytes()).to_hex().as_str(),
        "c489ef4949116e1e283fb08dfab528ac1e64ba1e2702a4896566f6bc9d2d7bf1",
        "other tables are another format:\n{layout}"
    );
}

#[test]
fn of_many_who_propose_at_once_one_wins_each_epoch() {
    let Ok(server) = Postgres::start().inspect_err(|why| println!("skipped: {why:#}")) else { return };
    let url = server.database().unwrap();
    let tables: Vec<Table> = (0..RIVALS).map(|_| Table::open(&url, None, "c").unwrap()).collect();
    assert_eq!((tables[0].newest_map_epoch().unwrap(), tables[0].newest_map().unwrap()), (None, None));
    let begin = Barrier::new(RIVALS as usize);
    for epoch in 1..=EPOCHS {
        let after = Some(epoch - 1).filter(|before| *before > 0);
        let won: Vec<u32> = std::thread::scope(|scope| {
            let propose = |who: u32| {
                begin.wait();
                tables[who as usize].decide_map(after, &map(epoch, who)).unwrap().then_some(who)
            };
            let rivals: Vec<_> = (0..RIVALS).map(|who| scope.spawn(move || propose(who))).collect();
            rivals.into_iter().filter_map(|rival| rival.join().unwrap()).collect()
        });
        let [winner] = won[..] else { panic!("epoch {epoch} was decided by {won:?}") };
        assert_eq!(tables[0].newest_map().unwrap(), Some(map(epoch, winner)));
    }
}

#[test]
fn a_map_follows_the_newest_alone() {
    let Ok(mut server) = Postgres::start().inspect_err(|why| println!("skipped: {why:#}")) else { return };
    let table = Table::open(&server.database().unwrap(), None, "c").unwrap();
    let decide = |after, epoch| table.decide_map(after, &map(epoch, epoch)).unwrap();
    assert!(!decide(Some(1), 2), "there is no first one");
    assert!(decide(None, 3) && !decide(None, 4) && !decide(Some(2), 4) && !decide(Some(3), 3) && !decide(Some(3), 2));
    // One that was made elsewhere, in a file, may be several ahead.
    assert!(decide(Some(3), 7) && !decide(Some(3), 4) && !decide(Some(3), 8));
    (8..=150).for_each(|epoch| assert!(decide(Some(epoch - 1), epoch)));
    assert_eq!(table.newest_map().unwrap(), Some(map(150, 150)));
    server.crash().unwrap();
    let error = table.newest_map().unwrap_err().to_string();
    assert!(error.starts_with("the catalog in postgres://reservoir@127.0.0.1") && !error.contains('\n'), "{error}");
    server.start_again().unwrap();
    assert_eq!(table.newest_map_epoch().unwrap(), Some(150));
}
