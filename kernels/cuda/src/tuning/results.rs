//! The choice of the fastest method for each product and number of rows.

use std::collections::BTreeMap;

use millrace_backend::{Error, Result};

use crate::weights::WeightLayout;
use crate::{Algorithm, Elem};

/// A method to multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProductMethod {
    /// The project's kernel for few rows.
    Kernel,
    /// The project's kernel for many rows. It takes any number.
    Tiles,
    /// An algorithm of the device's matrix library.
    Library(Algorithm),
}

impl ProductMethod {
    /// The method's name in messages.
    fn name(self) -> &'static str {
        match self {
            ProductMethod::Kernel => "the kernel for few rows",
            ProductMethod::Tiles => "the kernel on tiles",
            ProductMethod::Library(_) => "an algorithm of cuBLASLt",
        }
    }
}

/// The part of a product that does not depend on the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TunedProduct {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) weight: WeightLayout,
    pub(crate) out_elem: Elem,
}

/// The fastest method for every product and bucket of rows that was timed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TuningResults(pub(super) BTreeMap<(TunedProduct, usize), ProductMethod>);

impl TuningResults {
    /// The fastest method for this many rows, if it is known.
    pub(crate) fn method(&self, product: TunedProduct, rows: usize) -> Option<ProductMethod> {
        self.0.get(&(product, bucket(rows))).copied()
    }

    pub(super) fn insert(&mut self, product: TunedProduct, bucket: usize, method: ProductMethod) {
        self.0.insert((product, bucket), method);
    }
}

/// The bucket that serves `rows` rows: the number of rows that is timed for it. It is a power of
/// two, or one and a half times a power of two from 24 on.
pub(crate) fn bucket(rows: usize) -> usize {
    let power = rows.max(1).next_power_of_two();
    let between = power / 4 * 3;
    if power >= 32 && rows <= between { between } else { power }
}

/// The buckets that serve 1 to `most` rows.
pub(crate) fn buckets(most: usize) -> impl Iterator<Item = usize> {
    let mut next = 1;
    std::iter::from_fn(move || {
        let this = bucket(next);
        (next <= most.max(1)).then(|| {
            next = this + 1;
            this
        })
    })
}

/// Lists and times the methods for one product: a device, or a stand-in in tests.
pub(crate) trait MethodTimer {
    /// The methods that may be tried for this many rows, the most promising first.
    fn methods(&mut self, rows: usize) -> Result<Vec<ProductMethod>>;
    /// Measures the seconds that a method takes.
    ///
    /// # Errors
    /// If the method does not work for this many rows.
    fn seconds(&mut self, method: ProductMethod, rows: usize) -> Result<f64>;
}

/// The share of the time that a method must save to be preferred over a more promising one. Smaller
/// differences are noise.
const LEAST_SAVING: f64 = 0.02;

/// The outcome of [`fill_missing`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Timings {
    /// Whether anything was missing.
    pub(crate) has_new: bool,
    /// A sentence for each method that is not used because it failed on the device.
    pub(crate) dropped: Vec<String>,
}

impl Timings {
    /// Notes that a method failed. A method that the library does not offer for these rows is no
    /// news.
    fn note(&mut self, product: TunedProduct, method: ProductMethod, rows: usize, error: &Error) {
        if !matches!(error, Error::Unsupported(_)) {
            let TunedProduct { inputs, outputs, weight, .. } = product;
            self.dropped.push(format!(
                "{} for {rows} rows by {weight:?} weights of {inputs} to {outputs} features is not used, because it \
                 failed: {error}",
                method.name()
            ));
        }
    }
}

/// Times the buckets up to `most` rows that `results` lacks.
///
/// With `one_for_all` a single algorithm serves all numbers of rows, so that a row's result does
/// not depend on how many others there are. It is the one with the smallest loss against the best
/// of each bucket.
///
/// # Errors
/// If no method works.
pub(crate) fn fill_missing(
    results: &mut TuningResults,
    product: TunedProduct,
    most: usize,
    one_for_all: bool,
    timer: &mut impl MethodTimer,
) -> Result<Timings> {
    let mut timings = Timings::default();
    let missing: Vec<usize> = buckets(most).filter(|&rows| results.method(product, rows).is_none()).collect();
    if missing.is_empty() {
        return Ok(timings);
    }
    let mut note = |method, rows, error: &Error| timings.note(product, method, rows, error);
    if one_for_all {
        let all: Vec<usize> = buckets(most).collect();
        let method = best_of_all(&all, timer, &mut note)?;
        all.into_iter().for_each(|rows| results.insert(product, rows, method));
    } else {
        for rows in missing {
            let method = best(rows, timer, &mut note)?;
            results.insert(product, rows, method);
        }
    }
    timings.has_new = true;
    Ok(timings)
}

