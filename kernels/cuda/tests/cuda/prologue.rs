//! Bias, head norms, rotation, and the write into the paged cache.

use millrace_backend::{QkvLayout, RopeStyle};
use millrace_cuda::ops::paged::PagedKv;
use millrace_cuda::ops::prologue::{HeadNorms, Prologue, QueryScale, Rope, prologue, prologue_plain};
use millrace_cuda::{Elem, Memory, View};

use crate::common::*;
use crate::words::put_i32;

const POSITIONS: usize = 50;
const EPS: [f32; 2] = [1e-5, 1e-2];

#[derive(Debug, Clone, Copy)]
struct Case {
    elem: Elem,
    cache: Elem,
    tokens: usize,
    layout: QkvLayout,
    block_size: usize,
    blocks: usize,
    bias: bool,
    norms: bool,
    /// Features rotated together, by how many positions.
    rope: Option<(RopeStyle, usize, usize)>,
    /// Whether rotated queries are scaled by their position.
    query_scale: bool,
}

struct Inputs {
    qkv: Vec<f32>,
    bias: Vec<f32>,
    norms: [Vec<f32>; 2],
    cos: Vec<f32>,
    sin: Vec<f32>,
    query_scale: Vec<f32>,
    positions: [Vec<i32>; 3],
    slots: Vec<i32>,
}

fn inputs(c: &Case, rng: &mut Rng) -> Inputs {
    let cols = c.layout.cols();
    let mut qkv = rng.values(c.elem, c.tokens * cols);
    // Some heads are all zeros.
    for head in qkv.chunks_exact_mut(c.layout.head_dim) {
        if rng.below(8) == 0 {
            head.fill(0.0);
        }
    }
    let angles = POSITIONS * c.rope.map_or(0, |(_, rotary, _)| rotary / 2);
    let angle: Vec<f32> = (0..angles).map(|_| rng.unit() * 3.0).collect();
    let places = rng.shuffled(c.blocks * c.block_size);
    Inputs {
        qkv,
        bias: rng.values(Elem::F32, cols),
        norms: [rng.values(Elem::F32, c.layout.head_dim), rng.values(Elem::F32, c.layout.head_dim)],
        cos: angle.iter().map(|a| a.cos()).collect(),
        sin: angle.iter().map(|a| a.sin()).collect(),
        query_scale: (0..POSITIONS).map(|_| 1.5 + rng.unit()).collect(),
        positions: [0, 1, 2].map(|_| (0..c.tokens).map(|_| rng.below(POSITIONS) as i32).collect()),
        slots: (0..c.tokens).map(|t| if rng.below(6) == 0 { -1 } else { places[t] as i32 }).collect(),
    }
}

/// Heads after bias, norm and rotation, in f64, `[tokens, heads + 2 kv_heads, head_dim]`.
fn reference(c: &Case, x: &Inputs) -> Vec<f64> {
    let QkvLayout { heads, kv_heads, head_dim } = c.layout;
    let mut out: Vec<f64> = x.qkv.iter().map(|v| f64::from(*v)).collect();
    for (t, row) in out.chunks_exact_mut(c.layout.cols()).enumerate() {
        if c.bias {
            row.iter_mut().zip(&x.bias).for_each(|(v, b)| *v += f64::from(*b));
        }
        for (h, head) in row.chunks_exact_mut(head_dim).take(heads + kv_heads).enumerate() {
            if c.norms {
                let which = usize::from(h >= heads);
                let square: f64 = head.iter().map(|v| v * v).sum();
                let scale = 1.0 / (square / head_dim as f64 + f64::from(EPS[which])).sqrt();
                head.iter_mut().zip(&x.norms[which]).for_each(|(v, w)| *v *= scale * f64::from(*w));
            }
            for section in 0..c.rope.map_or(0, |(.., sections)| sections) {
                let Some((style, rotary, _)) = c.rope else { continue };
                let part = &mut head[section * rotary..(section + 1) * rotary];
                for i in 0..rotary / 2 {
                    let (a, b) = match style {
                        RopeStyle::Half => (i, i + rotary / 2),
                        RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                    };
                    let at = x.positions[section][t] as usize * (rotary / 2) + i;
                    let (cos, sin) = (f64::from(x.cos[at]), f64::from(x.sin[at]));
                    (part[a], part[b]) = (part[a] * cos - part[b] * sin, part[b] * cos + part[a] * sin);
                }
            }
            if c.query_scale && h < heads {
                let scale = x.query_scale[x.positions[2][t] as usize];
                head.iter_mut().for_each(|v| *v *= f64::from(scale));
            }
        }
    }
    out
}

