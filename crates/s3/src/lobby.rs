//! Strangers: connections on which nobody has shown yet that they may ask for anything. Whoever comes is let in at once, and
//! when there are too many of one address, or of all, the one that has waited longest gives way: who signs is known after
//! its first head, and strangers that wait for nothing keep nobody out.
//!
//! Nobody waits for strangers of another address. An address whose connections come faster than [`Cost`] allows waits for
//! itself; whoever signs takes nothing of that.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::pulse::Pulse;
use crate::refusals::{Refusals, Why};

/// Strangers of one address, beside those that came just now.
const OF_ONE: usize = 64;
/// How long a stranger has come just now: many clients behind one proxy may come at once.
const JUST_NOW: Duration = Duration::from_secs(1);
/// How long nobody has to give way while there are fewer than [`MOST`]: time for a head that was sent at once.
const CHANCE: Duration = Duration::from_millis(250);
/// Strangers of all addresses, beside those that have their chance.
const OF_ALL: usize = 512;
/// Strangers of all addresses, whatever chance they had.
pub(crate) const MOST: usize = 1_536;
/// How many that had their chance go for one that comes: who came in a throng does not go in one.
const AT_ONCE: usize = 2;
/// Addresses that are remembered; of those that have no stranger here the budgets begin anew when there are more.
const ADDRESSES: usize = 4_096;
/// What an address may owe before it waits.
const CREDIT: Duration = Duration::from_secs(1);
/// How long one of them waits; who would wait longer is not let in.
const LONGEST: Duration = Duration::from_secs(1);
/// Requests that are refused on a connection before it is ended.
const REFUSED: usize = 100;
/// Requests that nobody claims to have signed which are judged at once: those of others do not stand behind many.
const JUDGED: usize = 2;
/// Bytes of refused bodies that are read to nowhere for one address in a [`PERIOD`].
const BYTES: u64 = 16 << 20;
/// How long a budget of bytes lasts.
const PERIOD: Duration = Duration::from_secs(10);
/// Forms of strangers that are looked at on one connection at once.
const FORMS: usize = 4;
/// How long a stranger may take to ask for something that it may.
pub(crate) const GREETING: Duration = Duration::from_secs(20);

/// What an address owes for what is not signed. Debts go by themselves as time goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    /// A connection.
    Plain,
    /// One that has to be encrypted.
    Encrypted,
    /// A refused request.
    Refusal,
}

impl Cost {
    /// So many of them in a second are paid for by its end.
    const fn debt(self) -> Duration {
        Duration::from_micros(
            1_000_000
                / match self {
                    Self::Plain => 4_000,
                    Self::Encrypted | Self::Refusal => 1_000,
                },
        )
    }
}

/// The strangers.
#[derive(Debug)]
pub(crate) struct Lobby {
    strangers: Mutex<Strangers>,
    pub(crate) refusals: Refusals,
    judges: Arc<Semaphore>,
}

impl Default for Lobby {
    fn default() -> Self {
        Self { strangers: Mutex::default(), refusals: Refusals::default(), judges: Arc::new(Semaphore::new(JUDGED)) }
    }
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
    /// When what it owes for connections is paid.
    connections: Instant,
    /// When what it owes for refused requests is paid.
    requests: Instant,
}

impl Address {
    fn new(now: Instant) -> Self {
        Self { here: BTreeSet::new(), since: now, read: 0, connections: now, requests: now }
    }

    /// What is owed for this: connections and requests each have their account, so that refused requests keep no newcomer
    /// waiting.
    fn account(&mut self, cost: Cost) -> &mut Instant {
        match cost {
            Cost::Plain | Cost::Encrypted => &mut self.connections,
            Cost::Refusal => &mut self.requests,
        }
    }

    /// Owes for one more, which has to wait so long.
    fn charge(&mut self, cost: Cost, now: Instant) -> Option<Duration> {
        let account = self.account(cost);
        let paid = (*account).max(now) + cost.debt();
        let wait = paid.saturating_duration_since(now + CREDIT);
        if wait > LONGEST {
            return None;
        }
        *account = paid;
        Some(wait)
    }
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
        for _ in 0..AT_ONCE {
            let Some((oldest, age)) = self.oldest_of_most().filter(|_| self.all.len() > OF_ALL) else { break };
            if age < CHANCE && self.all.len() <= MOST {
                break;
            }
            self.send_away(Some(oldest), refusals);
        }
        number
    }

    /// The one that came first of the most crowded address, and how long ago.
    fn oldest_of_most(&self) -> Option<(u64, Duration)> {
        let crowded = |address: &&Address| (address.here.len(), address.here.first().copied().map(Reverse));
        let oldest = *self.addresses.values().max_by_key(crowded)?.here.first()?;
        Some((oldest, self.all.get(&oldest)?.since.elapsed()))
    }

    /// Who has to leave an address that has too many.
    fn too_old(&self, from: IpAddr) -> Option<u64> {
        let here = &self.addresses.get(&from)?.here;
        let oldest = here.first().filter(|_| here.len() > OF_ONE)?;
        (self.all.get(oldest)?.since.elapsed() >= JUST_NOW).then_some(*oldest)
    }

    fn address(&mut self, from: IpAddr) -> &mut Address {
        if self.addresses.len() >= ADDRESSES && !self.addresses.contains_key(&from) {
            self.addresses.retain(|_, address| !address.here.is_empty());
        }
        self.addresses.entry(from).or_insert_with(|| Address::new(Instant::now()))
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
    /// Requests that were refused.
    refused: AtomicUsize,
}

