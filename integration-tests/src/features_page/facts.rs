//! Facts about each pair of features.

/// A fact about a pair of features. Tests are named as `FILE::FUNCTION`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fact {
    /// They work together, as this test proves.
    Yes(&'static str),
    /// The server works and leaves one of them out for the requests that have both.
    Without { sentence: &'static str, test: &'static str },
    /// The server says this sentence, which is in the file `source`.
    No { sentence: &'static str, source: &'static str, test: &'static str },
}

impl Fact {
    pub(super) fn word(self) -> &'static str {
        match self {
            Fact::Yes(_) => "yes",
            Fact::Without { .. } => "apart",
            Fact::No { .. } => "no",
        }
    }

    pub(super) fn test(self) -> &'static str {
        match self {
            Fact::Yes(test) | Fact::Without { test, .. } | Fact::No { test, .. } => test,
        }
    }
}

/// The features, in the order of the table.
pub(super) const FEATURES: [&str; 12] = [
    "LoRA",
    "speculation",
    "grammars",
    "prefix cache",
    "n > 1",
    "log-probabilities",
    "quantized weights",
    "tensor parallel",
    "replicas",
    "tiers",
    "recurrent layers",
    "CUDA",
];

/// The simulation of the scheduler, which has random requests of all kinds on a pretend shard.
const SIMULATION: Fact =
    Fact::Yes("router/scheduler/src/tests/simulation/mod.rs::random_traffic_keeps_every_invariant");

/// The simulation of groups that are lost, in which requests have grammars and scores.
const MOVES: Fact = Fact::Yes(
    "router/scheduler/src/tests/moves.rs::no_text_changes_while_groups_are_lost_and_sequences_move",
);

const DRAFTS: Fact = Fact::Yes("integration-tests/tests/server/drafts.rs::drafts_change_no_token");

const ANSWERS_WITH_ADAPTERS: Fact =
    Fact::Yes("router/src/http/tests/adapters.rs::several_answers_with_a_grammar_and_tools_have_the_adapter");

const CHECKPOINTS: Fact = Fact::Yes(
    "integration-tests/tests/server/recurrent.rs::a_prompt_that_begins_at_a_checkpoint_gets_the_same_answer",
);

const QUANTIZED: Fact =
    Fact::Yes("integration-tests/tests/server/quantized.rs::quantized_weights_score_close_to_16_bits");

const RECURRENT_QUANTIZED: Fact =
    Fact::Yes("integration-tests/tests/server/recurrent.rs::quantized_models_score_close_to_exact_ones");

const QUANTIZED_GPU: Fact =
    Fact::Yes("integration-tests/tests/server/cuda_sim.rs::fp8_weights_score_close_to_the_cpu");

/// Quantized weights with drafts, replicas, a disk tier, a grammar, several answers and
/// log-probabilities, from the prefix cache and not.
const QUANTIZED_TOGETHER: Fact = Fact::Yes(
    "integration-tests/tests/server/combinations.rs::quantized_weights_answer_alike_with_drafts_replicas_and_tiers",
);

const GROUPS_OF_GPUS: Fact = Fact::Yes(
    "integration-tests/tests/server/combinations.rs::groups_of_gpus_and_several_answers_on_a_gpu_are_those_of_one",
);

const HOST_MEMORY: Fact = Fact::Yes(
    "integration-tests/tests/server/host_cache.rs::evicted_prompts_return_from_the_memory_of_the_host",
);

