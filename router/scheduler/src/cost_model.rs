//! The cost model of steps: predicts the time that the shards take for a step from the times of
//! earlier steps.
//!
//! The model is linear. A step takes a base time, in which the weights are read, and in addition a
//! time for each token, for each pair of a token and a position to which it attends, and for each
//! token that is sampled. The four coefficients are a weighted least squares fit that is never
//! negative. The fit minimizes relative errors, so a decode step counts as much as a long prompt.
//!
//! Old steps are forgotten, because the speed of a machine changes. Coordinate descent keeps the
//! coefficients about which the remaining steps say nothing, so an hour of decoding leaves the time
//! of a prompt token as it was.

use millrace_proto::Row;

/// Number of coefficients.
const TERMS: usize = 4;

/// Factor by which the weight of a step falls with each later step.
const MEMORY: f64 = 0.97;

/// Number of sweeps of coordinate descent for each step. Each sweep starts from the coefficients of
/// the last one, so the fit keeps up with its steps.
const SWEEPS: usize = 16;

/// Number of steps after which a step that takes much longer than predicted counts as an accident.
const MATURE: u64 = 8;

/// Maximum ratio of the time of a step to its prediction with which it counts, once the model is
/// mature.
const MAX_SURPRISE: f64 = 3.0;

/// Number of such steps in a row after which the machine counts as slower, and earlier steps are
/// forgotten.
const MAX_SURPRISES: u32 = 5;

/// Share of the throughput of endless steps that an efficient step has.
const EFFICIENCY: f64 = 0.95;

/// The quantities on which the time of a step depends.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct StepLoad {
    /// Number of tokens.
    tokens: f64,
    /// Number of pairs of a token and a position to which it attends.
    attended: f64,
    /// Number of tokens that are sampled, drafts included.
    sampled: f64,
}

impl StepLoad {
    /// Adds a row that runs `count` tokens behind `start` computed positions.
    pub(super) fn add(&mut self, start: usize, count: usize, samples: bool) {
        let (start, count) = (start as f64, count as f64);
        self.tokens += count;
        self.attended += count * (start + (count + 1.0) / 2.0);
        self.sampled += f64::from(u8::from(samples));
    }

    /// Adds a row of a step.
    pub(super) fn add_row(&mut self, row: &Row) {
        let (start, count) = (row.start as usize, row.count as usize);
        self.add(start, count, row.sample);
        for draft in 0..row.draft_count() {
            self.add(start + count + draft, 1, true);
        }
    }

    /// Number of sampled tokens.
    pub(super) fn sampled(&self) -> f64 {
        self.sampled
    }

    fn terms(&self) -> [f64; TERMS] {
        [1.0, self.tokens, self.attended, self.sampled]
    }
}

/// The sums of a least squares fit.
#[derive(Debug, Clone, Copy, Default)]
struct Evidence {
    /// Sums of the products of two terms.
    products: [[f64; TERMS]; TERMS],
    /// Sums of the products of a term and the time.
    times: [f64; TERMS],
}

impl Evidence {
    fn add(&mut self, terms: [f64; TERMS], micros: f64) {
        // With this weight all errors are relative to the time of their steps.
        let terms = terms.map(|term| term / micros);
        for (i, term) in terms.into_iter().enumerate() {
            self.times[i] = MEMORY * self.times[i] + term;
            for (j, other) in terms.into_iter().enumerate() {
                self.products[i][j] = MEMORY * self.products[i][j] + term * other;
            }
        }
    }
}

/// The cost model. Times are in microseconds.
#[derive(Debug, Clone, Default)]
pub(super) struct StepCostModel {
    /// The coefficients of [`StepLoad::terms`].
    coefficients: [f64; TERMS],
    evidence: Evidence,
    observed: u64,
    /// Number of the last steps in a row that took much longer than predicted.
    surprises: u32,
}

impl StepCostModel {
    /// Whether any step has been observed.
    pub(super) fn is_known(&self) -> bool {
        self.observed > 0
    }

    /// The predicted time of a step in microseconds; 0 if nothing is known.
    pub(super) fn predict(&self, load: &StepLoad) -> f64 {
        self.coefficients.iter().zip(load.terms()).map(|(coefficient, term)| coefficient * term).sum()
    }

