//! Tests of the loop of a shard over a real socket.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::router::{Router, SEED, admission, expected, greedy, model, options, placement, row};
use crate::common::{MemoryWeights, fixed_spec, naive, repository, row_error};
use millrace_backend::reference::Reference;
use millrace_formats::Source;
use millrace_model::families::{self, Overrides};
use millrace_numbers::DType;
use millrace_proto::{
    Admission, Pooling, Ready, Row, RowErrorKind, Sampling, Shutdown, Step, StepOutput, ToShard, frame,
    to_shard,
};
use millrace_shard::collective::HostCollective;
use millrace_shard::decoder::Collective;
use millrace_shard::{Error, HostPlatform, OpenDevice, Platform, PreviousPool, RankPlacement, ShardOptions};
use serde_json::Value;

#[test]
fn loading_ends_with_the_announcement() {
    let (mut router, loading, ready) = Router::ready();
    let bytes = 4 * fixed_spec().parameters() as u64;
    let last = loading.last().unwrap();
    assert_eq!((last.phase.as_str(), last.done_bytes, last.total_bytes), ("loading weights", bytes, bytes));
    assert_eq!(loading[0].phase, "reading the checkpoint");

    assert_eq!(ready.model_type, "fixed");
    assert_eq!((ready.dtype.as_str(), ready.device.as_str()), ("float32", "reference"));
    assert_eq!((ready.vocab_size, ready.parameters), (32, fixed_spec().parameters() as u64));
    assert_eq!((ready.max_sequence_tokens, ready.block_size, ready.num_blocks), (40, 4, 20));
    assert_eq!((ready.max_sequences, ready.max_step_tokens), (3, 24));
    assert_eq!(ready.memory[0].bytes, bytes);
    let kv = ready.memory.last().unwrap();
    // Two layers, keys and values, one head of four singles.
    assert_eq!((kv.name.as_str(), kv.bytes), ("KV cache", 80 * 2 * 2 * 4 * 4));
    let phases: Vec<&str> = ready.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(
        phases,
        [
            "read the checkpoint's headers",
            "open the device",
            "choose algorithms",
            "load weights",
            "allocate",
            "warm up"
        ]
    );
    assert!(ready.phases[2].micros > 0 && ready.phases[4].micros > 0);

    router.send(to_shard::Message::Shutdown(Shutdown {}));
    router.shard.join().unwrap().unwrap();
}

#[test]
fn a_sequence_gets_the_same_tokens_in_any_company() {
    let (mut router, _, _) = Router::ready();
    let (a, b, c) = ([3u32, 9, 27, 1, 4, 11, 30, 2, 8, 5], [7u32, 7, 7], [31u32, 0, 15, 6]);
    let (of_a, of_b, of_c) = (expected(&a, 4), expected(&b, 3), expected(&c, 2));

    // All steps are sent before the first answer is read. Each step finds the tokens that the one
    // before it sampled.
    router.send_step(Step {
        id: 1,
        admit: vec![admission(2, &a), admission(0, &b)],
        // A prefill in chunks is in the same step as a whole one.
        rows: vec![row(2, 0, 6, &[19, 4], false), row(0, 0, 3, &[11], true)],
        ..Step::default()
    });
    router.send_step(Step {
        id: 2,
        rows: vec![row(0, 3, 1, &[], true), row(2, 6, 4, &[0], true)],
        ..Step::default()
    });
    router.send_step(Step {
        id: 3,
        rows: vec![row(2, 10, 1, &[], true), row(0, 4, 1, &[2], true)],
        ..Step::default()
    });
    // `c` takes the slot and the blocks of `b` at once.
    router.send_step(Step {
        id: 4,
        release: vec![0],
        admit: vec![admission(0, &c)],
        rows: vec![row(0, 0, 4, &[2], true), row(2, 11, 1, &[], true)],
        ..Step::default()
    });
    router.send_step(Step {
        id: 5,
        rows: vec![row(2, 12, 1, &[3], true), row(0, 4, 1, &[11], true)],
        ..Step::default()
    });
    router.send_step(Step { id: 6, release: vec![0, 2], ..Step::default() });
    router.send(to_shard::Message::Shutdown(Shutdown {}));

    let answers: Vec<StepOutput> = (0..6).map(|_| router.output()).collect();
    let sampled: Vec<Vec<(u32, u32)>> =
        answers.iter().map(|answer| answer.sampled.iter().map(|s| (s.slot, s.token)).collect()).collect();
    let expected = [
        vec![(0, of_b[0])],
        vec![(0, of_b[1]), (2, of_a[0])],
        vec![(2, of_a[1]), (0, of_b[2])],
        vec![(0, of_c[0]), (2, of_a[2])],
        vec![(2, of_a[3]), (0, of_c[1])],
        vec![],
    ];
    assert_eq!(sampled, expected);
    assert!(answers.iter().enumerate().all(|(i, answer)| answer.step == i as u64 + 1));
    assert!(answers[..5].iter().all(|answer| answer.forward_micros <= answer.step_micros));
    assert!(answers.iter().flat_map(|answer| &answer.sampled).all(|s| s.logprob <= 0.0));
    router.shard.join().unwrap().unwrap();
}

