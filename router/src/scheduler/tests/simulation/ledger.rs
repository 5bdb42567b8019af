//! What can be known of a scheduler from its plans alone, and the promises that can be checked with it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use millrace_proto::MAX_FRAME;

use crate::scheduler::{Limits, Options, Plan, Request, SeqId};

pub(super) struct Ledger {
    limits: Limits,
    options: Options,
    /// Who holds which slot, as the newest plan has it.
    stays: HashMap<u32, Stay>,
    blocks: Vec<Block>,
    /// Positions that went past each sequence since it is in the queue.
    waiting: BTreeMap<SeqId, usize>,
    known: HashMap<SeqId, Known>,
    /// Constrained sequences that cannot go on: their newest token is in flight, or what may follow it is not known.
    held: HashSet<SeqId>,
    /// Sequences that have been in quarantine: they leave their slots when they are found innocent.
    tried: HashSet<SeqId>,
    /// Steps below this have been answered.
    answered: u64,
    pub(super) overtakes: u64,
    pub(super) hit_blocks: u64,
    /// Hits on blocks that another sequence held at the time.
    pub(super) shared_blocks: u64,
}

/// A sequence in a slot.
struct Stay {
    id: SeqId,
    table: Vec<u32>,
    /// Tokens, those included that steps in flight will sample.
    len: usize,
    /// Positions run; nothing before the first row.
    computed: Option<usize>,
    cached: usize,
}

/// What was last written into a block.
#[derive(Clone, Default)]
struct Block {
    salt: Option<std::sync::Arc<str>>,
    written_by: u64,
}

struct Known {
    request: Request,
    /// Rows that sampled since the last admission.
    progress: Option<usize>,
}

/// Tokens that a request may get.
pub(super) fn new_tokens(request: &Request) -> usize {
    if request.pooling.is_some() { 0 } else { request.max_new_tokens as usize }
}

/// Positions that a request holds at most.
pub(super) fn work(request: &Request) -> usize {
    request.prompt.len() + new_tokens(request).max(1) - 1
}

impl Ledger {
    pub(super) fn new(limits: Limits, options: Options) -> Self {
        Ledger {
            limits,
            options,
            stays: HashMap::new(),
            blocks: vec![Block::default(); limits.num_blocks],
            waiting: BTreeMap::new(),
            known: HashMap::new(),
            held: HashSet::new(),
            tried: HashSet::new(),
            answered: 0,
            overtakes: 0,
            hit_blocks: 0,
            shared_blocks: 0,
        }
    }

    pub(super) fn arrived(&mut self, id: SeqId, request: Request) {
        self.waiting.insert(id, 0);
        assert!(self.known.insert(id, Known { request, progress: None }).is_none(), "{id:?} is given twice");
    }

    /// Finished or cancelled. The slot is free only when a plan releases it.
    pub(super) fn left(&mut self, id: SeqId) {
        self.waiting.remove(&id);
        self.known.remove(&id);
        self.held.remove(&id);
    }

    /// A constrained sequence can go on.
    pub(super) fn released(&mut self, id: SeqId) {
        self.held.remove(&id);
    }

    /// The shards have died. Only of these constrained sequences it is not known what may come next.
    pub(super) fn died(&mut self, limits: Limits, next_step: u64, held: impl Iterator<Item = SeqId>) {
        self.held = held.collect();
        self.limits = limits;
        self.stays.clear();
        self.blocks = vec![Block::default(); limits.num_blocks];
        self.answered = next_step;
        self.known.values_mut().for_each(|known| known.progress = None);
        self.waiting =
            self.known.keys().map(|&id| (id, self.waiting.get(&id).copied().unwrap_or(0))).collect();
    }

    pub(super) fn answered(&mut self, step: u64) {
        self.answered = step + 1;
    }

    pub(super) fn planned(&mut self, plan: &Plan, quarantine: &BTreeSet<SeqId>) {
        self.tried.extend(quarantine);
        self.check_quarantine(plan, quarantine);
        let first = self.stays.values().map(|stay| stay.id).min();
        for slot in &plan.step.release {
            let left = self.stays.remove(slot).expect("only taken slots are released").id;
            if self.known.contains_key(&left) {
                assert!(first != Some(left) || self.tried.contains(&left), "the first in line is preempted");
                self.waiting.insert(left, 0);
            }
        }
        assert_eq!(plan.admitted.len(), plan.step.admit.len());
        for (admitted, admission) in plan.admitted.iter().zip(&plan.step.admit) {
            if quarantine.contains(&admitted.sequence) {
                self.waiting.remove(&admitted.sequence).expect("only waiting sequences are admitted");
            } else {
                self.check_patience(admitted.sequence);
            }
            assert!(!self.held.contains(&admitted.sequence), "{admitted:?} is held");
            let known = self.known.get_mut(&admitted.sequence).expect("only live sequences are admitted");
            // Preemption never wastes a whole prefill.
            assert!(
                known.progress != Some(0) || self.tried.contains(&admitted.sequence),
                "{admitted:?} was preempted before it had a token"
            );
            known.progress = Some(0);
            let stay = Stay {
                id: admitted.sequence,
                table: Vec::new(),
                len: admission.tokens.len(),
                computed: None,
                cached: admitted.cached_tokens,
            };
            assert!(self.stays.insert(admission.slot, stay).is_none(), "a taken slot is given away");
        }
        self.check_no_stream_is_stalled(plan);
        self.read(plan);
        self.write(plan);
    }

