//! The prologue of Llama 8B, 70B (a rank of eight), Qwen3 8B (norms of heads) and ChatGLM-6B (2D
//! positions, bias).

use millrace_backend::{QkvLayout, RopeStyle};
use millrace_cuda::Elem;
use millrace_cuda::ops::paged::PagedKv;
use millrace_cuda::ops::prologue::{HeadNorms, Prologue, Rope, prologue};

use crate::cost;
use crate::harness::{Bench, Result};

struct Model {
    name: &'static str,
    heads: usize,
    kv_heads: usize,
    norms: bool,
    bias: bool,
    two_positions: bool,
    cache: Elem,
}

const HEAD_DIM: usize = 128;
const POSITIONS: usize = 2048;
const LLAMA: Model = Model {
    name: "Llama 8B",
    heads: 32,
    kv_heads: 8,
    norms: false,
    bias: false,
    two_positions: false,
    cache: Elem::BF16,
};

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let models = [
        LLAMA,
        Model { name: "Llama 8B e4m3", cache: Elem::E4M3, ..LLAMA },
        Model { name: "Llama 70B/8", heads: 8, kv_heads: 1, ..LLAMA },
        Model { name: "Qwen3 8B", norms: true, ..LLAMA },
        Model { name: "ChatGLM-6B", kv_heads: 32, bias: true, two_positions: true, ..LLAMA },
    ];
    let sizes: &[usize] = if bench.is_simulated() { &[2] } else { &[1, 64, 8192] };
    for model in &models {
        for &tokens in sizes {
            one(bench, model, tokens)?;
        }
    }
    Ok(())
}

fn one(bench: &mut Bench, model: &Model, tokens: usize) -> Result<()> {
    let elem = Elem::BF16;
    let layout = QkvLayout { heads: model.heads, kv_heads: model.kv_heads, head_dim: HEAD_DIM };
    let blocks = tokens.div_ceil(16);
    let words = |f: &dyn Fn(usize) -> usize| -> Vec<u8> {
        (0..tokens).flat_map(|t| (f(t) as i32).to_le_bytes()).collect()
    };
    let device = bench.device.clone();
    let qkv = device.allocate(elem, tokens * layout.cols())?;
    let slots = device.upload(&words(&|t| t))?;
    let positions = device.upload(&words(&|t| t % POSITIONS))?;
    let angles = device.allocate(Elem::F32, POSITIONS * HEAD_DIM / 2)?;
    let constants = device.allocate(Elem::F32, layout.cols())?;
    let rows = blocks * 16 * model.kv_heads;
    let (keys, values) =
        (device.allocate(model.cache, rows * HEAD_DIM)?, device.allocate(model.cache, rows * HEAD_DIM)?);
    let scales = device.allocate(Elem::F32, rows)?;
    let scale = scales.view(Elem::F32);
    let constant = constants.view(Elem::F32);
    let p = Prologue {
        tokens,
        layout,
        qkv: qkv.view(elem),
        bias: model.bias.then_some(constant),
        norms: model.norms.then_some(HeadNorms { query: (constant, 1e-6), key: (constant, 1e-6) }),
        rope: Some(Rope {
            style: RopeStyle::Half,
            rotary_dim: if model.two_positions { HEAD_DIM / 2 } else { HEAD_DIM },
            cos: angles.view(Elem::F32),
            sin: angles.view(Elem::F32),
            table_positions: POSITIONS,
            positions: positions.view(Elem::I32),
            second_positions: model.two_positions.then(|| positions.view(Elem::I32)),
        }),
        query_scale: None,
        slots: slots.view(Elem::I32),
        kv: PagedKv {
            keys: keys.view(model.cache),
            values: values.view(model.cache),
            scales: (model.cache.size() == 1).then_some((scale, scale)),
            blocks,
            block_size: 16,
            kv_heads: model.kv_heads,
            head_dim: HEAD_DIM,
        },
    };
    let cost = cost::prologue(elem, model.cache, layout, tokens);
    bench.measure(&format!("prologue {} {tokens} tokens", model.name), cost, |device| prologue(device, &p))
}
