//! What the host code needs of a device: memory, copies, launches, all in order on one stream.

use std::ops::Deref;
use std::sync::atomic::AtomicU32;

use super::choice::Algorithm;
use super::memory::{Elem, View};
use super::streams::Streams;
use crate::backend::Overheads;
use crate::{Error, Result};

/// A kernel by the name of its source file and its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Function {
    /// The `.cu` file's name without the extension.
    pub module: &'static str,
    /// The exported name.
    pub name: &'static str,
}

/// How many threads run a kernel, and what they share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks along x, y, z; none is 0.
    pub blocks: [u32; 3],
    /// Threads of a block along x, y, z.
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub shared: usize,
}

impl Grid {
    /// `blocks` blocks of `threads` threads.
    pub fn flat(blocks: usize, threads: u32) -> Grid {
        Grid { blocks: [blocks as u32, 1, 1], threads: [threads, 1, 1], shared: 0 }
    }

    /// The same with `bytes` of dynamic shared memory.
    pub fn with_shared(self, bytes: usize) -> Grid {
        Grid { shared: bytes, ..self }
    }
}

/// A parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arg {
    /// An address in device memory, or an unsigned number of 64 bits.
    U64(u64),
    /// A signed number of 64 bits.
    I64(i64),
    /// A signed number.
    I32(i32),
    /// An unsigned number.
    U32(u32),
    /// A float.
    F32(f32),
    /// A tensor map, passed by value; it must be there until the launch returns.
    Map(*const TensorMap),
}

/// What the copy engine of Hopper and later needs to know of a matrix in device memory: made by [`Driver::tensor_map`].
#[derive(Debug, Clone, Copy)]
#[repr(C, align(128))]
pub struct TensorMap(pub(crate) [u64; 16]);

/// A matrix of up to five dimensions of 16-bit floats, copied in boxes whose rows are 128 bytes and swizzled.
#[derive(Debug, Clone, Copy)]
pub struct TensorLayout<'a> {
    /// Address, a multiple of 16.
    pub at: u64,
    /// f16 or bf16.
    pub elem: Elem,
    /// Elements along each dimension, neighbours in memory first.
    pub sizes: &'a [u64],
    /// Bytes from one element to the next along each dimension but the first; multiples of 16.
    pub strides: &'a [u64],
    /// Elements of a box along each dimension.
    pub tile: &'a [u32],
}

impl Arg {
    /// Bytes of the parameter.
    #[cfg(feature = "cpu-sim")]
    pub(crate) fn size(&self) -> usize {
        match self {
            Arg::U64(_) | Arg::I64(_) => 8,
            Arg::I32(_) | Arg::U32(_) | Arg::F32(_) => 4,
            Arg::Map(_) => size_of::<TensorMap>(),
        }
    }

    /// The parameter's bits in the low bytes, or the address of what is larger.
    pub(crate) fn bits(&self) -> u64 {
        match *self {
            Arg::U64(x) => x,
            Arg::I64(x) => x as u64,
            Arg::I32(x) => u64::from(x as u32),
            Arg::U32(x) => u64::from(x),
            Arg::F32(x) => u64::from(x.to_bits()),
            Arg::Map(map) => map as u64,
        }
    }
}

impl From<u64> for Arg {
    fn from(x: u64) -> Arg {
        Arg::U64(x)
    }
}

impl From<i64> for Arg {
    fn from(x: i64) -> Arg {
        Arg::I64(x)
    }
}

impl From<i32> for Arg {
    fn from(x: i32) -> Arg {
        Arg::I32(x)
    }
}

impl From<u32> for Arg {
    fn from(x: u32) -> Arg {
        Arg::U32(x)
    }
}

impl From<&TensorMap> for Arg {
    fn from(map: &TensorMap) -> Arg {
        Arg::Map(map)
    }
}

impl From<f32> for Arg {
    fn from(x: f32) -> Arg {
        Arg::F32(x)
    }
}

