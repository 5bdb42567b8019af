//! One product per expert, with any number of rows for each.

use millrace_cuda::ops::grouped::{ExpertWeights, GroupedGemm, RowOrder, grouped_gemm, grouped_gemm_plain};
use millrace_cuda::weights::PackedFormat;
use millrace_cuda::{Device, Elem, Memory};
use millrace_numbers::{KFormat, Part};

use crate::common::*;
use crate::quant_gemm::{Groups, QuantizedWeight, bytes, codes, gptq_part, k_quants, of_size, pack};

struct Case {
    elem: Elem,
    rows: usize,
    top_k: usize,
    experts: usize,
    inputs: usize,
    outputs: usize,
    x_order: RowOrder,
    out_order: RowOrder,
    /// The expert of each pair, or none if another rank has it.
    expert_of: Vec<Option<usize>>,
    /// Pairs by expert, in order within an expert.
    sorted: Vec<usize>,
    offsets: Vec<u32>,
    x: Vec<f32>,
    /// `[experts, outputs]`.
    bias: Option<Vec<f32>>,
}

impl Case {
    fn random(rng: &mut Rng, elem: Elem, rows: usize) -> Case {
        let (top_k, experts): (usize, usize) = (rng.pick(&[1, 2, 4]), rng.pick(&[1, 3, 8, 70]));
        let (inputs, outputs) = (rng.pick(&[8, 72, 96, 100, 256]), rng.pick(&[8, 20, 128, 140]));
        // Half of the experts have most rows, so that some have many and some none.
        let favoured = rng.pick(&[1, experts.div_ceil(2), experts]);
        let expert_of: Vec<Option<usize>> =
            (0..rows * top_k).map(|_| (rng.below(10) > 0).then(|| rng.below(favoured))).collect();
        let mut sorted: Vec<usize> = Vec::new();
        let mut offsets = vec![0];
        for expert in 0..experts {
            sorted.extend((0..rows * top_k).filter(|&pair| expert_of[pair] == Some(expert)));
            offsets.push(sorted.len() as u32);
        }
        let x_order = rng.pick(&[RowOrder::Sorted, RowOrder::Pairs]);
        let out_order = rng.pick(&[RowOrder::Sorted, RowOrder::Pairs]);
        let rows_of_x = if x_order == RowOrder::Sorted { rows * top_k } else { rows };
        let x = rng.values(elem, rows_of_x * inputs);
        Case {
            elem,
            rows,
            top_k,
            experts,
            inputs,
            outputs,
            x_order,
            out_order,
            expert_of,
            sorted,
            offsets,
            x,
            bias: None,
        }
    }

    fn name(&self, what: &str) -> String {
        let &Case { elem, rows, top_k, experts, inputs, outputs, x_order, out_order, .. } = self;
        format!(
            "{what} {elem:?} {rows} rows, {top_k} of {experts} experts, {inputs} to {outputs}, {x_order:?} to {out_order:?}"
        )
    }

    /// The result by the definition, with NaN where nothing is written. `weight(e, o, i)` is an
    /// element of the weight.
    fn reference(&self, weight: impl Fn(usize, usize, usize) -> f64) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.rows * self.top_k * self.outputs];
        for (at, &pair) in self.sorted.iter().enumerate() {
            let expert = self.expert_of[pair].unwrap();
            let row = if self.x_order == RowOrder::Sorted { at } else { pair / self.top_k };
            let to = if self.out_order == RowOrder::Sorted { at } else { pair };
            let x = &self.x[row * self.inputs..][..self.inputs];
            for o in 0..self.outputs {
                let sum: f64 = x.iter().enumerate().map(|(i, &x)| f64::from(x) * weight(expert, o, i)).sum();
                let bias = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[expert * self.outputs + o]));
                out[to * self.outputs + o] = (sum + bias) as f32;
            }
        }
        out
    }

    fn run(&self, product: impl Fn(&GroupedGemm<'_>)) -> Vec<f32> {
        let words = |all: &mut dyn Iterator<Item = u32>| put_u32(&all.collect::<Vec<u32>>());
        let pairs = self.rows * self.top_k;
        let x = put(self.elem, &self.x);
        let offsets = words(&mut self.offsets.iter().copied());
        // Memory after the last expert's rows may hold anything.
        let sorted = words(&mut (0..pairs).map(|i| self.sorted.get(i).map_or(u32::MAX, |&pair| pair as u32)));
        let out = garbage(self.elem, pairs * self.outputs);
        let bias = self.bias.as_ref().map(|bias| put(Elem::F32, bias));
        product(&GroupedGemm {
            rows: self.rows,
            top_k: self.top_k,
            experts: self.experts,
            inputs: self.inputs,
            outputs: self.outputs,
            bias: bias.as_ref().map(|bias| bias.view(Elem::F32)),
            expert_offsets: offsets.view(Elem::I32),
            sorted_rows: sorted.view(Elem::I32),
            x_order: self.x_order,
            x: x.view(self.elem),
            out_order: self.out_order,
            out: out.view(self.elem),
        });
        get(out.view(self.elem))
    }
}

