//! The tile unit of Intel AMX (Advanced Matrix Extensions).
//!
//! The unit has eight tile registers of up to 16 rows of 64 bytes. One instruction multiplies a
//! tile of inputs by a tile of weights and adds the products to a tile of sums. Rust has no stable
//! intrinsics for it, so that the loops are in assembly. Each of them loads all tiles that it reads
//! and stores all that it writes, so that nothing has to stay in the tile registers between them.

use std::arch::asm;
use std::sync::LazyLock;

/// Rows of the largest tile.
pub(in crate::cpu) const ROWS: usize = 16;
/// Bytes of a row of a tile.
pub(super) const ROW_BYTES: usize = 64;
/// Outputs that a block computes: two tiles of weights next to each other, which is the width of
/// a panel.
pub(in crate::cpu) const WIDTH: usize = 32;
/// Bytes of a panel that a step reads: two tiles of weights.
pub(super) const STEP_BYTES: usize = 2 * ROWS * ROW_BYTES;

/// Returns whether this machine has AMX for bf16 and bytes, and the system lets this process use
/// it.
pub(in crate::cpu) fn is_available() -> bool {
    static AVAILABLE: LazyLock<bool> = LazyLock::new(|| has_instructions() && is_permitted());
    *AVAILABLE
}

fn has_instructions() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const NEEDED: u32 = 1 << 22 | 1 << 24 | 1 << 25; // AMX-BF16, AMX-TILE, AMX-INT8
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & NEEDED == NEEDED
}

/// Asks Linux for the permission to use the tile registers, which holds for all threads of the
/// process. Systems that do not manage these registers refuse.
fn is_permitted() -> bool {
    #[cfg(target_os = "linux")]
    {
        const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_ulong = 18;
        // SAFETY: the call has no effects on memory.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// The product of one or two tiles of rows by the weights of a panel in some steps.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct Block {
    /// Rows of the two tiles, at most [`ROWS`]. The second may have none.
    pub(in crate::cpu) heights: [usize; 2],
    /// The inputs of each tile, `[steps][height][64 bytes]`.
    pub(in crate::cpu) inputs: [*const u8; 2],
    /// `[steps]` times [`STEP_BYTES`]: 16 rows of weights for [`WIDTH`] outputs, 4 bytes each.
    pub(in crate::cpu) weights: *const u8,
    pub(in crate::cpu) steps: usize,
    /// The sums of each tile, `[height][WIDTH]`, to which the products are added.
    pub(in crate::cpu) sums: [*mut f32; 2],
    /// Whether the sums start as zeros, whatever is there.
    pub(in crate::cpu) fresh: bool,
    /// Bytes between rows of sums.
    pub(in crate::cpu) stride: usize,
    /// The weights that are prefetched.
    pub(in crate::cpu) ahead: Ahead,
}

/// The weights that a block prefetches.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) enum Ahead {
    /// The weights that follow its own.
    Own,
    /// 128 bytes in each step from an address, which need not be valid.
    From(*const u8),
}

/// An implementation of the tile unit.
pub(in crate::cpu) trait Unit {
    /// Adds products of pairs of bf16 numbers.
    ///
    /// # Safety
    /// The machine must have the unit, and the pointers must be valid.
    unsafe fn multiply_bf16(&mut self, block: &Block);
}

/// The dot products of a tile of rows of bytes with [`WIDTH`] outputs, in each of some groups of
/// columns.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct Bytes {
    /// Rows, from 1 to [`ROWS`].
    pub(in crate::cpu) height: usize,
    /// The first row of activations.
    pub(in crate::cpu) x: *const i8,
    /// Bytes between rows of activations.
    pub(in crate::cpu) x_stride: usize,
    /// `[groups][columns / 4][WIDTH][4]`.
    pub(in crate::cpu) weights: *const i8,
    /// Groups, at least one.
    pub(in crate::cpu) groups: usize,
    /// Columns of each group, a multiple of 32 above 0.
    pub(in crate::cpu) columns: usize,
    /// `[groups][ROWS][WIDTH]`, of which missing rows are left as they are.
    pub(in crate::cpu) dots: *mut i32,
}

