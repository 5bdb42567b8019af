//! Adapters in the decoder, beside the logits of transformers with PEFT.

use std::path::{Path, PathBuf};

use millrace_backend::Backend;
use millrace_backend::reference::Reference;
use millrace_cpu::{Activations, Cpu, CpuOptions};
use millrace_formats::Source;
use millrace_model::adapters::Adapter;
use millrace_model::families::{self, Overrides};
use millrace_model::split::Split;
use millrace_model::{AdapterLimits, Model, Quantize, ShardLimits, WeightStorage};
use millrace_shard::decoder::{Collective, Decoder, PackedAdapter, RankAdapter, Weights};
use safetensors::SafeTensors;

use crate::common::{Chunk, Harness, on_two_ranks, repository, row_error};
use crate::golden::{Golden, LIMITS, assert_rows, generate};

/// The adapters of each checkpoint, in the order of their numbers.
const ADAPTERS: [&str; 2] = ["plain", "patterns"];

/// A checkpoint and its adapters.
struct Case {
    name: String,
    base: PathBuf,
    adapters: PathBuf,
}

impl Case {
    fn named(name: &str) -> Self {
        let tests = repository().join("integration-tests");
        let (base, adapters) = (tests.join("golden").join(name), tests.join("golden-adapters").join(name));
        Case { name: name.to_owned(), base, adapters }
    }

    /// Returns all checkpoints that have adapters.
    fn all() -> Vec<Case> {
        let folder = Case::named("").adapters;
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let folders = entries.filter(|entry| entry.path().is_dir());
        folders.map(|entry| Case::named(entry.file_name().to_str().unwrap())).collect()
    }

    fn model(&self) -> Model {
        families::load(&Source::Directory(self.base.clone()), &Overrides::default()).unwrap()
    }

    fn adapters(&self) -> Vec<Adapter> {
        let base = Source::Directory(self.base.clone());
        let open = |name: &str| Adapter::open(&base, &Overrides::default(), &self.adapters.join(name));
        ADAPTERS.map(|name| open(name).unwrap()).into()
    }

    /// Returns a rank of the model with its adapters on a device, and the number of a sequence's
    /// slot, which is also its first block.
    fn load<'b, B: Backend>(
        &self,
        backend: &'b B,
        split: Split,
        quantize: Option<Quantize>,
        ranks: Option<Box<dyn Collective<B>>>,
    ) -> Harness<'b, B> {
        self.load_all(backend, split, quantize, ranks, &[0, 1])
    }

    /// Returns a rank of the model, into whose first places these adapters are loaded one after the
    /// other, each into the place of its index modulo 2.
    fn load_all<'b, B: Backend>(
        &self,
        backend: &'b B,
        split: Split,
        quantize: Option<Quantize>,
        ranks: Option<Box<dyn Collective<B>>>,
        order: &[usize],
    ) -> Harness<'b, B> {
        let adapters = self.adapters();
        let max_rank = adapters.iter().map(Adapter::max_rank).max().unwrap();
        let limits = AdapterLimits { count: adapters.len(), max_loaded: adapters.len(), max_rank };
        let limits = ShardLimits { adapters: limits, ..LIMITS };
        let model = split.apply(self.model()).unwrap();
        let storage = WeightStorage::choose(model.dtype, quantize, &model, backend).unwrap();
        let Model { mut spec, weights: source, dtype, .. } = model;
        spec.max_positions = limits.max_sequence_tokens;
        let positions = limits.max_sequence_tokens;
        let mut weights =
            Weights::load(backend, &spec, &*source, storage, positions, &mut |_| Ok(())).unwrap();
        let pools = weights.reserve_adapters(backend, &spec, limits.adapters, dtype).unwrap();
        let mut decoder = Decoder::new(backend, spec, weights, &limits, ranks).unwrap();
        for (index, &adapter) in order.iter().enumerate() {
            let share = |&(slot, _): &_| Some((slot, adapters[adapter].weights(slot, split).unwrap()?));
            let share: RankAdapter = pools.iter().filter_map(share).collect();
            decoder.set_adapter(backend, index % ADAPTERS.len(), Some(&share)).unwrap();
        }
        Harness::of(backend, decoder, &limits)
    }
}

fn cpu(activations: Activations) -> Cpu {
    Cpu::new(CpuOptions { threads: Some(2), activations, ..CpuOptions::default() }).unwrap()
}

