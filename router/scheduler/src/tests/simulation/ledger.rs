//! A record of what the plans of a scheduler and the answers to them imply, and the checks of its
//! promises.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use millrace_proto::{MAX_FRAME, Masks, Sampled, Step};

use crate::test_support::Trouble;
use crate::{
    AdapterId, PlannedStep, Pooling, Request, Schedule, SchedulerLimits, SchedulerOptions, SeqId, Tenant,
};

pub(super) struct Ledger {
    limits: SchedulerLimits,
    /// Whether the shards report the times of steps.
    has_times: bool,
    options: SchedulerOptions,
    /// The sequence in each slot, according to the newest plan.
    stays: HashMap<u32, Stay>,
    blocks: Vec<Block>,
    /// The block that was written last to disk with each hash. A step that was lost may not have
    /// written it, and then a shard finds another hash in the slot.
    on_disk: HashMap<Vec<u8>, Block>,
    /// Work, in positions, that overtook each sequence since it is in the queue.
    waiting: BTreeMap<SeqId, usize>,
    known: HashMap<SeqId, Known>,
    /// Constrained sequences whose next mask is not known.
    held: HashSet<SeqId>,
    /// All tenants that ever had a sequence.
    tenants: HashSet<Tenant>,
    /// The sequences of the slots that have rows in each step in flight.
    slots_of: HashMap<u64, HashMap<u32, SeqId>>,
    /// The sampling rows of constrained sequences in each step in flight, oldest first.
    expected: VecDeque<Vec<SeqId>>,
    /// Sequences that have been in quarantine: they leave their slots when they leave the
    /// quarantine.
    tried: HashSet<SeqId>,
    /// Sequences whose places were taken by sequences of higher priority.
    displaced: HashSet<SeqId>,
    /// Total number of such preemptions that the scheduler has reported.
    pub(super) priority_preemptions: u64,
    /// Steps below this have been answered.
    answered: u64,
    /// Whether the step in flight has drafts.
    is_drafted: bool,
    pub(super) overtakes: u64,
    pub(super) hit_blocks: u64,
    /// Hits on blocks that another sequence held at the time.
    pub(super) shared_blocks: u64,
    /// Reused blocks that were computed with an adapter.
    pub(super) adapted_blocks: u64,
    /// Hits on blocks that another sequence was computing when the sequence arrived.
    pub(super) awaited_blocks: u64,
}

/// A sequence in a slot.
struct Stay {
    id: SeqId,
    table: Vec<u32>,
    /// Number of tokens, with the ones that steps in flight will sample.
    len: usize,
    /// Number of computed positions; `None` before the first row.
    computed: Option<usize>,
    cached: usize,
    /// The step that admitted the sequence.
    since: u64,
    /// The tokens with which the sequence was admitted.
    tokens: Vec<u32>,
    /// Number of admitted tokens that have been computed by answered steps.
    answered: usize,
}

/// The last writer of a block.
#[derive(Clone, Default)]
struct Block {
    salt: Option<std::sync::Arc<str>>,
    adapter: Option<AdapterId>,
    written_by: u64,
}

struct Known {
    request: Request,
    /// Number of rows that sampled since the last admission.
    progress: Option<usize>,
    /// Whether the sequence has been admitted before.
    has_run: bool,
}

/// Maximum number of tokens that a request gets.
pub(super) fn new_tokens(request: &Request) -> usize {
    if request.pooling.is_some() { 0 } else { request.max_new_tokens as usize }
}

/// Maximum number of positions that a request holds.
pub(super) fn work(request: &Request) -> usize {
    request.prompt.len() + new_tokens(request).max(1) - 1
}

impl Ledger {
    pub(super) fn new(limits: SchedulerLimits, options: SchedulerOptions, has_times: bool) -> Self {
        let prefix_cache = options.prefix_cache && limits.shares_blocks();
        Ledger {
            limits,
            has_times,
            options: SchedulerOptions { prefix_cache, ..options },
            stays: HashMap::new(),
            blocks: vec![Block::default(); limits.num_blocks],
            on_disk: HashMap::new(),
            waiting: BTreeMap::new(),
            known: HashMap::new(),
            held: HashSet::new(),
            tenants: HashSet::new(),
            slots_of: HashMap::new(),
            expected: VecDeque::new(),
            tried: HashSet::new(),
            displaced: HashSet::new(),
            priority_preemptions: 0,
            answered: 0,
            is_drafted: false,
            overtakes: 0,
            hit_blocks: 0,
            shared_blocks: 0,
            adapted_blocks: 0,
            awaited_blocks: 0,
        }
    }

