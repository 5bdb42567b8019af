use millrace_backend::{KvFormat, StateCopy};
use millrace_model::{AdapterLimits, KEPT_STATES};
use millrace_numbers::DType;
use millrace_proto::Sampling;
use proptest::prelude::*;

use super::*;

pub(super) const LIMITS: ShardLimits = ShardLimits {
    max_step_tokens: 12,
    max_sequences: 3,
    max_sequence_tokens: 10,
    block_size: 4,
    state_checkpoints: 0,
    max_drafts: 0,
    adapters: AdapterLimits { count: 2, max_loaded: 2, max_rank: 4 },
    num_blocks: 8,
    kv_format: KvFormat::Dense(DType::F32),
};
const VOCAB: usize = 20;

fn sampling() -> Sampling {
    Sampling { repetition_penalty: 1.0, ..Sampling::default() }
}

pub(super) fn admission(slot: u32, tokens: &[u32]) -> Admission {
    let prompt_len = tokens.len() as u32;
    Admission {
        slot,
        tokens: tokens.to_vec(),
        prompt_len,
        sampling: Some(sampling()),
        ..Admission::default()
    }
}

pub(super) fn row(slot: u32, start: u32, count: u32, new_blocks: &[u32], sample: bool) -> Row {
    Row { slot, start, count, new_blocks: new_blocks.to_vec(), sample, ..Row::default() }
}

pub(super) fn sampled(token: u32) -> Sampled {
    Sampled { token, logprob: 0.0, top: vec![] }
}

pub(super) struct Fixture {
    pub(super) table: SlotTable,
    pub(super) batch: Batch,
}

impl Fixture {
    /// Creates a table in which slot 0 holds five tokens and slot 1 two. Neither has blocks.
    pub(super) fn new() -> Self {
        let mut fixture = Fixture { table: SlotTable::new(LIMITS, VOCAB), batch: Batch::new(&LIMITS) };
        (0..2).for_each(|place| fixture.table.set_adapter(place, Some(place as u32)));
        fixture.admit(vec![admission(0, &[1, 2, 3, 4, 5]), admission(1, &[6, 7])]).unwrap();
        fixture
    }

    fn apply(&mut self, step: Step) -> Result<(), StepError> {
        self.table.apply(&step, &mut self.batch)
    }

    pub(super) fn admit(&mut self, admit: Vec<Admission>) -> Result<(), StepError> {
        self.apply(Step { admit, ..Step::default() })
    }

    pub(super) fn rows(&mut self, rows: Vec<Row>) -> Result<(), StepError> {
        self.apply(Step { rows, ..Step::default() })
    }

    pub(super) fn sample(&mut self, token: u32) {
        let chosen = vec![Sampled { token, logprob: 0.0, top: vec![] }; self.batch.outputs.len()];
        self.table.expect(&mut self.batch);
        self.table.fill(&mut self.batch, &chosen);
    }
}

#[test]
fn rows_become_the_inputs_of_the_device() {
    let mut f = Fixture::new();
    f.rows(vec![row(1, 0, 2, &[7], true), row(0, 0, 3, &[3, 5], false)]).unwrap();
    assert_eq!(f.batch.tokens, [6, 7, 1, 2, 3]);
    assert_eq!(f.batch.outputs, [1]);
    let seen: Vec<_> = f.table.seq_rows(&f.batch).map(|r| (r.start, r.count, r.blocks.to_vec())).collect();
    // The second block of slot 0 is not needed yet.
    assert_eq!(seen, [(0, 2, vec![7]), (0, 3, vec![3])]);
    let sampled: Vec<_> = f.table.sample_rows(&f.batch).map(|r| (r.tokens.to_vec(), r.prompt_len)).collect();
    assert_eq!(sampled, [(vec![6, 7], 2)]);
}

#[test]
fn a_sampled_token_is_the_input_of_the_next_step() {
    let mut f = Fixture::new();
    f.rows(vec![row(1, 0, 2, &[7], true)]).unwrap();
    f.sample(19);
    f.rows(vec![row(1, 2, 1, &[], true), row(0, 0, 5, &[0, 1], true)]).unwrap();
    assert_eq!(f.batch.tokens, [19, 1, 2, 3, 4, 5]);
    assert_eq!(f.batch.outputs, [0, 5]);
    let sampled: Vec<_> = f.table.sample_rows(&f.batch).map(|r| (r.tokens.to_vec(), r.prompt_len)).collect();
    assert_eq!(sampled, [(vec![6, 7, 19], 2), (vec![1, 2, 3, 4, 5], 5)]);
}

