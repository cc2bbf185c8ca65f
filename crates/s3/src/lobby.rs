//! Strangers: connections on which nobody has shown yet that they may ask for anything. Whoever comes is let in, and when
//! there are too many of one address, or of all, the one that has waited longest gives way: who signs is known after its
//! first head, and strangers that wait for nothing keep nobody out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::pulse::Pulse;

/// Strangers of one address, beside those that came just now.
const OF_ONE: usize = 64;
/// How long a stranger has come just now: many clients behind one proxy may come at once.
const JUST_NOW: Duration = Duration::from_secs(1);
/// How long nobody has to give way, however many there are: time for a head that was sent at once.
const CHANCE: Duration = Duration::from_millis(250);
/// Strangers of all addresses.
const OF_ALL: usize = 512;
/// Addresses that are remembered; of those that have no stranger here the budget begins anew when there are more.
const ADDRESSES: usize = 1_024;
/// Bytes of refused bodies that are read to nowhere for one address in a [`PERIOD`].
const BYTES: u64 = 16 << 20;
/// How long a budget of bytes lasts.
const PERIOD: Duration = Duration::from_secs(10);
/// Forms of strangers that are looked at on one connection at once.
const FORMS: usize = 4;
/// How long a stranger may take to ask for something that it may.
pub(crate) const GREETING: Duration = Duration::from_secs(20);

/// Why something was refused, or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// A stranger gave way to others.
    GaveWay,
    /// A connection stood still.
    StoodStill,
    /// Its encryption did not begin, or not in time.
    Handshake,
    /// A request was refused whose signature was missing or wrong.
    Unauthorized,
    /// A body came too slowly.
    SlowBody,
    /// A refused body was not read to its end.
    Unread,
    /// Too much was in work.
    Busy,
}

impl Why {
    /// All of them, with their names for metrics.
    const ALL: [(Self, &'static str); 7] = [
        (Self::GaveWay, "gave_way"),
        (Self::StoodStill, "stood_still"),
        (Self::Handshake, "handshake"),
        (Self::Unauthorized, "unauthorized"),
        (Self::SlowBody, "slow_body"),
        (Self::Unread, "unread"),
        (Self::Busy, "busy"),
    ];
}

/// What was refused, by [`Why`].
#[derive(Debug, Default)]
pub(crate) struct Refusals([AtomicU64; Why::ALL.len()]);

impl Refusals {
    pub(crate) fn count(&self, why: Why) {
        self.0[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many, by reason.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Why::ALL.into_iter().map(|(why, name)| (name, self.0[why as usize].load(Ordering::Relaxed)))
    }
}

/// The strangers.
#[derive(Debug, Default)]
pub(crate) struct Lobby {
    strangers: Mutex<Strangers>,
    pub(crate) refusals: Refusals,
}

#[derive(Debug, Default)]
struct Strangers {
    /// The number of the next that comes.
    next: u64,
    /// In the order in which they came.
    all: BTreeMap<u64, Stranger>,
    addresses: HashMap<IpAddr, Address>,
}

#[derive(Debug)]
struct Stranger {
    from: IpAddr,
    since: Instant,
    /// Is told when it has to leave.
    leave: Arc<Notify>,
}

#[derive(Debug)]
struct Address {
    here: BTreeSet<u64>,
    /// Since when `read` is counted.
    since: Instant,
    /// Bytes of refused bodies.
    read: u64,
}

impl Strangers {
    /// Lets one in, and has others give way; its number.
    fn enter(&mut self, from: IpAddr, leave: &Arc<Notify>, refusals: &Refusals) -> u64 {
        let number = self.next;
        self.next += 1;
        self.all.insert(number, Stranger { from, since: Instant::now(), leave: Arc::clone(leave) });
        self.address(from).here.insert(number);
        while let Some(oldest) = self.too_old(from) {
            self.send_away(Some(oldest), refusals);
        }
        if self.all.len() > OF_ALL
            && let Some((oldest, age)) = self.oldest_of_most()
            && age >= CHANCE
        {
            self.send_away(Some(oldest), refusals);
        }
        number
    }

    /// The one that came first of the most crowded address, and how long ago.
    fn oldest_of_most(&self) -> Option<(u64, Duration)> {
        let oldest = *self.addresses.values().max_by_key(|address| address.here.len())?.here.first()?;
        Some((oldest, self.all.get(&oldest)?.since.elapsed()))
    }