    /// The part of [`predict`](Self::predict) that is not the base time.
    pub(super) fn predict_additional(&self, load: &StepLoad) -> f64 {
        self.predict(load) - self.coefficients[0]
    }

    /// Number of tokens from which on larger steps are hardly more efficient.
    pub(super) fn efficient_tokens(&self) -> usize {
        let [base, per_token, ..] = self.coefficients;
        // With a linear time, the efficiency of `n` tokens is `n t / (base + n t)`. A conversion of
        // an infinity or a NaN saturates.
        (EFFICIENCY / (1.0 - EFFICIENCY) * base / per_token).ceil() as usize
    }

    /// Learns from a step that took `micros` microseconds. A time of 0 is unknown.
    pub(super) fn observe(&mut self, load: &StepLoad, micros: u64) {
        if micros == 0 || load.tokens == 0.0 {
            return;
        }
        let mut micros = micros as f64;
        if self.observed == 0 {
            // Until steps of different sizes are known, all of the time is that of the tokens.
            self.coefficients[1] = micros / load.tokens;
        }
        if self.observed >= MATURE {
            micros = self.without_surprise(micros, self.predict(load).max(1.0));
        }
        self.observed += 1;
        self.evidence.add(load.terms(), micros);
        self.fit();
    }

    /// The time with which a step counts that was predicted to take another time.
    fn without_surprise(&mut self, micros: f64, predicted: f64) -> f64 {
        if micros <= MAX_SURPRISE * predicted {
            self.surprises = 0;
            return micros;
        }
        self.surprises += 1;
        if self.surprises < MAX_SURPRISES {
            return MAX_SURPRISE * predicted;
        }
        self.surprises = 0;
        self.evidence = Evidence::default();
        self.coefficients = self.coefficients.map(|coefficient| coefficient * (micros / predicted));
        micros
    }