#[test]
fn a_slot_can_be_released_and_taken_in_one_step() {
    let mut f = Fixture::new();
    f.rows(vec![row(0, 0, 5, &[0, 1], false)]).unwrap();
    let step = Step {
        release: vec![0],
        admit: vec![admission(0, &[8, 9])],
        rows: vec![row(0, 0, 2, &[4], true)],
        ..Step::default()
    };
    f.apply(step).unwrap();
    assert_eq!(f.batch.tokens, [8, 9]);
    assert_eq!(f.table.seq_rows(&f.batch).next().unwrap().blocks, [4]);
}

#[test]
fn the_longest_sequence_can_be_sampled_from_but_not_continued() {
    let mut f = Fixture::new();
    f.admit(vec![admission(2, &[0; 10])]).unwrap();
    f.rows(vec![row(2, 0, 10, &[0, 1, 2], true)]).unwrap();
    f.sample(1);
    let error = f.rows(vec![row(2, 10, 1, &[], true)]).unwrap_err();
    assert_eq!(error, StepError::UnknownPositions { slot: 2, start: 10, end: 11, limit: 10 });
}

/// A slot forgets the adapter of the sequence before.
#[test]
fn rows_have_the_adapter_of_their_sequence() {
    let mut f = Fixture::new();
    let adapters = |f: &Fixture| f.table.seq_rows(&f.batch).map(|row| row.adapter).collect::<Vec<_>>();
    f.admit(vec![Admission { adapter: Some(1), ..admission(2, &[1, 2]) }]).unwrap();
    f.rows(vec![row(2, 0, 1, &[0], false), row(1, 0, 2, &[1], true)]).unwrap();
    assert_eq!(adapters(&f), [Some(1), None]);
    f.rows(vec![row(2, 1, 1, &[], true)]).unwrap();
    assert_eq!(adapters(&f), [Some(1)]);
    let next = Step { release: vec![2], admit: vec![admission(2, &[3])], ..Step::default() };
    f.apply(next).unwrap();
    f.rows(vec![row(2, 0, 1, &[0], true)]).unwrap();
    assert_eq!(adapters(&f), [None]);
}

/// Sequences name adapters by their numbers, which outlast the places.
#[test]
fn an_adapter_has_the_place_that_it_was_loaded_into() {
    let mut f = Fixture::new();
    f.table.set_adapter(0, Some(7));
    f.admit(vec![Admission { adapter: Some(7), ..admission(2, &[1, 2]) }]).unwrap();
    f.rows(vec![row(2, 0, 2, &[0], true)]).unwrap();
    assert_eq!(f.table.seq_rows(&f.batch).map(|row| row.adapter).collect::<Vec<_>>(), [Some(0)]);
    f.table.set_adapter(0, None);
    for gone in [0, 7] {
        let admit = vec![Admission { adapter: Some(gone), ..admission(2, &[3]) }];
        f.apply(Step { release: vec![2], admit, ..Step::default() }).unwrap();
        assert!(f.table.is_refused(2), "adapter {gone}");
    }
}