    pub(super) fn arrived(&mut self, id: SeqId, request: Request) {
        self.waiting.insert(id, 0);
        self.tenants.insert(request.tenant.clone());
        let known = Known { request, progress: None, has_run: false };
        assert!(self.known.insert(id, known).is_none(), "{id:?} is given twice");
    }

    /// A sequence has finished or was cancelled. Its slot is free when a plan releases it.
    pub(super) fn left(&mut self, id: SeqId) {
        self.waiting.remove(&id);
        self.known.remove(&id);
        self.held.remove(&id);
    }

    /// A constrained sequence has a new token, and needs its next mask.
    pub(super) fn needs_mask(&mut self, id: SeqId) {
        self.held.insert(id);
    }

    /// The next mask of a constrained sequence is known.
    pub(super) fn released(&mut self, id: SeqId) {
        self.held.remove(&id);
    }

    /// The shards have died. `held` are the constrained sequences whose next mask is not known.
    pub(super) fn died(
        &mut self,
        limits: SchedulerLimits,
        next_step: u64,
        held: impl Iterator<Item = SeqId>,
    ) {
        self.held = held.collect();
        self.expected.clear();
        self.slots_of.clear();
        self.is_drafted = false;
        self.limits = limits;
        self.stays.clear();
        self.blocks = vec![Block::default(); limits.num_blocks];
        self.answered = next_step;
        self.known.values_mut().for_each(|known| known.progress = None);
        self.waiting =
            self.known.keys().map(|&id| (id, self.waiting.get(&id).copied().unwrap_or(0))).collect();
    }

    /// Whether a constrained sequence has tokens in flight. It may run ahead of its masks then, and
    /// need not.
    fn has_pending(&self, id: SeqId) -> bool {
        self.expected.iter().flatten().any(|&other| other == id)
    }

    /// The masks of the oldest step in flight are known. Its other rows whose masks follow are
    /// deferred: they run the same position again. Returns the number of deferred rows whose
    /// sequences still run.
    pub(super) fn masks(&mut self, step: &Step, masks: &Masks) -> u64 {
        let mut deferred = 0;
        for row in step.rows.iter().filter(|row| row.mask_follows) {
            if masks.rows.iter().any(|mask| mask.slot == row.slot) {
                continue;
            }
            let id = self.slots_of[&step.id][&row.slot];
            if let Some(oldest) = self.expected.front_mut() {
                oldest.retain(|&other| other != id);
            }
            if let Some(stay) = self.stays.values_mut().find(|stay| stay.id == id)
                && self.known.contains_key(&id)
            {
                deferred += 1;
                stay.len -= 1;
                stay.computed = stay.computed.map(|computed| computed - 1);
            }
        }
        deferred
    }

    /// A step has been answered.
    pub(super) fn answered(&mut self, step: &Step, sampled: &[Sampled]) {
        self.answered = step.id + 1;
        self.is_drafted = false;
        for row in &step.rows {
            let tokens = sampled.iter().filter(|token| token.slot == row.slot).count();
            let right = tokens.saturating_sub(1);
            if let Some(stay) = self.stays.get_mut(&row.slot).filter(|stay| stay.since <= step.id) {
                stay.len += right;
                stay.computed = stay.computed.map(|computed| computed + right);
            }
            if let Some(stay) = self.stays.get_mut(&row.slot)
                && stay.since <= step.id
            {
                let end = (row.start + row.count) as usize;
                stay.answered = stay.answered.max(end.min(stay.tokens.len()));
            }
        }
        self.expected.pop_front();
        self.slots_of.remove(&step.id);
    }

