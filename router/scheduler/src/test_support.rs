//! Test doubles for this crate and the ones above it.
//!
//! [`PretendShard`] is a shard without a model. It checks every rule of the contract with the
//! scheduler, keeps a real paged cache, and derives each token from the whole contents of its
//! sequence, which it reads back through the block table. A row that reads a position which was not
//! computed from the sequence's own prefix is an error, and so is a row that writes a block which
//! another sequence reads. A token depends on its sequence and position alone, so a simulation with
//! a seed can be replayed.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::collections::HashSet;

use millrace_proto::{
    AdapterPlacement, Admission, Masks, Pooled, Pooling, PromptHandling, PromptToken, Row, RowError,
    RowErrorKind, Sampled, Sampling, Scored, Step, StepOutput, TokenLogprob,
};

pub use crate::test_disk::PretendDisk;
use crate::{Finish, Mask, Request, SchedulerLimits};

/// A shard without a model that checks each step.
pub struct PretendShard {
    limits: SchedulerLimits,
    /// The id of the next step; `None` before the first one.
    next_step: Option<u64>,
    slots: Vec<Option<Occupant>>,
    /// The contents of each position of each block: a digest of all tokens up to that position.
    cache: Vec<u64>,
    /// Number of slots that have each block in their tables.
    holders: Vec<u32>,
    /// The saved recurrent states.
    checkpoints: Vec<Option<RecurrentState>>,
    /// The adapter in each place, if steps copy adapters into places.
    places: Vec<Option<u32>>,
    /// Whether the first guess of the draft model is wrong each time.
    pub misguesses: bool,
    /// The disk cache. It may be replaced between two steps.
    pub disk: PretendDisk,
}

/// A recurrent state: a digest of all tokens up to a position.
#[derive(Clone, Copy, PartialEq)]
struct RecurrentState {
    position: usize,
    digest: u64,
}

struct Occupant {
    tokens: Vec<u32>,
    prompt_len: usize,
    pooling: Pooling,
    adapter: Option<u32>,
    /// Number of computed positions; `None` before the first row, because a prefix may have been
    /// computed for others.
    computed: Option<usize>,
    /// Largest number of positions that a row was planned to compute.
    reserved: usize,
    /// Start of the first row.
    begun_at: usize,
    /// Number of rows that were deferred.
    deferrals: usize,
    seed: u64,
    top_n: u32,
    table: Vec<u32>,
    state: RecurrentState,
}

/// The fault of a sequence. It is encoded in the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// There is no fault.
    None,
    /// The shards die of every row that computes this position.
    Deadly(usize),
    /// The logits are not finite in every row that computes this position.
    Broken(usize),
    /// The admission is refused.
    Refused,
}

impl Trouble {
    /// The fault that a seed encodes.
    pub fn of(seed: u64) -> Self {
        let position = (seed & 0xffff_ffff) as usize;
        match seed >> 32 {
            1 => Trouble::Deadly(position),
            2 => Trouble::Broken(position),
            3 => Trouble::Refused,
            _ => Trouble::None,
        }
    }

    /// The seed that encodes this fault.
    pub fn seed(self) -> u64 {
        match self {
            Trouble::None => 0,
            Trouble::Deadly(position) => 1 << 32 | position as u64,
            Trouble::Broken(position) => 2 << 32 | position as u64,
            Trouble::Refused => 3 << 32,
        }
    }
}

/// The error of [`PretendShard::run`] if the shard dies of a deadly sequence.
pub const DEATH: &str = "the shard has died";

/// Greedy sampling parameters that a shard accepts.
pub fn sampling(seed: u64) -> Sampling {
    Sampling { seed, repetition_penalty: 1.0, ..Default::default() }
}

fn ensure(rule: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if rule { Ok(()) } else { Err(text()) }
}

fn mix(state: u64, token: u32) -> u64 {
    let x =
        (state ^ u64::from(token).wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 29)
}

fn token_of(digest: u64, vocab_size: usize) -> u32 {
    (digest.wrapping_mul(0x94d0_49bb_1331_11eb) >> 33) as u32 % vocab_size as u32
}

/// The digest before the first token of a sequence without an adapter.
const START: u64 = 1;

/// The digest before the first token of a sequence. All keys, values and tokens depend on the
/// adapter.
fn start_digest(adapter: Option<u32>) -> u64 {
    adapter.map_or(START, |adapter| mix(START, u32::MAX - adapter))
}