#[test]
fn each_contradiction_has_its_error() {
    use StepError as E;
    let release = |slot| Step { release: vec![slot], ..Step::default() };
    let admit = |admission| Step { admit: vec![admission], ..Step::default() };
    let rows = |rows| Step { rows, ..Step::default() };
    let bad_sampling = Sampling { repetition_penalty: 0.0, ..sampling() };
    let cases = [
        (release(3), E::UnknownSlot { slot: 3, slots: 3 }),
        (release(2), E::FreeSlot { slot: 2 }),
        (Step { release: vec![0, 0], ..Step::default() }, E::FreeSlot { slot: 0 }),
        (admit(admission(u32::MAX, &[1])), E::UnknownSlot { slot: u32::MAX, slots: 3 }),
        (admit(admission(1, &[1])), E::TakenSlot { slot: 1 }),
        (admit(admission(2, &[])), E::SequenceLength { slot: 2, tokens: 0, limit: 10 }),
        (admit(admission(2, &[0; 11])), E::SequenceLength { slot: 2, tokens: 11, limit: 10 }),
        (admit(admission(2, &[1, 20])), E::UnknownToken { slot: 2, token: 20, vocab: 20 }),
        (
            admit(Admission { prompt_len: 0, ..admission(2, &[1]) }),
            E::PromptLength { slot: 2, prompt_len: 0, tokens: 1 },
        ),
        (
            admit(Admission { prompt_len: 2, ..admission(2, &[1]) }),
            E::PromptLength { slot: 2, prompt_len: 2, tokens: 1 },
        ),
        (
            admit(Admission { prompt_len: 1, pooling: 1, ..admission(2, &[1, 2]) }),
            E::Pooling { slot: 2, pooling: 1, tokens: 2, prompt_len: 1 },
        ),
        (
            admit(Admission { pooling: 9, ..admission(2, &[1]) }),
            E::Pooling { slot: 2, pooling: 9, tokens: 1, prompt_len: 1 },
        ),
        (
            Step {
                admit: vec![Admission { pooling: 2, ..admission(2, &[1]) }],
                rows: vec![row(2, 0, 1, &[0], true)],
                ..Step::default()
            },
            E::SamplePooled { slot: 2 },
        ),
        (
            admit(Admission { pooling: 2, pooling_start: 1, ..admission(2, &[1]) }),
            E::Pooling { slot: 2, pooling: 2, tokens: 1, prompt_len: 1 },
        ),
        (
            admit(Admission { pooling: 2, second_type_start: Some(0), ..admission(2, &[1]) }),
            E::TokenTypes { slot: 2, start: 0, prompt_len: 1 },
        ),
        (admit(Admission { sampling: None, ..admission(2, &[1]) }), E::NoSampling { slot: 2 }),
        (
            admit(Admission { adapter: Some(2), ..admission(2, &[1]) }),
            E::UnknownAdapter { slot: 2, adapter: 2 },
        ),
        (
            admit(Admission { sampling: Some(bad_sampling), ..admission(2, &[1]) }),
            E::Sampling { slot: 2, field: "repetition_penalty", value: 0.0 },
        ),
        (rows(vec![row(3, 0, 1, &[0], false)]), E::UnknownSlot { slot: 3, slots: 3 }),
        (rows(vec![row(2, 0, 1, &[0], false)]), E::FreeSlot { slot: 2 }),
        (rows(vec![row(0, 0, 1, &[0], false), row(0, 1, 1, &[], false)]), E::SecondRow { slot: 0 }),
        (rows(vec![row(0, 0, 0, &[0], false)]), E::EmptyRow { slot: 0 }),
        (
            rows(vec![row(0, 3, 3, &[0, 1], false)]),
            E::UnknownPositions { slot: 0, start: 3, end: 6, limit: 5 },
        ),
        (
            rows(vec![row(0, u32::MAX, u32::MAX, &[0, 1], false)]),
            E::UnknownPositions { slot: 0, start: 4294967295, end: 8589934590, limit: 5 },
        ),
        (rows(vec![row(0, 0, 4, &[0], true)]), E::SampleInside { slot: 0, end: 4, known: 5 }),
        (rows(vec![row(0, 0, 4, &[8], false)]), E::UnknownBlock { slot: 0, block: 8, blocks: 8 }),
        (rows(vec![row(0, 0, 5, &[0], false)]), E::BlockCount { slot: 0, blocks: 1, needed: 2, limit: 3 }),
        (
            rows(vec![row(0, 0, 5, &[0, 1, 2, 3], false)]),
            E::BlockCount { slot: 0, blocks: 4, needed: 2, limit: 3 },
        ),
    ];
    for (step, expected) in cases {
        let mut f = Fixture::new();
        match f.apply(step.clone()) {
            Err(error) => assert!(!expected.is_refusal() && error == expected, "{error:?}, not {expected:?}"),
            // An error of one sequence refuses this sequence alone.
            Ok(()) => {
                assert!(expected.is_refusal(), "{step:?} is accepted, and should be {expected:?}");
                let refused: Vec<_> = f.table.slots.iter().filter_map(|slot| slot.refused.clone()).collect();
                assert_eq!(refused, [expected]);
                assert!(f.batch.tokens.is_empty() && f.batch.outputs.is_empty());
            }
        }
    }
}

#[test]
fn a_refused_sequence_keeps_its_slot_until_it_is_released_and_is_never_computed() {
    let mut f = Fixture::new();
    let unknown = || admission(2, &[1, 99]);
    let step = Step {
        admit: vec![unknown()],
        rows: vec![row(1, 0, 2, &[7], true), row(2, 0, 2, &[4], true)],
        ..Step::default()
    };
    f.apply(step).unwrap();
    assert_eq!(f.batch.tokens, [6, 7], "the other row is computed");
    let refused =
        |f: &Fixture| f.batch.refused().map(|(slot, error)| (slot, error.clone())).collect::<Vec<_>>();
    let why = StepError::UnknownToken { slot: 2, token: 99, vocab: VOCAB };
    assert_eq!(refused(&f), [(2, why.clone())]);
    f.sample(8);
    // The router sent this step before it knew of the refusal.
    f.rows(vec![row(1, 2, 1, &[], true), row(2, 2, 1, &[], true)]).unwrap();
    assert_eq!(f.batch.tokens, [8]);
    assert_eq!(refused(&f), [(2, why)]);
    f.sample(9);
    assert_eq!(f.admit(vec![unknown()]), Err(StepError::TakenSlot { slot: 2 }));
    let step = Step {
        release: vec![2],
        admit: vec![admission(2, &[1, 2])],
        rows: vec![row(2, 0, 2, &[4], true)],
        ..Step::default()
    };
    f.apply(step).unwrap();
    assert_eq!((f.batch.tokens.clone(), refused(&f)), (vec![1, 2], vec![]));
}