/// Called for each method that fails: the method, the number of rows, and the error.
type NoteFailure<'a> = dyn FnMut(ProductMethod, usize, &Error) + 'a;

fn best(rows: usize, timer: &mut impl MethodTimer, note: &mut NoteFailure<'_>) -> Result<ProductMethod> {
    let mut found: Option<(ProductMethod, f64)> = None;
    let mut last = None;
    for method in timer.methods(rows)? {
        match timer.seconds(method, rows) {
            Ok(seconds) if found.is_none_or(|(_, least)| seconds < least * (1.0 - LEAST_SAVING)) => {
                found = Some((method, seconds));
            }
            Ok(_) => {}
            Err(error) => {
                note(method, rows, &error);
                last = Some(error);
            }
        }
    }
    found.map(|(method, _)| method).ok_or_else(|| last.unwrap_or_else(|| no_algorithm(rows)))
}

fn best_of_all(
    buckets: &[usize],
    timer: &mut impl MethodTimer,
    note: &mut NoteFailure<'_>,
) -> Result<ProductMethod> {
    let mut methods = Vec::new();
    for &rows in buckets {
        let new =
            timer.methods(rows)?.into_iter().filter(|method| matches!(method, ProductMethod::Library(_)));
        for method in new {
            if !methods.contains(&method) {
                methods.push(method);
            }
        }
    }
    // Seconds by method and bucket, for the methods that work in every bucket.
    let mut times: Vec<(ProductMethod, Vec<f64>)> = Vec::new();
    let mut last = None;
    for method in methods {
        let mut time =
            |&rows: &usize| timer.seconds(method, rows).inspect_err(|error| note(method, rows, error));
        match buckets.iter().map(&mut time).collect::<Result<Vec<f64>>>() {
            Ok(seconds) => times.push((method, seconds)),
            Err(error) => last = Some(error),
        }
    }
    let least = |bucket: usize| times.iter().map(|(_, t)| t[bucket]).fold(f64::INFINITY, f64::min);
    let best: Vec<f64> = (0..buckets.len()).map(least).collect();
    let loss = |times: &[f64]| times.iter().zip(&best).map(|(time, best)| time / best).sum::<f64>();
    let found = times.iter().min_by(|a, b| loss(&a.1).total_cmp(&loss(&b.1)));
    found.map(|(method, _)| *method).ok_or_else(|| last.unwrap_or_else(|| no_algorithm(buckets[0])))
}