#[test]
fn the_requested_alternatives_are_reported() {
    let (mut router, _, _) = Router::ready();
    let sampling = Sampling { top_n: 3, ..greedy() };
    let admit = vec![Admission { sampling: Some(sampling), ..admission(0, &[1, 2]) }];
    router.send_step(Step { id: 1, admit, rows: vec![row(0, 0, 2, &[0], true)], ..Step::default() });
    let answer = router.output();
    let [sampled] = answer.sampled.as_slice() else { panic!("{answer:?}") };
    assert_eq!(sampled.top.len(), 3);
    assert_eq!((sampled.top[0].token, sampled.top[0].logprob), (sampled.token, sampled.logprob));
}

#[test]
fn the_tokens_of_a_prompt_are_scored_chunk_by_chunk() {
    let (mut router, _, _) = Router::ready();
    let (prompt, other) = ([3u32, 9, 27, 1, 4, 11, 30, 2, 8, 5], [7u32, 7, 7]);
    let score = |row, top_n| Row { score: Some(top_n), ..row };
    router.send_step(Step {
        id: 1,
        admit: vec![admission(0, &other), admission(2, &prompt)],
        rows: vec![row(0, 0, 3, &[11], true), score(row(2, 0, 6, &[19, 4], false), 2)],
        ..Step::default()
    });
    router.send_step(Step {
        id: 2,
        rows: vec![row(0, 3, 1, &[], true), score(row(2, 6, 4, &[0], true), 2)],
        ..Step::default()
    });
    let answers = [router.output(), router.output()];
    let tokens: Vec<u32> = answers.iter().flat_map(|answer| &answer.sampled).map(|of| of.token).collect();
    assert_eq!(tokens, [expected(&other, 2), expected(&prompt, 1)].concat());
    assert!(answers.iter().all(|answer| answer.scored.len() == 1 && answer.scored[0].slot == 2));
    let scored: Vec<_> = answers.iter().flat_map(|answer| &answer.scored[0].tokens).collect();
    assert_eq!(scored.len(), 9);
    for (count, scored) in (1..).zip(scored) {
        // The most likely token is what would have been generated.
        let next = expected(&prompt[..count], 1)[0];
        assert_eq!(scored.top[0].token, next);
        let is_next = prompt[count] == next;
        assert_eq!((scored.rank == 1, scored.logprob == scored.top[0].logprob), (is_next, is_next));
        assert_eq!(scored.top.len(), 2);
    }
}

