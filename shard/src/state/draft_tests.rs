//! Drafts: which rows may have some, and what becomes of them.

use super::tests::{LIMITS, admission, row, sampled};
use super::*;

const VOCAB: usize = 20;

/// A table whose slot 0 holds the prompt 1, 2, 3 and the generated token 4, of which the prompt is
/// computed.
struct Drafted {
    table: SlotTable,
    batch: Batch,
}

impl Drafted {
    fn new() -> Self {
        let limits = ShardLimits { max_drafts: 4, state_checkpoints: 2, ..LIMITS };
        let mut drafted = Drafted { table: SlotTable::new(limits, VOCAB), batch: Batch::new(&limits) };
        let step = Step {
            admit: vec![admission(0, &[1, 2, 3])],
            rows: vec![row(0, 0, 3, &[0, 1, 2], true)],
            ..Step::default()
        };
        drafted.table.apply(&step, &mut drafted.batch).unwrap();
        drafted.answer(&[4]);
        drafted
    }

    fn rows(&mut self, rows: Vec<Row>) -> Result<(), StepError> {
        self.table.apply(&Step { rows, ..Step::default() }, &mut self.batch)
    }

    /// Samples these tokens, and returns the ones that are kept.
    fn answer(&mut self, tokens: &[u32]) -> Vec<u32> {
        let samples = self.table.sample_rows(&self.batch).count();
        assert_eq!((samples, self.batch.outputs.len()), (tokens.len(), tokens.len()));
        self.table.expect(&mut self.batch);
        let tokens: Vec<Sampled> = tokens.iter().map(|&token| sampled(token)).collect();
        self.table.fill(&mut self.batch, &tokens);
        let kept = self.batch.kept_tokens().zip(&tokens).filter(|((_, kept), _)| *kept);
        kept.map(|(_, sampled)| sampled.token).collect()
    }

    fn tokens(&self) -> &[u32] {
        self.table.sequence(0).0
    }
}

fn drafted(start: u32, drafts: &[u32]) -> Row {
    Row { drafts: drafts.to_vec(), ..row(0, start, 1, &[], true) }
}

#[test]
fn drafts_run_behind_their_row_and_count_in_the_places_after_them() {
    let mut state = Drafted::new();
    state.rows(vec![drafted(3, &[5, 6])]).unwrap();
    assert_eq!((&state.batch.tokens[..], &state.batch.outputs[..]), (&[4, 5, 6][..], &[0, 1, 2][..]));
    let rows: Vec<_> = state.table.seq_rows(&state.batch).map(|row| (row.start, row.count)).collect();
    assert_eq!(rows, [(3, 3)]);
    let known: Vec<&[u32]> = state.table.sample_rows(&state.batch).map(|row| row.tokens).collect();
    assert_eq!(known, [&[1, 2, 3, 4][..], &[1, 2, 3, 4, 5], &[1, 2, 3, 4, 5, 6]]);
}

#[test]
fn the_tokens_up_to_the_first_wrong_draft_are_kept() {
    for (sampled, kept) in
        [(&[5, 6, 7][..], &[5, 6, 7][..]), (&[5, 9, 7], &[5, 9]), (&[9, 6, 7], &[9]), (&[6, 5, 5], &[6])]
    {
        let mut state = Drafted::new();
        state.rows(vec![drafted(3, &[5, 6])]).unwrap();
        assert_eq!(state.answer(sampled), kept, "{sampled:?}");
        assert_eq!(state.tokens(), [&[1, 2, 3, 4], kept].concat());
        // The sequence goes on behind the last of them.
        let start = 3 + kept.len() as u32;
        assert_eq!(state.rows(vec![drafted(start, &[8])]), Ok(()));
        assert_eq!(state.answer(&[8, 8]), [8, 8]);
    }
}

