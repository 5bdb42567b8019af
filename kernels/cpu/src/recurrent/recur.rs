//! The recurrence of a head over the tokens of a row.
//!
//! A token's change of the matrix and the sums that the next token needs are computed together:
//! each element is loaded and stored once for each token.

use std::ops::Range;

use millrace_backend::RecurrentHeads;

use super::super::memory::Shared;
use super::super::queue::Row;
use super::super::simd::{Extension, Kernel, Simd};
use super::rules::{Factors, RowFactors, Rule};

/// Columns of a piece of a head's matrix, which fits into half of the first cache with 128 rows.
/// The numbers of a piece follow each other in memory.
pub(super) const COLUMNS: usize = 32;

/// Tokens whose factors are computed at once, before all pieces of a task.
const CHUNK: usize = 32;

/// Tokens between those whose factors are computed and those whose inputs are prefetched.
const AHEAD: usize = 4;

/// The recurrence of some pieces of a head's matrix over the tokens of a row.
pub(super) struct Recur<'a, R> {
    pub(super) rule: R,
    pub(super) row: &'a Row,
    pub(super) heads: RecurrentHeads,
    pub(super) head: usize,
    /// The pieces of [`COLUMNS`] columns.
    pub(super) pieces: Range<usize>,
    /// Queries, keys and values, `[tokens, heads.cols()]`.
    pub(super) x: &'a [f32],
    /// The head's matrix in the row's slot: pieces of `[key_dim, COLUMNS]`. The last one may
    /// have fewer columns.
    pub(super) matrix: Shared<f32>,
    /// `[tokens, heads.value_cols()]`
    pub(super) out: Shared<f32>,
}

impl<R: Rule> Kernel for Recur<'_, R> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let RecurrentHeads { key_dim, value_dim, .. } = self.heads;
        let columns = self.pieces.start * COLUMNS..value_dim.min(self.pieces.end * COLUMNS);
        let Row { start, count, token: first, .. } = *self.row;
        if start == 0 {
            // SAFETY: only this task uses these columns of the matrix.
            unsafe { self.matrix.slice(columns.start * key_dim, columns.len() * key_dim) }.fill(0.0);
        }
        let mut factors = [Factors::default(); CHUNK];
        let mut of_rows = vec![0.0; if R::DECAYS { 3 * CHUNK.min(count) * key_dim } else { 0 }];
        for begin in (0..count).step_by(CHUNK) {
            let tokens = first + begin..first + count.min(begin + CHUNK);
            for (index, token) in tokens.clone().enumerate() {
                let (query, key) = self.query_and_key(token);
                // SAFETY: the caller guarantees the instruction set, and prefetches any address.
                unsafe { self.prefetch::<S>(token + AHEAD, &columns) };
                // SAFETY: the caller guarantees the instruction set.
                factors[index] = unsafe { self.rule.factors::<S>(self.head, token, query, key) };
                if R::DECAYS {
                    let to = &mut of_rows[3 * index * key_dim..][..3 * key_dim];
                    let (keys, rest) = to.split_at_mut(key_dim);
                    let (queries, decays) = rest.split_at_mut(key_dim);
                    self.rule.of_rows(self.head, token, query, key, RowFactors { keys, queries, decays });
                }
            }
            let chunk = Chunk { recur: &self, tokens, factors: &factors, of_rows: &of_rows };
            for piece in columns.clone().step_by(COLUMNS) {
                // SAFETY: the caller guarantees the instruction set.
                unsafe { chunk.piece::<S>(piece, COLUMNS.min(value_dim - piece)) };
            }
        }
    }
}

impl<R> Recur<'_, R> {
    /// Prefetches the inputs and outputs of a token, whose rows are too far apart for prefetches by
    /// the machine.
    ///
    /// # Safety
    /// The machine has the instruction set.
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(&self, token: usize, columns: &Range<usize>) {
        let (heads, key_dim) = (self.heads, self.heads.key_dim);
        let x = self.x.as_ptr().wrapping_add(token * heads.cols());
        let key = heads.key_head(self.head) * key_dim;
        let value = self.head * heads.value_dim + columns.start;
        let out = self.out.from(token * heads.value_cols() + value).as_ptr().cast_const();
        let parts = [
            (x.wrapping_add(key), key_dim),
            (x.wrapping_add(heads.key_cols() + key), key_dim),
            (x.wrapping_add(2 * heads.key_cols() + value), columns.len()),
            (out, columns.len()),
        ];
        for (from, len) in parts {
            for line in (0..len).step_by(16) {
                // SAFETY: the caller guarantees the instruction set.
                unsafe { S::prefetch_later(from.wrapping_add(line).cast()) };
            }
        }
    }

    /// Returns the query and the key of a token of the step.
    #[inline(always)]
    fn query_and_key(&self, token: usize) -> (&[f32], &[f32]) {
        let (heads, key_dim) = (self.heads, self.heads.key_dim);
        let key_head = heads.key_head(self.head);
        let x = &self.x[token * heads.cols()..][..2 * heads.key_cols()];
        (&x[key_head * key_dim..][..key_dim], &x[heads.key_cols() + key_head * key_dim..][..key_dim])
    }
}