#[test]
fn a_prompt_becomes_a_vector_however_it_is_cut() {
    let prompt = [3u32, 9, 27, 1, 4, 11, 30, 2, 8, 5];
    let weights = MemoryWeights::random(&fixed_spec(), SEED);
    let states: Vec<Vec<f64>> = naive::states(&fixed_spec(), &weights, &prompt);
    let mean: Vec<f64> = (0..8).map(|i| states.iter().map(|state| state[i]).sum::<f64>() / 10.0).collect();
    for (pooling, expected) in [(Pooling::Mean, &mean), (Pooling::Last, &states[9])] {
        let mut found = Vec::new();
        for cuts in [&[10u32][..], &[6, 4], &[1, 3, 5, 1]] {
            let (mut router, _, _) = Router::ready();
            let mut start = 0;
            for (id, &count) in cuts.iter().enumerate() {
                let admit = match id {
                    0 => vec![
                        Admission { pooling: pooling.into(), ..admission(1, &prompt) },
                        admission(0, &[7]),
                    ],
                    _ => Vec::new(),
                };
                let blocks: &[u32] = if id == 0 { &[4, 5, 6] } else { &[] };
                // Another sequence goes before it.
                let other = row(0, id as u32, 1, if id == 0 { &[11] } else { &[] }, true);
                let rows = vec![other, row(1, start, count, blocks, false)];
                router.send_step(Step { id: id as u64, admit, rows, ..Step::default() });
                start += count;
                let answer = router.output();
                assert_eq!(answer.pooled.len(), usize::from(start == 10));
                found.extend(answer.pooled.into_iter().map(|pooled| (pooled.slot, pooled.values)));
            }
        }
        assert!(found.iter().all(|of| *of == found[0]), "the same bits: {found:?}");
        assert!(found[0].0 == 1 && row_error(&found[0].1, expected) < 1e-5, "{found:?} is not {expected:?}");
    }
}

#[test]
fn classifiers_give_the_outputs_of_transformers() {
    let typed = ["bert_scores", "xlm_roberta_types", "nomic_bert_scores", "jina_v3_scores"];
    for name in ["xlm_roberta_scores", "modernbert_scores", "modernbert_scores_mean"].into_iter().chain(typed)
    {
        let folder = repository().join("integration-tests/golden-encoders");
        let folder = folder.join(name);
        let pairs: Vec<Value> =
            serde_json::from_slice(&std::fs::read(folder.join("pairs.json")).unwrap()).unwrap();
        assert_eq!(pairs.len(), 2, "{name}");
        let options = ShardOptions {
            max_batch_total_tokens: Some(128),
            max_total_tokens: Some(48),
            max_step_tokens: 48,
            ..options()
        };
        let source = Source::Directory(folder);
        let mut router =
            Router::start(options, move || Ok(families::load(&source, &Overrides::default()).unwrap()));
        assert_eq!(router.loaded().1.classes, 1, "{name}");
        for (slot, pair) in (0..).zip(&pairs) {
            let words = |key: &str| -> Vec<u32> {
                pair[key].as_str().unwrap().split(' ').map(|word| word[1..].parse().unwrap()).collect()
            };
            // <s> the query </s> </s> the text </s>, and BERT has one token between the texts.
            let between: &[u32] =
                if ["bert_scores", "nomic_bert_scores"].contains(&name) { &[2] } else { &[2, 2] };
            let first = [&[0], &words("query")[..], between].concat();
            let prompt = [&first[..], &words("text"), &[2]].concat();
            let second_type_start = typed.contains(&name).then_some(first.len() as u32);
            let count = prompt.len() as u32;
            let blocks: Vec<u32> = (12 * slot..12 * slot + count.div_ceil(4)).collect();
            let pooling = Pooling::Classes.into();
            let admit = vec![Admission { pooling, second_type_start, ..admission(slot, &prompt) }];
            let rows = vec![row(slot, 0, count, &blocks, false)];
            router.send_step(Step { id: slot.into(), admit, rows, ..Step::default() });
            let pooled = router.output().pooled;
            let [output] = pooled[0].values[..] else { panic!("{name}: {pooled:?}") };
            let expected = pair["output"].as_f64().unwrap();
            let error = (f64::from(output) - expected).abs();
            assert!(error < 1e-4 * (1.0 + expected.abs()), "{name}: {output} is not {expected}");
        }
    }
}