/// The products of a tile of queries with the keys of four groups of 16.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct Scores {
    /// Queries, from 1 to [`ROWS`].
    pub(in crate::cpu) height: usize,
    /// `[steps][height][32]` bf16 numbers.
    pub(in crate::cpu) queries: *const u8,
    /// Steps of 32 features, at least one.
    pub(in crate::cpu) steps: usize,
    /// The groups of keys: pairs of features, of 16 keys each.
    pub(in crate::cpu) keys: [*const u8; 4],
    /// Bytes between pairs of features of a key.
    pub(in crate::cpu) key_stride: usize,
    /// The place of the products, `[height][64]`.
    pub(in crate::cpu) to: *mut f32,
    /// Bytes between rows of products.
    pub(in crate::cpu) to_stride: usize,
}

/// The values of groups of 16 tokens, weighted for a tile of queries.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct Weighted<'a> {
    /// Queries, from 1 to [`ROWS`].
    pub(in crate::cpu) height: usize,
    /// The weights of the first group, 16 bf16 numbers. Those of the next group follow.
    pub(in crate::cpu) weights: *const u8,
    /// Bytes between the weights of two queries.
    pub(in crate::cpu) weight_stride: usize,
    /// The groups of values: pairs of tokens, at the same feature. At least one.
    pub(in crate::cpu) values: &'a [*const u8],
    /// Bytes between pairs of tokens.
    pub(in crate::cpu) value_stride: usize,
    /// The sums of 64 features, or of 32.
    pub(in crate::cpu) sums: *mut f32,
    /// Bytes between the sums of two queries.
    pub(in crate::cpu) sum_stride: usize,
}

/// The tile unit of this machine.
pub(in crate::cpu) struct Amx {
    shape: Shape,
}

/// The shape of the tiles that the unit is configured for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// Rows of the two tiles of inputs.
    heights: [usize; 2],
    /// Rows of a tile of weights, of 64 bytes each.
    depth: usize,
}

/// The configuration of the tile registers, as `ldtilecfg` reads it.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Amx {
    /// Returns the unit in a state in which the first operation configures it.
    pub(in crate::cpu) fn new() -> Amx {
        Amx { shape: Shape { heights: [0; 2], depth: 0 } }
    }

    /// Sets the shape of tiles. Registers 0 to 3 are sums, of which 0 and 1 belong to the first
    /// tile of rows; 4 and 5 are inputs, 6 and 7 are weights.
    ///
    /// # Safety
    /// The machine must have the unit.
    unsafe fn configure(&mut self, shape: Shape) {
        if self.shape == shape {
            return;
        }
        self.shape = shape;
        let ([first, second], depth) = (shape.heights.map(|height| height as u8), shape.depth as u8);
        let (sums, inputs) = (ROW_BYTES as u16, 4 * u16::from(depth));
        let registers = [
            (first, sums),
            (first, sums),
            (second, sums),
            (second, sums),
            (first, inputs),
            (second, inputs),
            (depth, sums),
            (depth, sums),
        ];
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (register, (rows, row_bytes)) in registers.into_iter().enumerate() {
            // A register without rows must have no columns either.
            if rows > 0 {
                (configuration.rows[register], configuration.row_bytes[register]) = (rows, row_bytes);
            }
        }
        // SAFETY: the caller guarantees the unit, and the configuration is valid.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const configuration,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags));
        }
    }

    /// Computes dot products of signed bytes. They are exact if they fit 32 bits.
    ///
    /// # Safety
    /// The machine must have the unit, and the pointers must be valid.
    #[inline]
    pub(in crate::cpu) unsafe fn dot_bytes(&mut self, job: Bytes) {
        // Tiles of 64 columns take as long as tiles of 32.
        let depth = if job.columns.is_multiple_of(ROW_BYTES) { ROWS } else { ROWS / 2 };
        // SAFETY: the caller guarantees the unit and valid pointers.
        unsafe {
            self.configure(Shape { heights: [job.height, 0], depth });
            asm!(
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "mov {left}, {steps}",
                "2:",
                "tileloadd tmm4, [{x} + {x_stride}]",
                "tileloadd tmm6, [{w} + {row} * 2]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + {row} * 2 + 64]",
                "tdpbssd tmm1, tmm4, tmm7",
                "add {x}, {x_step}",
                "add {w}, {w_step}",
                "sub {left}, 1",
                "jnz 2b",
                "tilestored [{dots} + {row} * 2], tmm0",
                "tilestored [{dots} + {row} * 2 + 64], tmm1",
                "add {dots}, 2048",
                "sub {groups}, 1",
                "jnz 3b",
                x = inout(reg) job.x => _,
                x_stride = in(reg) job.x_stride,
                x_step = in(reg) 4 * depth,
                w = inout(reg) job.weights => _,
                w_step = in(reg) 2 * ROW_BYTES * depth,
                row = in(reg) ROW_BYTES,
                dots = inout(reg) job.dots => _,
                groups = inout(reg) job.groups => _,
                steps = in(reg) job.columns / (4 * depth),
                left = out(reg) _,
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            );
        }
    }
}

