//! The device operations on the CPU: one pool of threads, and kernels for the best instruction set
//! of the machine.
//!
//! Operations divide their work among threads; kernels compute the pieces. A piece is always a set
//! of whole output elements, so that a result does not depend on the number of threads.
//!
//! Nothing here knows a model, a request or the backends of other devices.

#![allow(clippy::needless_range_loop, reason = "loops over registers read better with indices")]

mod adapters;
#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod cache;
mod exact;
mod exp;
mod experts;
mod gemm;
mod heads;
mod inputs;
mod kv;
mod kv_blocks;
mod latent;
pub mod limits;
mod loading;
mod mapping;
mod matrix;
mod memory;
mod norms;
mod ops;
mod outputs;
mod prologue;
mod quant;
mod queue;
mod recurrent;
mod rows;
mod simd;
mod step;
mod stepping;
mod super_blocks;
mod tables;
mod tile;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace_backend::{Error, Result, ThreadPool};

pub use adapters::Adapters;
pub use cache::{CacheMode, CacheOptions};
pub use experts::Routing;
pub use heads::HeadMatrices;
pub use kv::Kv;
pub use matrix::Matrix;
pub use queue::Queue;
pub use recurrent::States;
pub use simd::Isa;

use attention::AttentionTasks;
use cache::{Packing, WeightCache};
use inputs::Inputs;
use matrix::PanelLayout;
use memory::{Memory, Shared};
use quant::ActivationBuffer;
use simd::Target;
use super_blocks::BlockBuffer;
use tile::Tiles;

/// Number of elementary operations that take about as long as waking up a thread.
const WORTHWHILE: usize = 100_000;

/// The options of a [`Cpu`].
#[derive(Debug, Default, Clone)]
pub struct CpuOptions {
    /// Threads to compute with, including the caller's. By default as many as the process may run
    /// in parallel.
    pub threads: Option<usize>,
    /// Instruction set. By default the fastest one of the machine.
    pub isa: Option<Isa>,
    /// Precision of the inputs of matrix products.
    pub activations: Activations,
    /// Cache of packed weights. By default there is none.
    pub cache: Option<CacheOptions>,
    /// The core that each thread is bound to, the caller's first. By default threads run anywhere.
    pub cores: Vec<usize>,
}

/// The precision of the inputs of matrix products, and of queries and attention weights with a KV
/// cache in a 16-bit format.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    /// Inputs are rounded to what the fastest instructions multiply: to bf16 for bf16 weights and
    /// codes that stand for numbers, with AVX-512 BF16, and to signed bytes with scales for weights
    /// that are integers. Sums are f32.
    #[default]
    Rounded,
    /// Inputs are multiplied in f32, with every instruction set. Products by integers take several
    /// times as long.
    Exact,
}

/// The CPU as a device.
///
/// Idle threads sleep. One operation runs at a time: callers on several threads wait for each
/// other.
pub struct Cpu {
    target: Target,
    activations: Activations,
    pool: ThreadPool,
    cache: WeightCache,
    /// Working memory of each thread of the pool.
    scratch: Vec<Mutex<Memory<f32>>>,
    inputs: Mutex<PackedInputs>,
    /// Activations of products by integers.
    quantized: Mutex<ActivationBuffer>,
    /// Activations of products by super-blocks.
    super_blocks: Mutex<BlockBuffer>,
    attention: Mutex<AttentionTasks>,
}

/// The buffer for the packed inputs of a matrix product, large enough for the largest one.
struct PackedInputs {
    rows: usize,
    cols: usize,
    memory: Memory<f32>,
}

/// Activations in host memory.
#[derive(Debug)]
pub struct Buf {
    cols: usize,
    data: Memory<f32>, // [max_rows, cols]
}

impl Buf {
    /// Returns the first `n` rows.
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
    /// [`Error::Unsupported`] if the machine lacks the instruction set asked for, or if
    /// the operating system refuses the threads.
    pub fn new(options: CpuOptions) -> Result<Cpu> {
        let target = Target::new(options.isa)?;
        let threads = match options.threads {
            Some(0) => return Err(Error::Unsupported("0 threads; use at least 1".to_owned())),
            Some(threads) => threads,
            None => std::thread::available_parallelism().map_or(1, usize::from),
        };
        let pool = ThreadPool::on_cores(threads, &options.cores)
            .map_err(|error| Error::Unsupported(format!("{threads} threads: {error}; ask for fewer")))?;
        let scratch = (0..threads)
            .map(|_| Ok(Mutex::new(Memory::zeroed(gemm::SCRATCH, "working memory")?)))
            .collect::<Result<_>>()?;
        let inputs = PackedInputs { rows: 0, cols: 0, memory: Memory::zeroed(0, "packed activations")? };
        let (inputs, quantized) = (Mutex::new(inputs), Mutex::new(ActivationBuffer::new()?));
        let (super_blocks, attention) =
            (Mutex::new(BlockBuffer::new()?), Mutex::new(AttentionTasks::new(threads)?));
        let (activations, cache) = (options.activations, WeightCache::new(options.cache));
        Ok(Cpu { target, activations, pool, cache, scratch, inputs, quantized, super_blocks, attention })
    }

