//! A switch that stops to carry multicast, and begins again; leaders that die.

use protocol::config::Config;
use protocol::id::{ChunkId, Epoch, NodeId};
use protocol::initiator::{ChunkPut, Event, Initiator, Request};
use protocol::machine::{Body, Destination, Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::redundancy::Wanted;
use protocol::time::{Instant, Span};
use protocol::transport::Transport;
use protocol::wire::{Ack, Answer, Bid, Direction, Grant, GrantedWindow, Leading, Message, decode_message};

use crate::common::{CLUSTER, INITIATOR, arriving, at, from};

/// Questions in a row that nobody heard, before all goes by unicast.
const UNHEARD: usize = 3;
const LOOK: Span = Span::from_secs(2);

/// An initiator among nine targets, of which each says what a script says, on a switch.
struct Net {
    map: ClusterMap,
    initiator: Initiator,
    now: Instant,
    carried: bool,
    /// Who is frozen.
    frozen: Vec<NodeId>,
    /// Whether leaders can grant nothing, and who was asked to.
    leaders_refuse: bool,
    leaders: Vec<NodeId>,
    /// What came of the inputs so far.
    events: Vec<Event>,
    multicasts: Vec<&'static str>,
    unicasts: Vec<&'static str>,
}

impl Net {
    fn new(config: Config) -> Self {
        let entry = |n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 };
        let map = ClusterMap::new(CLUSTER, Epoch(1), 3, 3, (1..=9).map(entry).collect()).expect("a good map");
        let initiator = Initiator::new(INITIATOR, map.clone(), config, 1);
        let (events, multicasts, unicasts, frozen) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (carried, leaders_refuse, leaders) = (true, false, Vec::new());
        let now = at(1);
        Self { map, initiator, now, carried, frozen, leaders_refuse, leaders, events, multicasts, unicasts }
    }

    /// Chunks are there already, or granted without the members knowing.
    fn answer(&self, to: NodeId, message: &Message) -> Option<Message> {
        Some(match message {
            Message::PutRequest(put) => Message::Bid(Bid { txn: put.txn, round: put.round, answer: Answer::HaveIt }),
            Message::GetRequest { txn, round, .. } => {
                Message::Bid(Bid { txn: *txn, round: *round, answer: Answer::NotHere })
            }
            Message::Ping { txn } => Message::Pong { txn: *txn, free: 1, chunks: 1 },
            Message::Probe { txn, .. } => Message::Ack { txn: *txn, ack: Ack::Unknown },
            Message::Leading(Leading::Request(request)) if self.leaders_refuse => {
                let (txn, round) = (request.txn, request.round);
                Message::Bid(Bid { txn, round, answer: Answer::Busy(Span::ZERO) })
            }
            Message::Leading(Leading::Request(request)) => {
                let span = Span::from_millis(1);
                let turn = |n| GrantedWindow { target: NodeId(n), start: span, done: span.times(3) };
                Message::Leading(Leading::Grant(Grant {
                    initiator: INITIATOR,
                    txn: request.txn,
                    round: request.round,
                    id: request.id,
                    size: request.size,
                    group: request.group,
                    term: 1,
                    direction: Direction::Put(Wanted::BY_MAP),
                    transfer: span,
                    rate: 1_000_000,
                    windows: (to.0 + 1..=to.0 + 3).map(turn).collect(),
                }))
            }
            _ => return None,
        })
    }

    /// One input, and all that is said at once; when it wants to be woken.
    fn input(&mut self, input: Input<Request>) -> Instant {
        let mut inputs = vec![input];
        let mut deadline = Instant::FAR;
        while let Some(input) = inputs.pop() {
            self.initiator.handle_input(self.now, input);
            loop {
                match self.initiator.poll_output() {
                    Output::Transmit(transmit) => {
                        let Body::Control(bytes) = transmit.body else { continue };
                        let (_, message) = decode_message(&bytes).expect("what is sent can be decoded");
                        let to: Vec<NodeId> = match transmit.to {
                            Destination::Node(node) => {
                                self.unicasts.push(message.name());
                                let leads = matches!(message, Message::Leading(Leading::Request(_)));
                                self.leaders.extend(leads.then_some(node));
                                vec![node]
                            }
                            Destination::Members(set) => {
                                self.multicasts.push(message.name());
                                if self.carried { self.map.resolve(set).collect() } else { Vec::new() }
                            }
                        };
                        for node in to.into_iter().filter(|node| !self.frozen.contains(node)) {
                            let answer = self.answer(node, &message);
                            inputs.extend(answer.map(|answer| arriving(from(node, &answer))));
                        }
                    }
                    Output::Event(event @ (Event::Multicast { .. } | Event::Put { .. } | Event::Get { .. })) => {
                        self.events.push(event);
                    }
                    Output::Idle(next) => {
                        deadline = next.map_or(Instant::FAR, |next| next.at);
                        break;
                    }
                    _ => {}
                }
            }
        }
        deadline
    }

    /// Lets a request end; how many questions it asked by multicast.
    fn request(&mut self, request: Request) -> usize {
        self.multicasts.clear();
        self.unicasts.clear();
        self.leaders.clear();
        let mut deadline = self.input(Input::Request(request));
        while self.initiator.in_progress() > 0 {
            self.now = self.now.max(deadline);
            deadline = self.input(Input::Wake);
        }
        self.multicasts.iter().filter(|name| **name != "ping").count()
    }

    fn put(&mut self) -> usize {
        let payload = vec![1; 100];
        let id = ChunkId::of_payload(&payload);
        self.request(Request::Put { handle: 1, put: ChunkPut::new(id, payload.into()) })
    }

    fn get(&mut self) -> usize {
        self.request(Request::Get { handle: 2, id: ChunkId::of_payload(b"nowhere"), holders: vec![], fragments: None })
    }

    /// What was said of multicast since the last look.
    fn sent(&mut self) -> Vec<bool> {
        let works = |event| match event {
            Event::Multicast { works } => Some(works),
            _ => None,
        };
        core::mem::take(&mut self.events).into_iter().filter_map(works).collect()
    }

    /// Time passes.
    fn rest(&mut self, span: Span) {
        self.now += span;
        self.input(Input::Wake);
    }
}

