//! Tiles of rows.

use std::ops::{Range, RangeInclusive};

/// Distance of prefetches in bytes.
pub(super) const AHEAD: usize = 2048;

/// The division of rows into as few tiles as possible, whose heights differ by at most one.
/// Thirteen rows in tiles of at most twelve are seven and six, because a tile of one row would read
/// all weights for a twelfth of the work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiles {
    rows: usize,
    count: usize,
}

impl Tiles {
    /// Divides `rows` rows into tiles of at most `highest` rows.
    #[inline(always)]
    pub(super) fn new(rows: usize, highest: usize) -> Tiles {
        Tiles { rows, count: rows.div_ceil(highest) }
    }

    /// Returns the heights of tiles if there are at least two of them.
    pub(super) const fn of_several(highest: usize) -> RangeInclusive<usize> {
        highest / 2..=highest
    }

    #[inline(always)]
    pub(super) fn count(self) -> usize {
        self.count
    }

    /// Returns the rows of tile `tile`. The higher tiles come first.
    #[inline(always)]
    pub(super) fn rows(self, tile: usize) -> Range<usize> {
        let (low, higher) = (self.rows / self.count, self.rows % self.count);
        let start = tile * low + tile.min(higher);
        start..start + low + usize::from(tile < higher)
    }
}

/// Returns whether tiles of one height are among `heights`.
pub(super) const fn has(heights: &RangeInclusive<usize>, height: usize) -> bool {
    *heights.start() <= height && height <= *heights.end()
}

/// Calls `$f` with `$height`, which is one of the constant range `$heights`, as a constant.
///
/// Functions for other heights are not compiled, because the guards are constants. A guard such as
/// `5 if S::ROWS >= 5` is computed only after the function behind it was compiled.
macro_rules! with_height {
    ($heights:expr, $height:expr, $f:ident::<$($t:ty),*>($($arg:expr),* $(,)?)) => {
        match $height {
            1 if const { $crate::tile::has(&($heights), 1) } => $f::<$($t,)* 1>($($arg),*),
            2 if const { $crate::tile::has(&($heights), 2) } => $f::<$($t,)* 2>($($arg),*),
            3 if const { $crate::tile::has(&($heights), 3) } => $f::<$($t,)* 3>($($arg),*),
            4 if const { $crate::tile::has(&($heights), 4) } => $f::<$($t,)* 4>($($arg),*),
            5 if const { $crate::tile::has(&($heights), 5) } => $f::<$($t,)* 5>($($arg),*),
            6 if const { $crate::tile::has(&($heights), 6) } => $f::<$($t,)* 6>($($arg),*),
            7 if const { $crate::tile::has(&($heights), 7) } => $f::<$($t,)* 7>($($arg),*),
            8 if const { $crate::tile::has(&($heights), 8) } => $f::<$($t,)* 8>($($arg),*),
            9 if const { $crate::tile::has(&($heights), 9) } => $f::<$($t,)* 9>($($arg),*),
            10 if const { $crate::tile::has(&($heights), 10) } => $f::<$($t,)* 10>($($arg),*),
            11 if const { $crate::tile::has(&($heights), 11) } => $f::<$($t,)* 11>($($arg),*),
            12 if const { $crate::tile::has(&($heights), 12) } => $f::<$($t,)* 12>($($arg),*),
            _ => unreachable!("no tile of this height; this is a bug"),
        }
    };
}
pub(super) use with_height;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_few_and_even() {
        for highest in [4, 6, 12] {
            for rows in 1..100 {
                let tiles = Tiles::new(rows, highest);
                let all: Vec<Range<usize>> = (0..tiles.count()).map(|t| tiles.rows(t)).collect();
                assert_eq!(all.len(), rows.div_ceil(highest));
                assert_eq!((all[0].start, all[all.len() - 1].end), (0, rows));
                assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
                let heights = all.iter().map(|rows| rows.len());
                let (low, high) = (heights.clone().min().unwrap(), heights.max().unwrap());
                assert!(high <= highest && high - low <= 1, "{rows} rows: {low} to {high}");
                let several = Tiles::of_several(highest);
                assert!(tiles.count() == 1 || several.contains(&low) && several.contains(&high));
            }
        }
    }
}
