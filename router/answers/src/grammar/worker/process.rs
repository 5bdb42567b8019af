//! The worker's side: one process that compiles one grammar after another under limits.

use std::io::{self, Read, Write};
use std::sync::mpsc;
use std::thread;

use rustix::process::{Resource, Rlimit};
use rustix::time::{ClockId, clock_gettime};

use super::protocol::{CPU_TIME, MAX_MESSAGE_BYTES, MEMORY, Verdict, WorkerJob, WorkerReply};
use crate::grammar::definition::Grammar;
use crate::grammar::factory::{GrammarFactory, STACK_BYTES};
use crate::grammar::vocabulary::Vocabulary;

/// The niceness of a worker, which gives the server precedence.
const NICENESS: i32 = 5;
/// The memory in bytes that a worker may retain after a grammar, in addition to its initial memory.
const MAX_RETAINED_BYTES: u64 = 32 << 20;

/// Tries the grammars from standard input and replies on standard output until the input is closed.
/// The process that a [`GrammarWorkerCommand`](super::GrammarWorkerCommand) starts calls this
/// function. It does not return: the process ends with its router, even while it compiles a
/// grammar.
///
/// # Errors
/// If the first message is missing or is not a vocabulary, or no thread can be started.
pub fn run() -> io::Result<()> {
    // Panics are caught and reported as replies. Their texts would clutter the router's log.
    std::panic::set_hook(Box::new(|_| ()));
    confine();
    let mut input = io::stdin().lock();
    let first = read_message(&mut input)?;
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the first message is not a vocabulary");
    let vocabulary = Vocabulary::from_bytes(&first).ok_or_else(invalid)?;
    drop(first);
    let (jobs, received) = mpsc::channel();
    let work = move || {
        let Err(error) = compile_all(vocabulary, &received);
        eprintln!("a grammar worker ends: {error}");
        std::process::exit(1)
    };
    thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES).spawn(work)?;
    // This thread always reads, so that the end of the input ends the process at once.
    while let Ok(message) = read_message(&mut input) {
        if jobs.send(message).is_err() {
            break;
        }
    }
    std::process::exit(0)
}

/// Compiles the received grammars.
///
/// # Errors
/// The reason why the worker cannot continue.
fn compile_all(
    vocabulary: Vocabulary,
    jobs: &mpsc::Receiver<Vec<u8>>,
) -> io::Result<std::convert::Infallible> {
    let factory = GrammarFactory::new(&vocabulary).map_err(io::Error::other)?;
    drop(vocabulary);
    let memory = memory();
    if let Some((size, _)) = memory {
        limit(Resource::As, size + MEMORY);
    }
    let mut verdict = Verdict::Fits;
    loop {
        let resident = |memory: Option<(u64, u64)>| memory.map_or(0, |(_, resident)| resident);
        let is_worn = resident(self::memory()) > resident(memory) + MAX_RETAINED_BYTES;
        send(&WorkerReply { verdict, is_worn })?;
        let message = jobs.recv().map_err(io::Error::other)?;
        let used = clock_gettime(ClockId::ProcessCPUTime);
        // The limit has a resolution of one second. Exceeding it kills the process.
        limit(Resource::Cpu, used.tv_sec as u64 + CPU_TIME.as_secs() + 1);
        verdict = serde_json::from_slice::<WorkerJob<Grammar>>(&message).map_or_else(
            |error| Verdict::Invalid(error.to_string()),
            |job| factory.compile(&job.grammar, job.vocab_size).map(drop).into(),
        );
    }
}

/// Gives up resources that a worker does not need: priority, files, and core dumps.
fn confine() {
    // Each of these calls is an optional precaution.
    let _ = rustix::process::setpriority_process(None, NICENESS);
    limit(Resource::Core, 0);
    limit(Resource::Fsize, 0);
    limit(Resource::Nofile, 16);
}

fn limit(resource: Resource, current: u64) {
    let Rlimit { maximum, .. } = rustix::process::getrlimit(resource);
    let current = maximum.map_or(current, |maximum| maximum.min(current));
    let _ = rustix::process::setrlimit(resource, Rlimit { current: Some(current), maximum });
}

/// Returns the address space and the resident memory of this process in bytes, if the system
/// reports them.
fn memory() -> Option<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
    };
    Some((field("VmSize:")?, field("VmRSS:")?))
}

fn read_message(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MESSAGE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let mut message = vec![0; length];
    input.read_exact(&mut message)?;
    Ok(message)
}

fn send(answer: &WorkerReply) -> io::Result<()> {
    let body = serde_json::to_vec(answer)?;
    let mut output = io::stdout().lock();
    // A reply has a few hundred bytes.
    output.write_all(&(body.len() as u32).to_le_bytes())?;
    output.write_all(&body)?;
    output.flush()
}
