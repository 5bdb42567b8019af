//! The CPU backend: one pool of threads, and kernels for the best instruction set that the machine has.
//!
//! How the work is divided among threads is decided here; what the pieces compute, in the files beside. A piece is always a
//! set of whole output elements, which is why the number of threads cannot be seen in a result.

#![allow(clippy::needless_range_loop, reason = "indices that run over registers are clearer as indices")]

mod attention;
mod backend;
mod exp;
mod gemm;
mod kv;
mod matrix;
mod memory;
mod prologue;
mod rows;
mod simd;
mod step;
mod tile;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use kv::Kv;
pub use matrix::Matrix;
pub use simd::Isa;
pub use step::Step;

use crate::pool::Pool;
use crate::{Error, Result};
use memory::{Memory, Shared};
use simd::Target;

/// How a [`Cpu`] is set up.
#[derive(Debug, Default, Clone, Copy)]
pub struct CpuOptions {
    /// Threads to compute with, the caller's among them; by default as many as the process may use at once.
    pub threads: Option<usize>,
    /// Instruction set; by default the fastest that the machine has.
    pub isa: Option<Isa>,
}

/// The processor.
///
/// Idle threads sleep. One operation runs at a time: callers on several threads take turns.
pub struct Cpu {
    target: Target,
    pool: Pool,
    /// Working memory of each thread of the pool.
    scratch: Vec<Mutex<Memory<f32>>>,
    inputs: Mutex<PackedInputs>,
    /// Tiles of the running attention.
    tiles: Mutex<Vec<TileTask>>,
}

/// Room for the packed inputs of the largest matrix product.
struct PackedInputs {
    rows: usize,
    cols: usize,
    memory: Memory<f32>,
}

/// A tile of attention, and how long it takes in comparison with others.
struct TileTask {
    row: usize,
    kv_head: usize,
    first: usize,
    end: usize,
    cost: usize,
}

/// Activations in host memory.
#[derive(Debug)]
pub struct Buf {
    cols: usize,
    data: Memory<f32>, // [max_rows, cols]
}

impl Buf {
    /// The first `n` rows.
    fn rows(&self, n: usize) -> &[f32] {
        &self.data[..n * self.cols]
    }

    fn rows_mut(&mut self, n: usize) -> &mut [f32] {
        &mut self.data[..n * self.cols]
    }
}

impl Cpu {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the machine lacks the instruction set asked for, or the system refuses the threads.
    pub fn new(options: CpuOptions) -> Result<Cpu> {
        let target = Target::new(options.isa)?;
        let threads = match options.threads {
            Some(0) => return Err(Error::Unsupported("0 threads; use at least 1".to_owned())),
            Some(threads) => threads,
            None => std::thread::available_parallelism().map_or(1, usize::from),
        };
        let pool = Pool::new(threads)
            .map_err(|error| Error::Unsupported(format!("{threads} threads: {error}; ask for fewer")))?;
        let scratch = (0..threads)
            .map(|_| Ok(Mutex::new(Memory::zeroed(gemm::SCRATCH, "working memory")?)))
            .collect::<Result<_>>()?;
        let inputs = PackedInputs { rows: 0, cols: 0, memory: Memory::zeroed(0, "packed activations")? };
        Ok(Cpu { target, pool, scratch, inputs: Mutex::new(inputs), tiles: Mutex::new(Vec::new()) })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.target.isa()
    }

    /// The number of threads in use.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Makes room for the inputs of products of this many rows and inputs.
    fn reserve(&self, rows: usize, cols: usize) -> Result<()> {
        let mut inputs = lock(&self.inputs);
        let (rows, cols) = (rows.max(inputs.rows), cols.max(inputs.cols));
        let needed = rows.next_multiple_of(self.target.tile_rows()).saturating_mul(cols);
        if needed > inputs.memory.len() {
            inputs.memory = Memory::zeroed(needed, "packed activations")?;
        }
        (inputs.rows, inputs.cols) = (rows, cols);
        Ok(())
    }

    /// Calls `body(task, thread)` for all tasks, in parallel if all of them together are worth it.
    fn parallel(&self, tasks: usize, work: usize, body: impl Fn(usize, usize) + Sync) {
        /// Elementary operations that take about as long as waking up a thread.
        const WORTHWHILE: usize = 100_000;
        if work < WORTHWHILE { (0..tasks).for_each(|task| body(task, 0)) } else { self.pool.run(tasks, body) }
    }

    /// Calls `body` for the rows `0..n`, each of which takes `work` elementary operations.
    fn for_rows(&self, n: usize, work: usize, body: impl Fn(usize) + Sync) {
        let at_once = n.div_ceil(4 * self.threads()).max(1);
        self.parallel(n.div_ceil(at_once), n * work, |task, _| {
            (task * at_once..n.min((task + 1) * at_once)).for_each(&body);
        });
    }

    /// The working memory of a thread; nobody else uses it while the pool calls with this number.
    fn scratch(&self, thread: usize) -> (MutexGuard<'_, Memory<f32>>, Shared<f32>) {
        let mut memory = lock(&self.scratch[thread]);
        let shared = Shared::new(&mut memory);
        (memory, shared)
    }
}

/// What the locks guard is overwritten by every use, so that a panic elsewhere leaves nothing to fear.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