    /// A step has been planned. `priority_preemptions` is the scheduler's total after it.
    pub(super) fn planned(
        &mut self,
        plan: &PlannedStep,
        quarantine: &BTreeSet<SeqId>,
        priority_preemptions: u64,
    ) {
        assert!(!self.is_drafted, "a step is planned while drafts are in flight");
        self.is_drafted = plan.step.rows.iter().any(|row| row.draft_count() > 0);
        self.tried.extend(quarantine);
        self.check_quarantine(plan, quarantine);
        let first = self.stays.values().map(|stay| stay.id).min();
        let (mut taken, mut leaving) = (0, BTreeSet::new());
        for slot in &plan.step.release {
            let left = self.stays.remove(slot).expect("only taken slots are released").id;
            if self.known.contains_key(&left) {
                if self.takes_place_of(plan, left) {
                    taken += 1;
                    self.displaced.insert(left);
                } else {
                    let may_leave = first != Some(left) || self.tried.contains(&left);
                    assert!(may_leave, "the first in line is preempted");
                }
                self.waiting.insert(left, 0);
                leaving.insert(left);
            }
        }
        // A sequence leaves for a higher priority only if that is admitted into the same step.
        assert!(priority_preemptions <= self.priority_preemptions + taken, "{plan:?}");
        self.priority_preemptions = priority_preemptions;
        assert_eq!(plan.admitted.len(), plan.step.admit.len());
        for (admitted, admission) in plan.admitted.iter().zip(&plan.step.admit) {
            if quarantine.contains(&admitted.sequence) {
                self.waiting.remove(&admitted.sequence).expect("only waiting sequences are admitted");
            } else {
                self.check_overtaking(admitted.sequence, &leaving);
            }
            assert!(!self.held.contains(&admitted.sequence), "{admitted:?} waits for its mask");
            let known = self.known.get_mut(&admitted.sequence).expect("only live sequences are admitted");
            // A preemption for want of blocks never wastes a whole prefill, unless the number of
            // steps of the prefill was predicted from times, or the schedule admits a sequence
            // before others that will precede it.
            let displaced = self.displaced.remove(&admitted.sequence);
            assert!(
                known.progress != Some(0)
                    || displaced
                    || self.has_times
                    || self.options.schedule == Schedule::Lpm
                    || self.tried.contains(&admitted.sequence),
                "{admitted:?} was preempted before it had a token"
            );
            known.progress = Some(0);
            known.has_run = true;
            let stay = Stay {
                id: admitted.sequence,
                table: Vec::new(),
                len: admission.tokens.len(),
                computed: None,
                cached: admitted.cached_tokens,
                since: plan.step.id,
                tokens: admission.tokens.clone(),
                answered: admitted.cached_tokens,
            };
            if quarantine.is_empty() {
                self.check_sharing(&stay, leaving.len());
            }
            assert!(self.stays.insert(admission.slot, stay).is_none(), "a taken slot is given away");
        }
        self.check_no_stream_is_stalled(plan);
        self.copy(&plan.step);
        self.read(plan);
        self.write(plan);
    }

    /// Whether a plan admits a sequence that may take the place of `left`: it has a higher priority
    /// and is ordered before it.
    fn takes_place_of(&self, plan: &PlannedStep, left: SeqId) -> bool {
        let priority = self.known[&left].request.priority;
        let mut admitted = plan.admitted.iter().map(|admitted| admitted.sequence);
        admitted.any(|id| id < left && self.known[&id].request.priority < priority)
    }

    /// While a sequence is in quarantine, exactly one such sequence runs and no other.
    fn check_quarantine(&self, plan: &PlannedStep, quarantine: &BTreeSet<SeqId>) {
        if !quarantine.is_empty() {
            let admitted = plan.admitted.iter().map(|admitted| admitted.sequence);
            let stay = |slot: &u32| self.stays.get(slot).map(|stay| stay.id);
            let admitted_slots: Vec<u32> = plan.step.admit.iter().map(|admission| admission.slot).collect();
            let others =
                plan.step.rows.iter().map(|row| row.slot).filter(|slot| !admitted_slots.contains(slot));
            let running = others.map(|slot| stay(&slot).expect("only taken slots run"));
            let all: HashSet<SeqId> = admitted.chain(running).collect();
            assert!(all.len() == 1 && all.is_subset(&quarantine.iter().copied().collect()), "{plan:?}");
        }
    }

