//! A simulated object store, and the world around it: clients that run one at a time, and a network that does to their
//! requests what networks do.
//!
//! Each client is a thread, and exactly one of them runs. When it waits for an answer or sleeps, the world decides by its
//! seed what happens next ([`World::wait`], `choose`): a request reaches the store, an answer its client, a time runs out.
//! No real time passes, and a run is a function of its seed.
//!
//! What goes wrong is decided for each request when it is sent (`fate`): its answer is lost before or after it was carried
//! out; it is carried out long after, when its client has given up and others have gone on; it is carried out twice; a
//! condition is reported as not met after it was; the store refuses for the moment; bytes of an answer are changed, cut, or
//! old; a listing is old. Keys in [`Faults::exact`] are read as they are: that is what is assumed of a store. A client
//! may crash at any request: from then on nothing reaches it, and what it sent may still be carried out. Clients of one
//! machine ([`World::on_one_machine`]) crash together; one may wait for another ([`World::park`], [`World::wake`]).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::rng::Rng;

pub mod chain;
mod objects;
pub mod volumes;

use objects::Objects;

/// On what storing an object depends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cond {
    /// Nothing.
    None,
    /// There is none of this key.
    Absent,
    /// It has this version.
    Version(u64),
}

/// What a client asks for.
#[derive(Clone, Debug)]
pub enum Request {
    /// An object, or a part of it.
    Get(String, Option<Range<u64>>),
    /// To store one.
    Put(String, Arc<Vec<u8>>, Cond),
    /// To delete one.
    Delete(String),
    /// The keys with a prefix, after another, so many.
    List(String, String, usize),
}

/// What it gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Bytes, and the version of the whole.
    Object(Vec<u8>, u64),
    /// The version of what was stored.
    Stored(u64),
    /// It is not there.
    Deleted,
    /// Keys, lengths, and when they were stored.
    Listed(Vec<(String, u64, Duration)>),
}

/// What it gets instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No such object.
    Absent,
    /// The condition is not met.
    Condition,
    /// Nobody knows.
    Unknown,
    /// Not now.
    Throttled,
    /// Not reached.
    Away,
    /// A part that there is not.
    Wrong,
    /// No answer in time.
    TimedOut,
}

/// How often what goes wrong: once in so many requests, 0: never.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Anything at all.
    pub any: u64,
    /// A client crashes.
    pub crash: u64,
    /// The keys whose contents are never old, changed or cut, below any prefix.
    pub exact: &'static [&'static str],
    /// Once in so many readings such a key is old after all, which no store may do.
    pub stale_exact: u64,
}

impl Faults {
    /// Everything works.
    pub const NONE: Faults = Faults { any: 0, crash: 0, exact: &["head"], stale_exact: 0 };
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Fine,
    /// Not carried out, and no answer.
    LostBefore,
    /// Carried out, and no answer.
    LostAfter,
    /// No answer, and carried out at some later time.
    Late,
    /// Carried out, and again later.
    Twice,
    /// Carried out, and reported as a condition that is not met.
    FalseCondition,
    /// Refused for the moment.
    Refused,
    /// Bytes are wrong.
    Damaged,
    /// Bytes, or a list, are old.
    Old,
}

struct Pending {
    id: u64,
    client: usize,
    request: Request,
    fate: Fate,
    /// How often it is still to be carried out.
    left: u32,
    answer: Option<Result<Reply, Failure>>,
    deadline: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    /// It may go on.
    Ready,
    /// For an answer.
    Answer(u64),
    Until(Duration),
    /// For another client.
    Parked,
    Ended,
}

struct Client {
    wait: Wait,
    /// Whose `dead` and `dead_time` are those of this client.
    machine: usize,
    /// Another client has called for it while it did not wait.
    called: bool,
    dead: bool,
    /// The time of a crashed one, which passes quickly.
    dead_time: Duration,
    rng: Rng,
    requests: u64,
}

struct Inner {
    rng: Rng,
    /// How often in a row a part of an object came wrong to a client: now and then bits change, and they do not always.
    damaged: BTreeMap<(usize, String, u64), u32>,
    objects: Objects,
    pending: Vec<Pending>,
    clients: Vec<Client>,
    running: Option<usize>,
    now: Duration,
    next_id: u64,
    faults: Faults,
    steps: u64,
    /// Is told of everything that is stored: key and bytes.
    watch: Option<Watch>,
}

type Watch = Box<dyn Fn(Duration, &str, &[u8]) + Send>;

/// See the module's text.
pub struct World {
    inner: Mutex<Inner>,
    turns: Vec<Condvar>,
    done: Condvar,
}

/// How often in a row an object comes wrong at most; whoever reads it asks once more than that.
const DAMAGED_MAX: u32 = 2;
/// Steps after which a run is taken for endless.
const STEPS_MAX: u64 = 1_000_000;

