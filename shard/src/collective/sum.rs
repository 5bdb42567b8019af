//! Summation in the order of the ranks.

/// Number of values that are summed over all ranks at a time. They fit into the first-level cache
/// (16 KiB).
const BLOCK: usize = 4096;

/// Writes the sum of `part(0)`, `part(1)` … `part(world_size - 1)` to `sums`, added in this order.
/// All are equally long.
///
/// The bits of an element only depend on its addends, not on its place in a longer vector.
pub(super) fn sum_in_order<'a>(sums: &mut [f32], world_size: usize, part: impl Fn(usize) -> &'a [f32]) {
    let mut start = 0;
    for sums in sums.chunks_mut(BLOCK) {
        let size = sums.len();
        let of = |rank| &part(rank)[start..start + size];
        if world_size == 1 {
            sums.copy_from_slice(of(0));
        } else {
            let (first, second) = (of(0), of(1));
            for ((sum, a), b) in sums.iter_mut().zip(first).zip(second) {
                *sum = a + b;
            }
            for rank in 2..world_size {
                for (sum, value) in sums.iter_mut().zip(of(rank)) {
                    *sum += value;
                }
            }
        }
        start += size;
    }
}