#[test]
fn a_malformed_step_is_a_fault() {
    let (mut router, _, _) = Router::ready();
    router.send_step(Step { id: 9, rows: vec![row(1, 0, 1, &[0], true)], ..Step::default() });
    let (message, error) = router.fault();
    assert_eq!(message, "step 9 cannot be run: slot 1 holds no sequence");
    assert_eq!(error.to_string(), message);
}

#[test]
fn an_empty_message_is_a_fault() {
    let (mut router, _, _) = Router::ready();
    frame::write(&mut router.stream, &ToShard { message: None }).unwrap();
    assert!(router.fault().0.starts_with("the router sent an empty message"));
}

#[test]
fn an_error_at_the_start_is_a_fault() {
    let open = || Err(Error::Unsupported("no such model".into()));
    assert_eq!(Router::start(options(), open).fault().0, "no such model");

    let three = RankPlacement { world_size: 3, ..placement() };
    let platform = HostPlatform(|| Ok(OpenDevice { backend: Reference, free: Some(1 << 30) }));
    let message = Router::start_on(platform, three, options(), || Ok(model())).fault().0;
    assert!(message.starts_with("--num-shard 3 does not fit this model"), "{message}");

    let large = ShardOptions { max_batch_total_tokens: Some(1 << 30), max_sequences: 1 << 25, ..options() };
    let message = Router::start(large, || Ok(model())).fault().0;
    assert!(message.contains("lower --max-batch-total-tokens"), "{message}");
}

/// A device whose free memory changes after it was opened.
struct Memory {
    at_first: usize,
    later: fn(usize) -> usize,
    looks: AtomicUsize,
}

impl Platform for Memory {
    type Backend = Reference;

    fn open(&self, _: DType) -> Result<OpenDevice<Reference>, Error> {
        Ok(OpenDevice { backend: Reference, free: Some(self.at_first) })
    }

    fn free(&self, _: &Reference, _: &RankPlacement, _: &ShardOptions) -> Option<usize> {
        let look = self.looks.fetch_add(1, Ordering::Relaxed);
        Some((self.later)(look).max(self.at_first))
    }

    fn connect(
        &self,
        _: &Reference,
        _: Box<dyn HostCollective>,
    ) -> Result<Box<dyn Collective<Reference>>, Error> {
        unreachable!("one rank has nobody to connect with")
    }
}

/// Returns the announcement of a shard that starts with this much memory.
fn pool(at_first: usize, later: fn(usize) -> usize, previous_pool: Option<PreviousPool>) -> Ready {
    let sizes = ShardOptions { max_total_tokens: None, max_batch_total_tokens: None, ..options() };
    let platform = Memory { at_first, later, looks: AtomicUsize::new(0) };
    let placement = RankPlacement { previous_pool, ..placement() };
    Router::start_on(platform, placement, sizes, || Ok(model())).loaded().1
}