    /// Returns the instruction set in use.
    pub fn isa(&self) -> Isa {
        self.target.isa()
    }

    /// Returns the number of threads in use.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Returns the precision of the inputs of products.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// Returns whether inputs of products by integers are rounded to bytes.
    fn rounds_to_bytes(&self) -> bool {
        self.activations == Activations::Rounded
    }

    /// Returns whether weights and caches in bf16 are multiplied in pairs.
    fn bf16_pairs(&self) -> bool {
        self.target.has_bf16() && self.activations == Activations::Rounded
    }

    /// Returns the layout of packed weights.
    fn panel_layout(&self) -> PanelLayout {
        PanelLayout { width: self.target.panel_width(), bf16_pairs: self.bf16_pairs() }
    }

    fn packing(&self) -> Packing<'_> {
        Packing { pool: &self.pool, cache: &self.cache }
    }

    /// Enlarges the buffer for packed inputs to products of `rows` rows and `cols` inputs.
    fn reserve_inputs(&self, rows: usize, cols: usize) -> Result<()> {
        let mut inputs = lock(&self.inputs);
        let (rows, cols) = (rows.max(inputs.rows), cols.max(inputs.cols));
        let needed = rows.saturating_mul(Inputs::row_words(cols));
        if needed > inputs.memory.len() {
            inputs.memory = Memory::zeroed(needed, "packed activations")?;
        }
        (inputs.rows, inputs.cols) = (rows, cols);
        Ok(())
    }

    /// Calls `body(task, thread)` for all tasks, in parallel if the `work` of all tasks together is
    /// large enough.
    fn parallel(&self, tasks: usize, work: usize, body: impl Fn(usize, usize) + Sync) {
        if work < WORTHWHILE { (0..tasks).for_each(|task| body(task, 0)) } else { self.pool.run(tasks, body) }
    }

    /// As [`Cpu::parallel`], but tasks begin in ascending order.
    fn parallel_in_order(&self, tasks: usize, work: usize, body: impl Fn(usize, usize) + Sync) {
        if work < WORTHWHILE {
            (0..tasks).for_each(|task| body(task, 0));
        } else {
            self.pool.run_in_order(tasks, body);
        }
    }

    /// Calls `body` for the rows `0..n`, each of which takes `work` elementary operations.
    fn for_rows(&self, n: usize, work: usize, body: impl Fn(usize) + Sync) {
        let at_once = n.div_ceil(4 * self.threads()).max(1);
        self.parallel(n.div_ceil(at_once), n * work, |task, _| {
            (task * at_once..n.min((task + 1) * at_once)).for_each(&body);
        });
    }

    /// Calls `body(tile, groups)` for tiles of rows and ranges of at most `at_once` of their
    /// `groups` groups of columns, in parallel if the `work` of all together is large enough.
    fn for_tiles(
        &self,
        tiles: Tiles,
        groups: usize,
        at_once: usize,
        work: usize,
        body: impl Fn(usize, Range<usize>) + Sync,
    ) {
        let pieces = groups.div_ceil(at_once);
        let tasks = tiles.count() * pieces;
        self.for_rows(tasks, work.div_ceil(tasks.max(1)), |task| {
            let first = task % pieces * at_once;
            body(task / pieces, first..groups.min(first + at_once));
        });
    }

    /// Returns the working memory of a thread. The pool uses a thread number once at a time, so
    /// that the lock is never contended.
    fn scratch(&self, thread: usize) -> (MutexGuard<'_, Memory<f32>>, Shared<f32>) {
        let mut memory = lock(&self.scratch[thread]);
        let shared = Shared::new(&mut memory);
        (memory, shared)
    }
}

/// Locks a mutex whose contents every use overwrites, so that a panic of an earlier holder does no
/// harm.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