#[test]
fn only_a_row_of_one_generated_token_may_have_drafts() {
    let refused = |row: Row| Drafted::new().rows(vec![row]);
    let wrong = |drafts| Err(StepError::Drafts { slot: 0, start: 3, drafts });
    assert_eq!(refused(drafted(3, &[5, 6, 7, 8])), Ok(()));
    assert_eq!(refused(drafted(3, &[5; 5])), Err(StepError::TooManyDrafts { limit: 4 }));
    assert_eq!(refused(drafted(3, &[VOCAB as u32])), wrong(1));
    assert_eq!(refused(Row { sample: false, ..drafted(3, &[5]) }), wrong(1));
    assert_eq!(refused(Row { allowed: vec![2], ..drafted(3, &[5]) }), wrong(1));
    assert_eq!(refused(Row { mask_follows: true, ..drafted(3, &[5]) }), wrong(1));
    let prompt = Row { start: 2, count: 2, ..drafted(2, &[5]) };
    assert_eq!(refused(prompt), Err(StepError::Drafts { slot: 0, start: 2, drafts: 1 }));
}

/// States that cannot go back are kept before a row with drafts, and restored after a wrong one.
#[test]
fn rows_in_order_go_back_to_kept_states() {
    let in_order = || {
        let mut state = Drafted::new();
        state.table.in_order = true;
        state
    };
    let kept = |checkpoint| Row { keep_state: Some(checkpoint), ..drafted(3, &[5, 6]) };
    let restored = |row: Row, checkpoint| Row { restore_state: Some(checkpoint), ..row };
    let lacking = Err(StepError::KeptStates { slot: 0, drafts: 2 });
    assert_eq!(in_order().rows(vec![drafted(3, &[5, 6])]), lacking);
    let needless = Row { keep_state: Some(0), ..drafted(3, &[]) };
    assert_eq!(in_order().rows(vec![needless]), Err(StepError::KeptStates { slot: 0, drafts: 0 }));
    let unknown = StepError::UnknownCheckpoint { slot: 0, checkpoint: 2, checkpoints: 2 };
    assert_eq!(in_order().rows(vec![kept(2)]), Err(unknown));

    let mut state = in_order();
    state.rows(vec![kept(1)]).unwrap();
    let place = LIMITS.max_sequences + 1;
    assert_eq!(state.batch.kept_states, [StateCopy { from: 0, to: place }]);
    // The first draft is right.
    assert_eq!(state.answer(&[5, 9, 7]), [5, 9]);
    let behind = row(0, 5, 1, &[], true);
    let expected = |expected| Err(StepError::OutOfOrder { slot: 0, start: 5, expected });
    assert_eq!(state.rows(vec![behind.clone()]), expected(6), "the states have run both drafts");

    let mut state = in_order();
    state.rows(vec![kept(1)]).unwrap();
    state.answer(&[5, 9, 7]);
    state.rows(vec![restored(row(0, 3, 3, &[], true), 1)]).unwrap();
    assert_eq!(state.batch.restored_states, [StateCopy { from: place, to: 0 }]);
    assert_eq!((&state.batch.tokens[..], &state.batch.kept_states[..]), (&[4, 5, 9][..], &[][..]));
    assert_eq!(state.answer(&[8]), [8]);
    assert_eq!(state.rows(vec![row(0, 6, 1, &[], true)]), Ok(()));

    let mut state = in_order();
    state.rows(vec![kept(1)]).unwrap();
    state.answer(&[5, 9, 7]);
    assert_eq!(state.rows(vec![restored(behind.clone(), 1)]), expected(3));
    let empty = Err(StepError::EmptyCheckpoint { slot: 0, checkpoint: 0 });
    assert_eq!(state.rows(vec![restored(behind, 0)]), empty);
}

#[test]
fn no_row_comes_before_the_drafts_are_verified() {
    let mut state = Drafted::new();
    state.rows(vec![drafted(3, &[5])]).unwrap();
    assert_eq!(state.rows(vec![row(0, 4, 1, &[], true)]), Err(StepError::UnverifiedDrafts { slot: 0 }));
}

