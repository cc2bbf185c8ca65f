//! Admission of connections. A connection is a stranger's until a request on it is signed by a user, or is allowed without a
//! signature.
//!
//! Every connection is accepted at once. When one address, or all together, have too many strangers, the oldest is evicted:
//! a user is recognised with the head of the first request, so strangers that send nothing keep nobody out.
//!
//! Rates are limited per address ([`Cost`]), so no address waits because of another. Authenticated connections cost
//! nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::activity::Activity;
use super::refusals::{Reason, Refusals};

/// Strangers of one address, not counting those younger than [`GRACE_PER_ADDRESS`].
const PER_ADDRESS: usize = 64;
/// Strangers this young are not evicted for their address: many clients behind one proxy may connect at once.
const GRACE_PER_ADDRESS: Duration = Duration::from_secs(1);
/// Strangers this young are not evicted while there are fewer than [`HARD_LIMIT`]: time to send a head.
const GRACE: Duration = Duration::from_millis(250);
/// Strangers of all addresses, not counting those younger than [`GRACE`].
const SOFT_LIMIT: usize = 512;
/// Strangers of all addresses, of any age.
pub(crate) const HARD_LIMIT: usize = 1_536;
/// Strangers that are evicted for one new connection at most, so that a burst is not evicted in a burst.
const EVICTIONS: usize = 2;
/// Addresses that are remembered. When there are more, those without strangers are forgotten, and their budgets start
/// anew.
const ADDRESSES: usize = 4_096;
/// The debt that an address may have before its connections wait.
const CREDIT: Duration = Duration::from_secs(1);
/// The longest that a connection waits. One that would wait longer is closed.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Refused requests after which a connection is closed.
const MAX_REFUSALS: usize = 100;
/// Requests without a claimed signature that are checked at once, so that signed ones do not wait behind many.
const CONCURRENT_CHECKS: usize = 2;
/// Bytes of refused bodies that are read and dropped for one address in a [`DRAIN_PERIOD`].
const DRAIN_BYTES: u64 = 16 << 20;
/// The period of that budget.
const DRAIN_PERIOD: Duration = Duration::from_secs(10);
/// Forms that are checked on one connection at once.
const FORMS: usize = 4;
/// How long a stranger may take for a request that is allowed.
pub(crate) const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// What an address pays for with time, unless it is signed: each adds to a debt, which time pays off.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    /// A plain connection.
    Plain,
    /// A TLS connection.
    Encrypted,
    /// A refused request.
    Refusal,
}

impl Cost {
    /// The time that pays for one.
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

/// The strangers of one listener, what was refused to them, and the checkers of their requests.
#[derive(Debug)]
pub(crate) struct AdmissionControl {
    strangers: Mutex<Strangers>,
    pub(crate) refusals: Refusals,
    checks: Arc<Semaphore>,
}

impl Default for AdmissionControl {
    fn default() -> Self {
        Self {
            strangers: Mutex::default(),
            refusals: Refusals::default(),
            checks: Arc::new(Semaphore::new(CONCURRENT_CHECKS)),
        }
    }
}

#[derive(Debug, Default)]
struct Strangers {
    /// The number of the next stranger.
    next: u64,
    /// In the order of their arrival.
    all: BTreeMap<u64, Stranger>,
    addresses: HashMap<IpAddr, Address>,
}

#[derive(Debug)]
struct Stranger {
    from: IpAddr,
    since: Instant,
    /// Notified when it is evicted.
    leave: Arc<Notify>,
}

#[derive(Debug)]
struct Address {
    here: BTreeSet<u64>,
    /// Since when `read` counts.
    since: Instant,
    /// Bytes of refused bodies.
    read: u64,
    /// When the debt for connections is paid off.
    connections: Instant,
    /// When the debt for refused requests is paid off.
    requests: Instant,
}

impl Address {
    fn new(now: Instant) -> Self {
        Self { here: BTreeSet::new(), since: now, read: 0, connections: now, requests: now }
    }