#[test]
fn a_shard_that_replaces_another_gets_its_pool_if_the_memory_comes_back() {
    const PLENTY: usize = 1 << 30;
    let first = pool(PLENTY, |_| PLENTY, None);
    let size = |ready: &Ready| (ready.num_blocks, ready.max_sequence_tokens);
    let kept = PreviousPool {
        tokens: (first.num_blocks * first.block_size) as usize,
        longest_sequence: first.max_sequence_tokens as usize,
        wait: crate::common::long(),
    };
    // The memory of the lost shard is not free yet: one byte is missing.
    let needed: u64 = first.memory.iter().map(|item| item.bytes).sum();
    let scarce = needed as usize - 1;
    assert!(
        size(&pool(scarce, |_| 0, None)) < size(&first),
        "without a previous pool, it takes the memory that is free"
    );
    let later = pool(scarce, |look| if look < 3 { 0 } else { PLENTY }, Some(kept));
    assert_eq!(size(&later), size(&first));

    // The memory never becomes free.
    let hurried = PreviousPool { wait: Duration::from_millis(300), ..kept };
    let smaller = pool(scarce, |_| 0, Some(hurried));
    assert!(smaller.num_blocks > 0 && smaller.num_blocks < first.num_blocks, "{}", smaller.num_blocks);

    // The new shard does not take more memory than the lost one.
    let second =
        pool(2 * PLENTY, |_| 2 * PLENTY, Some(PreviousPool { tokens: 48, longest_sequence: 40, ..kept }));
    assert_eq!(size(&second), (12, 40));
}

#[test]
fn the_warm_up_is_reported_with_its_size() {
    let (_router, _, ready) = Router::ready();
    assert_eq!(ready.warm_up_tokens, 16);
    assert!(ready.warm_up_micros > 0);
}

#[test]
fn a_router_that_goes_away_ends_the_shard_without_an_error() {
    let (router, _, _) = Router::ready();
    drop(router.stream);
    router.shard.join().unwrap().unwrap();

    // The same holds in the middle of a frame.
    let (mut router, _, _) = Router::ready();
    std::io::Write::write_all(&mut router.stream, &[200, 0, 0, 0, 1]).unwrap();
    drop(router.stream);
    router.shard.join().unwrap().unwrap();

    // The same holds while the model is loaded.
    let router = Router::start(options(), || {
        thread::sleep(Duration::from_millis(50));
        Ok(model())
    });
    drop(router.stream);
    router.shard.join().unwrap().unwrap();
}

/// The rest of the step is computed, and the slot is free again when the router has released it.
#[test]
fn a_sequence_that_cannot_be_run_is_refused_and_the_others_continue() {
    let (mut router, _, _) = Router::ready();
    let a = [3u32, 9, 27, 1];
    let of_a = expected(&a, 3);
    let wrong = Sampling { end_tokens: vec![1_000_000], min_new_tokens: 3, ..greedy() };
    let wrong = Admission { sampling: Some(wrong), ..admission(1, &[5, 6]) };
    router.send_step(Step {
        id: 1,
        admit: vec![admission(0, &a), wrong],
        rows: vec![row(0, 0, 4, &[3], true), row(1, 0, 2, &[4], true)],
        ..Step::default()
    });
    router.send_step(Step {
        id: 2,
        rows: vec![row(0, 4, 1, &[7], true), row(1, 2, 1, &[], true)],
        ..Step::default()
    });
    router.send_step(Step {
        id: 3,
        release: vec![1],
        admit: vec![admission(1, &a)],
        rows: vec![row(0, 5, 1, &[], true), row(1, 0, 4, &[4], true)],
        ..Step::default()
    });
    for (step, tokens) in
        [(1, vec![(0, of_a[0])]), (2, vec![(0, of_a[1])]), (3, vec![(0, of_a[2]), (1, of_a[0])])]
    {
        let answer = router.output();
        let sampled: Vec<_> = answer.sampled.iter().map(|s| (s.slot, s.token)).collect();
        assert_eq!((answer.step, sampled), (step, tokens));
        let refused: Vec<_> = answer.errors.iter().map(|error| (error.slot, error.kind())).collect();
        assert_eq!(refused, if step < 3 { vec![(1, RowErrorKind::Refused)] } else { vec![] });
        assert!(answer.errors.iter().all(|error| error.message.contains("end_tokens")), "{answer:?}");
    }
    router.send(to_shard::Message::Shutdown(Shutdown {}));
    router.shard.join().unwrap().unwrap();
}