#[test]
fn a_sequence_that_leaves_takes_its_drafts_with_it() {
    let mut state = Drafted::new();
    state.rows(vec![drafted(3, &[5, 6])]).unwrap();
    state.table.expect(&mut state.batch);
    let mut batch = std::mem::replace(&mut state.batch, Batch::new(&LIMITS));
    let step = Step { release: vec![0], admit: vec![admission(0, &[7, 8])], ..Step::default() };
    state.table.apply(&step, &mut state.batch).unwrap();
    state.table.fill(&mut batch, &[sampled(9), sampled(9), sampled(9)]);
    assert_eq!(state.tokens(), [7, 8]);
}

/// A row of slot 0 at this position that wants so many guesses of a draft model.
fn guessed(start: u32, model_drafts: u32) -> Row {
    Row { model_drafts, ..row(0, start, 1, &[], true) }
}

impl Drafted {
    /// A table with a draft model of so many positions, which reads up to two tokens in a step
    /// before it guesses.
    fn with_draft_model(positions: usize) -> Self {
        let mut drafted = Drafted::new();
        drafted.table.accept_model_drafts(positions, 2);
        drafted
    }

    /// The tokens that the draft model reads in a pass, with their first position and whether it
    /// guesses the token after them.
    fn pass(&self, pass: usize) -> Vec<(usize, Vec<u32>, bool)> {
        let rows = self.table.draft_pass(&self.batch, pass);
        rows.map(|of| (of.row.start, of.tokens.to_vec(), of.sample.is_some())).collect()
    }

    /// Has the draft model guess these tokens, one in each pass.
    fn guess(&mut self, guesses: &[u32]) {
        for (pass, &guess) in guesses.iter().enumerate() {
            self.table.set_drafts(&mut self.batch, pass, [guess].into_iter());
        }
    }
}

#[test]
fn a_draft_model_reads_what_it_has_not_read_and_then_its_guesses() {
    let mut state = Drafted::with_draft_model(100);
    assert_eq!(state.rows(vec![guessed(3, 2)]), Ok(()));
    // There are three tokens before the last one.
    assert_eq!(state.pass(0), [(0, vec![1, 2], false)]);
    assert_eq!((state.batch.draft_passes(), state.batch.undrafted()), (1, &[0][..]));
    assert_eq!(state.answer(&[5]), [5]);

    state.rows(vec![guessed(4, 2)]).unwrap();
    assert_eq!((state.pass(0), state.batch.draft_passes()), (vec![(2, vec![3, 4, 5], true)], 2));
    state.guess(&[6]);
    assert_eq!(state.pass(1), [(5, vec![6], true)]);
    let known: Vec<_> = state.table.draft_pass(&state.batch, 1).filter_map(|of| of.sample).collect();
    assert_eq!(known[0].tokens, [1, 2, 3, 4, 5, 6]);
    state.table.set_drafts(&mut state.batch, 1, [7].into_iter());
    assert_eq!((&state.batch.tokens[..], &state.batch.outputs[..]), (&[5, 6, 7][..], &[0, 1, 2][..]));
    // The first guess is right, and was read; the second one was not.
    assert_eq!(state.answer(&[6, 9, 9]), [6, 9]);
    state.rows(vec![guessed(6, 1)]).unwrap();
    assert_eq!(state.pass(0), [(6, vec![9], true)]);
    state.guess(&[8]);
    assert_eq!(state.answer(&[8, 7]), [8, 7]);
    // The right guess was not read.
    state.rows(vec![guessed(8, 1)]).unwrap();
    assert_eq!(state.pass(0), [(7, vec![8, 7], true)]);
}

#[test]
fn a_wrong_guess_is_read_again_as_what_is_there() {
    let mut state = Drafted::with_draft_model(100);
    state.rows(vec![guessed(3, 1)]).unwrap();
    state.answer(&[5]);
    state.rows(vec![guessed(4, 3)]).unwrap();
    state.guess(&[6, 7, 8]);
    assert_eq!(state.answer(&[9, 9, 9, 9]), [9], "all are wrong");
    state.rows(vec![guessed(5, 1)]).unwrap();
    assert_eq!(state.pass(0), [(5, vec![9], true)]);
}