fn no_algorithm(rows: usize) -> Error {
    Error::Device(format!(
        "the matrix library has no algorithm for {rows} rows that also serves the other numbers of rows"
    ))
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;

    use super::*;

    pub(in crate::tuning) const PRODUCT: TunedProduct = TunedProduct {
        inputs: 64,
        outputs: 32,
        weight: WeightLayout::Dense(Elem::BF16),
        out_elem: Elem::BF16,
    };

    pub(in crate::tuning) fn library(n: u64) -> ProductMethod {
        ProductMethod::Library(Algorithm([n, 1, 2, 3, 4, 5, 6, u64::MAX]))
    }

    /// Made-up times by method and rows. A method without a time does not work.
    struct FakeTimer {
        methods: Vec<ProductMethod>,
        seconds: HashMap<(usize, usize), f64>,
        timings: usize,
    }

    impl MethodTimer for FakeTimer {
        fn methods(&mut self, _rows: usize) -> Result<Vec<ProductMethod>> {
            Ok(self.methods.clone())
        }

        fn seconds(&mut self, method: ProductMethod, rows: usize) -> Result<f64> {
            self.timings += 1;
            let index = self.methods.iter().position(|w| *w == method).unwrap();
            self.seconds.get(&(index, rows)).copied().ok_or_else(|| Error::Device("does not work".into()))
        }
    }

    /// One line per method, one column for each bucket of 1, 2 and 4 rows.
    fn fake(methods: &[ProductMethod], times: &[[f64; 3]]) -> FakeTimer {
        let mut seconds = HashMap::new();
        for (method, times) in times.iter().enumerate() {
            for (rows, time) in [1, 2, 4].into_iter().zip(times).filter(|(_, time)| **time > 0.0) {
                seconds.insert((method, rows), *time);
            }
        }
        FakeTimer { methods: methods.to_vec(), seconds, timings: 0 }
    }

    fn chosen(one_for_all: bool, mut timer: FakeTimer) -> Result<Vec<ProductMethod>> {
        let mut results = TuningResults::default();
        fill_missing(&mut results, PRODUCT, 4, one_for_all, &mut timer)?;
        Ok([1, 2, 3].into_iter().map(|rows| results.method(PRODUCT, rows).unwrap()).collect())
    }

    #[test]
    fn every_number_of_rows_has_a_bucket_less_than_twice_as_large() {
        let all: Vec<usize> = buckets(200).collect();
        assert_eq!(all, [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256]);
        for rows in 1..5000 {
            let bucket = bucket(rows);
            assert!(bucket >= rows && (bucket < 2 * rows || rows == 1), "{rows}: {bucket}");
            assert!(buckets(rows).last() == Some(bucket));
        }
    }

    #[test]
    fn the_fastest_method_wins_if_it_saves_enough() {
        let methods = [library(0), library(1), ProductMethod::Kernel];
        let times = [[1.00, 1.0, 0.0], [0.99, 0.5, 1.0], [0.50, 0.6, 0.0]];
        assert_eq!(
            chosen(false, fake(&methods, &times)).unwrap(),
            [ProductMethod::Kernel, library(1), library(1)]
        );
        let close = [[1.00, 1.0, 1.0], [0.99, 0.985, 0.97]];
        assert_eq!(chosen(false, fake(&methods[..2], &close)).unwrap(), [library(0), library(0), library(1)]);
    }

    #[test]
    fn one_for_all_picks_the_algorithm_with_the_least_loss() {
        let methods = [ProductMethod::Kernel, library(0), library(1), library(2)];
        // The kernel is not a candidate, and the last algorithm does not work for 4 rows.
        let times = [[0.1, 0.1, 0.1], [1.0, 1.0, 3.0], [1.5, 1.1, 1.0], [0.2, 0.2, 0.0]];
        assert_eq!(chosen(true, fake(&methods, &times)).unwrap(), [library(1); 3]);
    }

    #[test]
    fn no_working_method_is_an_error() {
        for one_for_all in [false, true] {
            let error = chosen(one_for_all, fake(&[library(0)], &[[0.0; 3]])).unwrap_err().to_string();
            assert!(error.contains("does not work"), "{error}");
            let error = chosen(one_for_all, fake(&[], &[])).unwrap_err().to_string();
            assert!(error.contains("has no algorithm"), "{error}");
        }
    }

    /// The fake says that it does not work for 2 rows, as a launch that the driver refuses would.
    #[test]
    fn methods_that_fail_are_reported() {
        let methods = [library(0), ProductMethod::Kernel];
        let dropped = |one_for_all, times: &[[f64; 3]]| {
            let mut timer = fake(&methods, times);
            fill_missing(&mut TuningResults::default(), PRODUCT, 2, one_for_all, &mut timer).unwrap().dropped
        };
        let said = dropped(false, &[[1.0; 3], [1.0, 0.0, 1.0]]);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("the kernel for few rows for 2 rows by Dense(BF16)"), "{said:?}");
        assert!(said[0].contains("64 to 32 features") && said[0].contains("does not work"), "{said:?}");
        assert!(dropped(true, &[[1.0; 3], [1.0, 0.0, 1.0]]).is_empty(), "the kernel is no candidate");
    }

    #[test]
    fn known_buckets_are_not_timed_again() {
        let mut results = TuningResults::default();
        let mut timer = fake(&[library(0)], &[[1.0; 3]]);
        assert!(fill_missing(&mut results, PRODUCT, 2, false, &mut timer).unwrap().has_new);
        assert!(!fill_missing(&mut results, PRODUCT, 2, false, &mut timer).unwrap().has_new);
        assert_eq!(timer.timings, 2);
        assert!(fill_missing(&mut results, PRODUCT, 4, false, &mut timer).unwrap().has_new);
        assert_eq!(timer.timings, 3);
        let other = TunedProduct { out_elem: Elem::F32, ..PRODUCT };
        assert_eq!(results.method(other, 1), None);
    }
}