/// The digest before the first token of a request's prompt.
fn start_digest_of(request: &Request) -> u64 {
    start_digest(request.adapter.map(|adapter| adapter.0))
}

/// Seeds from here on make sequences that repeat themselves for some time.
pub const REPEATS: u64 = 4 << 32;

/// Draws the token after a prefix that ends with `last`.
fn draw(digest: u64, last: u32, seed: u64, vocab_size: usize) -> u32 {
    let repeats = seed >= REPEATS && !digest.is_multiple_of(8);
    let digest = if repeats { mix(START, last) } else { digest };
    token_of(digest ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), vocab_size)
}

/// The first allowed token from `token` on, with wrap-around.
fn nearest(token: u32, allowed: &[u32], vocab_size: usize) -> Option<u32> {
    let vocab_size = vocab_size as u32;
    let is_allowed = |token: &u32| allowed[*token as usize / 32] >> (token % 32) & 1 == 1;
    (0..vocab_size).map(|n| (token + n) % vocab_size).find(is_allowed)
}

/// The mask after these tokens, in a made-up grammar. Sometimes it allows a single token.
pub fn pretend_mask(generated: &[u32], vocab_size: usize) -> Mask {
    let digest = generated.iter().fold(START + 1, |digest, &token| mix(digest, token));
    let mut words = vec![0; vocab_size.div_ceil(32)];
    let mut allow = |token: usize| words[token / 32] |= 1 << (token % 32);
    allow(digest as usize % vocab_size);
    if !digest.is_multiple_of(7) {
        (0..vocab_size).filter(|&token| mix(digest, token as u32).is_multiple_of(3)).for_each(&mut allow);
    }
    words.into()
}

/// The score of a token after a prefix.
fn score(digest: u64, token: u32, top_n: u32, vocab_size: usize) -> PromptToken {
    let digest = mix(digest, token);
    let top = |n| TokenLogprob { token: token_of(digest ^ u64::from(n), vocab_size), logprob: -1.0 };
    PromptToken { logprob: (digest >> 40) as f32, rank: digest as u32, top: (0..top_n).map(top).collect() }
}

/// The scores of a request's prompt if the request runs alone.
pub fn scored_alone(request: &Request, vocab_size: usize) -> Vec<PromptToken> {
    let Some(top_n) = request.prompt_logprobs else { return Vec::new() };
    let mut digest = mix(start_digest_of(request), request.prompt[0]);
    let score = |&token: &u32| {
        let scored = score(digest, token, top_n, vocab_size);
        digest = mix(digest, token);
        scored
    };
    request.prompt[1..].iter().map(score).collect()
}

/// The vector of a request's prompt, if a vector is wanted.
pub fn vector_alone(request: &Request) -> Vec<f32> {
    let digest = request.prompt.iter().fold(start_digest_of(request), |digest, &token| mix(digest, token));
    request.pooling.map_or_else(Vec::new, |_| vec![digest as f32, request.prompt.len() as f32])
}

/// The tokens of a request if it runs alone, and the reason of its end.
pub fn alone(request: &Request, vocab_size: usize) -> (Vec<u32>, Finish) {
    let mut digest =
        request.prompt.iter().fold(start_digest_of(request), |digest, &token| mix(digest, token));
    let (mut generated, mut last) = (Vec::new(), request.prompt[request.prompt.len() - 1]);
    if request.max_new_tokens == 0 || request.pooling.is_some() {
        return (generated, Finish::Length);
    }
    loop {
        let mut token = draw(digest, last, request.sampling.seed, vocab_size);
        if request.mask.is_some() {
            token = nearest(token, &pretend_mask(&generated, vocab_size), vocab_size).unwrap();
        }
        digest = mix(digest, token);
        last = token;
        generated.push(token);
        if generated.len() == request.max_new_tokens as usize {
            return (generated, Finish::Length);
        }
        if request.stop_tokens.contains(&token) {
            return (generated, Finish::StopToken);
        }
    }
}

impl PretendShard {
    /// Creates a shard with free slots and an empty cache.
    pub fn new(limits: SchedulerLimits) -> Self {
        PretendShard {
            limits,
            next_step: None,
            slots: (0..limits.max_sequences).map(|_| None).collect(),
            cache: vec![0; limits.num_blocks * limits.block_size],
            holders: vec![0; limits.num_blocks],
            checkpoints: vec![None; limits.state_checkpoints],
            places: vec![None; limits.adapters],
            misguesses: false,
            disk: PretendDisk::default(),
        }
    }