fn check(rng: &mut Rng, rows: usize) {
    let elem = rng.pick(&ACTIVATIONS);
    let mut case = Case::random(rng, elem, rows);
    case.bias = (rng.below(2) == 1).then(|| rng.values(Elem::F32, case.experts * case.outputs));
    check_case(rng, &case);
}

fn check_case(rng: &mut Rng, case: &Case) {
    let &Case { elem, experts, inputs, outputs, .. } = case;
    let weights = rng.values(elem, experts * outputs * inputs);
    let on_device: Memory = put(elem, &weights);
    let stored = ExpertWeights::Stored(on_device.view(elem));
    let want = case.reference(|e, o, i| f64::from(weights[(e * outputs + o) * inputs + i]));
    let (relative, absolute) = (precision(elem) * 1.01 + 1e-6, inputs as f32 * 1e-7 + 1e-6);
    let fast = case.run(|g| grouped_gemm(&DEVICE, stored, g).unwrap());
    assert_close(&case.name("fast"), &fast, &want, relative, absolute);
    let plain = case.run(|g| grouped_gemm_plain(&DEVICE, stored, g).unwrap());
    assert_close(&case.name("plain"), &plain, &want, relative, absolute);
}

#[test]
fn few_rows_match_the_reference() {
    for_seeds(16, |rng| {
        let rows = rng.pick(&[0, 1, 5, 30]);
        check(rng, rows);
    });
}

/// A block searches its work among 32 experts at a time; here the third round finds some.
#[test]
fn the_last_of_many_experts_matches_the_reference() {
    for_seeds(2, |rng| {
        let has_late_rows = |case: &Case| case.expert_of.iter().flatten().any(|&expert| expert >= 64);
        let case = loop {
            let case = Case::random(rng, Elem::BF16, 60);
            if has_late_rows(&case) && case.inputs.is_multiple_of(8) {
                break case;
            }
        };
        check_case(rng, &case);
    });
}

#[test]
fn many_rows_match_the_reference() {
    for_seeds(8, |rng| {
        let rows = rng.pick(&[70, 140]);
        check(rng, rows);
    });
}

#[test]
fn packed_experts_match_the_reference() {
    for_seeds(12, |rng| {
        let (elem, rows) = (rng.pick(&ACTIVATIONS), rng.pick(&[3, 50, 100]));
        let format = rng.pick(&PackedFormat::ALL);
        check_packed(rng, format, elem, rows);
    });
}

/// Each compiled variant runs, whatever the random shapes are.
#[test]
fn every_tile_and_type_matches_the_reference() {
    for elem in ACTIVATIONS {
        for rows in [3, 100] {
            let rng = &mut Rng(rows as u64);
            PackedFormat::ALL.into_iter().for_each(|format| check_packed(rng, format, elem, rows));
            let case = loop {
                let case = Case::random(rng, elem, rows);
                if case.experts <= 8 && case.inputs.is_multiple_of(8) {
                    break case;
                }
            };
            check_case(rng, &case);
        }
    }
}

/// Random weights of experts, `[experts * outputs, inputs]`; `outputs` is a multiple of 16.
fn packed_experts(rng: &mut Rng, format: PackedFormat, case: &Case) -> QuantizedWeight {
    let &Case { experts, inputs, outputs, .. } = case;
    match format {
        PackedFormat::Int4 => {}
        PackedFormat::Int8 | PackedFormat::Fp8 => {
            return bytes(rng, inputs, experts * outputs, format == PackedFormat::Fp8);
        }
        PackedFormat::Codes4 => return codes(rng, inputs, experts * outputs),
        PackedFormat::Q4K => return k_quants::blocks(rng, KFormat::Q4K, experts, inputs, outputs),
        PackedFormat::Q5K => return k_quants::blocks(rng, KFormat::Q5K, experts, inputs, outputs),
        PackedFormat::Q6K => return k_quants::blocks(rng, KFormat::Q6K, experts, inputs, outputs),
    }
    let part = |_| gptq_part(rng, inputs, outputs, 32, Groups::Natural);
    let (parts, dense): (Vec<Part>, Vec<Vec<f64>>) = (0..experts).map(part).unzip();
    QuantizedWeight { packed: pack(&parts, experts), dense: dense.concat() }
}