/// Tokens of a task, and their factors.
struct Chunk<'a, R> {
    recur: &'a Recur<'a, R>,
    tokens: Range<usize>,
    factors: &'a [Factors; CHUNK],
    /// For each token the [`RowFactors`], one after the other, if rows have decays.
    of_rows: &'a [f32],
}

/// The vectors of a token over the rows of the matrix.
#[derive(Clone, Copy)]
struct Vectors {
    key: *const f32,
    /// The vectors of the sums.
    seen: *const f32,
    read: *const f32,
    /// The decays of the rows, if they have some.
    decays: *const f32,
}

/// Some columns of a piece of the matrix.
struct Columns {
    /// The first element.
    at: *mut f32,
    /// From row to row.
    stride: usize,
    rows: usize,
    /// Columns in the last vector.
    last: usize,
}

/// The sums of a token for some columns: `Sᵀ key` and `Sᵀ query`.
type Sums<V, const NV: usize> = [[V; NV]; 2];

impl<R: Rule> Chunk<'_, R> {
    /// Computes all tokens for the `len` columns from `first` on.
    ///
    /// # Safety
    /// The machine has the instruction set.
    #[inline(always)]
    unsafe fn piece<S: Simd>(&self, first: usize, len: usize) {
        let rows = self.recur.heads.key_dim;
        // SAFETY: only this task uses these columns of the matrix.
        let matrix = unsafe { self.recur.matrix.slice(first * rows, len * rows) }.as_mut_ptr();
        let mut at = 0;
        // SAFETY: the columns are inside the piece.
        unsafe {
            while at < len {
                let columns = |last| Columns { at: matrix.add(at), stride: len, rows, last };
                if len - at >= 2 * S::LANES {
                    self.columns::<S, 2>(columns(S::LANES), first + at);
                    at += 2 * S::LANES;
                } else {
                    self.columns::<S, 1>(columns(S::LANES.min(len - at)), first + at);
                    at += S::LANES;
                }
            }
        }
    }

    /// Computes all tokens for NV vectors of columns, whose values are from feature `feature` of
    /// the head on.
    ///
    /// # Safety
    /// The machine has the instruction set, and the columns are valid.
    #[inline(always)]
    unsafe fn columns<S: Simd, const NV: usize>(&self, columns: Columns, feature: usize) {
        let heads = self.recur.heads;
        let value = 2 * heads.key_cols() + self.recur.head * heads.value_dim + feature;
        let out = self.recur.head * heads.value_dim + feature;
        let count = self.tokens.len();
        // SAFETY: the caller guarantees valid columns, and there are as many values and outputs.
        unsafe {
            let mut sweep = Sweep {
                columns: &columns,
                vectors: self.vectors(0),
                decay: 1.0,
                changes: [S::splat(0.0); NV],
                next: self.vectors(0),
            };
            let mut sums = sweep.run::<S, R, false, true>();
            for (index, token) in self.tokens.clone().enumerate() {
                let values = self.recur.x[token * heads.cols()..][..heads.cols()].as_ptr().add(value);
                let out = self.recur.out.as_ptr().add(token * heads.value_cols() + out);
                let factors = &self.factors[index];
                for v in 0..NV {
                    let value = columns.load::<S, NV>(values, v);
                    let mut change = S::mul(S::splat(factors.of_value), value);
                    if R::SEES {
                        change = S::fma(S::splat(-factors.of_seen), sums[0][v], change);
                    }
                    let mut y = S::mul(S::splat(factors.of_read), sums[1][v]);
                    if !R::SEES {
                        y = S::fma(S::splat(factors.skip), value, y);
                    }
                    y = S::fma(S::splat(factors.overlap), change, y);
                    columns.store::<S, NV>(out, v, y);
                    sweep.changes[v] = change;
                }
                (sweep.vectors, sweep.decay) = (self.vectors(index), factors.decay);
                if index + 1 < count {
                    sweep.next = self.vectors(index + 1);
                    sums = sweep.run::<S, R, true, true>();
                } else {
                    sweep.run::<S, R, true, false>();
                }
            }
        }
    }

    /// Returns the vectors of a token of the chunk.
    #[inline(always)]
    fn vectors(&self, index: usize) -> Vectors {
        let (query, key) = self.recur.query_and_key(self.tokens.start + index);
        let (query, key) = (query.as_ptr(), key.as_ptr());
        if !R::DECAYS {
            return Vectors { key, seen: key, read: query, decays: key };
        }
        let key_dim = self.recur.heads.key_dim;
        let of_rows = self.of_rows[3 * index * key_dim..][..3 * key_dim].as_ptr();
        let at = |index| of_rows.wrapping_add(index * key_dim);
        Vectors { key, seen: at(0), read: at(1), decays: at(2) }
    }
}

