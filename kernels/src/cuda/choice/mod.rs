//! Which of several ways to multiply is the fastest for which shape: found by timing, kept on disk.

mod table;

use std::collections::BTreeMap;

use super::memory::Elem;
use crate::{Error, Result};
pub(crate) use table::Table;

/// An algorithm of the device's library for products, which only the same version of it understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Algorithm(pub(crate) [u64; 8]);

/// A way to multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The project's kernel for few rows.
    Kernel,
    /// The project's kernel for many rows, which takes any number.
    Tiles,
    /// The library.
    Library(Algorithm),
}

/// A weight and what is made of it, whatever the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) elem: Elem,
    pub(crate) out_elem: Elem,
}

/// The best way for every shape and bucket of rows that was timed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Choices(BTreeMap<(Shape, usize), Way>);

impl Choices {
    /// The best way for this many rows, if it is known.
    pub(crate) fn way(&self, shape: Shape, rows: usize) -> Option<Way> {
        self.0.get(&(shape, bucket(rows))).copied()
    }

    fn insert(&mut self, shape: Shape, bucket: usize, way: Way) {
        self.0.insert((shape, bucket), way);
    }
}

/// How many rows a choice was timed for that serves `rows` rows: a power of two, or one and a half of one from 24 on.
pub(crate) fn bucket(rows: usize) -> usize {
    let power = rows.max(1).next_power_of_two();
    let between = power / 4 * 3;
    if power >= 32 && rows <= between { between } else { power }
}

/// The buckets of 1 to `most` rows.
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

/// What the choice is made by: a device, or a test.
pub(crate) trait Contest {
    /// The ways that may be tried for this many rows, the most promising first.
    fn ways(&mut self, rows: usize) -> Result<Vec<Way>>;
    /// Seconds that a way takes.
    ///
    /// # Errors
    /// If it does not work for this many rows.
    fn seconds(&mut self, way: Way, rows: usize) -> Result<f64>;
}

/// A way must save this share of the time of a more promising one to be preferred: less is noise.
const WORTHWHILE: f64 = 0.02;

/// Fills in what `choices` lacks of the buckets up to `most` rows; whether it lacked any.
///
/// With `one_for_all` a single algorithm serves all numbers of rows, so that a row's result does not depend on how many others there are: the one that
/// loses least against the best of each bucket.
///
/// # Errors
/// If no way works.
pub(crate) fn complete(
    choices: &mut Choices,
    shape: Shape,
    most: usize,
    one_for_all: bool,
    contest: &mut impl Contest,
) -> Result<bool> {
    let missing: Vec<usize> = buckets(most).filter(|&rows| choices.way(shape, rows).is_none()).collect();
    if missing.is_empty() {
        return Ok(false);
    }
    if one_for_all {
        let all: Vec<usize> = buckets(most).collect();
        let way = best_of_all(&all, contest)?;
        all.into_iter().for_each(|rows| choices.insert(shape, rows, way));
    } else {
        for rows in missing {
            let way = best(rows, contest)?;
            choices.insert(shape, rows, way);
        }
    }
    Ok(true)
}

fn best(rows: usize, contest: &mut impl Contest) -> Result<Way> {
    let mut found: Option<(Way, f64)> = None;
    let mut last = None;
    for way in contest.ways(rows)? {
        match contest.seconds(way, rows) {
            Ok(seconds) if found.is_none_or(|(_, least)| seconds < least * (1.0 - WORTHWHILE)) => {
                found = Some((way, seconds));
            }
            Ok(_) => {}
            Err(error) => last = Some(error),
        }
    }
    found.map(|(way, _)| way).ok_or_else(|| last.unwrap_or_else(|| nothing_works(rows)))
}