    /// Who has to leave an address that has too many.
    fn too_old(&self, from: IpAddr) -> Option<u64> {
        let here = &self.addresses.get(&from)?.here;
        let oldest = here.first().filter(|_| here.len() > OF_ONE)?;
        (self.all.get(oldest)?.since.elapsed() >= JUST_NOW).then_some(*oldest)
    }

    fn address(&mut self, from: IpAddr) -> &mut Address {
        if self.addresses.len() >= ADDRESSES {
            self.addresses.retain(|_, address| !address.here.is_empty());
        }
        let new = || Address { here: BTreeSet::new(), since: Instant::now(), read: 0 };
        self.addresses.entry(from).or_insert_with(new)
    }

    fn send_away(&mut self, number: Option<u64>, refusals: &Refusals) {
        if let Some(leave) = number.and_then(|number| self.leave(number)) {
            refusals.count(Why::GaveWay);
            leave.notify_one();
        }
    }

    /// One is no stranger any more, or has gone.
    fn leave(&mut self, number: u64) -> Option<Arc<Notify>> {
        let stranger = self.all.remove(&number)?;
        if let Some(address) = self.addresses.get_mut(&stranger.from) {
            address.here.remove(&number);
        }
        Some(stranger.leave)
    }
}

impl Lobby {
    fn with<T>(&self, work: impl FnOnce(&mut Strangers) -> T) -> T {
        work(&mut self.strangers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How long to wait before another is taken, so that those who are here have had their chance.
    pub(crate) fn is_full_for(&self) -> Option<Duration> {
        self.with(|strangers| {
            let (_, age) = strangers.oldest_of_most().filter(|_| strangers.all.len() >= OF_ALL)?;
            CHANCE.checked_sub(age).filter(|wait| !wait.is_zero())
        })
    }

    /// How many strangers there are.
    pub(crate) fn len(&self) -> usize {
        self.with(|strangers| strangers.all.len())
    }
}

/// Who is at the other end of a connection: a stranger at first.
#[derive(Debug)]
pub(crate) struct Guest {
    lobby: Arc<Lobby>,
    from: IpAddr,
    leave: Arc<Notify>,
    place: Mutex<Place>,
    /// Whether a request was signed by somebody with a key.
    known: AtomicBool,
    /// Forms that are looked at.
    pub(crate) forms: Semaphore,
}

/// Where a guest is.
#[derive(Debug, Default)]
struct Place {
    /// Its number among the strangers.
    number: Option<u64>,
    /// Requests in work which it may ask without a signature.
    allowed: usize,
}

impl Guest {
    /// A stranger comes.
    pub(crate) fn enter(lobby: &Arc<Lobby>, address: IpAddr) -> Arc<Self> {
        let guest = Self {
            lobby: Arc::clone(lobby),
            from: network(address),
            leave: Arc::default(),
            place: Mutex::default(),
            known: AtomicBool::new(false),
            forms: Semaphore::new(FORMS),
        };
        guest.with(|place| guest.settle(place));
        Arc::new(guest)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Place) -> T) -> T {
        work(&mut self.place.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts it where it belongs.
    fn settle(&self, place: &mut Place) {
        let stranger = place.allowed == 0 && !self.is_known();
        match (stranger, place.number) {
            (true, None) => {
                let enter = |strangers: &mut Strangers| strangers.enter(self.from, &self.leave, &self.lobby.refusals);
                place.number = Some(self.lobby.with(enter));
            }
            (false, Some(number)) => {
                place.number = None;
                self.lobby.with(|strangers| strangers.leave(number));
            }
            _ => {}
        }
    }

    /// Ends when it has to give way.
    pub(crate) async fn has_to_leave(&self) {
        loop {
            self.leave.notified().await;
            // It may have shown at this moment that it is no stranger.
            if !self.is_known() && self.with(|place| place.allowed == 0) {
                return;
            }
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::SeqCst)
    }

    /// It has signed a request, and is no stranger from now on.
    fn know(&self) {
        if !self.known.swap(true, Ordering::SeqCst) {
            self.with(|place| self.settle(place));
        }
    }

    /// Counts bytes of a refused body; whether more of it may be read.
    pub(crate) fn reads(&self, bytes: u64) -> bool {
        self.lobby.with(|strangers| {
            let address = strangers.address(self.from);
            if address.since.elapsed() > PERIOD {
                (address.since, address.read) = (Instant::now(), 0);
            }
            address.read = address.read.saturating_add(bytes);
            address.read <= BYTES
        })
    }

    pub(crate) fn count(&self, why: Why) {
        self.lobby.refusals.count(why);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(number) = self.with(|place| place.number.take()) {
            self.lobby.with(|strangers| strangers.leave(number));
        }
    }
}

/// While it exists a request is in work that a stranger may ask, and the stranger need not give way.
#[derive(Debug)]
pub(crate) struct Allowed(Arc<Guest>);

impl Drop for Allowed {
    fn drop(&mut self) {
        self.0.with(|place| {
            place.allowed -= 1;
            self.0.settle(place);
        });
    }
}

/// Who asks: what is known of one request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) guest: Arc<Guest>,
    /// What happens on its connection.
    pub(crate) pulse: Arc<Pulse>,
    /// Whether this request is signed by somebody with a key.
    signed: Arc<AtomicBool>,
}

impl Caller {
    pub(crate) fn new(guest: &Arc<Guest>, pulse: &Arc<Pulse>) -> Self {
        Self { guest: Arc::clone(guest), pulse: Arc::clone(pulse), signed: Arc::default() }
    }

    pub(crate) fn is_signed(&self) -> bool {
        self.signed.load(Ordering::SeqCst)
    }

    /// The signature is good.
    pub(crate) fn sign(&self) {
        self.signed.store(true, Ordering::SeqCst);
        self.guest.know();
    }

    /// It needs no signature.
    pub(crate) fn allow(&self) -> Arc<Allowed> {
        self.guest.with(|place| {
            place.allowed += 1;
            self.guest.settle(place);
        });
        Arc::new(Allowed(Arc::clone(&self.guest)))
    }
}

/// What counts as one address: of IPv6 a network, in which one host has as many as it likes.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    async fn leaves(guest: &Guest) -> bool {
        tokio::time::timeout(Duration::from_millis(1), guest.has_to_leave()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn of_one_address_the_stranger_that_came_first_gives_way() {
        let lobby = Arc::new(Lobby::default());
        let other = Guest::enter(&lobby, at("10.0.0.2"));
        let known = Guest::enter(&lobby, at("10.0.0.1"));
        let pulse = Pulse::new(std::time::Instant::now());
        Caller::new(&known, &pulse).sign();
        let allowed = Guest::enter(&lobby, at("10.0.0.1"));
        let work = Caller::new(&allowed, &pulse).allow();
        let mut crowd: Vec<_> = (0..OF_ONE + 9).map(|_| Guest::enter(&lobby, at("10.0.0.1"))).collect();
        assert!(!leaves(&crowd[0]).await, "they came just now");
        crowd.drain(1..10);
        tokio::time::sleep(JUST_NOW).await;
        crowd.push(Guest::enter(&lobby, at("10.0.0.1")));
        assert!(leaves(&crowd[0]).await && !leaves(&crowd[1]).await);
        assert!(!leaves(&other).await && !leaves(&known).await && !leaves(&allowed).await);
        assert_eq!(lobby.len(), OF_ONE + 1);
        // It is a stranger again, the newest.
        drop(work);
        assert!(leaves(&crowd[1]).await && !leaves(&allowed).await);
        drop(crowd);
        assert_eq!(lobby.len(), 2);
        assert_eq!(lobby.refusals.counts().next(), Some(("gave_way", 2)));
    }

    #[tokio::test(start_paused = true)]
    async fn of_all_addresses_the_most_crowded_gives_way() {
        let lobby = Arc::new(Lobby::default());
        let one = Guest::enter(&lobby, at("2001:db8::1"));
        let two = Guest::enter(&lobby, at("2001:db8::2"));
        let others: Vec<_> = (2..OF_ALL).map(|n| Guest::enter(&lobby, IpAddr::V4((n as u32).into()))).collect();
        assert!(!leaves(&one).await && lobby.is_full_for().is_some());
        tokio::time::sleep(CHANCE).await;
        assert!(lobby.is_full_for().is_none());
        let last = Guest::enter(&lobby, at("10.0.0.1"));
        assert!(leaves(&one).await && !leaves(&two).await && !leaves(&last).await && !leaves(&others[0]).await);
    }

    #[test]
    fn an_address_has_a_budget_of_refused_bytes() {
        let lobby = Arc::new(Lobby::default());
        let (one, two) = (Guest::enter(&lobby, at("10.0.0.1")), Guest::enter(&lobby, at("10.0.0.1")));
        assert!(one.reads(BYTES - 1) && two.reads(1) && !one.reads(1) && !two.reads(0));
        assert!(Guest::enter(&lobby, at("10.0.0.2")).reads(1));
    }

    #[test]
    fn every_reason_has_its_name() {
        assert!(Why::ALL.iter().enumerate().all(|(n, (why, _))| *why as usize == n));
    }
}
