//! The description of a launch, and what is counted while it runs.

/// The order in which the warps of a block take turns. Each runs until it must wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WarpOrder {
    /// The first warp first.
    #[default]
    Forward,
    /// The last warp first.
    Reverse,
}

/// The moment at which copies of the copy engine arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arrival {
    /// When no warp of the block can go on without one.
    #[default]
    Late,
    /// When they are issued.
    Early,
}

/// The size, the parameters and the limits of a launch.
#[derive(Debug, Clone)]
pub struct Launch {
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) shared_bytes: usize,
    pub(crate) params: Vec<u8>,
    pub(crate) order: WarpOrder,
    pub(crate) arrival: Arrival,
    pub(crate) max_steps: u64,
    pub(crate) is_dependent: bool,
}

impl Launch {
    /// A launch of this many blocks, with this many threads each, along x, y and z.
    pub fn new(blocks: [u32; 3], threads: [u32; 3]) -> Launch {
        Launch {
            blocks,
            threads,
            shared_bytes: 0,
            params: Vec::new(),
            order: WarpOrder::default(),
            arrival: Arrival::default(),
            max_steps: 1 << 40,
            is_dependent: false,
        }
    }

    /// Sets the bytes of dynamic shared memory per block.
    pub fn with_shared(self, bytes: usize) -> Launch {
        Launch { shared_bytes: bytes, ..self }
    }

    /// Sets the kernel's parameters, laid out as in its parameter space.
    pub fn with_params(self, params: &[u8]) -> Launch {
        Launch { params: params.to_vec(), ..self }
    }

    /// Sets the order of the warps.
    pub fn with_order(self, order: WarpOrder) -> Launch {
        Launch { order, ..self }
    }

    /// Sets the moment at which copies of the copy engine arrive.
    pub fn with_arrival(self, arrival: Arrival) -> Launch {
        Launch { arrival, ..self }
    }

    /// Sets the most instructions that all warps together may execute.
    pub fn with_max_steps(self, steps: u64) -> Launch {
        Launch { max_steps: steps, ..self }
    }

    /// Treats the launch as one that may begin before the previous grid has ended: until a thread
    /// has executed `griddepcontrol.wait` it may only read global memory by `ld.global.nc` and
    /// `cp.async`, and it must not end before.
    pub fn as_dependent(self) -> Launch {
        Launch { is_dependent: true, ..self }
    }
}

/// Counts of what a launch has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Instructions that warps have executed.
    pub steps: u64,
}