#[test]
fn a_row_that_is_refused_ends_a_sequence_that_has_run() {
    let mut f = Fixture::new();
    f.rows(vec![row(0, 0, 5, &[0, 1], true)]).unwrap();
    f.sample(3);
    let masked = Row { allowed: vec![0], ..row(0, 5, 1, &[], true) };
    f.rows(vec![masked, row(1, 0, 2, &[7], true)]).unwrap();
    assert_eq!(f.batch.tokens, [6, 7]);
    let refused: Vec<_> = f.batch.refused().map(|(slot, _)| slot).collect();
    assert_eq!(refused, [0]);
    f.sample(4);
    // Not even a valid row of the sequence is computed any more.
    f.rows(vec![row(0, 5, 1, &[], true)]).unwrap();
    assert!(f.batch.tokens.is_empty() && f.table.is_refused(0));
    assert_eq!(
        f.rows(vec![row(0, 5, 1, &[], true), row(0, 5, 1, &[], true)]),
        Err(StepError::SecondRow { slot: 0 })
    );
}

#[test]
fn more_tokens_than_a_step_holds_are_refused() {
    let mut f = Fixture::new();
    f.admit(vec![admission(2, &[0; 6])]).unwrap();
    let all = [row(0, 0, 5, &[0, 1], false), row(1, 0, 2, &[2], false), row(2, 0, 6, &[3, 4], false)];
    assert_eq!(f.rows(all.to_vec()), Err(StepError::TooManyTokens { limit: 12 }));
}

#[test]
fn a_mask_applies_to_its_own_row_only() {
    let masked = |allowed: &[u32]| Row { allowed: allowed.to_vec(), ..row(0, 0, 5, &[0, 1], true) };
    let mut f = Fixture::new();
    f.rows(vec![masked(&[0b110])]).unwrap();
    assert_eq!(f.table.sample_rows(&f.batch).next().unwrap().allowed, Some(&[0b110][..]));
    f.sample(2);
    f.rows(vec![row(0, 5, 1, &[], true)]).unwrap();
    assert_eq!(f.table.sample_rows(&f.batch).next().unwrap().allowed, None);

    let wrong = |row: Row, words: usize| {
        let mut f = Fixture::new();
        f.rows(vec![row]).unwrap();
        let refused: Vec<_> = f.batch.refused().map(|(_, error)| error.clone()).collect();
        assert_eq!(refused, [StepError::Mask { slot: 0, words, vocab: VOCAB }]);
    };
    wrong(masked(&[0]), 1);
    wrong(masked(&[1, 0]), 2);
    wrong(masked(&[1 | 1 << VOCAB]), 1);
    wrong(Row { sample: false, ..masked(&[1]) }, 1);
}

#[test]
fn the_prompt_tokens_after_each_state_are_scored() {
    let score = |row: Row, top_n| Row { score: Some(top_n), ..row };
    let mut f = Fixture::new();
    f.rows(vec![row(1, 0, 2, &[7], true), score(row(0, 0, 3, &[3], false), 2)]).unwrap();
    let scorings = |f: &Fixture| {
        let all = f.table.scorings(&f.batch);
        all.map(|of| (of.slot, of.states, of.tokens.to_vec(), of.top_n)).collect::<Vec<_>>()
    };
    assert_eq!(scorings(&f), [(0, 2..5, vec![2, 3, 4], 2)]);
    f.sample(19);
    f.rows(vec![score(row(0, 3, 2, &[4], true), 0)]).unwrap();
    assert_eq!(scorings(&f), [(0, 0..1, vec![5], 0)]);
    f.sample(18);
    let wrong = |row: Row, start, top_n| {
        let mut f = Fixture::new();
        f.rows(vec![row]).unwrap();
        let refused: Vec<_> = f.batch.refused().map(|(_, error)| error.clone()).collect();
        assert_eq!(refused, [StepError::Score { slot: 0, start, top_n, vocab: VOCAB }]);
    };
    wrong(score(row(0, 4, 1, &[3, 4], true), 1), 4, 1);
    wrong(score(row(0, 0, 5, &[3, 4], true), 21), 0, 21);
}

