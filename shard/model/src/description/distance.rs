//! Biases of scores by the distance of query and key, learned for buckets of distances (Raffel et
//! al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer").

/// The heads of a layer whose scores have a bias by distance. All layers share one table of the
/// checkpoint, `[BUCKETS, heads]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DistanceHeads {
    /// Number of query heads of the whole model.
    pub all: usize,
    /// Number of this rank's first head.
    pub first: usize,
}

impl DistanceHeads {
    /// Number of buckets: half of them are for keys after the query.
    pub const BUCKETS: usize = 32;
    /// The distance from which on all keys are in the last bucket of their direction.
    pub const REACH: usize = 91;

    /// Returns the biases of this rank's `count` heads by distance, `[count, 2 * REACH + 1]`, from
    /// the table of the checkpoint. The first number of a head is for the key [`Self::REACH`]
    /// tokens before the query.
    pub fn biases(&self, table: &[f32], count: usize) -> Vec<f32> {
        let reach = Self::REACH as isize;
        let of_head = |head| (-reach..=reach).map(move |distance| table[bucket(distance) * self.all + head]);
        (self.first..self.first + count).flat_map(of_head).collect()
    }
}

/// Returns the bucket of a key this many tokens after the query. Small distances have buckets of
/// their own, and each factor of the root of 2 has one from 8 on. The definition rounds a logarithm
/// down, which this does without rounding errors.
fn bucket(distance: isize) -> usize {
    let of_direction = DistanceHeads::BUCKETS / 2;
    let exact = of_direction / 2;
    let n = distance.unsigned_abs();
    let place = if n < exact { n } else { exact + (n * n / (exact * exact)).ilog2() as usize };
    let behind = if distance > 0 { of_direction } else { 0 };
    behind + place.min(of_direction - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first distance of each bucket, as transformers computes them.
    #[test]
    fn buckets_begin_where_those_of_transformers_do() {
        let before = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91];
        for (index, &first) in before.iter().enumerate() {
            let next = before.get(index + 1).copied().unwrap_or(1000);
            for n in [first, next - 1] {
                assert_eq!(bucket(-n), index, "{n} before");
                if n > 0 {
                    assert_eq!(bucket(n), 16 + index, "{n} after");
                }
            }
        }
        assert_eq!(before[15] as usize, DistanceHeads::REACH);
    }

    #[test]
    fn a_rank_takes_the_columns_of_its_heads() {
        let table: Vec<f32> = (0..32 * 3).map(|n| n as f32).collect();
        let found = DistanceHeads { all: 3, first: 1 }.biases(&table, 2);
        let row = 2 * DistanceHeads::REACH + 1;
        assert_eq!(found.len(), 2 * row);
        // The farthest key before the query, the query itself, and the key after it.
        assert_eq!((found[0], found[91], found[92]), (15.0 * 3.0 + 1.0, 1.0, 17.0 * 3.0 + 1.0));
        assert_eq!((found[row], found[row + 91]), (15.0 * 3.0 + 2.0, 2.0));
    }
}