/// An e4m3 element by the definition of the format.
fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = match exponent {
        _ if bits & 0x7f == 0x7f => f32::NAN,
        0 => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

fn cached(view: View<'_>) -> Vec<f32> {
    match view.elem() {
        Elem::E4M3 => DEVICE.read(view).unwrap().into_iter().map(e4m3).collect(),
        Elem::I8 => DEVICE.read(view).unwrap().into_iter().map(|b| f32::from(b as i8)).collect(),
        _ => get(view),
    }
}

fn check(c: Case, rng: &mut Rng) {
    let QkvLayout { heads, kv_heads, head_dim } = c.layout;
    let x = inputs(&c, rng);
    let want = reference(&c, &x);
    let of_head = |t: usize, h: usize| &want[(t * (heads + 2 * kv_heads) + h) * head_dim..][..head_dim];
    let (bias, cos, sin) = (put(Elem::F32, &x.bias), put(Elem::F32, &x.cos), put(Elem::F32, &x.sin));
    let norms = x.norms.clone().map(|w| put(Elem::F32, &w));
    let query_scale = put(Elem::F32, &x.query_scale);
    let positions = x.positions.clone().map(|p| put_i32(&p));
    let slots = put_i32(&x.slots);
    let rows = c.blocks * kv_heads * c.block_size;
    for plain in [false, true] {
        let qkv = put(c.elem, &x.qkv);
        let caches: [Memory; 2] = [0, 1].map(|_| garbage(c.cache, rows * head_dim));
        let scales: [Memory; 2] = [0, 1].map(|_| garbage(Elem::F32, rows));
        let scaled = c.cache.size() == 1;
        let kv = PagedKv {
            keys: caches[0].view(c.cache),
            values: caches[1].view(c.cache),
            scales: scaled.then(|| (scales[0].view(Elem::F32), scales[1].view(Elem::F32))),
            blocks: c.blocks,
            block_size: c.block_size,
            kv_heads,
            head_dim,
        };
        let p = Prologue {
            tokens: c.tokens,
            layout: c.layout,
            qkv: qkv.view(c.elem),
            bias: c.bias.then(|| bias.view(Elem::F32)),
            norms: c.norms.then(|| HeadNorms {
                query: (norms[0].view(Elem::F32), EPS[0]),
                key: (norms[1].view(Elem::F32), EPS[1]),
            }),
            rope: c.rope.map(|(style, rotary_dim, sections)| Rope {
                style,
                rotary_dim,
                cos: cos.view(Elem::F32),
                sin: sin.view(Elem::F32),
                table_positions: POSITIONS,
                positions: positions[0].view(Elem::I32),
                second_positions: (sections == 2).then(|| positions[1].view(Elem::I32)),
            }),
            query_scale: c.query_scale.then(|| QueryScale {
                factors: query_scale.view(Elem::F32),
                table_positions: POSITIONS,
                positions: positions[2].view(Elem::I32),
            }),
            slots: slots.view(Elem::I32),
            kv,
        };
        if plain { prologue_plain(&DEVICE, &p) } else { prologue(&DEVICE, &p) }.unwrap();
        let name = format!("{c:?} plain: {plain}");
        let precise = precision(c.elem) * 1.01 + 1e-5;
        let got = get(qkv.view(c.elem));
        for t in 0..c.tokens {
            for h in 0..heads {
                let want: Vec<f32> = of_head(t, h).iter().map(|v| *v as f32).collect();
                let got = &got[(t * (heads + 2 * kv_heads) + h) * head_dim..][..head_dim];
                assert_close(&format!("{name}: query {h} of token {t}"), got, &want, precise, 2e-6);
            }
        }
        for (which, cache) in caches.iter().enumerate() {
            let elements = cached(cache.view(c.cache));
            let scales = get(scales[which].view(Elem::F32));
            let mut written = vec![false; rows];
            for (t, &slot) in x.slots.iter().enumerate().filter(|(_, slot)| **slot >= 0) {
                for h in 0..kv_heads {
                    let (block, place) = (slot as usize / c.block_size, slot as usize % c.block_size);
                    let at = (block * kv_heads + h) * c.block_size + place;
                    written[at] = true;
                    let want: Vec<f32> =
                        of_head(t, heads + which * kv_heads + h).iter().map(|v| *v as f32).collect();
                    let got = &elements[at * head_dim..][..head_dim];
                    let name = format!("{name}: cache {which} head {h} of token {t}");
                    if !scaled {
                        assert_close(&name, got, &want, precision(c.cache) * 1.01 + 1e-5, 2e-6);
                        continue;
                    }
                    let most = want.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                    let (largest, relative, step) = if c.cache == Elem::I8 {
                        (127.0, 0.0, 0.5)
                    } else {
                        (448.0, 1.0 / 16.0, 2f32.powi(-10))
                    };
                    assert_close(&name, &[scales[at]], &[most / largest], 1e-5, 1e-8);
                    let got: Vec<f32> = got.iter().map(|v| v * scales[at]).collect();
                    assert_close(
                        &name,
                        &got,
                        &want,
                        relative * 1.001 + 1e-5,
                        step * scales[at] * 1.001 + 2e-6,
                    );
                }
            }
            // The kernel has written nothing else.
            let garbage = cached(crate::common::garbage(c.cache, 1).view(c.cache))[0];
            for at in (0..rows).filter(|at| !written[*at]) {
                assert!(!scaled || scales[at].is_nan(), "{name}: scale {at}");
                let row = &elements[at * head_dim..][..head_dim];
                assert!(row.iter().all(|v| v.is_nan() || *v == garbage), "{name}: row {at}");
            }
        }
    }
}

fn random(rng: &mut Rng) -> Case {
    let elem = rng.pick(&ACTIVATIONS);
    let head_dim = rng.pick(&[2, 6, 20, 32, 64, 80, 96, 128, 256]);
    let style = rng.pick(&[RopeStyle::Half, RopeStyle::Interleaved]);
    let rope = match rng.below(5) {
        0 => None,
        1 => Some((style, head_dim, 1)),
        // The rotation covers a part of the head, or with two positions the whole head or a part.
        2 => Some((style, head_dim / 4 * 2, 1)),
        3 => Some((style, head_dim / 4 * 2, 2)),
        _ => Some((style, head_dim / 8 * 2, 2)),
    };
    let kv_heads = rng.pick(&[1, 2, 5]);
    Case {
        elem,
        cache: rng.pick(&[elem, elem, Elem::F16, Elem::F32, Elem::E4M3, Elem::I8]),
        tokens: rng.pick(&[0, 1, 2, 7]),
        layout: QkvLayout { heads: kv_heads * rng.pick(&[1, 4, 7]), kv_heads, head_dim },
        block_size: rng.pick(&[16, 16, 3]),
        blocks: 4,
        bias: rng.below(2) == 1,
        norms: rng.below(2) == 1,
        rope,
        query_scale: rng.below(2) == 1,
    }
}

#[test]
fn random_shapes_match_the_reference() {
    for_seeds(60, |rng| check(random(rng), rng));
}

/// The fast kernel matches the reference for the shapes that it takes.
#[test]
fn fast_shapes_match_the_reference() {
    for_seeds(30, |rng| {
        let elem = rng.pick(&[Elem::F16, Elem::BF16]);
        let head_dim = rng.pick(&[64, 80, 96, 128, 256]);
        let cache = rng.pick(&[elem, Elem::E4M3, Elem::I8]);
        let layout = QkvLayout { head_dim, ..random(rng).layout };
        let rope = random(rng).rope.map(|(style, ..)| {
            let (rotary, sections) = rng.pick(&[(head_dim, 1), (head_dim / 2, 2), (32, 1), (16, 2)]);
            (style, rotary / 16 * 16, sections)
        });
        check(Case { elem, cache, layout, rope, block_size: 16, ..random(rng) }, rng);
    });
}

/// A token alone, whose heads are spread over more blocks, gives the same bits as beside others.
#[test]
fn other_tokens_make_no_difference() {
    let layout = QkvLayout { heads: 40, kv_heads: 8, head_dim: 128 };
    let rope = Some((RopeStyle::Half, 128, 1));
    let (elem, cache) = (Elem::BF16, Elem::E4M3);
    let tokens = 26;
    let (bias, norms, query_scale) = (true, true, true);
    let c = Case { elem, cache, tokens, layout, block_size: 16, blocks: 2, bias, norms, rope, query_scale };
    let x = inputs(&c, &mut Rng(1));
    let (bias, cos, sin) = (put(Elem::F32, &x.bias), put(Elem::F32, &x.cos), put(Elem::F32, &x.sin));
    let norms = x.norms.clone().map(|w| put(Elem::F32, &w));
    let (positions, slots) = (put_i32(&x.positions[0]), put_i32(&x.slots));
    let scale_positions = put_i32(&x.positions[2]);
    let query_scale = put(Elem::F32, &x.query_scale);
    // Each launch has this number of tokens.
    let bits = |chunk: usize| -> Vec<Vec<u8>> {
        let qkv = put(elem, &x.qkv);
        let rows = c.blocks * c.block_size * layout.kv_heads;
        let caches = [0, 1].map(|_| garbage(cache, rows * layout.head_dim));
        let scales = [0, 1].map(|_| garbage(Elem::F32, rows));
        for first in (0..tokens).step_by(chunk) {
            let of_chunk = first..(first + chunk).min(tokens);
            let p = Prologue {
                tokens: of_chunk.len(),
                layout,
                qkv: qkv.view(elem).slice(of_chunk.start * layout.cols()..of_chunk.end * layout.cols()),
                bias: Some(bias.view(Elem::F32)),
                norms: Some(HeadNorms {
                    query: (norms[0].view(Elem::F32), EPS[0]),
                    key: (norms[1].view(Elem::F32), EPS[1]),
                }),
                rope: Some(Rope {
                    style: RopeStyle::Half,
                    rotary_dim: 128,
                    cos: cos.view(Elem::F32),
                    sin: sin.view(Elem::F32),
                    table_positions: POSITIONS,
                    positions: positions.view(Elem::I32).slice(of_chunk.clone()),
                    second_positions: None,
                }),
                query_scale: Some(QueryScale {
                    factors: query_scale.view(Elem::F32),
                    table_positions: POSITIONS,
                    positions: scale_positions.view(Elem::I32).slice(of_chunk.clone()),
                }),
                slots: slots.view(Elem::I32).slice(of_chunk),
                kv: PagedKv {
                    keys: caches[0].view(cache),
                    values: caches[1].view(cache),
                    scales: Some((scales[0].view(Elem::F32), scales[1].view(Elem::F32))),
                    blocks: c.blocks,
                    block_size: c.block_size,
                    kv_heads: layout.kv_heads,
                    head_dim: layout.head_dim,
                },
            };
            prologue(&DEVICE, &p).unwrap();
        }
        [&qkv, &caches[0], &caches[1], &scales[0], &scales[1]]
            .map(|memory| DEVICE.read(memory.view(Elem::U8)).unwrap())
            .to_vec()
    };
    let together = bits(tokens);
    assert!(together == bits(1), "alone");
    assert!(together == bits(7), "by sevens");
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let (x, words) = (garbage(Elem::F32, 4096), put_i32(&[0; 16]));
    let view = x.view(Elem::F32);
    let layout = QkvLayout { heads: 2, kv_heads: 1, head_dim: 8 };
    let kv = PagedKv {
        keys: view,
        values: view,
        scales: None,
        blocks: 2,
        block_size: 16,
        kv_heads: 1,
        head_dim: 8,
    };
    let rope = |rotary_dim, second| Rope {
        style: RopeStyle::Half,
        rotary_dim,
        cos: view,
        sin: view,
        table_positions: 4,
        positions: words.view(Elem::I32),
        second_positions: second,
    };
    let base = Prologue {
        tokens: 2,
        layout,
        qkv: view,
        bias: None,
        norms: None,
        rope: None,
        query_scale: None,
        slots: words.view(Elem::I32),
        kv,
    };
    let refused = |p: Prologue<'_>| prologue(&DEVICE, &p).unwrap_err().to_string();
    let of_rope = |rope| refused(Prologue { rope: Some(rope), ..base });
    assert!(of_rope(rope(7, None)).contains("1 times 7 features of a head of 8"));
    assert!(of_rope(rope(8, Some(words.view(Elem::I32)))).contains("2 times 8 features"));
    let short =
        QueryScale { factors: view.slice(0..3), table_positions: 4, positions: words.view(Elem::I32) };
    let of_scale = refused(Prologue { query_scale: Some(short), ..base });
    assert!(of_scale.contains("query scale has 3 elements"));
    assert!(
        refused(Prologue { kv: PagedKv { head_dim: 4, ..kv }, ..base }).contains("do not go into a cache")
    );
    let scaled = PagedKv { keys: x.view(Elem::E4M3), values: x.view(Elem::E4M3), ..kv };
    assert!(refused(Prologue { kv: scaled, ..base }).contains("needs scales"));
    assert!(refused(Prologue { tokens: 500, ..base }).contains("qkv has 4096 elements"));
}