fn check_packed(rng: &mut Rng, format: PackedFormat, elem: Elem, rows: usize) {
    let mut case = Case::random(rng, elem, rows);
    let multiple = match format {
        PackedFormat::Int8 | PackedFormat::Fp8 => 8,
        PackedFormat::Int4 | PackedFormat::Codes4 => 32,
        PackedFormat::Q4K | PackedFormat::Q5K | PackedFormat::Q6K => 256,
    };
    // With many rows, each expert has so many that wide tiles are used.
    let has_few = |case: &Case| rows >= 100 && rows * case.top_k / case.experts < 32;
    while case.experts > 8 || !case.inputs.is_multiple_of(multiple) || has_few(&case) {
        case = Case::random(rng, elem, rows);
    }
    // A part ends at a multiple of 16 outputs.
    case.outputs = case.outputs.next_multiple_of(16);
    let Case { experts, inputs, outputs, .. } = case;
    case.bias = Some(rng.values(Elem::F32, experts * outputs));
    let weights = packed_experts(rng, format, &case);
    let loaded = weights.packed.upload(&DEVICE).unwrap();
    let want = case.reference(|e, o, i| weights.dense[(e * outputs + o) * inputs + i]);
    let (relative, absolute) =
        (precision(elem) * 1.01 + 1e-6, inputs as f32 * of_size(format, elem).max(1e-6));
    let name = |what: &str| case.name(&format!("{format:?}, {what}"));
    let fast = case.run(|g| grouped_gemm(&DEVICE, ExpertWeights::Packed(loaded.weight()), g).unwrap());
    assert_close(&name("fast"), &fast, &want, relative, absolute);
    let plain = case.run(|g| grouped_gemm_plain(&DEVICE, ExpertWeights::Packed(loaded.weight()), g).unwrap());
    assert_close(&name("plain"), &plain, &want, relative, absolute);
}

/// A row has the same bits in narrow tiles and in wide ones.
#[test]
fn rows_do_not_depend_on_their_number() {
    let mut rng = Rng(11);
    let elem = Elem::BF16;
    let mut case = Case::random(&mut rng, elem, 80);
    (case.top_k, case.experts, case.inputs, case.outputs) = (1, 2, 136, 40);
    (case.x_order, case.out_order) = (RowOrder::Pairs, RowOrder::Pairs);
    case.x = rng.values(elem, 80 * 136);
    let weights = put(elem, &rng.values(elem, 2 * 40 * 136));
    let run = |case: &Case| {
        case.run(|g| grouped_gemm(&DEVICE, ExpertWeights::Stored(weights.view(elem)), g).unwrap())
    };
    case.sorted = (0..80).collect();
    case.offsets = vec![0, 30, 80];
    let all = run(&case);
    case.rows = 35;
    case.sorted = (0..35).collect();
    case.offsets = vec![0, 30, 35];
    assert_eq!(run(&case), all[..35 * 40]);
}

/// GPUs whose blocks have little shared memory use a kernel with fewer stages, which gives the same
/// bits.
#[test]
fn products_have_the_same_bits_on_gpus_with_little_shared_memory() {
    let Some(devices) = small_and_large_gpu() else { return };
    let mut rng = Rng(3);
    for elem in [Elem::F16, Elem::BF16] {
        let mut case = Case::random(&mut rng, elem, 80);
        (case.top_k, case.experts, case.inputs, case.outputs) = (1, 2, 392, 136);
        (case.x_order, case.out_order) = (RowOrder::Pairs, RowOrder::Pairs);
        case.expert_of = (0..80).map(|row| Some(usize::from(row >= 30))).collect();
        case.sorted = (0..80).collect();
        case.offsets = vec![0, 30, 80];
        case.x = rng.values(elem, 80 * 392);
        let weights = rng.values(elem, 2 * 136 * 392);
        let loaded = put(elem, &weights);
        let stored = ExpertWeights::Stored(loaded.view(elem));
        check_few_stages(&devices, &case, stored, |e, o, i| f64::from(weights[(e * 136 + o) * 392 + i]));
        case.outputs = 144;
        for format in [PackedFormat::Int8, PackedFormat::Fp8, PackedFormat::Q5K, PackedFormat::Q6K] {
            if format == PackedFormat::Q5K {
                case.inputs = 512;
                case.x = rng.values(elem, 80 * 512);
            }
            let inputs = case.inputs;
            let weights = packed_experts(&mut rng, format, &case);
            let loaded = weights.packed.upload(&DEVICE).unwrap();
            let packed = ExpertWeights::Packed(loaded.weight());
            check_few_stages(&devices, &case, packed, |e, o, i| weights.dense[(e * 144 + o) * inputs + i]);
        }
    }
}

fn check_few_stages(
    devices: &[Device; 2],
    case: &Case,
    weights: ExpertWeights<'_>,
    element: impl Fn(usize, usize, usize) -> f64,
) {
    let of_size = match weights {
        ExpertWeights::Stored(_) => 1e-6,
        ExpertWeights::Packed(weight) => of_size(weight.format, case.elem).max(1e-6),
    };
    let [small, large] =
        devices.each_ref().map(|device| case.run(|g| grouped_gemm(device, weights, g).unwrap()));
    assert_eq!(small, large);
    let (relative, absolute) = (precision(case.elem) * 1.01 + 1e-6, case.inputs as f32 * of_size);
    assert_close(&case.name("few stages"), &small, &case.reference(element), relative, absolute);
}

#[test]
fn wrong_shapes_are_refused() {
    let mut rng = Rng(1);
    let case = Case::random(&mut rng, Elem::BF16, 4);
    let short = garbage(Elem::BF16, 1);
    let error = std::cell::RefCell::new(String::new());
    case.run(|g| {
        let result = grouped_gemm(&DEVICE, ExpertWeights::Stored(short.view(Elem::BF16)), g);
        *error.borrow_mut() = result.unwrap_err().to_string();
    });
    assert!(error.borrow().contains("weights has 1 elements"), "{}", error.borrow());
}
