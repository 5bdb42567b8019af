//! The two products of attention.

use std::arch::asm;

use super::unit::{Amx, ROW_BYTES, ROWS, Shape};

/// The products of a tile of queries with the keys of four groups of 16.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scores {
    /// Queries, from 1 to [`ROWS`].
    pub(crate) height: usize,
    /// `[steps][height][32]` bf16 numbers.
    pub(crate) queries: *const u8,
    /// Steps of 32 features, at least one.
    pub(crate) steps: usize,
    /// The groups of keys: pairs of features, of 16 keys each.
    pub(crate) keys: [*const u8; 4],
    /// Bytes between pairs of features of a key.
    pub(crate) key_stride: usize,
    /// The place of the products, `[height][64]`.
    pub(crate) to: *mut f32,
    /// Bytes between rows of products.
    pub(crate) to_stride: usize,
}

/// The values of groups of 16 tokens, weighted for a tile of queries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weighted<'a> {
    /// Queries, from 1 to [`ROWS`].
    pub(crate) height: usize,
    /// The weights of the first group, 16 bf16 numbers. Those of the next group follow.
    pub(crate) weights: *const u8,
    /// Bytes between the weights of two queries.
    pub(crate) weight_stride: usize,
    /// The groups of values: pairs of tokens, at the same feature. At least one.
    pub(crate) values: &'a [*const u8],
    /// Bytes between pairs of tokens.
    pub(crate) value_stride: usize,
    /// The sums of 64 features, or of 32.
    pub(crate) sums: *mut f32,
    /// Bytes between the sums of two queries.
    pub(crate) sum_stride: usize,
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
    pub(crate) unsafe fn scores(&mut self, job: &Scores) {
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
    pub(crate) unsafe fn weigh<const FEATURES: usize>(&mut self, job: &Weighted<'_>) {
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