/// Compares the prompts and continuations in `file` with what sequences with this adapter get.
fn check(case: &str, harness: &mut Harness<'_, Cpu>, file: &Path, adapter: Option<usize>) -> usize {
    let bytes = std::fs::read(file.join("golden.safetensors")).unwrap();
    let golden = Golden(SafeTensors::deserialize(&bytes).unwrap());
    harness.adapters.clear();
    // All blocks may be the first one of the generation.
    let slots = 0..LIMITS.num_blocks as u32;
    harness.adapters.extend(adapter.map(|place| slots.map(move |slot| (slot, place))).into_iter().flatten());
    let prompts = (0..).map_while(|i| Some((i, golden.ids(&format!("prompt_ids.{i}"))?)));
    let mut compared = 0;
    for (i, prompt) in prompts {
        let case = format!("{case}, {adapter:?}, prompt {i}");
        let ids = golden.ids(&format!("continuation_ids.{i}")).unwrap();
        let found = generate(harness, &prompt, ids.len());
        assert_rows(&case, &found.prompt, &golden.rows(&format!("logits.{i}")));
        assert_eq!(found.ids, ids, "{case}");
        assert_rows(&case, &found.chosen_from, &golden.rows(&format!("continuation_logits.{i}")));
        compared += 1;
    }
    compared
}

#[test]
fn adapters_compute_what_peft_computes() {
    let cases = Case::all();
    assert!(cases.len() >= 10, "{} checkpoints have adapters", cases.len());
    for case in cases {
        let cpu = cpu(Activations::Exact);
        let mut harness = case.load(&cpu, Split::WHOLE, None, None);
        for (place, name) in ADAPTERS.into_iter().enumerate() {
            // Adapters take turns with the model alone, whose numbers stay what they are.
            assert!(check(&case.name, &mut harness, &case.base, None) >= 2);
            assert_eq!(check(&case.name, &mut harness, &case.adapters.join(name), Some(place)), 2);
        }
    }
}

/// Returns the logits of a step with a prompt for each of `adapters`, one list for each.
fn prompts<B: Backend>(harness: &mut Harness<'_, B>, adapters: &[Option<usize>]) -> Vec<Vec<Vec<f32>>> {
    let tokens: Vec<Vec<u32>> =
        (0..4u32).map(|i| (0..7 + i).map(|k| 3 + (5 * k + 11 * i) % 40).collect()).collect();
    let blocks: Vec<[u32; 1]> = (0..4).map(|block| [block]).collect();
    harness.adapters.clear();
    let named = adapters.iter().zip(0..).filter_map(|(adapter, slot)| Some((slot, (*adapter)?)));
    harness.adapters.extend(named);
    let chunks: Vec<Chunk<'_>> = adapters
        .iter()
        .enumerate()
        .map(|(i, _)| Chunk { tokens: &tokens[i], start: 0, blocks: &blocks[i] })
        .collect();
    let mut logits = harness.step(&chunks).into_iter();
    chunks.iter().map(|chunk| logits.by_ref().take(chunk.tokens.len()).collect()).collect()
}

/// The four prompts of [`prompts`] in one step, and those with other neighbours.
#[test]
fn a_mixed_batch_has_the_results_of_each_request_alone() {
    for name in ["llama_gqa", "phi3", "qwen3_5_text", "deepseek_v2"] {
        for activations in [Activations::Exact, Activations::Rounded] {
            let cpu = cpu(activations);
            let mut harness = Case::named(name).load(&cpu, Split::WHOLE, None, None);
            let mixed = prompts(&mut harness, &[Some(0), None, Some(1), Some(0)]);
            let of_base = prompts(&mut harness, &[None; 4]);
            assert_eq!(mixed[1], of_base[1], "{name}: a sequence without an adapter");
            for (other, count) in [(None, 1), (Some(1), 3), (Some(0), 3)] {
                let neighbours = [Some(0), other, other, other];
                let found = prompts(&mut harness, &neighbours[..count]);
                assert_eq!(mixed[0], found[0], "{name}: beside {other:?}");
                assert_ne!(mixed[0], of_base[0], "{name}: the adapter changes something");
            }
        }
    }
}

/// The two adapters have different ranks and change different matrices, so anything that is left of
/// the adapter before would change the logits.
#[test]
fn an_adapter_in_a_place_that_was_used_computes_what_it_computes_in_a_new_one() {
    for name in ["llama_gqa", "phi3", "qwen3_5_text", "deepseek_v2"] {
        let case = Case::named(name);
        let ranks: Vec<usize> = case.adapters().iter().map(Adapter::max_rank).collect();
        assert_ne!(ranks[0], ranks[1], "{name}");
        let cpu = cpu(Activations::Exact);
        let wanted = [Some(0), None, Some(1), Some(0)];
        let fresh = prompts(&mut case.load(&cpu, Split::WHOLE, None, None), &wanted);
        let mut reused = case.load_all(&cpu, Split::WHOLE, None, None, &[1, 0, 0, 1]);
        assert_eq!(prompts(&mut reused, &wanted), fresh, "{name}");
    }
}