    /// Fits the coefficients by coordinate descent. Coefficients about which the evidence says
    /// nothing keep their values.
    fn fit(&mut self) {
        let Evidence { products, times } = &self.evidence;
        for _ in 0..SWEEPS {
            for i in 0..TERMS {
                if products[i][i] <= 0.0 {
                    continue;
                }
                let others = (0..TERMS).filter(|&j| j != i).map(|j| products[i][j] * self.coefficients[j]);
                let rest = times[i] - others.sum::<f64>();
                self.coefficients[i] = (rest / products[i][i]).max(0.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// A device whose times follow the law of the model, with noise.
    struct Device {
        coefficients: [f64; TERMS],
        noise: f64,
        random: StdRng,
    }

    impl Device {
        fn new(seed: u64, coefficients: [f64; TERMS], noise: f64) -> Self {
            Device { coefficients, noise, random: StdRng::seed_from_u64(seed) }
        }

        fn time(&self, load: &StepLoad) -> f64 {
            self.coefficients.iter().zip(load.terms()).map(|(c, term)| c * term).sum()
        }

        fn run(&mut self, load: &StepLoad) -> u64 {
            let noise = 1.0 + self.random.random_range(-self.noise..=self.noise);
            (self.time(load) * noise).round() as u64
        }
    }

    fn decodes(rows: usize, context: usize) -> StepLoad {
        let mut load = StepLoad::default();
        (0..rows).for_each(|_| load.add(context, 1, true));
        load
    }

    fn with_chunk(mut load: StepLoad, start: usize, count: usize) -> StepLoad {
        load.add(start, count, false);
        load
    }

    /// Times like those of a model with a billion parameters on two CPU cores, of a large model on
    /// a GPU, and of a tiny model with a large vocabulary.
    const DEVICES: [[f64; TERMS]; 3] =
        [[80_000.0, 7_000.0, 1.5, 500.0], [7_000.0, 25.0, 0.002, 3.0], [50.0, 20.0, 0.02, 60.0]];

    #[test]
    fn the_load_of_a_row_counts_the_positions_that_it_reads() {
        let mut load = StepLoad::default();
        load.add(10, 3, false);
        load.add(4, 1, true);
        assert_eq!(load, StepLoad { tokens: 4.0, attended: 11.0 + 12.0 + 13.0 + 5.0, sampled: 1.0 });
    }

    #[test]
    fn predictions_follow_random_traffic() {
        for (seed, coefficients) in (0..).zip(DEVICES) {
            let mut device = Device::new(seed, coefficients, 0.1);
            let mut model = StepCostModel::default();
            let warm_up = with_chunk(StepLoad::default(), 0, 512);
            model.observe(&warm_up, device.run(&warm_up));
            let mut worst: f64 = 1.0;
            for step in 0..3000 {
                let rows = device.random.random_range(0..16);
                let context = device.random.random_range(0..2000);
                let mut load = decodes(rows, context);
                if rows == 0 || device.random.random_bool(0.2) {
                    let count = device.random.random_range(8..256);
                    load = with_chunk(load, device.random.random_range(0..4000), count);
                }
                let ratio = model.predict(&load) / device.time(&load);
                if step > 100 {
                    worst = worst.max(ratio).max(1.0 / ratio);
                }
                model.observe(&load, device.run(&load));
            }
            assert!(worst < 1.35, "off by a factor of {worst} on {coefficients:?}");
        }
    }

    #[test]
    fn long_decoding_does_not_forget_what_a_prompt_costs() {
        for (seed, coefficients) in (0..).zip(DEVICES) {
            let mut device = Device::new(seed, coefficients, 0.1);
            let mut model = StepCostModel::default();
            for chunk in (16..512).step_by(16) {
                let load = with_chunk(decodes(4, 300), 2 * chunk, chunk);
                model.observe(&load, device.run(&load));
            }
            for step in 0..20_000 {
                // Contexts grow, and once a sequence ends.
                let load = decodes(14 - step / 10_000, 200 + step / 20);
                model.observe(&load, device.run(&load));
            }
            let load = with_chunk(decodes(14, 1200), 1000, 64);
            let ratio = model.predict(&load) / device.time(&load);
            assert!((0.75..1.35).contains(&ratio), "{ratio} on {coefficients:?}");
        }
    }

    #[test]
    fn an_accident_hardly_counts_and_a_slower_machine_is_learned() {
        let mut device = Device::new(1, DEVICES[0], 0.05);
        let mut model = StepCostModel::default();
        let load = decodes(8, 500);
        (0..100).for_each(|_| model.observe(&load, device.run(&load)));
        model.observe(&load, 3_600_000_000);
        assert!(model.predict(&load) < 1.2 * device.time(&load));
        device.coefficients = DEVICES[0].map(|coefficient| 10.0 * coefficient);
        (0..20).for_each(|_| model.observe(&load, device.run(&load)));
        let ratio = model.predict(&load) / device.time(&load);
        assert!((0.8..1.1).contains(&ratio), "{ratio}");
    }

    #[test]
    fn nothing_is_predicted_from_nothing_and_nothing_overflows() {
        let mut model = StepCostModel::default();
        assert!(!model.is_known());
        assert_eq!(model.predict(&decodes(1, 1)), 0.0);
        model.observe(&decodes(1, 1), 0);
        model.observe(&StepLoad::default(), 7);
        assert!(!model.is_known());
        for micros in [1, u64::MAX, 1, u64::MAX] {
            model.observe(&with_chunk(decodes(3, 1_000_000), 1_000_000, 1_000_000), micros);
            model.observe(&decodes(1, 0), micros);
            assert!(model.predict(&decodes(5, 5)).is_finite());
            assert!(model.coefficients.iter().all(|coefficient| *coefficient >= 0.0));
        }
    }

    #[test]
    fn an_efficient_step_spends_little_on_its_base() {
        let mut device = Device::new(1, DEVICES[0], 0.0);
        let mut model = StepCostModel::default();
        for rows in (1..64).chain(1..64) {
            let load = with_chunk(decodes(rows, 100), 50, 3 * rows);
            model.observe(&load, device.run(&load));
            model.observe(&decodes(rows, 20), device.run(&decodes(rows, 20)));
        }
        let tokens = model.efficient_tokens();
        assert!((150..300).contains(&tokens), "{tokens}: 19 × 80 / 7 = 217");
    }
}