#[test]
fn what_was_read_is_shared_with_the_blocks_and_forgotten_with_them() {
    let admit = |state: &mut Drafted, start, new_blocks: &[u32], release: &[u32]| {
        let step = Step {
            release: release.to_vec(),
            admit: vec![admission(1, &[1, 2, 3, 4])],
            rows: vec![row(1, start, 4 - start, new_blocks, true)],
            ..Step::default()
        };
        state.table.apply(&step, &mut state.batch).unwrap();
        state.answer(&[9]);
        let row = Row { model_drafts: 1, ..row(1, 4, 1, &[], true) };
        state.rows(vec![row]).unwrap();
    };
    let read = || {
        let mut state = Drafted::with_draft_model(100);
        state.rows(vec![guessed(3, 1)]).unwrap();
        state.answer(&[5]);
        state.rows(vec![guessed(4, 1)]).unwrap();
        state.guess(&[6]);
        state.answer(&[6, 7]);
        state
    };
    // The last position of the first block is computed again, and read again.
    let mut state = read();
    admit(&mut state, 3, &[0, 5], &[0]);
    assert_eq!(state.pass(0), [(3, vec![4, 9], true)]);
    // Another prefix is in the block.
    let mut state = read();
    admit(&mut state, 0, &[0, 5], &[0]);
    assert_eq!(state.pass(0), [(0, vec![1, 2], false)]);
    let mut state = read();
    let disk_reads = vec![millrace_proto::DiskRead { slot: 0, block: 0, hash: vec![0; 16] }];
    let step = Step { release: vec![0], disk_reads, ..Step::default() };
    state.table.apply(&step, &mut state.batch).unwrap();
    admit(&mut state, 3, &[0, 5], &[]);
    assert_eq!(state.pass(0), [(0, vec![1, 2], false)]);
}

#[test]
fn a_draft_model_guesses_within_its_positions_and_the_tokens_of_the_model() {
    let mut state = Drafted::with_draft_model(4);
    state.rows(vec![guessed(3, 1)]).unwrap();
    state.answer(&[5]);
    assert_eq!(state.rows(vec![guessed(4, 1)]), Ok(()));
    assert_eq!((state.batch.draft_passes(), state.batch.undrafted()), (0, &[0][..]));

    let mut state = Drafted::with_draft_model(100);
    state.rows(vec![guessed(3, 1)]).unwrap();
    state.answer(&[5]);
    state.rows(vec![guessed(4, 1)]).unwrap();
    state.guess(&[VOCAB as u32]);
    assert_eq!(state.batch.tokens, [5, 0]);

    let both = Row { drafts: vec![5], ..guessed(3, 1) };
    let wrong = StepError::Drafts { slot: 0, start: 3, drafts: 2 };
    assert_eq!(Drafted::with_draft_model(100).rows(vec![both]), Err(wrong));
    assert_eq!(Drafted::new().rows(vec![guessed(3, 1)]), Err(StepError::NoDraftModel { slot: 0 }));
    let many = Err(StepError::TooManyDrafts { limit: 4 });
    assert_eq!(Drafted::with_draft_model(100).rows(vec![guessed(3, 5)]), many);
}

impl Drafted {
    /// A table with a head of so many positions, which reads states.
    fn with_head(positions: usize) -> Self {
        let mut drafted = Drafted::new();
        drafted.table.accept_head_drafts(positions);
        drafted
    }

    /// The tokens that a head reads in a pass, with the position of the state before the first one
    /// and whether it guesses the token after them.
    fn states_read(&self, pass: usize) -> Vec<(usize, Vec<u32>, bool)> {
        for of in self.table.draft_pass(&self.batch, pass) {
            assert_eq!(matches!(of.states, PassStates::Kept(_)), pass == 0);
        }
        self.pass(pass)
    }
}