/// Adapters that waited in host memory take the places of others, of larger and of smaller ranks.
#[test]
fn an_adapter_that_waited_in_host_memory_computes_what_it_computes_after_a_fresh_start() {
    for name in ["llama_gqa", "phi3", "qwen3_5_text", "deepseek_v2"] {
        let case = Case::named(name);
        let cpu = cpu(Activations::Exact);
        let wanted = [Some(0), None, Some(1), Some(0)];
        let fresh = prompts(&mut case.load(&cpu, Split::WHOLE, None, None), &wanted);
        let mut swapped = case.load_all(&cpu, Split::WHOLE, None, None, &[1, 0]);
        assert_ne!(prompts(&mut swapped, &wanted), fresh, "{name}: the places are exchanged");
        let slots = millrace_model::adapters::adaptable(swapped.decoder.spec());
        let dtype = case.model().dtype;
        for (place, adapter) in case.adapters().iter().enumerate() {
            let share = |&slot| Some((slot, adapter.weights(slot, Split::WHOLE).unwrap()?));
            let waiting = PackedAdapter::pack(slots.iter().filter_map(share).collect(), dtype);
            swapped.decoder.set_adapter(&cpu, place, Some(&waiting.unpack())).unwrap();
        }
        assert_eq!(prompts(&mut swapped, &wanted), fresh, "{name}");
    }
}

/// A place whose adapter does not fit is free: its sequences get the results of the model.
#[test]
fn an_adapter_that_does_not_fit_leaves_its_place_free() {
    let case = Case::named("llama_gqa");
    let cpu = cpu(Activations::Exact);
    let mut harness = case.load(&cpu, Split::WHOLE, None, None);
    let of_base = prompts(&mut harness, &[None]);
    let source = Source::Directory(case.base.clone());
    let adapter = Adapter::open(&source, &Overrides::default(), &case.adapters.join("plain")).unwrap();
    let slots = millrace_model::adapters::adaptable(harness.decoder.spec());
    let mut share: RankAdapter = slots
        .iter()
        .filter_map(|&slot| Some((slot, adapter.weights(slot, Split::WHOLE).unwrap()?)))
        .collect();
    share.values_mut().last().unwrap().products[0].down.pop();
    assert!(harness.decoder.set_adapter(&cpu, 0, Some(&share)).is_err());
    assert_eq!(prompts(&mut harness, &[Some(0)]), of_base);
}

#[test]
fn the_shares_of_two_ranks_add_up() {
    for case in Case::all() {
        let wanted = [Some(1), None, Some(0)];
        let cpu = cpu(Activations::Exact);
        let whole = prompts(&mut case.load(&cpu, Split::WHOLE, None, None), &wanted);
        let shares = on_two_ranks(|split, ranks| {
            let cpu = Cpu::new(CpuOptions {
                threads: Some(1),
                activations: Activations::Exact,
                ..CpuOptions::default()
            });
            let cpu = cpu.unwrap();
            let mut harness = case.load(&cpu, split, None, Some(Box::new(ranks)));
            prompts(&mut harness, &wanted)
        });
        for (found, want) in shares[0].iter().flatten().zip(whole.iter().flatten()) {
            let want: Vec<f64> = want.iter().copied().map(f64::from).collect();
            let error = row_error(found, &want);
            assert!(error < 5e-5, "{}: {error:e}", case.name);
        }
    }
}

/// Quantized matrices stay as they are, and adapters are added in the type of the model.
#[test]
fn adapters_change_quantized_matrices() {
    for (name, quantize) in [("llama_gqa", Quantize::Int8), ("qwen2", Quantize::Int8)] {
        let case = Case::named(name);
        let wanted = [Some(0), None, Some(1)];
        let cpu = cpu(Activations::Exact);
        let found = prompts(&mut case.load(&cpu, Split::WHOLE, Some(quantize), None), &wanted);
        let expected = prompts(&mut case.load(&Reference, Split::WHOLE, Some(quantize), None), &wanted);
        let whole = prompts(&mut case.load(&cpu, Split::WHOLE, None, None), &wanted);
        assert_ne!(found, whole, "{name}: nothing was quantized");
        for (found, want) in found.iter().flatten().zip(expected.iter().flatten()) {
            let want: Vec<f64> = want.iter().copied().map(f64::from).collect();
            let error = row_error(found, &want);
            assert!(error < 1e-4, "{name}: {error:e}");
        }
    }
}