/// A count or a size, which the kernels take as `int`.
impl From<usize> for Arg {
    fn from(x: usize) -> Arg {
        Arg::I32(i32::try_from(x).expect("the operations refuse sizes beyond i32"))
    }
}

/// An address.
impl From<View<'_>> for Arg {
    fn from(view: View<'_>) -> Arg {
        Arg::U64(view.address())
    }
}

/// An address, or null.
impl From<Option<View<'_>>> for Arg {
    fn from(view: Option<View<'_>>) -> Arg {
        Arg::U64(view.map_or(0, |view| view.address()))
    }
}

/// The parameters of one launch, in order. Made without an allocation.
#[derive(Debug, Clone, Copy)]
pub struct Args {
    all: [Arg; Args::MOST],
    len: usize,
}

impl Args {
    /// The most parameters that a kernel has.
    const MOST: usize = 40;

    /// No parameters yet.
    pub fn new() -> Args {
        Args { all: [Arg::U64(0); Args::MOST], len: 0 }
    }

    /// One more parameter.
    ///
    /// # Panics
    /// Beyond 40.
    #[must_use]
    pub fn with(mut self, arg: impl Into<Arg>) -> Args {
        self.all[self.len] = arg.into();
        self.len += 1;
        self
    }

    /// One more parameter, if there is one.
    #[must_use]
    pub fn with_some(self, arg: Option<impl Into<Arg>>) -> Args {
        match arg {
            Some(arg) => self.with(arg),
            None => self,
        }
    }
}

impl Default for Args {
    fn default() -> Args {
        Args::new()
    }
}

impl Deref for Args {
    type Target = [Arg];

    fn deref(&self) -> &[Arg] {
        &self.all[..self.len]
    }
}

/// Where the factors of the rows of two matrices lie: f32, at multiples of 16 bytes.
#[derive(Debug, Clone, Copy)]
pub struct Scales {
    /// Of `x`, `[rows]`.
    pub x: u64,
    /// Of `w`, `[outputs]`.
    pub w: u64,
}

/// `out [rows, outputs] = x [rows, inputs] · (w [outputs, inputs])ᵀ`, sums in f32.
#[derive(Debug, Clone, Copy)]
pub struct Gemm {
    /// Rows of `x`; at least 1.
    pub rows: usize,
    /// Columns of `x` and `w`; at least 1.
    pub inputs: usize,
    /// Rows of `w`; at least 1.
    pub outputs: usize,
    /// Type of `x` and `w`: f32, f16 or bf16, or e4m3 with factors.
    pub elem: Elem,
    /// Type of `out`: that of `x`, or f32; any of the three for e4m3.
    pub out_elem: Elem,
    /// Address of `x`.
    pub x: u64,
    /// Address of `w`.
    pub w: u64,
    /// Address of `out`.
    pub out: u64,
    /// What the rows of `x` and `w` are multiplied by: given for e4m3, and for nothing else.
    pub scales: Option<Scales>,
    /// How; the library's own first choice if not given, or if the given one does not fit.
    pub algorithm: Option<Algorithm>,
}

/// What other processes of this host open memory by that [`Driver::share`] has made; the rest are zeros.
pub type SharedName = [u8; 96];

/// What of a device the choice of a kernel depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties {
    /// Major and minor compute capability.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory that one block can have.
    pub shared_per_block: usize,
    /// Bytes of the L2 cache.
    pub l2_bytes: usize,
}

