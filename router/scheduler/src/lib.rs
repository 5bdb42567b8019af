//! The scheduler: decides which tokens of which sequences run in the next step, and in which blocks
//! of the KV cache their keys and values are stored.
//!
//! [`Scheduler`] is a pure state machine. It has no clock, socket or random numbers, so a
//! simulation can replay it. It knows token ids and the messages of the protocol, and must not know
//! text, HTTP, threads or how masks are computed:
//!
//! - [`add`](Scheduler::add) and [`cancel`](Scheduler::cancel) change the set of sequences.
//! - [`plan`](Scheduler::plan) returns the next step for the shards.
//! - [`apply`](Scheduler::apply) takes the answer to the oldest step in flight.
//! - [`release`](Scheduler::release) tells which tokens may come next in a constrained sequence.
//! - [`masks`](Scheduler::masks) returns the masks that follow a step.
//! - [`lose`](Scheduler::lose) and [`recover`](Scheduler::recover) handle the loss of the shards.
//! - [`take`](Scheduler::take) and [`adopt`](Scheduler::adopt) move sequences to another scheduler.
//!
//! Steps may be planned before earlier steps have been answered. Answers arrive in the order of the
//! steps.
//!
//! # What a step contains
//!
//! A step is a mixed batch. Sequences that decode come first, with one token each, so a long prompt
//! never stalls a running stream. Prompts share a budget in chunks ([`prompt_shares`]). The budget
//! bounds the time by which they extend the step ([`prompt_budget`]), as predicted from the times
//! of earlier steps ([`cost_model`]).
//!
//! Sequences are ordered by arrival and priority, and [`admission`] decides which of them leave the
//! queue. Several tenants get fair shares of the tokens ([`fair_share`]), of the slots
//! ([`slot_shares`]) and of the time of each step ([`tenant_time`]). The adapters of one tenant
//! share its tokens ([`shares`]). An admitted sequence reuses the blocks of its prefix that were
//! computed for other sequences ([`cache`]), and it waits in the queue for blocks that another
//! sequence is computing ([`prefix_wait`]).
//!
//! If no block is free, the last running sequence is preempted: it goes back to the queue with its
//! tokens and is computed again later. A waiting sequence may also take the place of a running one
//! with a lower priority ([`priority`]). The first sequence in order is never preempted for another
//! one, so there is always progress.
//!
//! # An example of admission
//!
//! The shards announce steps of 32 tokens, 4 slots, and blocks of 16 positions. Three streams run:
//! each has a prompt of 20 tokens, has 22 tokens by now, and holds 2 blocks. Now a request comes
//! whose prompt has 100 tokens. It is admitted if four reserves fit:
//!
//! | reserve | in the example |
//! |---|---|
//! | a token of the step for each other slot, so that no stream waits for a prompt | prompts have 32 − 3 = 29 tokens of each step |
//! | blocks for the prompt | ⌈100 / 16⌉ = 7 |
//! | blocks for the tokens that the streams generate until the prompt has been run | 3 · 1 |
//! | blocks for the tokens that the request generates while prompts behind it are run | 0, because there are none |
//!
//! The prompt may have to share each step with one that comes later, so it is sure of ⌈29 / 2⌉ = 15
//! tokens, and is run after ⌈100 / 15⌉ = 7 steps at the latest. Each stream has 22 + 7 tokens by
//! then. With a block that it may have begun to fill, it needs ⌈(29 + 16) / 16⌉ = 3 blocks, and it
//! holds 2. The KV cache must have 6 + 7 + 3 + 0 = 16 blocks. With 15, the prompt waits, since a
//! stream or the prompt itself might be preempted before the first token, and its work would be
//! lost. With 16, the next step has a token of each stream and the first 29 tokens of the prompt.
//!
//! `tests/admission_example.rs` computes these numbers.
//!
//! # Prompts that cannot be shared or divided
//!
//! Some models have state outside of the blocks, or attend to the prompt in both directions
//! ([`SchedulerLimits::prompt_handling`]). For the first kind no position is run twice, and blocks
//! are shared only up to a position at which the state was saved ([`state_checkpoints`]). For the
//! second kind, in addition, the first row of a sequence covers its prompt. A prompt that is longer
//! than a step beside all other sequences is refused.
//!
//! # Constrained sequences
//!
//! After each token of a constrained sequence [`release`](Scheduler::release) gives the mask for
//! the next one. The sequence runs ahead of its masks: its row is planned while the token before it
//! is in flight, and the mask follows the step ([`late_masks`]). If masks come late, the row is
//! deferred and no other sequence waits for it. The scheduler does not know how masks are computed.
//!
//! # Drafts
//!
//! A sequence that repeats what it said before gets guesses of its next tokens with its row
//! ([`SchedulerOptions::drafts`]), or the shards guess them with a draft model ([`model_drafts`]).
//! The shards verify all of them in the time of a step that is a little longer ([`drafts`]).
//!
//! # A cache on disk
//!
//! Shards may hold blocks in files as well. Steps then carry copies between blocks and files, and
//! a sequence whose prefix was evicted gets it from there ([`disk`]).
//!
//! # Adapters
//!
//! A request may name an adapter of the model ([`AdapterId`]). Sequences with different adapters
//! run in one step. The keys and values of a block depend on the adapter, so a sequence reuses only
//! blocks that were computed with its own adapter. If more adapters are loaded than the shards have
//! places for, a sequence also waits for a place ([`adapter_places`]).
//!
//! # Failures
//!
//! A sequence that the shards refuse, or for which the model computes numbers that are not finite,
//! fails alone. A sequence that was in flight in two losses of the shards runs alone, and fails
//! alone if they are lost again ([`quarantine`]). A step and its answer never exceed the size of a
//! frame ([`frame_budget`]).

mod acceptance;
mod adapter_places;
mod admission;
mod admission_order;
mod apply;
mod cache;
mod cost_model;
mod disk;
mod disk_copies;
mod draft_source;
mod drafter;
mod drafts;
mod earlier_answers;
mod fair_share;
mod frame_budget;
mod id;
mod in_flight;
mod integrity;
mod late_masks;
mod limits;
mod loss_history;
mod message_size;
mod model_drafts;
mod moves;
mod options;
mod output;
mod place_claims;
mod plan;
mod prefix_wait;
mod present_tenants;
mod priority;
mod prompt_budget;
mod prompt_shares;
mod quarantine;
mod queue;
mod request;
mod running;
mod sequence;
mod shares;
mod slot_shares;
mod state;
mod state_checkpoints;
mod stats;
mod tenant_time;

#[cfg(any(test, feature = "test-support"))]
mod test_disk;
#[cfg(any(test, feature = "test-support"))]
pub mod test_support;
#[cfg(test)]
mod tests;

pub use self::cache::{BlockHashBytes, BlockHashes, CacheEvent, StoredBlocks};
pub use self::id::{AdapterId, SeqId, SlotId};
pub use self::in_flight::MalformedAnswer;
pub use self::limits::{InfeasibleRequest, InvalidAnnouncement, SchedulerLimits};
pub use self::moves::MovedSequence;
pub use self::options::{Schedule, SchedulerOptions};
pub use self::output::{Admitted, DraftCounts, PlannedStep, RowFailure, SequenceEvent, SequenceOutput};
pub use self::request::{Finish, Mask, Pooling, Priority, Request, Tenant};
pub use self::state::Scheduler;
pub use self::stats::SchedulerStats;