impl World {
    /// Nothing is stored, and none of the clients runs.
    pub fn new(seed: u64, clients: usize, faults: Faults) -> World {
        let mut rng = Rng::new(seed);
        let client = |machine, rng| Client {
            wait: Wait::Ended,
            machine,
            called: false,
            dead: false,
            dead_time: Duration::ZERO,
            rng,
            requests: 0,
        };
        let clients: Vec<Client> = (0..clients).map(|number| client(number, rng.fork())).collect();
        let turns = clients.iter().map(|_| Condvar::new()).collect();
        let inner = Inner {
            rng,
            damaged: BTreeMap::new(),
            objects: Objects::default(),
            pending: Vec::new(),
            clients,
            running: None,
            now: Duration::ZERO,
            next_id: 0,
            faults,
            steps: 0,
            watch: None,
        };
        World { inner: Mutex::new(inner), turns, done: Condvar::new() }
    }

    /// A client is on the machine of another one: they crash together, and come back together.
    pub fn on_one_machine(&self, client: usize, of: usize) {
        self.lock().clients[client].machine = of;
    }

    /// Calls `watch` with the store's time, each key that is stored, and its bytes, when that happens. It must ask nothing of the world.
    pub fn watch(&self, watch: impl Fn(Duration, &str, &[u8]) + Send + 'static) {
        self.lock().watch = Some(Box::new(watch));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a client on this thread, until `body` returns: first when it is its turn.
    pub fn run<T>(&self, client: usize, body: impl FnOnce() -> T) -> T {
        struct Leaves<'a>(&'a World, usize);
        impl Drop for Leaves<'_> {
            fn drop(&mut self) {
                let mut inner = self.0.lock();
                inner.clients[self.1].wait = Wait::Ended;
                self.0.pass_on(&mut inner);
            }
        }
        let mut inner = self.lock();
        while inner.running != Some(client) {
            inner = self.turns[client].wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        drop(inner);
        let _leaves = Leaves(self, client);
        body()
    }