/// A device: everything happens in the order in which it is asked for, on the main stream.
pub trait Driver: Streams {
    /// A name for people.
    fn name(&self) -> String;
    /// What the device is.
    fn properties(&self) -> Properties;
    /// Memory of `bytes` bytes, aligned to 256; its contents are undefined.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] if there is not as much.
    fn allocate(&self, bytes: usize) -> Result<u64>;
    /// Gives memory back once everything asked for before is done.
    ///
    /// # Safety
    /// `at` came from [`Driver::allocate`] and is not used again.
    unsafe fn free(&self, at: u64);
    /// Copies to the device. `from` may be changed when the call returns.
    ///
    /// # Safety
    /// `[to, to + from.len())` lies in one allocation.
    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<()>;
    /// Waits for everything before it and copies from the device.
    ///
    /// # Safety
    /// `[from, from + to.len())` lies in one allocation.
    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()>;
    /// Sets bytes.
    ///
    /// # Safety
    /// `[at, at + bytes)` lies in one allocation.
    unsafe fn fill(&self, at: u64, value: u8, bytes: usize) -> Result<()>;
    /// Copies within the device.
    ///
    /// # Safety
    /// `[from, from + bytes)` and `[to, to + bytes)` lie in one allocation each and do not overlap.
    unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()>;
    /// Starts a kernel.
    ///
    /// # Safety
    /// The arguments have the number and types of the kernel's parameters, and all memory that it reads and writes for them
    /// lies in allocations.
    unsafe fn launch(&self, function: Function, grid: Grid, args: &[Arg]) -> Result<()>;
    /// Multiplies by the device's library.
    ///
    /// # Safety
    /// The operands lie in allocations and are as long as the shape says.
    unsafe fn gemm(&self, product: &Gemm) -> Result<()>;
    /// The library for products by name and version; none if it has nothing to choose from.
    fn product_library(&self) -> Option<String> {
        None
    }
    /// Up to `most` algorithms for a product, the most promising first. Only its shape counts. None for e4m3 where card or library have no such
    /// products.
    fn algorithms(&self, _product: &Gemm, _most: usize) -> Result<Vec<Algorithm>> {
        Ok(Vec::new())
    }
    /// Whether the library can use the algorithm that the product asks for.
    fn fits(&self, _product: &Gemm) -> Result<bool> {
        Ok(true)
    }
    /// Bytes that the driver and its libraries take of the device's memory for themselves in a group of `ranks`, beside what they took
    /// when the device was opened.
    fn overheads(&self, _ranks: usize) -> Overheads {
        Overheads::default()
    }
    /// Says that nothing is to be allocated from now on.
    fn seal(&self) {}
    /// Free and total bytes of the device's memory, if it says.
    fn memory_bytes(&self) -> Option<(usize, usize)>;
    /// Makes the calling thread one that may use the device's libraries directly.
    fn make_current(&self) -> Result<()> {
        Ok(())
    }
    /// Describes memory to the copy engine.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there is none, or what the driver finds wrong with the layout.
    fn tensor_map(&self, layout: &TensorLayout<'_>) -> Result<TensorMap> {
        Err(Error::Unsupported(format!("no tensor copies of {:?} on {}", layout.sizes, self.name())))
    }
    /// Memory of zeros that the devices of other processes on this host can open by the name that comes with it. It stays until the device is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there is none such, or what the driver fails with.
    fn share(&self, _bytes: usize) -> Result<(u64, SharedName)> {
        Err(Error::Unsupported(format!("memory of {} cannot be shared", self.name())))
    }
    /// The memory of at least `bytes` bytes that a device of another process shares under this name.
    ///
    /// # Errors
    /// [`Error::Device`] in one sentence, if this device cannot reach that one's memory.
    fn open_shared(&self, _name: &SharedName, _bytes: usize) -> Result<u64> {
        Err(Error::Unsupported(format!("{} cannot open another device's memory", self.name())))
    }
    /// Closes what another process shares.
    ///
    /// # Safety
    /// `at` came from [`Driver::open_shared`] and is not used again.
    unsafe fn close_shared(&self, _at: u64) {}
    /// A word of the host's memory, 0 at first, that kernels can write to at its address; there until the device is dropped.
    ///
    /// # Errors
    /// What the driver fails with.
    fn host_word(&self) -> Result<&AtomicU32> {
        Err(Error::Unsupported(format!("kernels of {} cannot write to the host's memory", self.name())))
    }
    /// Waits for everything asked for so far, and says whether it went well.
    fn synchronize(&self) -> Result<()>;
    /// Seconds that the device takes for what `work` asks of it.
    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<f64>;
}