    /// Overtaking is bounded. With several tenants, this holds among the sequences of each of them
    /// that have not run before. The sequences that leave their slots in this step may have left
    /// them for a later one of its admissions, so they are not counted as overtaken yet.
    fn check_overtaking(&mut self, admitted: SeqId, leaving: &BTreeSet<SeqId>) {
        self.waiting.remove(&admitted).expect("only waiting sequences are admitted");
        let Known { request, has_run, .. } = &self.known[&admitted];
        let work = work(request);
        let allowance = self.limits.num_blocks * self.limits.block_size;
        let several = self.tenants.len() > 1;
        let has_adapters = self.limits.adapters > 0;
        // While a sequence waits for a place, others do not overtake it.
        let waits_for_places = self.limits.max_loaded_adapters > self.limits.adapters;
        for (id, passed) in self.waiting.range_mut(..admitted) {
            let other = &self.known[id].request;
            let is_apart = other.tenant != request.tenant || other.adapter != request.adapter;
            let other_order = (several || has_adapters) && (*has_run || is_apart);
            let may_wait = waits_for_places && self.known[id].request.adapter.is_some();
            if other_order || may_wait || leaving.contains(id) {
                continue;
            }
            *passed += work;
            self.overtakes += 1;
            assert!(*passed <= allowance, "{id:?} is overtaken by {passed} positions");
        }
    }

    /// A sequence is not admitted while another one is computing its prefix.
    ///
    /// The check covers producers that are the only prompt, for which waiting always pays. The
    /// `leaving` sequences that leave their slots in this step may have been prompts beside it.
    fn check_sharing(&mut self, admitted: &Stay, leaving: usize) {
        let request = &self.known[&admitted.id].request;
        let block_size = self.limits.block_size;
        let reads_everything = admitted.cached == 0
            && (request.prompt_logprobs.is_some()
                || request.pooling.is_some_and(|pooling| pooling != Pooling::Last));
        let is_prompt = |stay: &&Stay| stay.computed.unwrap_or(stay.cached) < stay.tokens.len();
        let prompts = self.stays.values().filter(is_prompt).count();
        for producer in self.stays.values() {
            let Some(Known { request: other, .. }) = self.known.get(&producer.id) else { continue };
            let equal = producer.tokens.iter().zip(&admitted.tokens).take_while(|(a, b)| a == b).count();
            let common = equal.min(admitted.tokens.len() - 1) / block_size;
            let answered = producer.answered / block_size;
            let computed = common.saturating_sub(producer.cached / block_size);
            // A sequence with recurrent states can only begin at a checkpoint.
            let is_shared = self.options.prefix_cache
                && !self.limits.shares_at_checkpoints()
                && other.cache_salt == request.cache_salt
                && other.adapter == request.adapter
                && !matches!(Trouble::of(other.sampling.seed), Trouble::Broken(_))
                && !reads_everything
                && prompts + leaving <= 1
                && computed >= 2;
            let waits = is_shared && answered < common && answered == admitted.cached / block_size;
            assert!(!waits, "{:?} computes again what {:?} is computing", admitted.id, producer.id);
            if computed >= 2 && admitted.cached > producer.cached {
                let awaited = (admitted.cached / block_size).min(common) - producer.cached / block_size;
                self.awaited_blocks += awaited as u64;
            }
        }
    }

    /// A sequence that decodes has a row in each step, unless it leaves its slot.
    fn check_no_stream_is_stalled(&self, plan: &PlannedStep) {
        // If messages are small, a row may not fit.
        // Rows of several tenants take turns.
        if self.limits.max_frame_bytes < MAX_FRAME || self.tenants.len() > 1 {
            return;
        }
        for (slot, stay) in &self.stays {
            let Some(Known { request, progress, .. }) = self.known.get(&stay.id) else { continue };
            let exhausted = stay.len >= request.prompt.len() + new_tokens(request);
            let masked = self.held.contains(&stay.id) || self.has_pending(stay.id);
            let waits = exhausted || masked;
            let decodes = *progress > Some(0) && !waits && stay.computed == Some(stay.len - 1);
            let runs = plan.step.rows.iter().any(|row| row.slot == *slot);
            assert!(!decodes || runs, "slot {slot} is stalled by {plan:?}");
        }
    }