    /// As long as there is a quarantine, one of its sequences runs and nothing else.
    fn check_quarantine(&self, plan: &Plan, quarantine: &BTreeSet<SeqId>) {
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

    /// Whoever is passed in the queue loses patience some time.
    fn check_patience(&mut self, admitted: SeqId) {
        self.waiting.remove(&admitted).expect("only waiting sequences are admitted");
        let work = work(&self.known[&admitted].request);
        let patience = self.limits.num_blocks * self.limits.block_size;
        for (id, passed) in self.waiting.range_mut(..admitted) {
            *passed += work;
            self.overtakes += 1;
            assert!(*passed <= patience, "{id:?} is passed by {passed} positions");
        }
    }

    /// Whoever decodes has a row in each step, unless it leaves its slot.
    fn check_no_stream_is_stalled(&self, plan: &Plan) {
        // Where messages are small a row may not fit.
        if self.limits.max_frame_bytes < MAX_FRAME {
            return;
        }
        for (slot, stay) in &self.stays {
            let Some(Known { request, progress }) = self.known.get(&stay.id) else { continue };
            let exhausted = stay.len >= request.prompt.len() + new_tokens(request);
            let waits = exhausted || self.held.contains(&stay.id);
            let decodes = *progress > Some(0) && !waits && stay.computed == Some(stay.len - 1);
            let runs = plan.step.rows.iter().any(|row| row.slot == *slot);
            assert!(!decodes || runs, "slot {slot} is stalled by {plan:?}");
        }
    }

    /// Checks what is taken over from others: of the same salt, and written by answered steps.
    fn read(&mut self, plan: &Plan) {
        for row in &plan.step.rows {
            let stay = self.stays.get_mut(&row.slot).expect("only taken slots run");
            assert!(self.known.contains_key(&stay.id), "a row for one that has left");
            stay.table.extend(&row.new_blocks);
            if stay.computed.is_some() {
                continue;
            }
            let (start, block_size) = (row.start as usize, self.limits.block_size);
            assert_eq!(start, stay.cached, "the plan tells what is cached");
            assert!(start == 0 || self.options.prefix_cache && start % block_size == 0 && start < stay.len);
            let (id, hits) = (stay.id, stay.table[..start / block_size].to_vec());
            for &block in &hits {
                let Block { salt, written_by } = &self.blocks[block as usize];
                assert_eq!(*salt, self.known[&id].request.cache_salt, "{id:?} reads another salt's block");
                assert!(*written_by < self.answered, "{id:?} reads what step {written_by} may never write");
            }
            let other_tables = self.stays.values().filter(|other| other.id != id).map(|other| &other.table);
            let shared = |block: &&u32| other_tables.clone().any(|table| table.contains(block));
            self.shared_blocks += hits.iter().filter(shared).count() as u64;
            self.hit_blocks += hits.len() as u64;
        }
    }

    fn write(&mut self, plan: &Plan) {
        for row in &plan.step.rows {
            let stay = self.stays.get_mut(&row.slot).expect("only taken slots run");
            let known = self.known.get_mut(&stay.id).expect("only live sequences run");
            let (start, end) = (row.start as usize, (row.start + row.count) as usize);
            for &block in &stay.table[start / self.limits.block_size..end.div_ceil(self.limits.block_size)] {
                let salt = known.request.cache_salt.clone();
                self.blocks[block as usize] = Block { salt, written_by: plan.step.id };
            }
            stay.computed = Some(end);
            let constrained = known.request.mask.is_some();
            assert_eq!(!row.allowed.is_empty(), row.sample && constrained, "{row:?}");
            assert!(!self.held.contains(&stay.id), "a row for one that is held");
            if end == stay.len && new_tokens(&known.request) == 0 {
                known.progress = Some(1);
            }
            if row.sample {
                if constrained {
                    self.held.insert(stay.id);
                }
                stay.len += 1;
                *known.progress.as_mut().expect("a running sequence was admitted") += 1;
            }
        }
    }
}