    /// The account for this cost. Connections and requests have separate ones, so that refused requests do not delay new
    /// connections.
    fn account(&mut self, cost: Cost) -> &mut Instant {
        match cost {
            Cost::Plain | Cost::Encrypted => &mut self.connections,
            Cost::Refusal => &mut self.requests,
        }
    }

    /// Adds a debt, and says how long to wait; `None` when that is longer than [`MAX_WAIT`].
    fn charge(&mut self, cost: Cost, now: Instant) -> Option<Duration> {
        let account = self.account(cost);
        let paid = (*account).max(now) + cost.debt();
        let wait = paid.saturating_duration_since(now + CREDIT);
        if wait > MAX_WAIT {
            return None;
        }
        *account = paid;
        Some(wait)
    }
}

impl Strangers {
    /// Adds a stranger and evicts others when there are too many; its number.
    fn enter(&mut self, from: IpAddr, leave: &Arc<Notify>, refusals: &Refusals) -> u64 {
        let number = self.next;
        self.next += 1;
        self.all.insert(number, Stranger { from, since: Instant::now(), leave: Arc::clone(leave) });
        self.address(from).here.insert(number);
        while let Some(oldest) = self.too_old(from) {
            self.evict(Some(oldest), refusals);
        }
        for _ in 0..EVICTIONS {
            let Some((oldest, age)) = self.oldest_of_most().filter(|_| self.all.len() > SOFT_LIMIT) else { break };
            if age < GRACE && self.all.len() <= HARD_LIMIT {
                break;
            }
            self.evict(Some(oldest), refusals);
        }
        number
    }

    /// The oldest stranger of the address that has most, and its age.
    fn oldest_of_most(&self) -> Option<(u64, Duration)> {
        let crowded = |address: &&Address| (address.here.len(), address.here.first().copied().map(Reverse));
        let oldest = *self.addresses.values().max_by_key(crowded)?.here.first()?;
        Some((oldest, self.all.get(&oldest)?.since.elapsed()))
    }

    /// The oldest stranger of an address that has too many.
    fn too_old(&self, from: IpAddr) -> Option<u64> {
        let here = &self.addresses.get(&from)?.here;
        let oldest = here.first().filter(|_| here.len() > PER_ADDRESS)?;
        (self.all.get(oldest)?.since.elapsed() >= GRACE_PER_ADDRESS).then_some(*oldest)
    }

    fn address(&mut self, from: IpAddr) -> &mut Address {
        if self.addresses.len() >= ADDRESSES && !self.addresses.contains_key(&from) {
            self.addresses.retain(|_, address| !address.here.is_empty());
        }
        self.addresses.entry(from).or_insert_with(|| Address::new(Instant::now()))
    }

    fn evict(&mut self, number: Option<u64>, refusals: &Refusals) {
        if let Some(leave) = number.and_then(|number| self.leave(number)) {
            refusals.count(Reason::GaveWay);
            leave.notify_one();
        }
    }