#[test]
fn a_switch_that_drops_multicast_is_noticed_and_looked_at_until_it_carries_it_again() {
    let mut net = Net::new(Config::default());
    assert!(net.put() > 0 && net.get() > 0);
    net.carried = false;
    for n in 0..UNHEARD {
        assert_eq!(net.sent(), [], "after {n}");
        let asked = if n % 2 == 0 { net.put() } else { net.get() };
        assert_eq!(asked, 1, "it is asked by multicast, and then by unicast: {:?}", net.unicasts);
    }
    assert_eq!(net.sent(), [false]);
    for _ in 0..20 {
        assert_eq!((net.put(), net.get()), (0, 0));
    }
    net.rest(LOOK);
    assert!(net.multicasts.contains(&"ping"));
    assert_eq!((net.put(), net.sent()), (0, vec![]));
    net.carried = true;
    net.rest(LOOK);
    assert_eq!(net.sent(), [true]);
    assert!(net.put() > 0 && net.get() > 0);
    net.rest(LOOK.times(10));
    assert!(!net.multicasts.contains(&"ping"), "nothing is left to look for");
}

#[test]
fn an_initiator_that_began_without_multicast_uses_it_when_it_works() {
    let mut net = Net::new(Config::default());
    net.initiator = Initiator::new(INITIATOR, net.map.clone(), Config::default(), 1).with_multicast(false);
    net.carried = false;
    assert_eq!((net.put(), net.get()), (0, 0));
    net.carried = true;
    net.rest(LOOK);
    assert_eq!(net.sent(), [true]);
    assert_eq!(net.put(), 1);
    // Where it is not to be used, nobody looks.
    let mut net = Net::new(Config { multicast: false, ..Config::default() });
    assert_eq!((net.put(), net.get()), (0, 0));
    net.rest(LOOK);
    assert_eq!(net.multicasts, [""; 0]);
}

/// All that is heard of them is silence, by whatever way.
#[test]
fn targets_that_are_gone_say_nothing_of_multicast() {
    let mut net = Net::new(Config::default());
    net.put();
    for _ in 0..10 {
        // Nobody answers at first; then others answer than were asked.
        net.frozen = net.map.targets().map(|target| target.id).collect();
        net.multicasts.clear();
        let payload = vec![2; 100];
        let id = ChunkId::of_payload(&payload);
        let mut deadline =
            net.input(Input::Request(Request::Put { handle: 1, put: ChunkPut::new(id, payload.into()) }));
        for _ in 0..3 {
            net.now = net.now.max(deadline);
            deadline = net.input(Input::Wake);
        }
        net.frozen.clear();
        while net.initiator.in_progress() > 0 {
            net.now = net.now.max(deadline);
            deadline = net.input(Input::Wake);
        }
        assert!(net.put() > 0, "they heard this one");
    }
    assert_eq!(net.sent(), []);
}

#[test]
fn members_that_heard_no_grant_are_asked_directly_and_leaders_no_more() {
    let mut net = Net::new(Config { transport: Transport::LEADER, ..Config::default() });
    net.carried = false;
    for _ in 0..UNHEARD {
        assert_eq!(net.sent(), []);
        net.put();
        let requests = net.unicasts.iter().filter(|name| **name == "lead-request").count();
        assert_eq!(requests, 1, "one round of the leader is enough: {:?}", net.unicasts);
    }
    assert_eq!(net.sent(), [false]);
    net.put();
    assert!(net.unicasts.iter().all(|name| *name == "put-request"), "{:?}", net.unicasts);
    net.carried = true;
    net.rest(LOOK);
    assert_eq!(net.sent(), [true]);
    net.put();
    assert!(net.unicasts.contains(&"lead-request"));
}

#[test]
fn a_dead_leader_is_waited_for_twice_and_then_the_next_one_is_asked() {
    let mut net = Net::new(Config { transport: Transport::LEADER, ..Config::default() });
    net.leaders_refuse = true;
    net.put();
    assert_eq!(net.leaders, [NodeId(1)]);
    net.frozen = vec![NodeId(1)];
    for _ in 0..2 {
        let before = net.now;
        net.put();
        assert_eq!(net.leaders, [NodeId(1)]);
        assert!(net.now > before, "nobody says that it is dead");
    }
    for _ in 0..20 {
        let before = net.now;
        net.put();
        assert_eq!((&net.leaders[..], net.now), (&[NodeId(2)][..], before), "nothing is waited for");
    }
    // The group is asked when its leader refuses: so the dead one is heard when it is back.
    net.frozen.clear();
    net.put();
    net.put();
    assert_eq!(net.leaders, [NodeId(1)]);
}