fn steps() -> impl Strategy<Value = Step> {
    let number = || prop_oneof![4 => 0u32..4, 2 => 0u32..12, 1 => any::<u32>()];
    let list = move |most| prop::collection::vec(number(), 0..most);
    let float = || prop_oneof![3 => Just(1.0f32), 1 => any::<f32>()];
    let sampling = prop::option::weighted(0.9, (any::<bool>(), float(), float(), float(), number()))
        .prop_map(|s| {
            s.map(|(do_sample, temperature, top_p, repetition_penalty, top_n)| Sampling {
                do_sample,
                temperature,
                top_p,
                typical_p: top_p,
                repetition_penalty,
                top_n,
                ..Sampling::default()
            })
        });
    let checkpoint = || prop::option::weighted(0.2, 0u32..4);
    let pooling = prop_oneof![3 => Just(0), 1 => 0..7];
    let adapter = prop::option::weighted(0.3, 0u32..3);
    let second_type = prop::option::weighted(0.2, 0u32..7);
    let admit = (number(), list(6), number(), sampling, pooling, checkpoint(), adapter, second_type)
        .prop_map(
            |(slot, tokens, prompt_len, sampling, pooling, restore_state, adapter, second_type_start)| {
                Admission {
                    slot,
                    tokens,
                    prompt_len,
                    sampling,
                    pooling,
                    pooling_start: pooling as u32 / 2,
                    restore_state,
                    adapter,
                    second_type_start,
                }
            },
        );
    let mask = prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(any::<u32>(), 0..3), 1 => (1u32..1 << 20).prop_map(|word| vec![word])];
    let score = prop::option::weighted(0.3, number());
    let late = prop::bool::weighted(0.2);
    let drafts = prop_oneof![3 => list(3).prop_map(|drafts| (drafts, 0)), 1 => (0u32..4).prop_map(|n| (Vec::new(), n))];
    let drafts = prop_oneof![3 => Just((Vec::new(), 0)), 1 => drafts];
    let states = (checkpoint(), checkpoint(), checkpoint());
    let row = (number(), number(), number(), list(4), any::<bool>(), mask, score, late, states, drafts);
    let row = row.prop_map(
        |(slot, start, count, new_blocks, sample, allowed, score, mask_follows, states, drafts)| {
            let (save_state, keep_state, restore_state) = states;
            let (drafts, model_drafts) = drafts;
            Row {
                slot,
                start,
                count,
                new_blocks,
                sample,
                allowed,
                score,
                mask_follows,
                save_state,
                drafts,
                keep_state,
                restore_state,
                model_drafts,
            }
        },
    );
    let parts = (list(2), prop::collection::vec(admit, 0..2), prop::collection::vec(row, 0..3));
    parts.prop_map(|(release, admit, rows)| Step { id: 0, release, admit, rows, ..Step::default() })
}

#[test]
fn a_whole_prompt_is_one_row_from_its_beginning() {
    let prompt = [1, 2, 3, 4];
    let first = |start, count| {
        let mut table = SlotTable::new(LIMITS, VOCAB).with_prefixes(Some(PrefixRule::Prompt));
        let step = Step {
            admit: vec![admission(0, &prompt)],
            rows: vec![row(0, start, count, &[0, 1], start + count == 4)],
            ..Step::default()
        };
        table.apply(&step, &mut Batch::new(&LIMITS))
    };
    assert_eq!(first(0, 4), Ok(()));
    let part = |start, end| Err(StepError::PartOfPrompt { slot: 0, start, end, prompt_len: 4 });
    assert_eq!(first(0, 3), part(0, 3));
    assert_eq!(first(2, 2), part(2, 4));
}

/// A recurrent state cannot go back, and it cannot skip a position.
#[test]
fn rows_of_recurrent_models_continue_where_the_last_one_ended() {
    let mut table = SlotTable::new(LIMITS, VOCAB).with_rows_in_order(true);
    let mut apply = |step: &Step| table.apply(step, &mut Batch::new(&LIMITS));
    let next =
        |start, count, sample| Step { rows: vec![row(0, start, count, &[], sample)], ..Step::default() };
    let admit = |start: u32| Step {
        release: vec![0; usize::from(start > 9)],
        admit: vec![admission(0, &[1, 2, 3, 4])],
        rows: vec![row(0, start % 10, 2, &[0, 1], false)],
        ..Step::default()
    };
    let refused = |start, expected| Err(StepError::OutOfOrder { slot: 0, start, expected });
    assert_eq!(apply(&admit(0)), Ok(()));
    assert_eq!(apply(&next(1, 2, false)), refused(1, 2));
    assert_eq!(apply(&next(0, 2, false)), refused(0, 2));
    assert_eq!(apply(&next(3, 1, true)), refused(3, 2));
    assert_eq!(apply(&next(2, 2, true)), Ok(()));
    assert_eq!(apply(&next(3, 1, true)), refused(3, 4));
    // A preempted sequence is admitted again, and begins at position 0.
    assert_eq!(apply(&admit(11)), refused(1, 0));
}