    /// Removes one that is no stranger any more, or is gone.
    fn leave(&mut self, number: u64) -> Option<Arc<Notify>> {
        let stranger = self.all.remove(&number)?;
        if let Some(address) = self.addresses.get_mut(&stranger.from) {
            address.here.remove(&number);
        }
        Some(stranger.leave)
    }
}

impl AdmissionControl {
    fn with<T>(&self, work: impl FnOnce(&mut Strangers) -> T) -> T {
        work(&mut self.strangers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of strangers.
    pub(crate) fn len(&self) -> usize {
        self.with(|strangers| strangers.all.len())
    }
}

/// The client of a connection: a stranger at first.
#[derive(Debug)]
pub(crate) struct Client {
    control: Arc<AdmissionControl>,
    from: IpAddr,
    leave: Arc<Notify>,
    state: Mutex<ClientState>,
    /// Whether a user signed a request.
    known: AtomicBool,
    /// Permits to check forms.
    pub(crate) forms: Semaphore,
    /// Refused requests.
    refused: AtomicUsize,
}

/// What decides whether a client is a stranger.
#[derive(Debug, Default)]
struct ClientState {
    /// Its number among the strangers, while it is one.
    number: Option<u64>,
    /// Requests in work that are allowed without a signature.
    allowed: usize,
    /// What its address pays for it. It is paid back when the client is no stranger any more.
    cost: Option<Cost>,
}

impl Client {
    /// A new connection, and how long it waits before it is served; `None` when it is closed at once.
    pub(crate) fn enter(control: &Arc<AdmissionControl>, address: IpAddr, cost: Cost) -> Option<(Arc<Self>, Duration)> {
        let from = network(address);
        let Some(wait) = control.with(|strangers| strangers.address(from).charge(cost, Instant::now())) else {
            control.refusals.count(Reason::TooMany);
            return None;
        };
        let client = Self {
            control: Arc::clone(control),
            from,
            leave: Arc::default(),
            state: Mutex::new(ClientState { cost: Some(cost), ..ClientState::default() }),
            known: AtomicBool::new(false),
            forms: Semaphore::new(FORMS),
            refused: AtomicUsize::new(0),
        };
        client.with(|state| client.update(state));
        Some((Arc::new(client), wait))
    }

    fn with<T>(&self, work: impl FnOnce(&mut ClientState) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds it to the strangers, or removes it, as its state says.
    fn update(&self, state: &mut ClientState) {
        let stranger = state.allowed == 0 && !self.is_authenticated();
        match (stranger, state.number) {
            (true, None) => {
                let enter = |strangers: &mut Strangers| strangers.enter(self.from, &self.leave, &self.control.refusals);
                state.number = Some(self.control.with(enter));
            }
            (false, Some(number)) => {
                state.number = None;
                let cost = state.cost.take();
                self.control.with(|strangers| {
                    strangers.leave(number);
                    if let Some(cost) = cost {
                        // What time has paid off already is not paid back.
                        let account = strangers.address(self.from).account(cost);
                        *account = account.checked_sub(cost.debt()).unwrap_or(*account);
                    }
                });
            }
            _ => {}
        }
    }

    /// Evicts it, unless it is authenticated.
    pub(crate) fn end(&self) {
        self.leave.notify_one();
    }

    /// Returns when it is evicted.
    pub(crate) async fn evicted(&self) {
        loop {
            self.leave.notified().await;
            // It may have been authenticated at this moment.
            if !self.is_authenticated() && self.with(|state| state.allowed == 0) {
                return;
            }
        }
    }

    pub(crate) fn is_authenticated(&self) -> bool {
        self.known.load(Ordering::SeqCst)
    }

    /// A request was signed by a user: it is no stranger from now on.
    fn authenticate(&self) {
        if !self.known.swap(true, Ordering::SeqCst) {
            self.with(|state| self.update(state));
        }
    }

    /// Counts bytes of a refused body, and says whether more of it may be read.
    pub(crate) fn may_drain(&self, bytes: u64) -> bool {
        self.control.with(|strangers| {
            let address = strangers.address(self.from);
            if address.since.elapsed() > DRAIN_PERIOD {
                (address.since, address.read) = (Instant::now(), 0);
            }
            address.read = address.read.saturating_add(bytes);
            address.read <= DRAIN_BYTES
        })
    }

    /// A request was refused. The answer to a stranger waits when its address is refused too often. Says whether the
    /// connection stays open.
    pub(crate) async fn refused(&self) -> bool {
        if self.is_authenticated() {
            return true;
        }
        let wait = self.control.with(|strangers| strangers.address(self.from).charge(Cost::Refusal, Instant::now()));
        tokio::time::sleep(wait.unwrap_or(MAX_WAIT)).await;
        wait.is_some() && self.refused.fetch_add(1, Ordering::SeqCst) + 1 < MAX_REFUSALS
    }

    pub(crate) fn count(&self, why: Reason) {
        self.control.refusals.count(why);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(number) = self.with(|state| state.number.take()) {
            self.control.with(|strangers| strangers.leave(number));
        }
    }
}

/// While this exists, a request that is allowed is in work, and its client is not evicted.
#[derive(Debug)]
pub(crate) struct Allowed(Arc<Client>);

impl Drop for Allowed {
    fn drop(&mut self) {
        self.0.with(|state| {
            state.allowed -= 1;
            self.0.update(state);
        });
    }
}

/// The admission of one request: its connection, and whether it is signed or allowed.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    pub(crate) client: Arc<Client>,
    /// The traffic of its connection.
    pub(crate) activity: Arc<Activity>,
    /// Of this request.
    request: Arc<RequestState>,
}

#[derive(Debug, Default)]
struct RequestState {
    /// It is signed by a user.
    signed: AtomicBool,
    /// It is allowed without a signature.
    allowed: AtomicBool,
    /// Held while it is checked.
    check: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Admission {
    pub(crate) fn new(client: &Arc<Client>, activity: &Arc<Activity>) -> Self {
        Self { client: Arc::clone(client), activity: Arc::clone(activity), request: Arc::default() }
    }

    pub(crate) fn is_signed(&self) -> bool {
        self.request.signed.load(Ordering::SeqCst)
    }

    /// Whether it is allowed, as far as is known yet.
    pub(crate) fn is_allowed(&self) -> bool {
        self.is_signed() || self.request.allowed.load(Ordering::SeqCst)
    }

    /// Waits for its turn to be checked.
    pub(crate) async fn begin_check(&self) {
        let check = Arc::clone(&self.client.control.checks).acquire_owned().await.ok();
        *self.request.check.lock().unwrap_or_else(PoisonError::into_inner) = check;
    }

    /// It is checked, or waits for its client: others may be checked.
    pub(crate) fn end_check(&self) {
        self.request.check.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The signature is good.
    pub(crate) fn sign(&self) {
        self.request.signed.store(true, Ordering::SeqCst);
        self.end_check();
        self.client.authenticate();
    }

    /// It needs no signature.
    pub(crate) fn allow(&self) -> Arc<Allowed> {
        self.request.allowed.store(true, Ordering::SeqCst);
        self.end_check();
        self.client.with(|state| {
            state.allowed += 1;
            self.client.update(state);
        });
        Arc::new(Allowed(Arc::clone(&self.client)))
    }
}

/// What counts as one address: of IPv6 the network of 64 bits, in which a host chooses its addresses.
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

    async fn leaves(client: &Client) -> bool {
        tokio::time::timeout(Duration::from_millis(1), client.evicted()).await.is_ok()
    }

    fn enter(control: &Arc<AdmissionControl>, address: IpAddr) -> Arc<Client> {
        Client::enter(control, address, Cost::Plain).unwrap().0
    }

    #[tokio::test(start_paused = true)]
    async fn of_one_address_the_stranger_that_came_first_gives_way() {
        let control = Arc::new(AdmissionControl::default());
        let other = enter(&control, at("10.0.0.2"));
        let known = enter(&control, at("10.0.0.1"));
        let activity = Activity::new(std::time::Instant::now());
        Admission::new(&known, &activity).sign();
        let allowed = enter(&control, at("10.0.0.1"));
        let work = Admission::new(&allowed, &activity).allow();
        let mut crowd: Vec<_> = (0..PER_ADDRESS + 9).map(|_| enter(&control, at("10.0.0.1"))).collect();
        assert!(!leaves(&crowd[0]).await, "they came just now");
        crowd.drain(1..10);
        tokio::time::sleep(GRACE_PER_ADDRESS).await;
        crowd.push(enter(&control, at("10.0.0.1")));
        assert!(leaves(&crowd[0]).await && !leaves(&crowd[1]).await);
        assert!(!leaves(&other).await && !leaves(&known).await && !leaves(&allowed).await);
        assert_eq!(control.len(), PER_ADDRESS + 1);
        // It is a stranger again, the newest.
        drop(work);
        assert!(leaves(&crowd[1]).await && !leaves(&allowed).await);
        drop(crowd);
        assert_eq!(control.len(), 2);
        assert_eq!(control.refusals.counts().next(), Some(("gave_way", 2)));
    }

    #[tokio::test(start_paused = true)]
    async fn of_all_addresses_the_most_crowded_gives_way() {
        let control = Arc::new(AdmissionControl::default());
        let one = enter(&control, at("2001:db8::1"));
        let _two = enter(&control, at("2001:db8::2"));
        let mut others: Vec<_> = (2..SOFT_LIMIT).map(|n| enter(&control, IpAddr::V4((n as u32).into()))).collect();
        let last = enter(&control, at("10.0.0.1"));
        assert!(!leaves(&one).await && control.len() == SOFT_LIMIT + 1, "all have their chance");
        tokio::time::sleep(GRACE).await;
        let next = enter(&control, at("10.0.0.2"));
        assert!(leaves(&one).await && !leaves(&last).await && !leaves(&next).await);
        assert_eq!(control.len(), SOFT_LIMIT, "of addresses with as many the one that came first");
        // So many that nobody has a chance.
        others.extend((0..HARD_LIMIT).map(|_| enter(&control, at("10.0.0.3"))));
        assert!(control.len() <= HARD_LIMIT && !leaves(&last).await && !leaves(&next).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_whose_connections_come_too_fast_waits_alone_and_who_signs_owes_nothing() {
        let control = Arc::new(AdmissionControl::default());
        let come = |address| Client::enter(&control, at(address), Cost::Encrypted);
        let activity = Activity::new(std::time::Instant::now());
        for _ in 0..10_000 {
            let (client, wait) = come("10.0.0.1").unwrap();
            assert!(wait.is_zero());
            Admission::new(&client, &activity).sign();
        }
        let waits: Vec<_> = std::iter::from_fn(|| come("10.0.0.1")).map(|(_, wait)| wait).take(9_999).collect();
        assert_eq!(waits.len(), 2_000, "as many as are paid in the time of credit and of waiting");
        assert!(
            waits[999].is_zero() && !waits[1_000].is_zero() && waits.is_sorted() && *waits.last().unwrap() == MAX_WAIT
        );
        assert_eq!(control.refusals.counts().nth(1), Some(("too_many", 1)));
        assert!(come("10.0.0.2").unwrap().1.is_zero());
        tokio::time::sleep(CREDIT + MAX_WAIT).await;
        assert!(come("10.0.0.1").unwrap().1.is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn refused_requests_wait_and_end_a_connection_but_not_that_of_somebody_with_a_key() {
        let control = Arc::new(AdmissionControl::default());
        let begin = Instant::now();
        for _ in 0..20 {
            let client = enter(&control, at("10.0.0.1"));
            for n in 1..=MAX_REFUSALS {
                assert_eq!(client.refused().await, n < MAX_REFUSALS);
            }
        }
        let took = begin.elapsed();
        assert!((990..1_200).contains(&took.as_millis()), "the second thousand takes a second: {took:?}");
        let (client, wait) = Client::enter(&control, at("10.0.0.1"), Cost::Plain).unwrap();
        assert!(wait.is_zero(), "newcomers do not wait for what was refused to others");
        Admission::new(&client, &Activity::new(std::time::Instant::now())).sign();
        let begin = Instant::now();
        for _ in 0..10 * MAX_REFUSALS {
            assert!(client.refused().await);
        }
        assert_eq!(begin, Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn few_requests_that_nobody_claims_to_have_signed_are_judged_at_once() {
        let control = Arc::new(AdmissionControl::default());
        let activity = Activity::new(std::time::Instant::now());
        let ask = || Admission::new(&enter(&control, at("10.0.0.1")), &activity);
        let queue = async |admission: &Admission| tokio::time::timeout(GRACE, admission.begin_check()).await.is_ok();
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
        let control = Arc::new(AdmissionControl::default());
        let (one, two) = (enter(&control, at("10.0.0.1")), enter(&control, at("10.0.0.1")));
        assert!(one.may_drain(DRAIN_BYTES - 1) && two.may_drain(1) && !one.may_drain(1) && !two.may_drain(0));
        assert!(enter(&control, at("10.0.0.2")).may_drain(1));
    }
}