    /// Runs a step without masks that follow it. The error names the rule that the step breaks.
    pub fn run(&mut self, step: &Step) -> Result<StepOutput, String> {
        ensure(!step.rows.iter().any(|row| row.mask_follows), || "masks follow this step".into())?;
        self.run_masked(step, &Masks { step: step.id, rows: Vec::new() })
    }

    /// Runs a step with the masks that followed it.
    pub fn run_masked(&mut self, step: &Step, masks: &Masks) -> Result<StepOutput, String> {
        ensure(masks.step == step.id, || format!("masks of step {} for step {}", masks.step, step.id))?;
        let late = |slot: u32| step.rows.iter().any(|row| row.slot == slot && row.mask_follows);
        let slots: HashSet<u32> = masks.rows.iter().map(|mask| mask.slot).collect();
        ensure(slots.len() == masks.rows.len() && slots.iter().all(|&slot| late(slot)), || {
            "a mask for a row that waits for none".into()
        })?;
        let due = self.next_step.unwrap_or(step.id);
        ensure(step.id == due, || format!("step {} where {due} is due", step.id))?;
        self.next_step = Some(due + 1);
        for &slot in &step.release {
            let left = self.slots.get_mut(slot as usize).and_then(Option::take);
            let left = left.ok_or_else(|| format!("release of slot {slot}, which is free"))?;
            left.table.iter().for_each(|&block| self.holders[block as usize] -= 1);
        }
        step.adapters.iter().try_for_each(|placement| self.place(placement))?;
        let copied = self.disk.copy(step, &mut self.cache, &self.holders)?;
        step.admit.iter().try_for_each(|admission| self.admit(admission))?;

        let slots: HashSet<u32> = step.rows.iter().map(|row| row.slot).collect();
        ensure(slots.len() == step.rows.len(), || "two rows for one slot".into())?;
        let copies = step.disk_erasures.len() + step.disk_writes.len() + step.disk_reads.len();
        ensure(!step.rows.is_empty() || copies > 0, || "a step without rows and copies".into())?;
        let drafts: usize = step.rows.iter().map(Row::draft_count).sum();
        ensure(drafts <= self.limits.max_drafts, || format!("{drafts} drafts in one step"))?;
        let tokens = drafts + step.rows.iter().map(|row| row.count as usize).sum::<usize>();
        ensure(tokens <= self.limits.max_step_tokens, || format!("{tokens} tokens in one step"))?;
        let (mut sampled, mut scored, mut pooled) = (Vec::new(), Vec::new(), Vec::new());
        let (mut errors, mut undrafted) = (Vec::new(), Vec::new());
        for row in &step.rows {
            let trouble =
                self.slots.get(row.slot as usize).and_then(Option::as_ref).map(|of| Trouble::of(of.seed));
            let mask = masks.rows.iter().find(|mask| mask.slot == row.slot).map(|mask| &mask.allowed[..]);
            let error =
                |kind: RowErrorKind| RowError { slot: row.slot, kind: kind.into(), message: "!".repeat(128) };
            if trouble == Some(Trouble::Refused) {
                errors.push(error(RowErrorKind::Refused));
                continue;
            }
            let row = &self.with_guesses(row)?;
            if row.model_drafts > 0 && row.drafts.is_empty() {
                undrafted.push(row.slot);
            }
            let end = self.start_of(row)? + row.count as usize + row.drafts.len();
            match trouble {
                Some(Trouble::Deadly(position)) if end > position => return Err(DEATH.to_owned()),
                Some(Trouble::Broken(position)) if end > position => {
                    // The sequence goes on in this shard, and the scheduler ignores its tokens.
                    self.row(row, mask)?;
                    errors.push(error(RowErrorKind::NotFinite));
                    continue;
                }
                _ => {}
            }
            let (tokens, scores) = self.row(row, mask)?;
            sampled.extend(tokens);
            scored.extend(scores);
            pooled.extend(self.pool(row)?);
        }
        Ok(StepOutput {
            step: step.id,
            sampled,
            scored,
            pooled,
            errors,
            failed_disk_reads: copied.failed_reads,
            failed_disk_writes: copied.failed_writes,
            draft_micros: u64::from(drafts > 0 && self.limits.has_draft_model),
            undrafted,
            ..Default::default()
        })
    }