/// The loops over values, with the tiles of sums from register 0 on.
macro_rules! weigh_values {
    ($job:ident, [$($load:literal),*], [$($multiply:literal),*], [$($store:literal),*]) => {
        asm!(
            $($load,)*
            "2:",
            "mov {v}, [{list}]",
            "tileloadd tmm4, [{p} + {p_stride}]",
            $($multiply,)*
            "add {list}, 8",
            "add {p}, 32",
            "sub {groups}, 1",
            "jnz 2b",
            $($store,)*
            v = out(reg) _,
            list = inout(reg) $job.values.as_ptr() => _,
            groups = inout(reg) $job.values.len() => _,
            p = inout(reg) $job.weights => _,
            p_stride = in(reg) $job.weight_stride,
            v_stride = in(reg) $job.value_stride,
            sums = in(reg) $job.sums,
            stride = in(reg) $job.sum_stride,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

impl Amx {
    /// Computes scores.
    ///
    /// # Safety
    /// The machine must have the unit, and the pointers must be valid.
    pub(in crate::cpu) unsafe fn scores(&mut self, job: &Scores) {
        let [k0, k1, k2, k3] = job.keys;
        // SAFETY: the caller guarantees the unit and valid pointers.
        unsafe {
            self.configure(Shape { heights: [job.height; 2], depth: ROWS });
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{q} + {row}]",
                "tileloadd tmm6, [{k0} + {stride}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{k1} + {stride}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm6, [{k2} + {stride}]",
                "tdpbf16ps tmm2, tmm4, tmm6",
                "tileloadd tmm7, [{k3} + {stride}]",
                "tdpbf16ps tmm3, tmm4, tmm7",
                "add {q}, {q_step}",
                "add {k0}, {k_step}",
                "add {k1}, {k_step}",
                "add {k2}, {k_step}",
                "add {k3}, {k_step}",
                "sub {steps}, 1",
                "jnz 2b",
                "tilestored [{to} + {to_stride}], tmm0",
                "tilestored [{to} + {to_stride} + 64], tmm1",
                "tilestored [{to} + {to_stride} + 128], tmm2",
                "tilestored [{to} + {to_stride} + 192], tmm3",
                q = inout(reg) job.queries => _,
                q_step = in(reg) job.height * ROW_BYTES,
                row = in(reg) ROW_BYTES,
                k0 = inout(reg) k0 => _,
                k1 = inout(reg) k1 => _,
                k2 = inout(reg) k2 => _,
                k3 = inout(reg) k3 => _,
                k_step = in(reg) job.key_stride * ROWS,
                stride = in(reg) job.key_stride,
                steps = inout(reg) job.steps => _,
                to = in(reg) job.to,
                to_stride = in(reg) job.to_stride,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            );
        }
    }

    /// Adds the weighted values of FEATURES features, 64 or 32, to the sums.
    ///
    /// # Safety
    /// As for [`Amx::scores`].
    pub(in crate::cpu) unsafe fn weigh<const FEATURES: usize>(&mut self, job: &Weighted<'_>) {
        const { assert!(FEATURES == 64 || FEATURES == 32) };
        // SAFETY: the caller guarantees the unit and valid pointers.
        unsafe {
            self.configure(Shape { heights: [job.height; 2], depth: ROWS / 2 });
            if FEATURES == 64 {
                weigh_values!(
                    job,
                    [
                        "tileloadd tmm0, [{sums} + {stride}]",
                        "tileloadd tmm1, [{sums} + {stride} + 64]",
                        "tileloadd tmm2, [{sums} + {stride} + 128]",
                        "tileloadd tmm3, [{sums} + {stride} + 192]"
                    ],
                    [
                        "tileloadd tmm6, [{v} + {v_stride}]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        "tileloadd tmm7, [{v} + {v_stride} + 64]",
                        "tdpbf16ps tmm1, tmm4, tmm7",
                        "tileloadd tmm6, [{v} + {v_stride} + 128]",
                        "tdpbf16ps tmm2, tmm4, tmm6",
                        "tileloadd tmm7, [{v} + {v_stride} + 192]",
                        "tdpbf16ps tmm3, tmm4, tmm7"
                    ],
                    [
                        "tilestored [{sums} + {stride}], tmm0",
                        "tilestored [{sums} + {stride} + 64], tmm1",
                        "tilestored [{sums} + {stride} + 128], tmm2",
                        "tilestored [{sums} + {stride} + 192], tmm3"
                    ]
                );
            } else {
                weigh_values!(
                    job,
                    ["tileloadd tmm0, [{sums} + {stride}]", "tileloadd tmm1, [{sums} + {stride} + 64]"],
                    [
                        "tileloadd tmm6, [{v} + {v_stride}]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        "tileloadd tmm7, [{v} + {v_stride} + 64]",
                        "tdpbf16ps tmm1, tmm4, tmm7"
                    ],
                    ["tilestored [{sums} + {stride}], tmm0", "tilestored [{sums} + {stride} + 64], tmm1"]
                );
            }
        }
    }
}

impl Drop for Amx {
    fn drop(&mut self) {
        if self.shape.depth > 0 {
            // Without it the system would save the tiles whenever it interrupts the thread.
            // SAFETY: the unit has been configured, so that the machine has it.
            unsafe {
                asm!("tilerelease",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, nomem, preserves_flags));
            }
        }
    }
}