#[test]
fn a_sequence_begins_where_its_checkpoint_was_saved() {
    let limits = ShardLimits { state_checkpoints: 2, ..LIMITS };
    let mut table = SlotTable::new(limits, VOCAB).with_rows_in_order(true);
    let mut batch = Batch::new(&limits);
    let saving = |slot, start, count, checkpoint| {
        let blocks: &[u32] = if start == 0 { &[0, 1] } else { &[] };
        let row = Row { save_state: Some(checkpoint), ..row(slot, start, count, blocks, false) };
        Step { rows: vec![row], ..Step::default() }
    };
    let restored =
        |slot, checkpoint| Admission { restore_state: Some(checkpoint), ..admission(slot, &[1, 2, 3, 4, 5]) };
    let first = Step { admit: vec![admission(0, &[1, 2, 3, 4, 5])], ..saving(0, 0, 4, 1) };
    assert_eq!(table.apply(&first, &mut batch), Ok(()));
    let place = limits.max_sequences + 1;
    assert_eq!(batch.saved_states, [StateCopy { from: 0, to: place }]);
    assert!(batch.restored_states.is_empty());
    // The sequence is admitted before the row of the same step writes over the checkpoint.
    let mut second = Step { admit: vec![restored(1, 1)], ..saving(0, 4, 1, 1) };
    second.rows.push(row(1, 4, 1, &[0, 1], true));
    assert_eq!(table.apply(&second, &mut batch), Ok(()));
    assert_eq!(batch.restored_states, [StateCopy { from: place, to: 1 }]);
    let tail = Step { rows: vec![row(1, 5, 1, &[], true)], ..Step::default() };
    table.slots[1].tokens.push(6);
    assert_eq!(table.apply(&tail, &mut batch), Ok(()));
    assert!(batch.restored_states.is_empty() && batch.saved_states.is_empty());

    let mut apply = |step: &Step| table.apply(step, &mut Batch::new(&limits));
    let empty = Step { admit: vec![restored(2, 0)], ..Step::default() };
    assert_eq!(apply(&empty), Err(StepError::EmptyCheckpoint { slot: 2, checkpoint: 0 }));
    let elsewhere =
        Step { admit: vec![restored(2, 1)], rows: vec![row(2, 4, 1, &[0, 1], true)], ..Step::default() };
    assert_eq!(apply(&elsewhere), Err(StepError::OutOfOrder { slot: 2, start: 4, expected: 5 }));
    let unknown = StepError::UnknownCheckpoint { slot: 1, checkpoint: 2, checkpoints: 2 };
    assert_eq!(
        apply(&Step { release: vec![1], admit: vec![admission(1, &[1, 2])], ..saving(1, 0, 2, 2) }),
        Err(unknown)
    );
}