    /// Lets some clients run, whose threads call [`World::run`], and waits until they have ended.
    pub fn start_and_wait(&self, clients: impl IntoIterator<Item = usize>, faults: Faults) {
        let mut inner = self.lock();
        inner.faults = faults;
        clients.into_iter().for_each(|client| inner.clients[client].wait = Wait::Ready);
        self.pass_on(&mut inner);
        while inner.running.is_some() {
            inner = self.done.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs a client while no other does.
    pub fn run_alone<T>(&self, client: usize, faults: Faults, body: impl FnOnce() -> T) -> T {
        let mut inner = self.lock();
        inner.faults = faults;
        inner.clients[client].wait = Wait::Ready;
        inner.machine(client).dead = false;
        inner.running = Some(client);
        drop(inner);
        self.run(client, body)
    }

    /// Gives the turn to whoever is chosen.
    fn pass_on(&self, inner: &mut Inner) {
        inner.running = inner.choose();
        match inner.running {
            Some(next) => self.turns[next].notify_one(),
            None => self.done.notify_all(),
        }
    }

    /// Waits for the turn.
    fn yield_turn<'a>(&'a self, mut inner: MutexGuard<'a, Inner>, client: usize) -> MutexGuard<'a, Inner> {
        self.pass_on(&mut inner);
        while inner.running != Some(client) {
            inner = self.turns[client].wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner
    }

    /// Sends a request.
    pub fn send(&self, client: usize, request: Request, deadline: Duration) -> u64 {
        let mut inner = self.lock();
        inner.next_id += 1;
        inner.clients[client].requests += 1;
        let crash = inner.faults.crash;
        if crash > 0 && inner.rng.one_in(crash) {
            inner.machine(client).dead = true;
        }
        let id = inner.next_id;
        if inner.is_dead(client) {
            return id;
        }
        let fate = inner.fate(client, &request);
        let left = match fate {
            Fate::LostBefore | Fate::Refused => 0,
            Fate::Twice => 2,
            _ => 1,
        };
        let answer = match fate {
            Fate::Refused => Some(Err(if inner.rng.one_in(2) { Failure::Throttled } else { Failure::Away })),
            // Half of what gets no answer is cut off, half is waited for in vain.
            Fate::Late | Fate::LostBefore if inner.rng.one_in(2) => Some(Err(Failure::Unknown)),
            _ => None,
        };
        inner.pending.push(Pending { id, client, request, fate, left, answer, deadline });
        id
    }

    /// Waits for the answer to a request.
    pub fn wait(&self, client: usize, id: u64) -> Result<Reply, Failure> {
        let mut inner = self.lock();
        if !inner.is_dead(client) {
            inner.clients[client].wait = Wait::Answer(id);
            inner = self.yield_turn(inner, client);
            inner.clients[client].wait = Wait::Ready;
        }
        if inner.is_dead(client) {
            return Err(Failure::Away);
        }
        let at = inner.pending.iter().position(|p| p.id == id);
        let Some(at) = at else { return Err(Failure::TimedOut) };
        let answer = inner.pending[at].answer.take().unwrap_or(Err(Failure::TimedOut));
        if inner.pending[at].left == 0 {
            inner.pending.swap_remove(at);
        }
        answer
    }

    /// The time.
    pub fn now(&self, client: usize) -> Duration {
        let mut inner = self.lock();
        if inner.is_dead(client) {
            // Whatever it waits for has run out.
            inner.machine(client).dead_time += Duration::from_secs(10_000);
            return inner.now + inner.machine(client).dead_time;
        }
        inner.now
    }

    /// The store's time: the same, for those who have crashed, too.
    pub fn store_now(&self) -> Duration {
        self.lock().now
    }

    /// Sleeps.
    pub fn sleep(&self, client: usize, time: Duration) {
        let mut inner = self.lock();
        if !inner.is_dead(client) {
            inner.clients[client].wait = Wait::Until(inner.now + time);
            inner = self.yield_turn(inner, client);
            inner.clients[client].wait = Wait::Ready;
        }
    }

    /// Lets others go on first, maybe; also when it has crashed.
    pub fn pass(&self, client: usize) {
        drop(self.yield_turn(self.lock(), client));
    }

    /// Waits until another client calls for it, or has called for it before; also when it has crashed.
    pub fn park(&self, client: usize) {
        let mut inner = self.lock();
        if !inner.clients[client].called {
            inner.clients[client].wait = Wait::Parked;
            inner = self.yield_turn(inner, client);
            inner.clients[client].wait = Wait::Ready;
        }
        inner.clients[client].called = false;
    }

    /// Calls for a client that waits for it, now or later.
    pub fn wake(&self, client: usize) {
        self.lock().clients[client].called = true;
    }

    /// Sixteen bytes that nobody else has.
    pub fn random(&self, client: usize) -> [u8; 16] {
        let mut out = [0; 16];
        self.lock().clients[client].rng.fill(&mut out);
        out
    }

    /// Whether it has crashed.
    pub fn is_dead(&self, client: usize) -> bool {
        self.lock().is_dead(client)
    }

    /// It crashes now.
    pub fn kill(&self, client: usize) {
        self.lock().machine(client).dead = true;
    }

    /// It crashes, if it has not, and comes back, when no other client of its machine does anything.
    pub fn restart(&self, client: usize) {
        let mut inner = self.lock();
        let machine = inner.clients[client].machine;
        inner.machine(client).dead = false;
        inner.machine(client).dead_time = Duration::ZERO;
        // Nobody waits for its answers any more.
        let Inner { pending, clients, .. } = &mut *inner;
        pending.retain_mut(|p| {
            let own = clients[p.client].machine == machine;
            if own {
                p.answer = Some(Err(Failure::Unknown));
            }
            !own || p.left > 0
        });
    }

    /// How many requests a client has sent.
    pub fn requests(&self, client: usize) -> u64 {
        self.lock().clients[client].requests
    }

    /// What is stored under a key.
    pub fn object(&self, key: &str) -> Option<Arc<Vec<u8>>> {
        self.lock().objects.get(key)
    }

    /// Everything that is stored: keys and bytes.
    pub fn stored(&self) -> BTreeMap<String, Arc<Vec<u8>>> {
        self.lock().objects.all()
    }
}

impl Inner {
    fn machine(&mut self, client: usize) -> &mut Client {
        let machine = self.clients[client].machine;
        &mut self.clients[machine]
    }

    fn is_dead(&self, client: usize) -> bool {
        self.clients[self.clients[client].machine].dead
    }

    /// What becomes of a request.
    fn fate(&mut self, client: usize, request: &Request) -> Fate {
        let exact = |key: &str| self.faults.exact.contains(&key.rsplit('/').next().unwrap_or(key));
        if let Request::Get(key, _) = request
            && exact(key)
            && self.faults.stale_exact > 0
            && self.rng.one_in(self.faults.stale_exact)
        {
            return Fate::Old;
        }
        if self.faults.any == 0 || !self.rng.one_in(self.faults.any) {
            return Fate::Fine;
        }
        let common = [Fate::LostBefore, Fate::LostAfter, Fate::Late, Fate::Refused];
        let own: &[Fate] = match request {
            Request::Get(key, _) if exact(key) => &[Fate::LostAfter],
            Request::Get(..) => &[Fate::Damaged, Fate::Old],
            Request::Put(_, _, Cond::None) => &[Fate::Twice],
            Request::Put(..) => &[Fate::Twice, Fate::FalseCondition],
            Request::Delete(_) => &[Fate::Twice],
            Request::List(..) => &[Fate::Old],
        };
        let at = self.rng.below((common.len() + own.len()) as u64) as usize;
        let fate = common.iter().chain(own).nth(at).copied().unwrap_or(Fate::Fine);
        let Request::Get(key, range) = request else { return fate };
        let part = (client, key.clone(), range.as_ref().map_or(0, |r| r.start));
        let in_a_row = self.damaged.entry(part).or_default();
        if fate != Fate::Damaged {
            // What brings no bytes is asked again, by somebody who does not count it.
            return fate;
        }
        *in_a_row = (*in_a_row + 1) % (DAMAGED_MAX + 1);
        if *in_a_row == 0 { Fate::Fine } else { fate }
    }

    /// Lets things happen until a client may go on; none: all have ended.
    fn choose(&mut self) -> Option<usize> {
        loop {
            self.steps += 1;
            assert!(self.steps < STEPS_MAX, "the run does not end");
            self.now += Duration::from_millis(1 + self.rng.below(20));
            let ready: Vec<usize> = (0..self.clients.len()).filter(|&c| self.may_go_on(c)).collect();
            let open: Vec<usize> = (0..self.pending.len()).filter(|&p| self.may_be_carried_out(p)).collect();
            let timed = self.next_time();
            if ready.is_empty() && open.is_empty() {
                let (time, client) = timed?;
                self.now = self.now.max(time);
                return Some(client);
            }
            // Now and then somebody is not heard of for long.
            if let Some((time, client)) = timed.filter(|_| self.faults.any > 0 && self.rng.one_in(40)) {
                self.now = self.now.max(time);
                return Some(client);
            }
            let n = self.rng.below((ready.len() + open.len()) as u64) as usize;
            match ready.get(n) {
                Some(client) => return Some(*client),
                None => self.carry_out(open[n - ready.len()]),
            }
        }
    }

    fn may_go_on(&self, client: usize) -> bool {
        match self.clients[client].wait {
            Wait::Ready => true,
            Wait::Parked => self.clients[client].called,
            // What it waits for does not come.
            Wait::Answer(_) | Wait::Until(_) if self.is_dead(client) => true,
            Wait::Answer(id) => self.pending.iter().any(|p| p.id == id && p.answer.is_some()),
            Wait::Until(time) => time <= self.now,
            Wait::Ended => false,
        }
    }

    fn may_be_carried_out(&mut self, at: usize) -> bool {
        let p = &self.pending[at];
        // What is late, or comes again, takes its time.
        let slow = p.fate == Fate::Late || (p.fate == Fate::Twice && p.left == 1);
        p.left > 0 && (!slow || self.rng.one_in(12))
    }

    /// Who waits for a time, and until when: the earliest.
    fn next_time(&self) -> Option<(Duration, usize)> {
        let times = self.clients.iter().enumerate().filter_map(|(n, client)| match client.wait {
            Wait::Until(time) => Some((time, n)),
            Wait::Answer(id) => Some((self.pending.iter().find(|p| p.id == id).map_or(self.now, |p| p.deadline), n)),
            Wait::Ready | Wait::Parked | Wait::Ended => None,
        });
        times.min()
    }

    fn carry_out(&mut self, at: usize) {
        let fate = self.pending[at].fate;
        self.pending[at].left -= 1;
        let old = fate == Fate::Old;
        let mut answer = self.objects.carry_out(&self.pending[at].request, old, self.now);
        if let (Request::Put(key, bytes, _), Ok(_), Some(watch)) = (&self.pending[at].request, &answer, &self.watch) {
            watch(self.now, key, bytes);
        }
        if let (Fate::Damaged, Ok(Reply::Object(bytes, _))) = (fate, &mut answer) {
            damage(&mut self.rng, bytes);
        }
        let p = &mut self.pending[at];
        let first = p.answer.is_none() && (p.fate != Fate::Twice || p.left == 1);
        match fate {
            _ if !first => {}
            Fate::LostAfter | Fate::Late => {
                if self.rng.one_in(2) {
                    p.answer = Some(Err(Failure::Unknown));
                }
            }
            Fate::FalseCondition => p.answer = Some(Err(Failure::Condition)),
            _ => p.answer = Some(answer),
        }
        let (client, id) = (p.client, p.id);
        let waits = self.clients[client].wait != Wait::Ended && !self.is_dead(client);
        if self.pending[at].left == 0 && self.pending[at].answer.is_none() && !(waits && id > 0) {
            self.pending.swap_remove(at);
        }
    }
}

fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let at = rng.below(bytes.len() as u64) as usize;
    match rng.below(2) {
        0 => bytes.truncate(at),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
    }
}

#[cfg(test)]
mod tests;