    /// Checks the blocks that are reused: they have the same salt and adapter and were written by
    /// answered steps.
    fn read(&mut self, plan: &PlannedStep) {
        for row in &plan.step.rows {
            let stay = self.stays.get_mut(&row.slot).expect("only taken slots run");
            assert!(self.known.contains_key(&stay.id), "a row for a sequence that has left");
            stay.table.extend(&row.new_blocks);
            if stay.computed.is_some() {
                continue;
            }
            let (start, block_size) = (row.start as usize, self.limits.block_size);
            assert_eq!(start, stay.cached, "the plan tells what is cached");
            assert!(start == 0 || self.options.prefix_cache && start % block_size == 0 && start < stay.len);
            let (id, hits) = (stay.id, stay.table[..start / block_size].to_vec());
            for &block in &hits {
                let Block { salt, adapter, written_by } = &self.blocks[block as usize];
                let request = &self.known[&id].request;
                assert_eq!(*salt, request.cache_salt, "{id:?} reads another salt's block");
                assert_eq!(*adapter, request.adapter, "{id:?} reads another adapter's block");
                self.adapted_blocks += u64::from(adapter.is_some());
                assert!(*written_by < self.answered, "{id:?} reads what step {written_by} may never write");
            }
            let other_tables = self.stays.values().filter(|other| other.id != id).map(|other| &other.table);
            let shared = |block: &&u32| other_tables.clone().any(|table| table.contains(block));
            self.shared_blocks += hits.iter().filter(shared).count() as u64;
            self.hit_blocks += hits.len() as u64;
        }
    }

    /// Follows the copies of a step. Only blocks of answered steps are written to disk, and a block
    /// that is read counts as computed when its step has been answered.
    fn copy(&mut self, step: &Step) {
        for write in &step.disk_writes {
            let block = &self.blocks[write.block as usize];
            assert!(block.written_by < self.answered, "{write:?} copies what may never be computed");
            self.on_disk.insert(write.hash.clone(), block.clone());
        }
        for read in &step.disk_reads {
            let block = Block { written_by: step.id, ..self.on_disk[&read.hash].clone() };
            self.blocks[read.block as usize] = block;
        }
    }

    fn write(&mut self, plan: &PlannedStep) {
        let mut expected = Vec::new();
        let of_slot = |row: &millrace_proto::Row| (row.slot, self.stays[&row.slot].id);
        self.slots_of.insert(plan.step.id, plan.step.rows.iter().map(of_slot).collect());
        for row in &plan.step.rows {
            let stay = self.stays.get_mut(&row.slot).expect("only taken slots run");
            let known = self.known.get_mut(&stay.id).expect("only live sequences run");
            let (start, end) = (row.start as usize, (row.start + row.count) as usize);
            let written = end + row.draft_count();
            for &block in
                &stay.table[start / self.limits.block_size..written.div_ceil(self.limits.block_size)]
            {
                let Request { adapter, ref cache_salt, .. } = known.request;
                let (salt, written_by) = (cache_salt.clone(), plan.step.id);
                self.blocks[block as usize] = Block { salt, adapter, written_by };
            }
            stay.computed = Some(end);
            let constrained = known.request.mask.is_some();
            let has_mask = !row.allowed.is_empty() ^ row.mask_follows;
            assert_eq!(has_mask, row.sample && constrained, "{row:?}");
            let drafts = row.draft_count();
            assert!(drafts == 0 || end == stay.len, "drafts behind a token that is not known");
            assert!(drafts <= self.options.drafts, "{row:?}");
            let pending = self.expected.iter().flatten().any(|&other| other == stay.id);
            assert_eq!(row.mask_follows, pending, "only a row behind a token in flight waits for its mask");
            assert!(pending || !self.held.contains(&stay.id), "a row for a sequence that waits for its mask");
            if end == stay.len && new_tokens(&known.request) == 0 {
                known.progress = Some(1);
            }
            if row.sample {
                if constrained {
                    self.held.insert(stay.id);
                    expected.push(stay.id);
                }
                stay.len += 1;
                *known.progress.as_mut().expect("a running sequence was admitted") += 1;
            }
        }
        self.expected.push_back(expected);
    }
}