impl Columns {
    /// Loads vector `v` of NV ones from `p` on.
    ///
    /// # Safety
    /// The machine has the instruction set, and `p` is valid for the columns.
    #[inline(always)]
    unsafe fn load<S: Simd, const NV: usize>(&self, p: *const f32, v: usize) -> S::V {
        // SAFETY: the caller guarantees it.
        unsafe {
            let p = p.add(v * S::LANES);
            // Only a single vector may have fewer columns.
            if NV > 1 { S::load(p) } else { S::load_up_to(p, self.last) }
        }
    }

    /// As [`Columns::load`].
    ///
    /// # Safety
    /// As [`Columns::load`].
    #[inline(always)]
    unsafe fn store<S: Simd, const NV: usize>(&self, p: *mut f32, v: usize, x: S::V) {
        // SAFETY: the caller guarantees it.
        unsafe {
            let p = p.add(v * S::LANES);
            if NV > 1 { S::store(p, x) } else { S::store_up_to(p, x, self.last) }
        }
    }
}

/// A token's change of some columns, and the next token.
struct Sweep<'a, V, const NV: usize> {
    columns: &'a Columns,
    /// The vectors of the token that changes the matrix.
    vectors: Vectors,
    decay: f32,
    /// The change that each row gets, times its key.
    changes: [V; NV],
    /// The vectors of the token that needs sums.
    next: Vectors,
}

impl<V: Copy, const NV: usize> Sweep<'_, V, NV> {
    /// Changes all rows if CHANGES, and returns the sums over them if SUMS. Even and odd rows have
    /// sums of their own, so that additions need not wait for each other.
    ///
    /// # Safety
    /// The machine has the instruction set, and all pointers are valid.
    #[inline(always)]
    unsafe fn run<S: Simd<V = V>, R: Rule, const CHANGES: bool, const SUMS: bool>(&self) -> Sums<V, NV> {
        // SAFETY: the caller guarantees it.
        unsafe {
            let (mut even, mut odd) = ([[S::splat(0.0); NV]; 2], [[S::splat(0.0); NV]; 2]);
            for pair in 0..self.columns.rows / 2 {
                self.row::<S, R, CHANGES, SUMS>(2 * pair, &mut even);
                self.row::<S, R, CHANGES, SUMS>(2 * pair + 1, &mut odd);
            }
            if self.columns.rows % 2 == 1 {
                self.row::<S, R, CHANGES, SUMS>(self.columns.rows - 1, &mut even);
            }
            for (even, odd) in even.iter_mut().zip(&odd) {
                for v in 0..NV {
                    even[v] = S::add(even[v], odd[v]);
                }
            }
            even
        }
    }

    /// Changes one row, and adds its products.
    ///
    /// # Safety
    /// As [`Sweep::run`].
    #[inline(always)]
    unsafe fn row<S: Simd<V = V>, R: Rule, const CHANGES: bool, const SUMS: bool>(
        &self,
        row: usize,
        sums: &mut Sums<V, NV>,
    ) {
        // SAFETY: the caller guarantees it.
        unsafe {
            let at = self.columns.at.add(row * self.columns.stride);
            // All are read before the matrix is written, so that one load serves all columns.
            let decay = S::splat(if R::DECAYS { *self.vectors.decays.add(row) } else { self.decay });
            let key = S::splat(*self.vectors.key.add(row));
            let (seen, read) = (S::splat(*self.next.seen.add(row)), S::splat(*self.next.read.add(row)));
            for v in 0..NV {
                let mut s = self.columns.load::<S, NV>(at, v);
                if CHANGES {
                    s = S::fma(key, self.changes[v], S::mul(decay, s));
                    self.columns.store::<S, NV>(at, v, s);
                }
                if SUMS && R::SEES {
                    sums[0][v] = S::fma(seen, s, sums[0][v]);
                }
                if SUMS {
                    sums[1][v] = S::fma(read, s, sums[1][v]);
                }
            }
        }
    }
}
