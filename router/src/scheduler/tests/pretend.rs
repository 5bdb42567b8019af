//! A shard without a model. It holds the scheduler to every rule of the contract, keeps a real paged cache, and makes
//! each token from the whole content of its sequence, read back through the block table. A row that reads what was
//! not computed from its own prefix is an error, and so is one that writes where another sequence reads.

use std::collections::HashSet;

use millrace_proto::{
    Admission, Pooled, Pooling, PromptToken, Row, RowError, RowErrorKind, Sampled, Scored, Step, StepOutput,
    TokenLogprob,
};

use crate::scheduler::Limits;
use crate::scheduler::{Finish, Mask, Request};

pub(crate) struct PretendShard {
    limits: Limits,
    /// Known after the first one.
    next_step: Option<u64>,
    slots: Vec<Option<Occupant>>,
    /// What stands at each position of each block: a digest of all tokens up to there.
    cache: Vec<u64>,
    /// How many slots have a block in their tables.
    holders: Vec<u32>,
}

struct Occupant {
    tokens: Vec<u32>,
    prompt_len: usize,
    pooling: Pooling,
    /// Nothing before the first row: a prefix may have been computed for others.
    computed: Option<usize>,
    /// Where the first row begins.
    begun_at: usize,
    seed: u64,
    top_n: u32,
    table: Vec<u32>,
}

/// What goes wrong with a sequence, which its seed says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    /// The shards die of every row that goes past this position.
    Deadly(usize),
    /// The model's logits are not finite in every row that goes past this position.
    Broken(usize),
    /// Its admission is refused.
    Refused,
}

impl Trouble {
    pub(crate) fn of(seed: u64) -> Self {
        let position = (seed & 0xffff_ffff) as usize;
        match seed >> 32 {
            1 => Trouble::Deadly(position),
            2 => Trouble::Broken(position),
            3 => Trouble::Refused,
            _ => Trouble::None,
        }
    }

    /// A seed that means this.
    pub(crate) fn seed(self) -> u64 {
        match self {
            Trouble::None => 0,
            Trouble::Deadly(position) => 1 << 32 | position as u64,
            Trouble::Broken(position) => 2 << 32 | position as u64,
            Trouble::Refused => 3 << 32,
        }
    }
}

/// What [`PretendShard::run`] says if the shard dies of the step, as a deadly sequence has it.
pub(crate) const DEATH: &str = "the shard has died";

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

/// What stands before the first token.
const START: u64 = 1;

/// The token that a seed draws after a prefix.
fn draw(digest: u64, seed: u64, vocab_size: usize) -> u32 {
    token_of(digest ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), vocab_size)
}

/// The first token from this one on that is allowed, around the end if need be.
fn nearest(token: u32, allowed: &[u32], vocab_size: usize) -> Option<u32> {
    let vocab_size = vocab_size as u32;
    let is_allowed = |token: &u32| allowed[*token as usize / 32] >> (token % 32) & 1 == 1;
    (0..vocab_size).map(|n| (token + n) % vocab_size).find(is_allowed)
}

/// A grammar of no language: what may follow these tokens. Now and then there is no choice.
pub(crate) fn pretend_mask(generated: &[u32], vocab_size: usize) -> Mask {
    let digest = generated.iter().fold(START + 1, |digest, &token| mix(digest, token));
    let mut words = vec![0; vocab_size.div_ceil(32)];
    let mut allow = |token: usize| words[token / 32] |= 1 << (token % 32);
    allow(digest as usize % vocab_size);
    if !digest.is_multiple_of(7) {
        (0..vocab_size).filter(|&token| mix(digest, token as u32).is_multiple_of(3)).for_each(&mut allow);
    }
    words.into()
}

/// What is made of a token after a prefix.
fn score(digest: u64, token: u32, top_n: u32, vocab_size: usize) -> PromptToken {
    let digest = mix(digest, token);
    let top = |n| TokenLogprob { token: token_of(digest ^ u64::from(n), vocab_size), logprob: -1.0 };
    PromptToken { logprob: (digest >> 40) as f32, rank: digest as u32, top: (0..top_n).map(top).collect() }
}