    /// The row with the guesses of the pretended draft model as its drafts, if it is to have some.
    /// Sometimes the draft model has not read enough of the sequence, and there are none.
    fn with_guesses(&self, row: &Row) -> Result<Row, String> {
        let mut row = row.clone();
        if row.model_drafts == 0 {
            return Ok(row);
        }
        ensure(self.limits.has_draft_model && row.drafts.is_empty(), || {
            format!("no draft model for {row:?}")
        })?;
        let occupant = self.slots[row.slot as usize].as_ref().ok_or("row without slot")?;
        let (&last, vocab_size) = (occupant.tokens.last().ok_or("no tokens")?, self.limits.vocab_size);
        let tokens = occupant.tokens.iter();
        let mut digest = tokens.fold(start_digest(occupant.adapter), |digest, &token| mix(digest, token));
        if mix(digest, 0).is_multiple_of(5) {
            return Ok(row);
        }
        let mut last = last;
        for _ in 0..row.model_drafts {
            let is_wrong = self.misguesses || mix(digest, 1).is_multiple_of(4);
            last = draw(digest, last, occupant.seed, vocab_size) + u32::from(is_wrong);
            last %= vocab_size as u32;
            digest = mix(digest, last);
            row.drafts.push(last);
        }
        Ok(row)
    }

    /// Whether steps copy adapters into places.
    fn has_copies(&self) -> bool {
        self.limits.max_loaded_adapters > self.limits.adapters
    }

    /// Copies an adapter into a place.
    fn place(&mut self, placement: &AdapterPlacement) -> Result<(), String> {
        let &AdapterPlacement { adapter, place } = placement;
        let has_copies = self.has_copies();
        ensure(has_copies && !self.places.contains(&Some(adapter)), || format!("{adapter} needs no copy"))?;
        let held = self.places.get_mut(place as usize).ok_or("no such place")?;
        let mut occupants = self.slots.iter().flatten();
        let is_used = held.is_some() && occupants.any(|occupant| occupant.adapter == *held);
        ensure(!is_used, || format!("a sequence uses the adapter in place {place}"))?;
        *held = Some(adapter);
        Ok(())
    }

    /// Frees the place of an adapter, if it has one.
    pub fn unload(&mut self, adapter: u32) {
        let place = self.places.iter_mut().find(|held| **held == Some(adapter));
        place.into_iter().for_each(|held| *held = None);
    }

    fn admit(&mut self, admission: &Admission) -> Result<(), String> {
        let Admission { slot, tokens, prompt_len, sampling, .. } = admission;
        let has_copies = self.has_copies();
        let place = self.slots.get_mut(*slot as usize).ok_or("no such slot")?;
        ensure(place.is_none(), || format!("slot {slot} is taken"))?;
        ensure((1..=tokens.len()).contains(&(*prompt_len as usize)), || "no prompt".into())?;
        let has_place = match admission.adapter {
            None => true,
            held if has_copies => self.places.contains(&held),
            Some(_) => self.limits.adapters > 0,
        };
        ensure(has_place, || format!("there is no place for adapter {:?}", admission.adapter))?;
        let checkpoint = |id| self.checkpoints.get(id as usize).copied().flatten().ok_or("nothing was saved");
        let state = admission.restore_state.map(checkpoint).transpose()?;
        *place = Some(Occupant {
            tokens: tokens.clone(),
            prompt_len: *prompt_len as usize,
            pooling: admission.pooling(),
            adapter: admission.adapter,
            computed: None,
            reserved: 0,
            begun_at: usize::MAX,
            deferrals: 0,
            seed: sampling.as_ref().ok_or("no sampling")?.seed,
            top_n: sampling.as_ref().map_or(0, |sampling| sampling.top_n),
            table: Vec::new(),
            state: state.unwrap_or(RecurrentState { position: 0, digest: start_digest(admission.adapter) }),
        });
        Ok(())
    }