/// The loop over the steps of a block of two tiles of rows. `$prefetch` is run in each step.
macro_rules! two_tiles {
    ($block:ident, $dot:literal, $ahead:expr, [$($prefetch:literal),*]) => {
        asm!(
            "test {fresh}, {fresh}",
            "jnz 3f",
            "tileloadd tmm0, [{sums0} + {stride}]",
            "tileloadd tmm1, [{sums0} + {stride} + 64]",
            "tileloadd tmm2, [{sums1} + {stride}]",
            "tileloadd tmm3, [{sums1} + {stride} + 64]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{x0} + {row}]",
            "tileloadd tmm6, [{w} + {row} * 2]",
            concat!($dot, " tmm0, tmm4, tmm6"),
            "tileloadd tmm7, [{w} + {row} * 2 + 64]",
            concat!($dot, " tmm1, tmm4, tmm7"),
            "tileloadd tmm5, [{x1} + {row}]",
            concat!($dot, " tmm2, tmm5, tmm6"),
            concat!($dot, " tmm3, tmm5, tmm7"),
            $($prefetch,)*
            "add {x0}, {x0_step}",
            "add {x1}, {x1_step}",
            "add {w}, 2048",
            "sub {steps}, 1",
            "jnz 2b",
            "tilestored [{sums0} + {stride}], tmm0",
            "tilestored [{sums0} + {stride} + 64], tmm1",
            "tilestored [{sums1} + {stride}], tmm2",
            "tilestored [{sums1} + {stride} + 64], tmm3",
            x0 = inout(reg) $block.inputs[0] => _,
            x1 = inout(reg) $block.inputs[1] => _,
            x0_step = in(reg) $block.heights[0] * ROW_BYTES,
            x1_step = in(reg) $block.heights[1] * ROW_BYTES,
            w = inout(reg) $block.weights => _,
            ahead = inout(reg) $ahead => _,
            row = in(reg) ROW_BYTES,
            sums0 = in(reg) $block.sums[0],
            sums1 = in(reg) $block.sums[1],
            fresh = in(reg) usize::from($block.fresh),
            stride = in(reg) $block.stride,
            steps = inout(reg) $block.steps => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// As [`two_tiles`], for a block with one tile of rows.
macro_rules! one_tile {
    ($block:ident, $dot:literal, $ahead:expr, [$($prefetch:literal),*]) => {
        asm!(
            "test {fresh}, {fresh}",
            "jnz 3f",
            "tileloadd tmm0, [{sums0} + {stride}]",
            "tileloadd tmm1, [{sums0} + {stride} + 64]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm4, [{x0} + {row}]",
            "tileloadd tmm6, [{w} + {row} * 2]",
            concat!($dot, " tmm0, tmm4, tmm6"),
            "tileloadd tmm7, [{w} + {row} * 2 + 64]",
            concat!($dot, " tmm1, tmm4, tmm7"),
            $($prefetch,)*
            "add {x0}, {x0_step}",
            "add {w}, 2048",
            "sub {steps}, 1",
            "jnz 2b",
            "tilestored [{sums0} + {stride}], tmm0",
            "tilestored [{sums0} + {stride} + 64], tmm1",
            x0 = inout(reg) $block.inputs[0] => _,
            x0_step = in(reg) $block.heights[0] * ROW_BYTES,
            w = inout(reg) $block.weights => _,
            ahead = inout(reg) $ahead => _,
            row = in(reg) ROW_BYTES,
            sums0 = in(reg) $block.sums[0],
            fresh = in(reg) usize::from($block.fresh),
            stride = in(reg) $block.stride,
            steps = inout(reg) $block.steps => _,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// Calls one of the loops with the prefetches that the block asks for.
macro_rules! with_ahead {
    ($tiles:ident, $block:ident, $dot:literal) => {
        match $block.ahead {
            Ahead::From(ahead) => $tiles!(
                $block,
                $dot,
                ahead,
                ["prefetcht1 [{ahead}]", "prefetcht1 [{ahead} + 64]", "add {ahead}, 128"]
            ),
            Ahead::Own => $tiles!(
                $block,
                $dot,
                0usize,
                [
                    "lea {ahead}, [{w} + 8192]",
                    "prefetcht0 [{ahead}]",
                    "prefetcht0 [{ahead} + 64]",
                    "prefetcht0 [{ahead} + 128]",
                    "prefetcht0 [{ahead} + 192]",
                    "prefetcht0 [{ahead} + 256]",
                    "prefetcht0 [{ahead} + 320]",
                    "prefetcht0 [{ahead} + 384]",
                    "prefetcht0 [{ahead} + 448]",
                    "prefetcht0 [{ahead} + 512]",
                    "prefetcht0 [{ahead} + 576]",
                    "prefetcht0 [{ahead} + 640]",
                    "prefetcht0 [{ahead} + 704]",
                    "prefetcht0 [{ahead} + 768]",
                    "prefetcht0 [{ahead} + 832]",
                    "prefetcht0 [{ahead} + 896]",
                    "prefetcht0 [{ahead} + 960]",
                    "prefetcht0 [{ahead} + 1024]",
                    "prefetcht0 [{ahead} + 1088]",
                    "prefetcht0 [{ahead} + 1152]",
                    "prefetcht0 [{ahead} + 1216]",
                    "prefetcht0 [{ahead} + 1280]",
                    "prefetcht0 [{ahead} + 1344]",
                    "prefetcht0 [{ahead} + 1408]",
                    "prefetcht0 [{ahead} + 1472]",
                    "prefetcht0 [{ahead} + 1536]",
                    "prefetcht0 [{ahead} + 1600]",
                    "prefetcht0 [{ahead} + 1664]",
                    "prefetcht0 [{ahead} + 1728]",
                    "prefetcht0 [{ahead} + 1792]",
                    "prefetcht0 [{ahead} + 1856]",
                    "prefetcht0 [{ahead} + 1920]",
                    "prefetcht0 [{ahead} + 1984]"
                ]
            ),
        }
    };
}

impl Unit for Amx {
    unsafe fn multiply_bf16(&mut self, block: &Block) {
        if block.steps == 0 {
            return;
        }
        // SAFETY: the caller guarantees the unit and valid pointers.
        unsafe {
            self.configure(Shape { heights: block.heights, depth: ROWS });
            if block.heights[1] > 0 {
                with_ahead!(two_tiles, block, "tdpbf16ps");
            } else {
                with_ahead!(one_tile, block, "tdpbf16ps");
            }
        }
    }
}

/// Multiplies the same tiles of zeros `rounds` times, and returns the number of floating-point
/// operations. The machine must have the unit.
pub(in crate::cpu) fn spin(rounds: usize) -> usize {
    assert!(is_available(), "AMX on a machine without it");
    let mut unit = Amx::new();
    // SAFETY: the machine has the unit, and the loop has no operands in memory.
    unsafe {
        unit.configure(Shape { heights: [ROWS, ROWS], depth: ROWS });
        asm!(
            "tilezero tmm4",
            "tilezero tmm5",
            "tilezero tmm6",
            "tilezero tmm7",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "sub {rounds}, 1",
            "jnz 2b",
            rounds = inout(reg) rounds.max(1) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, nomem)
        );
    }
    rounds * 4 * 2 * ROWS * ROWS * 2 * ROWS
}
