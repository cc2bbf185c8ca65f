//! The rack itself: what it looks like, and that nothing of it stays.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::net::{Ipv6Addr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use testkit::{Rack, Shape};

const SHAPE: Shape = Shape { hosts: 2, ..Shape::USUAL };

/// Held by each test to its end: a rack that is built removes the stale ones, also one that another test has just begun to make.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ip(args: &[&str]) -> String {
    let output = Command::new("ip").args(args).output().unwrap();
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn exists(namespace: &str) -> bool {
    ip(&["netns", "list"]).lines().any(|line| line.split(' ').next() == Some(namespace))
}

/// A process id that nobody has: of a process that has ended.
fn gone() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

/// Waits until a process that was started in a namespace is there, which takes it a moment; or until it has ended.
fn wait_inside(namespace: &str, process: &mut Child) {
    let inside = || !Command::new("ip").args(["netns", "pids", namespace]).output().unwrap().stdout.is_empty();
    while !inside() && process.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
}

#[test]
fn a_rack_is_what_it_should_be_and_goes_with_all_that_runs_on_it() {
    let _alone = alone();
    if let Some(reason) = Rack::obstacle(false) {
        return eprintln!("skipped: {reason}");
    }
    let rack = Rack::build(&SHAPE).unwrap();
    let names = rack.namespaces();
    assert_eq!(names.len(), 3);
    let interface = ip(&["-n", &names[1], "address", "show", "dev", "eth0"]);
    assert!(interface.contains("mtu 9000") && interface.contains("10.77.0.2/24"), "{interface}");
    assert!(interface.contains("qdisc tbf"), "{interface}");
    let route = ip(&["-n", &names[1], "route", "get", "239.1.2.3"]);
    assert!(route.contains("dev eth0"), "{route}");
    let mut command = rack.command(0, Path::new("sleep"));
    let mut left = command.arg("1000").stdin(Stdio::null()).spawn().unwrap();
    wait_inside(&names[0], &mut left);
    drop(rack);
    assert!(!left.wait().unwrap().success(), "it was killed");
    assert!(names.iter().all(|name| !exists(name)));
}

#[test]
fn a_rack_of_ipv6_has_addresses_at_once_and_a_switch_that_learns_groups() {
    let _alone = alone();
    if let Some(reason) = Rack::obstacle(true) {
        return eprintln!("skipped: {reason}");
    }
    let rack = Rack::build(&Shape { ipv6: true, hosts: 3, ..SHAPE }).unwrap();
    let interface = ip(&["-n", &rack.namespaces()[1], "address", "show", "dev", "eth0"]);
    assert!(interface.contains("fd77::2/64") && !interface.contains("inet "), "{interface}");
    assert!(!interface.contains("tentative"), "{interface}");
    // The second host joins, the third does not, and the first sends.
    let group: Ipv6Addr = "ff15::1:8000:1".parse().unwrap();
    let open = |host| rack.visit(host, || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 7_400)).unwrap()).unwrap();
    let (sender, member) = (open(0), open(1));
    let shown = ip(&["-n", &rack.namespaces()[1], "-o", "link", "show", "dev", "eth0"]);
    let index = shown.split(':').next().unwrap().trim().parse().unwrap();
    member.join_multicast_v6(&group, index).unwrap();
    let knows = || rack.groups().unwrap().get(&group.into()).is_some_and(|hosts| hosts.iter().eq(&[1]));
    testkit::wait_until("the switch knows the member, and nobody else", || Ok(knows())).unwrap();
    member.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // It floods until a querier has been there for a moment.
    let spares = || {
        let before = [1, 2].map(|host| rack.traffic(host).unwrap().1);
        for _ in 0..100 {
            sender.send_to(&[7; 1_000], (group, 7_400)).unwrap();
        }
        assert_eq!(member.recv(&mut [0; 2_000]).unwrap(), 1_000);
        std::thread::sleep(Duration::from_millis(100));
        let [member, other] = [1, 2].map(|host| rack.traffic(host).unwrap().1 - before[host - 1]);
        member > 100_000 && other < 20_000
    };
    testkit::wait_until("the switch sends to the member, and to nobody else", || Ok(spares())).unwrap();
}

#[test]
fn a_rack_goes_when_its_test_panics() {
    let _alone = alone();
    if let Some(reason) = Rack::obstacle(false) {
        return eprintln!("skipped: {reason}");
    }
    let (sender, names) = std::sync::mpsc::channel();
    let panicked = std::thread::spawn(move || {
        let rack = Rack::build(&SHAPE).unwrap();
        sender.send(rack.namespaces()).unwrap();
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    assert!(names.recv().unwrap().iter().all(|name| !exists(name)));
}

#[test]
fn a_rack_whose_process_died_is_removed_by_the_next() {
    let _alone = alone();
    if let Some(reason) = Rack::obstacle(false) {
        return eprintln!("skipped: {reason}");
    }
    let stale = format!("rack-{}-0-h0", gone());
    ip(&["netns", "add", &stale]);
    let mut left = Command::new("ip").args(["netns", "exec", &stale, "sleep", "1000"]).spawn().unwrap();
    wait_inside(&stale, &mut left);
    let other = Rack::build(&SHAPE).unwrap();
    assert!(!exists(&stale));
    assert!(!left.wait().unwrap().success(), "it was killed");
    assert!(other.namespaces().iter().all(|name| exists(name)));
}
