//! The placement of the ranks' columns in one matrix.

use millrace_cuda::Elem;
use millrace_cuda::ops::columns::{RankColumns, place_columns};

use crate::common::*;

#[test]
fn columns_of_ranks_are_put_side_by_side() {
    for_seeds(30, |rng| {
        let (ranks, rows, part_cols) = (1 + rng.below(4), rng.below(5), 1 + rng.below(600));
        let padding = rng.below(part_cols);
        let whole_cols = ranks * part_cols - padding;
        let parts = rng.values(Elem::F32, ranks * rows * part_cols);
        let want: Vec<f32> = (0..rows * whole_cols)
            .map(|i| {
                let (row, col) = (i / whole_cols, i % whole_cols);
                parts[(col / part_cols * rows + row) * part_cols + col % part_cols]
            })
            .collect();
        let (on_parts, on_whole) = (put(Elem::F32, &parts), garbage(Elem::F32, rows * whole_cols));
        let columns = RankColumns {
            rows,
            part_cols,
            whole_cols,
            parts: on_parts.view(Elem::F32),
            whole: on_whole.view(Elem::F32),
        };
        place_columns(&DEVICE, &columns).unwrap();
        assert_close("columns", &get(columns.whole), &want, 0.0, 0.0);
    });
}
