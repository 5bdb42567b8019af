//! A shard without a model. It holds the scheduler to every rule of the contract, keeps a real paged cache, and makes
//! each token from the whole content of its sequence, read back through the block table.

use std::collections::HashSet;

use millrace_proto::{Admission, Row, Sampled, Step, StepOutput};

use crate::scheduler::Limits;
use crate::scheduler::{Finish, Request};

pub(crate) struct PretendShard {
    limits: Limits,
    next_step: u64,
    slots: Vec<Option<Occupant>>,
    /// What stands at each position of each block: a digest of all tokens up to there.
    cache: Vec<u64>,
    /// Which slot has a block in its table.
    owner: Vec<Option<u32>>,
}

pub(crate) struct Occupant {
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    pub(crate) computed: usize,
    seed: u64,
    table: Vec<u32>,
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

/// What a request gets when it runs alone.
pub(crate) fn alone(request: &Request, vocab_size: usize) -> (Vec<u32>, Finish) {
    let mut digest = request.prompt.iter().fold(request.sampling.seed, |digest, &token| mix(digest, token));
    let mut generated = Vec::new();
    loop {
        let token = token_of(digest, vocab_size);
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
            next_step: 0,
            slots: (0..limits.max_sequences).map(|_| None).collect(),
            cache: vec![0; limits.num_blocks * limits.block_size],
            owner: vec![None; limits.num_blocks],
        }
    }

    pub(crate) fn occupant(&self, slot: u32) -> Option<&Occupant> {
        self.slots[slot as usize].as_ref()
    }

    /// Runs a step; an error names the rule that it breaks.
    pub(crate) fn run(&mut self, step: &Step) -> Result<StepOutput, String> {
        ensure(step.id == self.next_step, || format!("step {} where {} is due", step.id, self.next_step))?;
        self.next_step += 1;
        for &slot in &step.release {
            let left = self.slots.get_mut(slot as usize).and_then(Option::take);
            let left = left.ok_or_else(|| format!("release of slot {slot}, which is free"))?;
            left.table.iter().for_each(|&block| self.owner[block as usize] = None);
        }
        step.admit.iter().try_for_each(|admission| self.admit(admission))?;

        let slots: HashSet<u32> = step.rows.iter().map(|row| row.slot).collect();
        ensure(slots.len() == step.rows.len(), || "two rows for one slot".into())?;
        ensure(!step.rows.is_empty(), || "a step without rows".into())?;
        let tokens: usize = step.rows.iter().map(|row| row.count as usize).sum();
        ensure(tokens <= self.limits.max_step_tokens, || format!("{tokens} tokens in one step"))?;
        let mut sampled = Vec::new();
        for row in &step.rows {
            sampled.extend(self.row(row)?);
        }
        Ok(StepOutput { step: step.id, sampled, ..Default::default() })
    }

    fn admit(&mut self, admission: &Admission) -> Result<(), String> {
        let Admission { slot, tokens, prompt_len, sampling } = admission;
        let place = self.slots.get_mut(*slot as usize).ok_or("no such slot")?;
        ensure(place.is_none(), || format!("slot {slot} is taken"))?;
        ensure((1..=tokens.len()).contains(&(*prompt_len as usize)), || "no prompt".into())?;
        *place = Some(Occupant {
            tokens: tokens.clone(),
            prompt_len: *prompt_len as usize,
            computed: 0,
            seed: sampling.as_ref().ok_or("no sampling")?.seed,
            table: Vec::new(),
        });
        Ok(())
    }

    fn row(&mut self, row: &Row) -> Result<Option<Sampled>, String> {
        let Limits { block_size, max_sequence_tokens, vocab_size, .. } = self.limits;
        let occupant =
            self.slots.get_mut(row.slot as usize).and_then(Option::as_mut).ok_or("row without slot")?;
        for &block in &row.new_blocks {
            let owner = self.owner.get_mut(block as usize).ok_or("no such block")?;
            ensure(owner.is_none(), || {
                format!("block {block} of slot {owner:?} is given to slot {}", row.slot)
            })?;
            *owner = Some(row.slot);
            occupant.table.push(block);
        }
        let (start, end) = (row.start as usize, (row.start + row.count) as usize);
        ensure(row.count > 0, || "an empty row".into())?;
        ensure(start == occupant.computed, || {
            format!("start {start}, but {} are computed", occupant.computed)
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
        let mut digest = match start.checked_sub(1) {
            Some(before) => self.cache[place(&occupant.table, before)],
            None => occupant.seed,
        };
        for position in start..end {
            digest = mix(digest, occupant.tokens[position]);
            self.cache[place(&occupant.table, position)] = digest;
        }
        occupant.computed = end;
        if !row.sample {
            return Ok(None);
        }
        ensure(end == occupant.tokens.len(), || "a token is sampled twice".into())?;
        ensure(end < max_sequence_tokens, || "the sequence is full".into())?;
        let mut expected = occupant.seed;
        for position in 0..end {
            expected = mix(expected, occupant.tokens[position]);
            let found = self.cache[place(&occupant.table, position)];
            ensure(found == expected, || {
                format!("position {position} of slot {} was overwritten", row.slot)
            })?;
        }
        let token = token_of(digest, vocab_size);
        occupant.tokens.push(token);
        Ok(Some(Sampled { slot: row.slot, token, logprob: -1.0, top: Vec::new() }))
    }
}