    /// The vector of a prompt, if this row completes it.
    fn pool(&self, row: &Row) -> Result<Option<Pooled>, String> {
        let occupant = self.slots[row.slot as usize].as_ref().ok_or("row without slot")?;
        if occupant.pooling == Pooling::None {
            return Ok(None);
        }
        ensure(!row.sample && occupant.tokens.len() == occupant.prompt_len, || {
            "a pooled row samples".into()
        })?;
        let whole = occupant.pooling == Pooling::Last || row.start == 0 || occupant.begun_at == 0;
        ensure(whole, || "the mean of a part of a prompt".into())?;
        let is_last = (row.start + row.count) as usize == occupant.prompt_len;
        let digest =
            occupant.tokens.iter().fold(start_digest(occupant.adapter), |digest, &token| mix(digest, token));
        let values = vec![digest as f32, occupant.prompt_len as f32];
        Ok(is_last.then_some(Pooled { slot: row.slot, values }))
    }

    /// The first position that a row runs. A row whose mask follows runs the last token, even if
    /// rows before it were deferred after it was planned.
    fn start_of(&self, row: &Row) -> Result<usize, String> {
        let start = row.start as usize;
        if !row.mask_follows {
            return Ok(start);
        }
        let occupant = self.slots[row.slot as usize].as_ref().ok_or("row without slot")?;
        let last = occupant.tokens.len() - 1;
        ensure(
            row.sample && row.count == 1 && row.allowed.is_empty() && last >= occupant.prompt_len,
            || format!("a mask cannot follow {row:?}"),
        )?;
        ensure((last..=last + occupant.deferrals).contains(&start), || {
            format!("start {start} instead of {last} after {} deferrals", occupant.deferrals)
        })?;
        Ok(last)
    }