fn best_of_all(buckets: &[usize], contest: &mut impl Contest) -> Result<Way> {
    let mut ways = Vec::new();
    for &rows in buckets {
        let new = contest.ways(rows)?.into_iter().filter(|way| matches!(way, Way::Library(_)));
        for way in new {
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
    }
    // Seconds by way and bucket, of the ways that work everywhere.
    let mut times: Vec<(Way, Vec<f64>)> = Vec::new();
    let mut last = None;
    for way in ways {
        match buckets.iter().map(|&rows| contest.seconds(way, rows)).collect::<Result<Vec<f64>>>() {
            Ok(seconds) => times.push((way, seconds)),
            Err(error) => last = Some(error),
        }
    }
    let least = |bucket: usize| times.iter().map(|(_, t)| t[bucket]).fold(f64::INFINITY, f64::min);
    let best: Vec<f64> = (0..buckets.len()).map(least).collect();
    let loss = |times: &[f64]| times.iter().zip(&best).map(|(time, best)| time / best).sum::<f64>();
    let found = times.iter().min_by(|a, b| loss(&a.1).total_cmp(&loss(&b.1)));
    found.map(|(way, _)| *way).ok_or_else(|| last.unwrap_or_else(|| nothing_works(buckets[0])))
}

fn nothing_works(rows: usize) -> Error {
    Error::Device(format!(
        "the library for products has no algorithm for {rows} rows that serves the rest too"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    pub(super) const SHAPE: Shape = Shape { inputs: 64, outputs: 32, elem: Elem::BF16, out_elem: Elem::BF16 };

    pub(super) fn library(n: u64) -> Way {
        Way::Library(Algorithm([n, 1, 2, 3, 4, 5, 6, u64::MAX]))
    }

    /// Made-up times by way and rows; what has none does not work.
    struct Fake {
        ways: Vec<Way>,
        seconds: HashMap<(usize, usize), f64>,
        asked: usize,
    }

    impl Contest for Fake {
        fn ways(&mut self, _rows: usize) -> Result<Vec<Way>> {
            Ok(self.ways.clone())
        }

        fn seconds(&mut self, way: Way, rows: usize) -> Result<f64> {
            self.asked += 1;
            let index = self.ways.iter().position(|w| *w == way).unwrap();
            self.seconds.get(&(index, rows)).copied().ok_or_else(|| Error::Device("does not work".into()))
        }
    }

    /// One line per way, one column per bucket of 1, 2 and 4 rows.
    fn fake(ways: &[Way], times: &[[f64; 3]]) -> Fake {
        let mut seconds = HashMap::new();
        for (way, times) in times.iter().enumerate() {
            for (rows, time) in [1, 2, 4].into_iter().zip(times).filter(|(_, time)| **time > 0.0) {
                seconds.insert((way, rows), *time);
            }
        }
        Fake { ways: ways.to_vec(), seconds, asked: 0 }
    }

    fn chosen(one_for_all: bool, mut contest: Fake) -> Result<Vec<Way>> {
        let mut choices = Choices::default();
        complete(&mut choices, SHAPE, 4, one_for_all, &mut contest)?;
        Ok([1, 2, 3].into_iter().map(|rows| choices.way(SHAPE, rows).unwrap()).collect())
    }

    #[test]
    fn every_number_of_rows_has_a_bucket_not_much_larger() {
        let all: Vec<usize> = buckets(200).collect();
        assert_eq!(all, [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256]);
        for rows in 1..5000 {
            let bucket = bucket(rows);
            assert!(bucket >= rows && (bucket < 2 * rows || rows == 1), "{rows}: {bucket}");
            assert!(buckets(rows).last() == Some(bucket));
        }
    }

    #[test]
    fn the_fastest_wins_if_it_is_worthwhile() {
        let ways = [library(0), library(1), Way::Kernel];
        let times = [[1.00, 1.0, 0.0], [0.99, 0.5, 1.0], [0.50, 0.6, 0.0]];
        assert_eq!(chosen(false, fake(&ways, &times)).unwrap(), [Way::Kernel, library(1), library(1)]);
        let close = [[1.00, 1.0, 1.0], [0.99, 0.985, 0.97]];
        assert_eq!(chosen(false, fake(&ways[..2], &close)).unwrap(), [library(0), library(0), library(1)]);
    }

    #[test]
    fn one_for_all_is_the_one_that_loses_least() {
        let ways = [Way::Kernel, library(0), library(1), library(2)];
        // The kernel is no candidate, and the last does not work for 4 rows.
        let times = [[0.1, 0.1, 0.1], [1.0, 1.0, 3.0], [1.5, 1.1, 1.0], [0.2, 0.2, 0.0]];
        assert_eq!(chosen(true, fake(&ways, &times)).unwrap(), [library(1); 3]);
    }

    #[test]
    fn nothing_that_works_is_an_error() {
        for one_for_all in [false, true] {
            let said = chosen(one_for_all, fake(&[library(0)], &[[0.0; 3]])).unwrap_err().to_string();
            assert!(said.contains("does not work"), "{said}");
            let said = chosen(one_for_all, fake(&[], &[])).unwrap_err().to_string();
            assert!(said.contains("has no algorithm"), "{said}");
        }
    }

    #[test]
    fn what_is_known_is_not_timed_again() {
        let mut choices = Choices::default();
        let mut contest = fake(&[library(0)], &[[1.0; 3]]);
        assert!(complete(&mut choices, SHAPE, 2, false, &mut contest).unwrap());
        assert!(!complete(&mut choices, SHAPE, 2, false, &mut contest).unwrap());
        assert_eq!(contest.asked, 2);
        assert!(complete(&mut choices, SHAPE, 4, false, &mut contest).unwrap());
        assert_eq!(contest.asked, 3);
        let other = Shape { out_elem: Elem::F32, ..SHAPE };
        assert_eq!(choices.way(other, 1), None);
    }
}