#[test]
fn a_head_reads_each_state_with_the_token_after_it() {
    let mut state = Drafted::with_head(100);
    // With the prompt it reads all states but the last one, whose next token is not known.
    assert_eq!(state.rows(vec![row(0, 0, 4, &[], true)]), Ok(()));
    let read: Vec<_> = state.table.step_pass(&state.batch).map(|of| (of.row.start, of.tokens)).collect();
    assert_eq!((read, state.pass(0)), (vec![(0, &[2, 3, 4][..])], vec![]));
    let [kept] = state.batch.step_states() else { panic!("one row") };
    assert_eq!((kept.slot, kept.at, kept.positions.clone()), (0, 0, 0..4));
    assert_eq!((kept.read.clone(), kept.kept.clone()), (0..3, 3..4));
    assert_eq!(state.answer(&[5]), [5]);

    // The guess is the token after the one that it reads.
    state.rows(vec![guessed(4, 2)]).unwrap();
    assert_eq!((state.states_read(0), state.batch.draft_passes()), (vec![(3, vec![5], true)], 2));
    state.guess(&[6]);
    assert_eq!(state.states_read(1), [(4, vec![6], true)]);
    let known: Vec<_> = state.table.draft_pass(&state.batch, 1).filter_map(|of| of.sample).collect();
    assert_eq!(known[0].tokens, [1, 2, 3, 4, 5, 6]);
    state.table.set_drafts(&mut state.batch, 1, [7].into_iter());
    assert_eq!((&state.batch.tokens[..], &state.batch.outputs[..]), (&[5, 6, 7][..], &[0, 1, 2][..]));
    assert_eq!(state.table.step_pass(&state.batch).count(), 0);
    // The first guess is right. The states of its position and the one before are read now, and
    // that after the wrong guess is not.
    assert_eq!(state.answer(&[6, 9, 9]), [6, 9]);
    state.rows(vec![guessed(6, 1)]).unwrap();
    assert_eq!(state.states_read(0), [(4, vec![6, 9], true)]);
    state.guess(&[8]);
    assert_eq!(state.answer(&[7, 7]), [7]);
    // Without a guess, states are kept until the next one.
    state.rows(vec![row(0, 7, 1, &[], true)]).unwrap();
    assert_eq!((state.pass(0), state.answer(&[3])), (vec![], vec![3]));
    state.rows(vec![guessed(8, 1)]).unwrap();
    assert_eq!(state.states_read(0), [(6, vec![7, 3], true)]);
}

#[test]
fn a_head_without_states_does_not_guess() {
    let mut state = Drafted::with_head(6);
    // The states of the prompt were computed for another sequence.
    for start in [3, 4] {
        assert_eq!(state.rows(vec![guessed(start, 1)]), Ok(()));
        assert_eq!((state.pass(0), state.batch.undrafted()), (vec![], &[0][..]));
        assert_eq!(state.answer(&[5]), [5]);
    }
    // The head begins with the second block, whose first state is kept.
    state.rows(vec![guessed(5, 1)]).unwrap();
    assert_eq!(state.states_read(0), [(0, vec![5], true)]);
    let read = state.table.draft_pass(&state.batch, 0).next().unwrap();
    assert_eq!((read.states, read.row.blocks), (PassStates::Kept(4), &[1][..]));
    state.guess(&[6]);
    assert_eq!(state.answer(&[6, 7]), [6, 7]);
    // There are too few positions.
    state.rows(vec![guessed(7, 1)]).unwrap();
    assert_eq!((state.batch.draft_passes(), state.batch.undrafted()), (0, &[0][..]));
    // Another sequence has the slot.
    let mut state = Drafted::with_head(100);
    state.rows(vec![guessed(3, 1)]).unwrap();
    state.answer(&[5]);
    let admit = vec![Admission { prompt_len: 4, ..admission(0, &[1, 2, 3, 4, 5]) }];
    let rows = vec![Row { model_drafts: 1, ..row(0, 4, 1, &[0, 1], true) }];
    let step = Step { release: vec![0], admit, rows, ..Step::default() };
    state.table.apply(&step, &mut state.batch).unwrap();
    assert_eq!((state.pass(0), state.batch.undrafted()), (vec![], &[0][..]));
}
