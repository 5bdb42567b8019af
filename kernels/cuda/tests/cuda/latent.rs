//! Products with a matrix of each head, and the step before attention over latents.

use millrace_backend::RopeStyle;
use millrace_cuda::Elem;
use millrace_cuda::ops::latent::{LatentPrologue, LinearHeads, PagedLatents, latent_prologue, linear_heads};
use millrace_cuda::ops::prologue::Rope;

use crate::common::*;

#[test]
fn each_head_has_a_matrix_of_its_own() {
    for_seeds(24, |rng| {
        let elem = rng.pick(&ACTIVATIONS);
        let (tokens, heads, carried) = (1 + rng.below(9), 1 + rng.below(4), rng.below(20));
        let (inputs, outputs) = (1 + rng.below(40), 1 + rng.below(200));
        let (from, to) = (inputs + carried, carried + outputs);
        let x = rng.values(elem, tokens * heads * from);
        let w = rng.values(elem, heads * inputs * outputs);
        let mut want = Vec::with_capacity(tokens * heads * to);
        for (i, row) in x.chunks_exact(from).enumerate() {
            want.extend(&row[inputs..]);
            let w = &w[i % heads * inputs * outputs..][..inputs * outputs];
            want.extend((0..outputs).map(|o| -> f32 {
                row[..inputs].iter().enumerate().map(|(i, x)| x * w[i * outputs + o]).sum()
            }));
        }
        let (on_x, on_w, out) = (put(elem, &x), put(elem, &w), garbage(elem, tokens * heads * to));
        let product = LinearHeads {
            tokens,
            heads,
            from,
            inputs,
            outputs,
            x: on_x.view(elem),
            w: on_w.view(elem),
            out: out.view(elem),
        };
        linear_heads(&DEVICE, &product).unwrap();
        assert_close("heads", &get(product.out), &want, precision(elem) * 1.01, 1e-5);
    });
}

/// The first features of a row, rotated by the angles of a position.
fn rotate(row: &mut [f32], style: RopeStyle, cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for (pair, (c, s)) in cos.iter().zip(sin).enumerate() {
        let (one, two) = match style {
            RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
            RopeStyle::Half => (pair, pair + half),
        };
        let (first, second) = (row[one], row[two]);
        (row[one], row[two]) = (first * c - second * s, second * c + first * s);
    }
}

#[test]
fn latents_are_rotated_and_stored() {
    for_seeds(24, |rng| {
        let (elem, cached) = (rng.pick(&ACTIVATIONS), rng.pick(&ACTIVATIONS));
        let (tokens, heads) = (1 + rng.below(6), 1 + rng.below(3));
        let half = rng.below(9);
        let (rotary_dim, key_dim) = (2 * half, 2 * half + 1 + rng.below(200));
        let style = rng.pick(&[RopeStyle::Half, RopeStyle::Interleaved]);
        let (blocks, block_size, table_positions) = (3, 16, 50);
        let queries = rng.values(elem, tokens * heads * key_dim);
        let latents = rng.values(elem, tokens * key_dim);
        let tables = [0, 1].map(|_| rng.values(Elem::F32, table_positions * half));
        let positions: Vec<u32> = (0..tokens).map(|_| rng.below(table_positions) as u32).collect();
        // The last token is not stored.
        let mut slots = rng.shuffled(blocks * block_size)[..tokens].to_vec();
        slots[tokens - 1] = u32::MAX;

        let (mut rotated, mut stored) = (queries.clone(), vec![f32::NAN; blocks * block_size * key_dim]);
        for token in 0..tokens {
            let angles = positions[token] as usize * half..(positions[token] as usize + 1) * half;
            let (cos, sin) = (&tables[0][angles.clone()], &tables[1][angles]);
            for row in rotated[token * heads * key_dim..][..heads * key_dim].chunks_exact_mut(key_dim) {
                rotate(row, style, cos, sin);
            }
            if slots[token] != u32::MAX {
                let row = &mut stored[slots[token] as usize * key_dim..][..key_dim];
                row.copy_from_slice(&latents[token * key_dim..][..key_dim]);
                rotate(row, style, cos, sin);
            }
        }
        let (on_queries, on_latents) = (put(elem, &queries), put(elem, &latents));
        let [cos, sin] = tables.map(|table| put(Elem::F32, &table));
        let (positions, slots) = (put_u32(&positions), put_u32(&slots));
        let rows = garbage(cached, stored.len());
        let prologue = LatentPrologue {
            tokens,
            heads,
            queries: on_queries.view(elem),
            latents: on_latents.view(elem),
            rope: Rope {
                style,
                rotary_dim,
                cos: cos.view(Elem::F32),
                sin: sin.view(Elem::F32),
                table_positions,
                positions: positions.view(Elem::I32),
                second_positions: None,
            },
            slots: slots.view(Elem::I32),
            cache: PagedLatents { rows: rows.view(cached), blocks, block_size, key_dim },
        };
        latent_prologue(&DEVICE, &prologue).unwrap();
        assert_close("queries", &get(prologue.queries), &rotated, precision(elem) * 1.01, 1e-6);
        assert_close("cache", &get(prologue.cache.rows), &stored, precision(cached) * 1.01, 1e-6);
    });
}