#[test]
fn a_prefix_belongs_to_the_prompt_and_not_to_generated_tokens() {
    const RULE: PrefixRule = PrefixRule::Before { separator: 9, masks: [8, 7] };
    let prefix = |tokens: &[u32], prompt_len: u32| {
        let mut table = SlotTable::new(LIMITS, VOCAB).with_prefixes(Some(RULE));
        let mut batch = Batch::new(&LIMITS);
        let count = tokens.len() as u32;
        let admit = vec![Admission { prompt_len, ..admission(0, tokens) }];
        let rows = vec![row(0, 0, count, &[0, 1], true)];
        table.apply(&Step { admit, rows, ..Step::default() }, &mut batch).unwrap();
        table.seq_rows(&batch).next().unwrap().prefix
    };
    let of = |len, anchor| SequencePrefix { len, anchor };
    assert_eq!(prefix(&[1, 2, 8, 9], 4), of(3, 2));
    // A preempted sequence comes back with its generated tokens.
    assert_eq!(prefix(&[1, 2, 8, 9, 4, 9, 8], 4), of(3, 2));
    // The second mask counts if the first one is not there, and either may be inside the text.
    assert_eq!(prefix(&[1, 7, 2, 9, 4], 5), of(3, 1));
    assert_eq!(prefix(&[7, 1, 8, 9], 4), of(3, 2));
    // Without marks, the prompt is the prefix.
    assert_eq!(prefix(&[1, 2, 3, 9], 3), of(3, 2));
    assert_eq!(prefix(&[9, 2], 2), of(0, 0));
    // The next row of the sequence has the same prefix, and so has one of another kind of model.
    assert_eq!(PrefixRule::Prompt.of(&[1, 2, 3]).len, 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// No step panics, and every accepted step is safe for a device to compute. The test skips
    /// steps with errors, at which a shard would end, so that histories become long.
    #[test]
    fn every_accepted_step_can_be_computed(
        history in prop::collection::vec(steps(), 1..20),
        has_head: bool,
    ) {
        let mut f = Fixture::new();
        f.table.limits.max_drafts = 3;
        if has_head {
            f.table.accept_head_drafts(8);
        } else {
            f.table.accept_model_drafts(8, 3);
        }
        // A head also reads the states of positions after which it cannot guess.
        let readable = if has_head { LIMITS.max_sequence_tokens } else { 8 };
        let capacities = |t: &SlotTable| t.slots.iter().map(|s| (s.tokens.capacity(), s.blocks.capacity(), s.allowed.capacity())).collect::<Vec<_>>();
        let at_start = capacities(&f.table);
        for step in history {
            if f.apply(step).is_err() {
                continue;
            }
            let tokens = &f.batch.tokens;
            prop_assert!(tokens.len() <= LIMITS.max_step_tokens);
            prop_assert!(tokens.iter().all(|t| (*t as usize) < VOCAB));
            let rows: Vec<_> = f.table.seq_rows(&f.batch).collect();
            prop_assert!(rows.len() <= LIMITS.max_sequences);
            prop_assert_eq!(rows.iter().map(|r| r.count).sum::<usize>(), tokens.len());
            for row in &rows {
                prop_assert!(row.count >= 1 && row.start + row.count <= LIMITS.max_sequence_tokens);
                prop_assert_eq!(row.blocks.len(), (row.start + row.count).div_ceil(LIMITS.block_size));
                prop_assert!(row.blocks.iter().all(|b| (*b as usize) < LIMITS.num_blocks));
            }
            for pass in 0..f.batch.draft_passes() {
                for part in f.table.draft_pass(&f.batch, pass) {
                    prop_assert_eq!(part.row.count, part.tokens.len());
                    prop_assert!(part.row.start + part.row.count <= readable);
                    prop_assert!(part.row.blocks.len() * LIMITS.block_size >= part.row.start + part.row.count);
                }
            }
            for part in f.table.step_pass(&f.batch) {
                prop_assert_eq!(part.row.count, part.tokens.len());
                prop_assert!(part.row.blocks.len() * LIMITS.block_size >= part.row.start + part.row.count);
            }
            for of in f.batch.step_states() {
                prop_assert!(of.at + of.positions.len() <= tokens.len());
                prop_assert!(!of.kept.is_empty() && of.kept.len() <= KEPT_STATES);
                prop_assert!(of.kept.end == of.positions.end && of.kept.start >= of.read.end);
                prop_assert!(of.read.is_empty() || of.read.start >= of.positions.start);
            }
            prop_assert!(f.batch.outputs.is_sorted_by(|a, b| a < b));
            prop_assert!(f.batch.outputs.iter().all(|o| (*o as usize) < tokens.len()));
            prop_assert_eq!(f.table.sample_rows(&f.batch).count(), f.batch.outputs.len());
            for row in f.table.sample_rows(&f.batch) {
                let allowed = |token: usize| row.allowed.unwrap_or(&[1]).get(token / 32).is_some_and(|w| w >> (token % 32) & 1 == 1);
                prop_assert!((0..VOCAB).any(allowed) && !(VOCAB..100).any(allowed));
            }
            for of in f.table.scorings(&f.batch) {
                prop_assert!(of.states.len() == of.tokens.len() && of.states.end <= tokens.len());
                prop_assert!(!of.tokens.is_empty() && of.top_n as usize <= VOCAB);
            }
            for of in f.table.pooled(&f.batch) {
                prop_assert!(of.states.start <= of.states.end && of.states.end <= tokens.len());
                prop_assert!(of.pooling != Pooling::None);
            }
            f.sample(3);
        }
        prop_assert_eq!(capacities(&f.table), at_start, "a slot has grown");
    }
}

#[test]
fn a_pooling_leaves_out_the_states_before_its_start() {
    for (pooling, expected) in [
        (Pooling::Mean, 2..5),
        (Pooling::Max, 2..5),
        (Pooling::WeightedMean, 2..5),
        (Pooling::First, 2..3),
        (Pooling::Last, 4..5),
    ] {
        for chunk in 1..=5 {
            let admission =
                Admission { pooling: pooling.into(), pooling_start: 2, ..admission(0, &[1, 2, 3, 4, 5]) };
            let mut fixture = Fixture { table: SlotTable::new(LIMITS, VOCAB), batch: Batch::new(&LIMITS) };
            fixture.admit(vec![admission]).unwrap();
            let mut pooled = Vec::new();
            for start in (0..5u32).step_by(chunk) {
                let count = (chunk as u32).min(5 - start);
                let blocks: &[u32] = if start == 0 { &[0, 1] } else { &[] };
                fixture.rows(vec![row(0, start, count, blocks, false)]).unwrap();
                for of in fixture.table.pooled(&fixture.batch) {
                    // The step has only this row, so that indices begin at its start.
                    let at = of.states.start + start as usize;
                    assert!(of.states.is_empty() || at == of.position, "{pooling:?} {chunk}: {of:?}");
                    pooled.extend(of.states.map(|state| state + start as usize));
                    assert_eq!(of.is_complete, start + count == 5);
                }
            }
            assert!(pooled.iter().copied().eq(expected.clone()), "{pooling:?} {chunk}: {pooled:?}");
        }
    }
}

#[test]
fn a_classifier_reads_the_first_state_or_all_states() {
    let normed = |averages| ClassifierKind::NormedGelu { averages, dense_bias: false };
    for (kind, expected) in [(ClassifierKind::Tanh, 0..1), (normed(false), 0..1), (normed(true), 0..5)] {
        let admission = Admission { pooling: Pooling::Classes.into(), ..admission(0, &[1, 2, 3, 4, 5]) };
        let table = SlotTable::new(LIMITS, VOCAB).with_classifier(Some(kind));
        let mut fixture = Fixture { table, batch: Batch::new(&LIMITS) };
        fixture.admit(vec![admission]).unwrap();
        fixture.rows(vec![row(0, 0, 5, &[0, 1], false)]).unwrap();
        let pooled: Vec<PooledRow> = fixture.table.pooled(&fixture.batch).collect();
        let [PooledRow { states, is_complete: true, .. }] = &pooled[..] else { panic!("{pooled:?}") };
        assert_eq!(*states, expected, "{kind:?}");
    }
}

/// Applies the same steps to two tables. The first gets the sampled tokens of a step before the
/// next step; the second gets them up to two steps later, as on a device that runs ahead. Both must
/// accept the same steps.
fn assert_late_tokens_change_nothing(history: Vec<Step>, lags: Vec<usize>) {
    let (mut at_once, mut later) = (Fixture::new(), Fixture::new());
    let mut pending = std::collections::VecDeque::new();
    for (i, step) in history.into_iter().enumerate() {
        let done = at_once.apply(step.clone());
        assert_eq!(later.apply(step), done);
        if done.is_err() {
            // A shard would end here: a table that has applied half a step must not be used.
            return;
        }
        let rows = |f: &Fixture| -> Vec<_> {
            f.table
                .seq_rows(&f.batch)
                .map(|r| (r.slot, r.start, r.count, r.decodes(), r.blocks.to_vec()))
                .collect()
        };
        assert_eq!(rows(&at_once), rows(&later));
        assert_eq!(at_once.batch.outputs, later.batch.outputs);
        let known = |f: &Fixture| -> Vec<_> {
            f.table.sample_rows(&f.batch).map(|r| (r.tokens.len(), r.prompt_len)).collect()
        };
        assert_eq!(known(&at_once), known(&later));

        let token = (i % VOCAB) as u32;
        at_once.sample(token);
        later.table.expect(&mut later.batch);
        let batch = std::mem::replace(&mut later.batch, Batch::new(&LIMITS));
        pending.push_back((batch, token));
        while pending.len() > lags[i % lags.len()] {
            let (mut batch, token) = pending.pop_front().unwrap();
            let sampled = vec![sampled(token); batch.outputs.len()];
            later.table.fill(&mut batch, &sampled);
        }
    }
    for (mut batch, token) in pending {
        let sampled = vec![sampled(token); batch.outputs.len()];
        later.table.fill(&mut batch, &sampled);
    }
    for (a, b) in at_once.table.slots.iter().zip(&later.table.slots) {
        assert_eq!((a.taken, &a.tokens), (b.taken, &b.tokens));
    }
}

/// Steps like those of a scheduler, in which slots are taken and released. Most of them are valid.
fn scheduled() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0usize..3, 0usize..8, 1u32..5), 1..30).prop_map(|choices| {
        // For each slot that is taken, its numbers of tokens, of computed positions, and of blocks.
        let mut slots: [Option<(u32, u32, u32)>; 3] = [Some((5, 0, 0)), Some((2, 0, 0)), None];
        let of_choice = |(slot, what, count): (usize, usize, u32)| {
            let (mut step, number) = (Step::default(), slot as u32);
            if what == 0 && slots[slot].is_some() {
                step.release.push(number);
                slots[slot] = None;
            }
            if what <= 1 && slots[slot].is_none() {
                step.admit.push(admission(number, &vec![9; count as usize]));
                slots[slot] = Some((count, 0, 0));
            }
            for (slot, state) in slots.iter_mut().enumerate() {
                let Some((tokens, computed, blocks)) = state else { continue };
                let end = (*computed + count).min(*tokens).min(LIMITS.max_sequence_tokens as u32);
                if end == *computed {
                    continue;
                }
                let needed = end.div_ceil(LIMITS.block_size as u32);
                let sample = end == *tokens;
                let new: Vec<u32> = (*blocks..needed).collect();
                step.rows.push(row(slot as u32, *computed, end - *computed, &new, sample));
                (*tokens, *computed, *blocks) = (*tokens + u32::from(sample), end, needed);
            }
            step
        };
        choices.into_iter().map(of_choice).collect()
    })
}

proptest! {
    #[test]
    fn late_tokens_change_no_step(history in scheduled(), lags in prop::collection::vec(0usize..3, 1..9)) {
        assert_late_tokens_change_nothing(history, lags);
    }
}
