//! The speed of a pretend shard.

use millrace_proto::{Row, Step};
use rand::Rng;

/// The times in microseconds from which the time of a step is made up.
#[derive(Debug, Clone, Copy)]
pub(super) struct PretendSpeed {
    pub(super) base: f64,
    pub(super) per_token: f64,
    /// For each pair of a token and a position to which it attends.
    pub(super) per_pair: f64,
    pub(super) per_sample: f64,
}

impl PretendSpeed {
    /// A model with a billion parameters on two CPU cores.
    pub(super) const CPU: Self =
        PretendSpeed { base: 80_000.0, per_token: 7_000.0, per_pair: 0.5, per_sample: 500.0 };

    /// A model with eight billion parameters on a GPU.
    pub(super) const GPU: Self =
        PretendSpeed { base: 7_000.0, per_token: 27.0, per_pair: 0.002, per_sample: 3.0 };

    /// A tiny model on two CPU cores.
    pub(super) const TINY: Self =
        PretendSpeed { base: 50.0, per_token: 20.0, per_pair: 0.02, per_sample: 60.0 };

    pub(super) fn random(random: &mut impl Rng) -> Self {
        PretendSpeed {
            base: random.random_range(0.0..10_000.0),
            per_token: random.random_range(1.0..1000.0),
            per_pair: random.random_range(0.0..10.0),
            per_sample: random.random_range(0.0..1000.0),
        }
    }

    /// The time of a step with these rows.
    pub(super) fn time<'a>(&self, rows: impl IntoIterator<Item = &'a Row>) -> f64 {
        let of_row = |row: &Row| {
            let drafts = row.draft_count() as f64;
            let (start, count) = (f64::from(row.start), f64::from(row.count) + drafts);
            let pairs = count * (start + (count + 1.0) / 2.0);
            let samples = f64::from(u8::from(row.sample)) + drafts;
            count * self.per_token + pairs * self.per_pair + samples * self.per_sample
        };
        self.base + rows.into_iter().map(of_row).sum::<f64>()
    }

    /// The time of a step in whole microseconds, and at least 1.
    pub(super) fn micros(&self, step: &Step) -> u64 {
        self.time(&step.rows) as u64 + 1
    }
}
