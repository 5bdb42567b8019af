//! Selection of rows by number.

use millrace_cuda::Elem;
use millrace_cuda::ops::embed::{
    EmbedTokens, GatherRows, embed, embed_plain, gather_rows, gather_rows_plain,
};

use crate::common::*;
use crate::words::put_i32;

const COLS: [usize; 9] = [1, 3, 8, 64, 100, 1000, 1024, 4096, 9216];

#[test]
fn embeddings_match_the_definition() {
    for_seeds(40, |rng| {
        let (from, to) = (rng.pick(&ACTIVATIONS), rng.pick(&ACTIVATIONS));
        let (tokens, cols, first, rows) = (rng.pick(&[0, 1, 2, 9]), rng.pick(&COLS), rng.pick(&[0, 5]), 7);
        let factor = rng.pick(&[1.0, (cols as f32).sqrt()]);
        // Below, inside and above the slice, and padding.
        let ids: Vec<i32> = (0..tokens).map(|_| rng.below(first + rows + 4) as i32 - 1).collect();
        let table = rng.values(from, rows * cols);
        let want: Vec<f32> = ids
            .iter()
            .flat_map(|&id| {
                let row = usize::try_from(id).ok().and_then(|id| id.checked_sub(first)).filter(|r| *r < rows);
                let table = &table;
                (0..cols).map(move |c| {
                    row.map_or(0.0, |r| (f64::from(table[r * cols + c]) * f64::from(factor)) as f32)
                })
            })
            .collect();
        let (on_table, on_ids) = (put(from, &table), put_i32(&ids));
        for plain in [false, true] {
            let out = garbage(to, tokens * cols);
            let e = EmbedTokens {
                tokens,
                cols,
                ids: on_ids.view(Elem::I32),
                table: on_table.view(from),
                first,
                rows,
                factor,
                out: out.view(to),
            };
            if plain { embed_plain(&DEVICE, &e) } else { embed(&DEVICE, &e) }.unwrap();
            let name = format!("{from:?} to {to:?}, {tokens} x {cols}, plain: {plain}");
            assert_close(&name, &get(out.view(to)), &want, precision(to) * 1.01, 1e-7);
        }
    });
}

#[test]
fn gathered_rows_match_the_definition() {
    for_seeds(30, |rng| {
        let elem = rng.pick(&ACTIVATIONS);
        let (rows, cols, divisor) = (rng.pick(&[0, 1, 2, 9]), rng.pick(&COLS), rng.pick(&[1, 3]));
        let index: Vec<i32> = (0..rows).map(|_| rng.below(5 * divisor + 1) as i32 - 1).collect();
        let x = rng.values(elem, 5 * cols);
        let want: Vec<f32> = index
            .iter()
            .flat_map(|&i| {
                let x = &x;
                (0..cols).map(move |c| if i < 0 { 0.0 } else { x[i as usize / divisor * cols + c] })
            })
            .collect();
        let (on_x, on_index) = (put(elem, &x), put_i32(&index));
        for run in [gather_rows, gather_rows_plain] {
            let out = garbage(elem, rows * cols);
            let g = GatherRows {
                rows,
                cols,
                index: on_index.view(Elem::I32),
                divisor,
                x: on_x.view(elem),
                out: out.view(elem),
            };
            run(&DEVICE, &g).unwrap();
            assert_close("gather", &get(out.view(elem)), &want, 0.0, 0.0);
        }
    });
}

#[test]
fn views_that_do_not_fit_are_refused() {
    let (table, ids) = (garbage(Elem::F32, 16), put_i32(&[0, 1]));
    let e = |rows, tokens| EmbedTokens {
        tokens,
        cols: 8,
        ids: ids.view(Elem::I32),
        table: table.view(Elem::F32),
        first: 0,
        rows,
        factor: 1.0,
        out: table.view(Elem::F32),
    };
    let refused = |e: EmbedTokens<'_>| embed(&DEVICE, &e).unwrap_err().to_string();
    assert!(refused(e(3, 1)).contains("table has 16 elements, not 24"));
    assert!(refused(e(2, 3)).contains("ids has 2 elements, not 3"));
    let g = |divisor| GatherRows {
        rows: 1,
        cols: 8,
        index: ids.view(Elem::I32),
        divisor,
        x: table.view(Elem::F32),
        out: table.view(Elem::F32),
    };
    assert!(gather_rows(&DEVICE, &g(0)).unwrap_err().to_string().contains("divided by 0"));
}