/// Where a guest is.
#[derive(Debug, Default)]
struct Place {
    /// Its number among the strangers.
    number: Option<u64>,
    /// Requests in work which it may ask without a signature.
    allowed: usize,
    /// What its address owes for it, until it is no stranger.
    cost: Option<Cost>,
}

impl Guest {
    /// A stranger comes, and has to wait so long before anything of it is looked at; `None` when it may not come in.
    pub(crate) fn enter(lobby: &Arc<Lobby>, address: IpAddr, cost: Cost) -> Option<(Arc<Self>, Duration)> {
        let from = network(address);
        let Some(wait) = lobby.with(|strangers| strangers.address(from).charge(cost, Instant::now())) else {
            lobby.refusals.count(Why::TooMany);
            return None;
        };
        let guest = Self {
            lobby: Arc::clone(lobby),
            from,
            leave: Arc::default(),
            place: Mutex::new(Place { cost: Some(cost), ..Place::default() }),
            known: AtomicBool::new(false),
            forms: Semaphore::new(FORMS),
            refused: AtomicUsize::new(0),
        };
        guest.with(|place| guest.settle(place));
        Some((Arc::new(guest), wait))
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
                let cost = place.cost.take();
                self.lobby.with(|strangers| {
                    strangers.leave(number);
                    if let Some(cost) = cost {
                        // What is paid already stays paid.
                        let account = strangers.address(self.from).account(cost);
                        *account = account.checked_sub(cost.debt()).unwrap_or(*account);
                    }
                });
            }
            _ => {}
        }
    }

    /// It has to leave, unless somebody with a key has signed on it.
    pub(crate) fn end(&self) {
        self.leave.notify_one();
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

    /// A request was refused that nobody may ask. A stranger's answer waits when its address is refused too often; whether
    /// the connection may go on.
    pub(crate) async fn refused(&self) -> bool {
        if self.is_known() {
            return true;
        }
        let wait = self.lobby.with(|strangers| strangers.address(self.from).charge(Cost::Refusal, Instant::now()));
        tokio::time::sleep(wait.unwrap_or(LONGEST)).await;
        wait.is_some() && self.refused.fetch_add(1, Ordering::SeqCst) + 1 < REFUSED
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
    /// What is known of this request.
    asks: Arc<Asks>,
}

#[derive(Debug, Default)]
struct Asks {
    /// It is signed by somebody with a key.
    signed: AtomicBool,
    /// It may be asked, signed or not.
    allowed: AtomicBool,
    /// It is judged; others wait for that.
    judged: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Caller {
    pub(crate) fn new(guest: &Arc<Guest>, pulse: &Arc<Pulse>) -> Self {
        Self { guest: Arc::clone(guest), pulse: Arc::clone(pulse), asks: Arc::default() }
    }

    pub(crate) fn is_signed(&self) -> bool {
        self.asks.signed.load(Ordering::SeqCst)
    }

    /// Whether it may be asked, as far as is known yet.
    pub(crate) fn is_allowed(&self) -> bool {
        self.is_signed() || self.asks.allowed.load(Ordering::SeqCst)
    }

    /// Waits until it is judged.
    pub(crate) async fn queue(&self) {
        let judged = Arc::clone(&self.guest.lobby.judges).acquire_owned().await.ok();
        *self.asks.judged.lock().unwrap_or_else(PoisonError::into_inner) = judged;
    }

    /// It is judged, or what is waited for is the client.
    pub(crate) fn leave_queue(&self) {
        self.asks.judged.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The signature is good.
    pub(crate) fn sign(&self) {
        self.asks.signed.store(true, Ordering::SeqCst);
        self.leave_queue();
        self.guest.know();
    }

    /// It needs no signature.
    pub(crate) fn allow(&self) -> Arc<Allowed> {
        self.asks.allowed.store(true, Ordering::SeqCst);
        self.leave_queue();
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

    fn enter(lobby: &Arc<Lobby>, address: IpAddr) -> Arc<Guest> {
        Guest::enter(lobby, address, Cost::Plain).unwrap().0
    }

    #[tokio::test(start_paused = true)]
    async fn of_one_address_the_stranger_that_came_first_gives_way() {
        let lobby = Arc::new(Lobby::default());
        let other = enter(&lobby, at("10.0.0.2"));
        let known = enter(&lobby, at("10.0.0.1"));
        let pulse = Pulse::new(std::time::Instant::now());
        Caller::new(&known, &pulse).sign();
        let allowed = enter(&lobby, at("10.0.0.1"));
        let work = Caller::new(&allowed, &pulse).allow();
        let mut crowd: Vec<_> = (0..OF_ONE + 9).map(|_| enter(&lobby, at("10.0.0.1"))).collect();
        assert!(!leaves(&crowd[0]).await, "they came just now");
        crowd.drain(1..10);
        tokio::time::sleep(JUST_NOW).await;
        crowd.push(enter(&lobby, at("10.0.0.1")));
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
        let one = enter(&lobby, at("2001:db8::1"));
        let _two = enter(&lobby, at("2001:db8::2"));
        let mut others: Vec<_> = (2..OF_ALL).map(|n| enter(&lobby, IpAddr::V4((n as u32).into()))).collect();
        let last = enter(&lobby, at("10.0.0.1"));
        assert!(!leaves(&one).await && lobby.len() == OF_ALL + 1, "all have their chance");
        tokio::time::sleep(CHANCE).await;
        let next = enter(&lobby, at("10.0.0.2"));
        assert!(leaves(&one).await && !leaves(&last).await && !leaves(&next).await);
        assert_eq!(lobby.len(), OF_ALL, "of addresses with as many the one that came first");
        // So many that nobody has a chance.
        others.extend((0..MOST).map(|_| enter(&lobby, at("10.0.0.3"))));
        assert!(lobby.len() <= MOST && !leaves(&last).await && !leaves(&next).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_whose_connections_come_too_fast_waits_alone_and_who_signs_owes_nothing() {
        let lobby = Arc::new(Lobby::default());
        let come = |address| Guest::enter(&lobby, at(address), Cost::Encrypted);
        let pulse = Pulse::new(std::time::Instant::now());
        for _ in 0..10_000 {
            let (guest, wait) = come("10.0.0.1").unwrap();
            assert!(wait.is_zero());
            Caller::new(&guest, &pulse).sign();
        }
        let waits: Vec<_> = std::iter::from_fn(|| come("10.0.0.1")).map(|(_, wait)| wait).take(9_999).collect();
        assert_eq!(waits.len(), 2_000, "as many as are paid in the time of credit and of waiting");
        assert!(
            waits[999].is_zero() && !waits[1_000].is_zero() && waits.is_sorted() && *waits.last().unwrap() == LONGEST
        );
        assert_eq!(lobby.refusals.counts().nth(1), Some(("too_many", 1)));
        assert!(come("10.0.0.2").unwrap().1.is_zero());
        tokio::time::sleep(CREDIT + LONGEST).await;
        assert!(come("10.0.0.1").unwrap().1.is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn refused_requests_wait_and_end_a_connection_but_not_that_of_somebody_with_a_key() {
        let lobby = Arc::new(Lobby::default());
        let begin = Instant::now();
        for _ in 0..20 {
            let guest = enter(&lobby, at("10.0.0.1"));
            for n in 1..=REFUSED {
                assert_eq!(guest.refused().await, n < REFUSED);
            }
        }
        let took = begin.elapsed();
        assert!((990..1_200).contains(&took.as_millis()), "the second thousand takes a second: {took:?}");
        let (guest, wait) = Guest::enter(&lobby, at("10.0.0.1"), Cost::Plain).unwrap();
        assert!(wait.is_zero(), "newcomers do not wait for what was refused to others");
        Caller::new(&guest, &Pulse::new(std::time::Instant::now())).sign();
        let begin = Instant::now();
        for _ in 0..10 * REFUSED {
            assert!(guest.refused().await);
        }
        assert_eq!(begin, Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn few_requests_that_nobody_claims_to_have_signed_are_judged_at_once() {
        let lobby = Arc::new(Lobby::default());
        let pulse = Pulse::new(std::time::Instant::now());
        let ask = || Caller::new(&enter(&lobby, at("10.0.0.1")), &pulse);
        let queue = async |caller: &Caller| tokio::time::timeout(CHANCE, caller.queue()).await.is_ok();
        let (one, two, three, four) = (ask(), ask(), ask(), ask());
        assert!(queue(&one).await && queue(&two).await && !queue(&three).await);
        assert!(!one.is_allowed());
        let _allowed = one.allow();
        assert!(one.is_allowed() && !one.is_signed() && queue(&three).await && !queue(&four).await);
        // Whoever is gone keeps nobody waiting.
        drop(two);
        assert!(queue(&four).await);
    }

    #[test]
    fn an_address_has_a_budget_of_refused_bytes() {
        let lobby = Arc::new(Lobby::default());
        let (one, two) = (enter(&lobby, at("10.0.0.1")), enter(&lobby, at("10.0.0.1")));
        assert!(one.reads(BYTES - 1) && two.reads(1) && !one.reads(1) && !two.reads(0));
        assert!(enter(&lobby, at("10.0.0.2")).reads(1));
    }
}