    /// Runs a row. Returns the tokens that it samples, and the scores that it asks for.
    fn row(
        &mut self,
        row: &Row,
        late_mask: Option<&[u32]>,
    ) -> Result<(Vec<Sampled>, Option<Scored>), String> {
        let start = self.start_of(row)?;
        let reserved = (row.start + row.count) as usize + row.drafts.len().max(row.model_drafts as usize);
        let SchedulerLimits { block_size, max_sequence_tokens, vocab_size, .. } = self.limits;
        let occupant =
            self.slots.get_mut(row.slot as usize).and_then(Option::as_mut).ok_or("row without slot")?;
        for &block in &row.new_blocks {
            ensure(!occupant.table.contains(&block), || {
                format!("block {block} is twice in slot {}", row.slot)
            })?;
            *self.holders.get_mut(block as usize).ok_or("no such block")? += 1;
            occupant.table.push(block);
        }
        let end = start + row.count as usize;
        ensure(row.count > 0, || "an empty row".into())?;
        if let Some(id) = row.restore_state {
            let state = self.checkpoints.get(id as usize).copied().flatten().ok_or("nothing was kept")?;
            ensure(occupant.computed.is_some(), || "a first row goes back".into())?;
            (occupant.state, occupant.computed) = (state, Some(state.position));
        }
        if let Some(id) = row.keep_state {
            ensure(row.draft_count() > 0, || "states are kept without drafts".into())?;
            *self.checkpoints.get_mut(id as usize).ok_or("no such checkpoint")? = Some(occupant.state);
        }
        ensure(start == occupant.computed.unwrap_or(start), || {
            format!("start {start}, but {:?} are computed", occupant.computed)
        })?;
        ensure(end <= occupant.tokens.len(), || "a token is run before it is known".into())?;
        ensure(reserved <= occupant.table.len() * block_size, || "positions without a block".into())?;
        occupant.reserved = occupant.reserved.max(reserved);
        let needed = occupant.reserved.div_ceil(block_size);
        ensure(occupant.table.len() <= occupant.tokens.len().div_ceil(block_size).max(needed), || {
            format!(
                "{} blocks for {} tokens in slot {}",
                occupant.table.len(),
                occupant.tokens.len(),
                row.slot
            )
        })?;
        let place = |table: &[u32], position: usize| {
            table[position / block_size] as usize * block_size + position % block_size
        };
        let mut digest = start_digest(occupant.adapter);
        for position in 0..start {
            digest = mix(digest, occupant.tokens[position]);
            ensure(self.cache[place(&occupant.table, position)] == digest, || {
                format!("position {position} of slot {} holds something else", row.slot)
            })?;
        }
        let handling = self.limits.prompt_handling;
        if handling != PromptHandling::Shared {
            let first = occupant.computed.is_none();
            // The digest of the prefix was computed from the tokens, and that of the state once.
            let state = RecurrentState { position: start, digest };
            ensure(occupant.state == state, || format!("slot {} has another state", row.slot))?;
            ensure(!row.mask_follows, || "a position may be run twice".into())?;
            let whole = handling != PromptHandling::Whole || !first || end >= occupant.prompt_len;
            ensure(whole, || "a part of a prompt that cannot be divided".into())?;
        }
        let mut scores = Vec::new();
        for position in start..end {
            let block = occupant.table[position / block_size];
            ensure(self.holders[block as usize] == 1, || format!("slot {} writes shared {block}", row.slot))?;
            digest = mix(digest, occupant.tokens[position]);
            self.cache[place(&occupant.table, position)] = digest;
            if let Some(top_n) = row.score
                && position + 1 < occupant.prompt_len
            {
                scores.push(score(digest, occupant.tokens[position + 1], top_n, vocab_size));
            }
        }
        ensure(row.score.is_none() || !scores.is_empty(), || "nothing to score".into())?;
        let scored = row.score.map(|_| Scored { slot: row.slot, tokens: scores });
        occupant.begun_at = occupant.begun_at.min(start);
        occupant.computed = Some(end);
        occupant.state = RecurrentState { position: end, digest };
        if let Some(id) = row.save_state {
            *self.checkpoints.get_mut(id as usize).ok_or("no such checkpoint")? = Some(occupant.state);
        }
        if !row.sample {
            ensure(row.allowed.is_empty(), || "a mask for a row that does not sample".into())?;
            ensure(row.draft_count() == 0, || "drafts in a row that does not sample".into())?;
            return Ok((Vec::new(), scored));
        }
        if row.mask_follows && late_mask.is_none() {
            // The next row runs this position again.
            (occupant.computed, occupant.deferrals) = (Some(start), occupant.deferrals + 1);
            return Ok((Vec::new(), scored));
        }
        let allowed = late_mask.unwrap_or(&row.allowed);
        ensure(end == occupant.tokens.len(), || "a token is sampled twice".into())?;
        ensure(reserved < max_sequence_tokens, || "the sequence is full".into())?;
        let mut token = draw(digest, occupant.tokens[end - 1], occupant.seed, vocab_size);
        if !allowed.is_empty() {
            ensure(allowed.len() == vocab_size.div_ceil(32), || "a mask for another vocabulary".into())?;
            token = nearest(token, allowed, vocab_size).ok_or("nothing is allowed")?;
        }
        let verifies = row.count == 1 && start >= occupant.prompt_len && !row.mask_follows;
        let is_recurrent = handling == PromptHandling::Unshared;
        let can_verify = handling == PromptHandling::Shared || is_recurrent && row.keep_state.is_some();
        let may_draft = verifies && allowed.is_empty() && can_verify;
        ensure(row.draft_count() == 0 || may_draft, || format!("drafts in {row:?}"))?;
        let mut sampled = vec![occupant.sample(row.slot, token)];
        let mut is_right = true;
        for (position, &draft) in (end..).zip(&row.drafts) {
            ensure((draft as usize) < vocab_size, || format!("draft {draft}"))?;
            let block = occupant.table[position / block_size];
            ensure(self.holders[block as usize] == 1, || format!("slot {} drafts in {block}", row.slot))?;
            // The positions behind a wrong draft hold something else than the sequence.
            digest = mix(digest, draft);
            self.cache[place(&occupant.table, position)] = digest;
            is_right &= occupant.tokens.last() == Some(&draft);
            if is_right {
                occupant.computed = Some(position + 1);
                let token = draw(digest, draft, occupant.seed, vocab_size);
                sampled.push(occupant.sample(row.slot, token));
            }
        }
        if is_recurrent && !row.drafts.is_empty() {
            // The states have run wrong drafts as well.
            let position = end + row.drafts.len();
            occupant.state = RecurrentState { position, digest };
            occupant.computed = Some(position);
        }
        Ok((sampled, scored))
    }
}

impl Occupant {
    /// Adds a sampled token to the sequence.
    fn sample(&mut self, slot: u32, token: u32) -> Sampled {
        self.tokens.push(token);
        let top = vec![TokenLogprob { token, logprob: -1.0 }; self.top_n as usize];
        Sampled { slot, token, logprob: -1.0, top }
    }
}