/// What is made of a request's prompt when it runs alone.
pub(crate) fn scored_alone(request: &Request, vocab_size: usize) -> Vec<PromptToken> {
    let Some(top_n) = request.prompt_logprobs else { return Vec::new() };
    let mut digest = mix(START, request.prompt[0]);
    let score = |&token: &u32| {
        let scored = score(digest, token, top_n, vocab_size);
        digest = mix(digest, token);
        scored
    };
    request.prompt[1..].iter().map(score).collect()
}

/// What a request's prompt becomes, if it becomes a vector.
pub(crate) fn vector_alone(request: &Request) -> Vec<f32> {
    let digest = request.prompt.iter().fold(START, |digest, &token| mix(digest, token));
    request.pooling.map_or_else(Vec::new, |_| vec![digest as f32, request.prompt.len() as f32])
}

/// What a request gets when it runs alone.
pub(crate) fn alone(request: &Request, vocab_size: usize) -> (Vec<u32>, Finish) {
    let mut digest = request.prompt.iter().fold(START, |digest, &token| mix(digest, token));
    let mut generated = Vec::new();
    if request.max_new_tokens == 0 || request.pooling.is_some() {
        return (generated, Finish::Length);
    }
    loop {
        let mut token = draw(digest, request.sampling.seed, vocab_size);
        if request.mask.is_some() {
            token = nearest(token, &pretend_mask(&generated, vocab_size), vocab_size).unwrap();
        }
        digest = mix(digest, token);
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
    pub(crate) fn new(limits: Limits) -> Self {
        PretendShard {
            limits,
            next_step: None,
            slots: (0..limits.max_sequences).map(|_| None).collect(),
            cache: vec![0; limits.num_blocks * limits.block_size],
            holders: vec![0; limits.num_blocks],
        }
    }

    /// Runs a step; an error names the rule that it breaks.
    pub(crate) fn run(&mut self, step: &Step) -> Result<StepOutput, String> {
        let due = self.next_step.unwrap_or(step.id);
        ensure(step.id == due, || format!("step {} where {due} is due", step.id))?;
        self.next_step = Some(due + 1);
        for &slot in &step.release {
            let left = self.slots.get_mut(slot as usize).and_then(Option::take);
            let left = left.ok_or_else(|| format!("release of slot {slot}, which is free"))?;
            left.table.iter().for_each(|&block| self.holders[block as usize] -= 1);
        }
        step.admit.iter().try_for_each(|admission| self.admit(admission))?;

        let slots: HashSet<u32> = step.rows.iter().map(|row| row.slot).collect();
        ensure(slots.len() == step.rows.len(), || "two rows for one slot".into())?;
        ensure(!step.rows.is_empty(), || "a step without rows".into())?;
        let tokens: usize = step.rows.iter().map(|row| row.count as usize).sum();
        ensure(tokens <= self.limits.max_step_tokens, || format!("{tokens} tokens in one step"))?;
        let (mut sampled, mut scored, mut pooled) = (Vec::new(), Vec::new(), Vec::new());
        let mut errors = Vec::new();
        for row in &step.rows {
            let trouble =
                self.slots.get(row.slot as usize).and_then(Option::as_ref).map(|of| Trouble::of(of.seed));
            let end = (row.start + row.count) as usize;
            let error =
                |kind: RowErrorKind| RowError { slot: row.slot, kind: kind.into(), message: "!".repeat(128) };
            match trouble {
                Some(Trouble::Deadly(position)) if end > position => return Err(DEATH.to_owned()),
                Some(Trouble::Refused) => {
                    errors.push(error(RowErrorKind::Refused));
                    continue;
                }
                Some(Trouble::Broken(position)) if end > position => {
                    // It goes on with what it has; nobody wants that.
                    self.row(row)?;
                    errors.push(error(RowErrorKind::NotFinite));
                    continue;
                }
                _ => {}
            }
            let (token, scores) = self.row(row)?;
            sampled.extend(token);
            scored.extend(scores);
            pooled.extend(self.pool(row)?);
        }
        Ok(StepOutput { step: step.id, sampled, scored, pooled, errors, ..Default::default() })
    }

    fn admit(&mut self, admission: &Admission) -> Result<(), String> {
        let Admission { slot, tokens, prompt_len, sampling, .. } = admission;
        let place = self.slots.get_mut(*slot as usize).ok_or("no such slot")?;
        ensure(place.is_none(), || format!("slot {slot} is taken"))?;
        ensure((1..=tokens.len()).contains(&(*prompt_len as usize)), || "no prompt".into())?;
        *place = Some(Occupant {
            tokens: tokens.clone(),
            prompt_len: *prompt_len as usize,
            pooling: admission.pooling(),
            computed: None,
            begun_at: usize::MAX,
            seed: sampling.as_ref().ok_or("no sampling")?.seed,
            top_n: sampling.as_ref().map_or(0, |sampling| sampling.top_n),
            table: Vec::new(),
        });
        Ok(())
    }

    /// The vector of a prompt that this row has completed.
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
        let digest = occupant.tokens.iter().fold(START, |digest, &token| mix(digest, token));
        let values = vec![digest as f32, occupant.prompt_len as f32];
        Ok(is_last.then_some(Pooled { slot: row.slot, values }))
    }

    fn row(&mut self, row: &Row) -> Result<(Option<Sampled>, Option<Scored>), String> {
        let Limits { block_size, max_sequence_tokens, vocab_size, .. } = self.limits;
        let occupant =
            self.slots.get_mut(row.slot as usize).and_then(Option::as_mut).ok_or("row without slot")?;
        for &block in &row.new_blocks {
            ensure(!occupant.table.contains(&block), || {
                format!("block {block} is twice in slot {}", row.slot)
            })?;
            *self.holders.get_mut(block as usize).ok_or("no such block")? += 1;
            occupant.table.push(block);
        }
        let (start, end) = (row.start as usize, (row.start + row.count) as usize);
        ensure(row.count > 0, || "an empty row".into())?;
        ensure(start == occupant.computed.unwrap_or(start), || {
            format!("start {start}, but {:?} are computed", occupant.computed)
        })?;
        ensure(end <= occupant.tokens.len(), || "a token is run before it is known".into())?;
        ensure(end <= occupant.table.len() * block_size, || "positions without a block".into())?;
        let needed = end.div_ceil(block_size);
        ensure(occupant.table.len() <= occupant.tokens.len().div_ceil(block_size).max(needed), || {
            "more blocks than tokens".into()
        })?;
        let place = |table: &[u32], position: usize| {
            table[position / block_size] as usize * block_size + position % block_size
        };
        let mut digest = START;
        for position in 0..start {
            digest = mix(digest, occupant.tokens[position]);
            ensure(self.cache[place(&occupant.table, position)] == digest, || {
                format!("position {position} of slot {} holds something else", row.slot)
            })?;
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
        if !row.sample {
            ensure(row.allowed.is_empty(), || "a mask for nothing".into())?;
            return Ok((None, scored));
        }
        ensure(end == occupant.tokens.len(), || "a token is sampled twice".into())?;
        ensure(end < max_sequence_tokens, || "the sequence is full".into())?;
        let mut token = draw(digest, occupant.seed, vocab_size);
        if !row.allowed.is_empty() {
            ensure(row.allowed.len() == vocab_size.div_ceil(32), || "a mask for another vocabulary".into())?;
            token = nearest(token, &row.allowed, vocab_size).ok_or("nothing is allowed")?;
        }
        occupant.tokens.push(token);
        let top = vec![TokenLogprob { token, logprob: -1.0 }; occupant.top_n as usize];
        Ok((Some(Sampled { slot: row.slot, token, logprob: -1.0, top }), scored))
    }
}