/// The known pairs: the names of two features, the one that is before in the table first.
#[rustfmt::skip]
pub(super) const FACTS: &[(&str, &str, Fact)] = &[
    ("LoRA", "speculation", SIMULATION),
    ("LoRA", "grammars", ANSWERS_WITH_ADAPTERS),
    ("LoRA", "prefix cache", Fact::Yes("integration-tests/tests/server/adapters.rs::prefixes_are_shared_within_an_adapter_alone")),
    ("LoRA", "n > 1", ANSWERS_WITH_ADAPTERS),
    ("LoRA", "log-probabilities", Fact::Yes("integration-tests/tests/server/adapters.rs::adapters_change_their_own_answers_and_no_others")),
    ("LoRA", "quantized weights", Fact::Yes("shard/tests/suite/adapters.rs::adapters_change_quantized_matrices")),
    ("LoRA", "tensor parallel", Fact::Yes("integration-tests/tests/server/adapters.rs::two_shards_say_what_one_says")),
    ("LoRA", "replicas", Fact::Yes("integration-tests/tests/server/replicas.rs::each_group_has_the_adapters_of_the_start")),
    ("LoRA", "tiers", SIMULATION),
    ("LoRA", "recurrent layers", Fact::Yes("shard/tests/suite/adapters.rs::a_mixed_batch_has_the_results_of_each_request_alone")),
    ("LoRA", "CUDA", Fact::No {
        sentence: "LoRA adapters are computed on the CPU only",
        source: "launcher/src/adapters.rs",
        test: "integration-tests/tests/server/bench.rs::an_adapter_is_measured_and_named",
    }),
    ("speculation", "grammars", Fact::Without {
        sentence: "constrained answers have no drafts",
        test: "integration-tests/tests/server/drafts.rs::constrained_answers_have_no_drafts",
    }),
    ("speculation", "prefix cache", DRAFTS),
    ("speculation", "n > 1", DRAFTS),
    ("speculation", "log-probabilities", DRAFTS),
    ("speculation", "quantized weights", QUANTIZED_TOGETHER),
    ("speculation", "tensor parallel", DRAFTS),
    ("speculation", "replicas", QUANTIZED_TOGETHER),
    ("speculation", "tiers", SIMULATION),
    ("speculation", "recurrent layers", Fact::Yes(
        "integration-tests/tests/server/drafts.rs::drafts_change_no_token_of_models_with_recurrent_layers",
    )),
    ("speculation", "CUDA", Fact::No {
        sentence: "drafts are only verified on the CPU",
        source: "shard/src/prompt_handling.rs",
        test: "integration-tests/tests/server/drafts.rs::models_that_cannot_verify_drafts_say_so",
    }),
    ("grammars", "prefix cache", SIMULATION),
    ("grammars", "n > 1", ANSWERS_WITH_ADAPTERS),
    ("grammars", "log-probabilities", QUANTIZED_TOGETHER),
    ("grammars", "quantized weights", QUANTIZED_TOGETHER),
    ("grammars", "tensor parallel", Fact::Yes("integration-tests/tests/server/late_masks.rs::texts_are_the_same_alone_and_together_on_one_and_two_shards")),
    ("grammars", "replicas", MOVES),
    ("grammars", "tiers", SIMULATION),
    ("grammars", "recurrent layers", SIMULATION),
    ("grammars", "CUDA", Fact::Yes("integration-tests/tests/server/late_masks.rs::texts_on_simulated_gpus_are_those_of_the_cpu")),
    ("prefix cache", "n > 1", Fact::Yes("integration-tests/tests/server/prefix.rs::answers_to_one_prompt_and_a_herd_of_requests_compute_it_once")),
    ("prefix cache", "log-probabilities", SIMULATION),
    ("prefix cache", "quantized weights", QUANTIZED_TOGETHER),
    ("prefix cache", "tensor parallel", CHECKPOINTS),
    ("prefix cache", "replicas", Fact::Yes("integration-tests/tests/server/replicas.rs::conversations_stay_with_their_prefixes")),
    ("prefix cache", "tiers", Fact::Yes("integration-tests/tests/server/disk_cache.rs::evicted_conversations_continue_from_disk_with_the_same_answers")),
    ("prefix cache", "recurrent layers", CHECKPOINTS),
    ("prefix cache", "CUDA", HOST_MEMORY),
    ("n > 1", "log-probabilities", QUANTIZED_TOGETHER),
    ("n > 1", "quantized weights", QUANTIZED_TOGETHER),
    ("n > 1", "tensor parallel", DRAFTS),
    ("n > 1", "replicas", QUANTIZED_TOGETHER),
    ("n > 1", "tiers", SIMULATION),
    ("n > 1", "recurrent layers", SIMULATION),
    ("n > 1", "CUDA", GROUPS_OF_GPUS),
    ("log-probabilities", "quantized weights", QUANTIZED),
    ("log-probabilities", "tensor parallel", QUANTIZED),
    ("log-probabilities", "replicas", MOVES),
    ("log-probabilities", "tiers", SIMULATION),
    ("log-probabilities", "recurrent layers", RECURRENT_QUANTIZED),
    ("log-probabilities", "CUDA", QUANTIZED_GPU),
    ("quantized weights", "tensor parallel", QUANTIZED),
    ("quantized weights", "replicas", QUANTIZED_TOGETHER),
    ("quantized weights", "tiers", QUANTIZED_TOGETHER),
    ("quantized weights", "recurrent layers", RECURRENT_QUANTIZED),
    ("quantized weights", "CUDA", QUANTIZED_GPU),
    ("tensor parallel", "replicas", Fact::Yes("integration-tests/tests/server/combinations.rs::groups_of_two_shards_answer_as_one_group_does")),
    ("tensor parallel", "tiers", Fact::Yes("integration-tests/tests/server/disk_cache.rs::several_shards_have_a_file_each")),
    ("tensor parallel", "recurrent layers", Fact::Yes("integration-tests/tests/server/recurrent.rs::two_ranks_give_the_greedy_path_of_transformers")),
    ("tensor parallel", "CUDA", Fact::Yes("integration-tests/tests/server/cuda_sim.rs::one_and_two_gpus_match_the_cpu")),
    ("replicas", "tiers", Fact::No {
        sentence: "--kv-disk and --replicas cannot be combined; omit one of them",
        source: "launcher/src/disk_cache.rs",
        test: "integration-tests/tests/server/replicas.rs::what_several_groups_cannot_do_is_refused_by_name",
    }),
    ("replicas", "recurrent layers", Fact::Yes("integration-tests/tests/server/combinations.rs::groups_with_recurrent_layers_answer_as_one_group_does")),
    ("replicas", "CUDA", GROUPS_OF_GPUS),
    ("tiers", "recurrent layers", Fact::No {
        sentence: "needs a model whose state is all in the KV cache",
        source: "shard/src/process/startup.rs",
        test: "integration-tests/tests/server/disk_cache.rs::a_model_with_recurrent_layers_has_no_disk_cache",
    }),
    ("tiers", "CUDA", HOST_MEMORY),
    ("recurrent layers", "CUDA", Fact::Yes("shard/tests/suite/graphs.rs::a_shard_with_recurrent_layers_starts_on_a_gpu")),
];
