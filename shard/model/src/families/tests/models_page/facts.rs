//! Facts that do not follow from golden checkpoints: the test that proves each, and the chat
//! templates of families.

/// A row of a table of files.
pub(in crate::families::tests) struct Fact {
    pub(in crate::families::tests) what: &'static str,
    /// Cells of the table.
    pub(super) cpu: &'static str,
    pub(super) gpu: &'static str,
    /// The families of the models in the tests, separated by commas.
    pub(super) families: &'static str,
    /// Files from the root of the repository, each with the name of a test.
    pub(super) tests: &'static [(&'static str, &'static str)],
}

const GOLDEN: &str = "shard/tests/suite/golden.rs";
const ENCODERS: &str = "shard/tests/suite/encoders.rs";
const QUANTIZED: &str = "shard/tests/suite/quantized.rs";
const MODEL_FORMATS: &str = "integration-tests/tests/server/model_formats.rs";
const FILES_AGAIN: &str = "shard/convert/tests/suite/files.rs";
const FILES_COMPUTED: &str = "shard/tests/suite/convert_files.rs";
const CONVERT: &str = "integration-tests/tests/server/convert_command.rs";

/// Families that are read from GGUF files too, but of which there is no golden file.
pub(super) const UNTESTED_IN_GGUF: [&str; 5] = ["mistral", "baichuan", "qwen", "internlm2", "internlm3"];

/// Formats of checkpoints.
pub(in crate::families::tests) const FILES: &[Fact] = &[
    Fact {
        what: "safetensors",
        cpu: "yes",
        gpu: "yes",
        families: "all that are tested",
        tests: &[
            (GOLDEN, "every_checkpoint_gives_the_logits_of_transformers"),
            (GOLDEN, "a_gpu_gives_the_logits_of_transformers"),
        ],
    },
    Fact {
        what: "PyTorch (`pytorch_model.bin`)",
        cpu: "yes",
        gpu: "untested",
        families: "independent of the family",
        tests: &[
            ("formats/src/pytorch/tests.rs", "tensors_are_those_that_were_saved"),
            ("formats/src/pytorch/tests.rs", "folders_with_pytorch_files_are_checkpoints"),
        ],
    },
    Fact {
        what: "GGUF",
        cpu: "yes",
        gpu: "untested",
        families: "as the table of families says",
        tests: &[
            (GOLDEN, "gguf_files_give_the_logits_of_transformers"),
            (ENCODERS, "gguf_files_give_the_states_of_transformers"),
            (CONVERT, "converted_models_give_what_the_model_gives"),
            (MODEL_FORMATS, "gguf_files_give_what_their_weights_give_as_safetensors"),
        ],
    },
    Fact {
        what: "GGML, GGMF, GGJT",
        cpu: "yes",
        gpu: "untested",
        families: "llama",
        tests: &[(MODEL_FORMATS, "older_files_give_what_their_weights_give_as_safetensors")],
    },
    Fact {
        what: "llama2.c",
        cpu: "yes",
        gpu: "untested",
        families: "llama",
        tests: &[
            (FILES_COMPUTED, "single_precision_computes_the_same"),
            (FILES_AGAIN, "single_precision_comes_back_as_it_was"),
            (FILES_AGAIN, "an_independent_reader_finds_the_weights"),
            (MODEL_FORMATS, "older_files_give_what_their_weights_give_as_safetensors"),
        ],
    },
    Fact {
        what: "FastLLM",
        cpu: "yes",
        gpu: "untested",
        families: "llama, mistral, qwen2, qwen3, qwen3_moe, gemma2, gpt2, bloom, falcon, baichuan, chatglm, phi3, deepseek_v3, granitemoe",
        tests: &[
            (FILES_COMPUTED, "single_precision_computes_the_same"),
            (FILES_AGAIN, "single_precision_comes_back_as_it_was"),
            (FILES_AGAIN, "an_independent_reader_finds_the_weights"),
            (MODEL_FORMATS, "files_of_fastllm_give_what_their_weights_give_as_safetensors"),
        ],
    },
];

/// Quantized weights, as stored or made while loading.
pub(super) const QUANTIZATIONS: &[Fact] = &[
    Fact {
        what: "`gptq`, `awq`, `compressed-tensors`, `bitsandbytes`, `fp8`, `fbgemm_fp8`",
        cpu: "yes",
        gpu: "yes, some integers and FP8 as stored",
        families: "llama, chatglm",
        tests: &[
            (QUANTIZED, "logits_are_those_of_the_dequantized_weights"),
            (QUANTIZED, "two_ranks_agree_with_one"),
            ("shard/tests/suite/quantized_gpu.rs", "a_gpu_gives_the_logits_of_the_dequantized_weights"),
        ],
    },
    Fact {
        what: "`mxfp4`",
        cpu: "yes",
        gpu: "yes",
        families: "gpt_oss",
        tests: &[
            (GOLDEN, "every_checkpoint_gives_the_logits_of_transformers"),
            (GOLDEN, "a_gpu_gives_the_logits_of_transformers"),
        ],
    },
    Fact {
        what: "blocks of GGUF",
        cpu: "yes",
        gpu: "yes, all but Q4_1, Q5_1, Q2_K, NVFP4 and types of 1 to 3 bits as stored",
        families: "llama",
        tests: &[
            ("kernels/numbers/src/formats/ggml/tests.rs", "every_type_is_decoded_by_its_formula"),
            ("kernels/numbers/src/formats/ggml/tests.rs", "codebooks_give_the_weights_of_the_package_gguf"),
            (MODEL_FORMATS, "gguf_files_give_what_their_weights_give_as_safetensors"),
            (MODEL_FORMATS, "super_blocks_give_what_their_weights_give_as_safetensors"),
            ("integration-tests/tests/server/cuda_sim.rs", "blocks_of_gguf_score_close_to_the_cpu"),
        ],
    },
    Fact {
        what: "`--quantize fp8`",
        cpu: "yes",
        gpu: "yes",
        families: "llama, mistral, qwen3_moe",
        tests: &[
            (
                "shard/tests/suite/quantize_at_load.rs",
                "matrices_that_do_not_fit_a_format_are_loaded_in_another",
            ),
            ("shard/tests/suite/quantize_at_load.rs", "experts_are_quantized"),
            ("shard/tests/suite/quantize_at_load.rs", "a_gpu_multiplies_by_quantized_weights"),
            ("integration-tests/tests/server/cuda_sim.rs", "fp8_weights_score_close_to_the_cpu"),
        ],
    },
    Fact {
        what: "`--quantize` int8, q8_0, int4, q4_0",
        cpu: "yes",
        gpu: "yes",
        families: "llama, mistral, qwen3_moe (not q4_0)",
        tests: &[
            (
                "shard/tests/suite/quantize_at_load.rs",
                "matrices_that_do_not_fit_a_format_are_loaded_in_another",
            ),
            ("shard/tests/suite/quantize_at_load.rs", "a_gpu_multiplies_by_quantized_weights"),
            ("integration-tests/tests/server/quantized.rs", "quantized_weights_score_close_to_16_bits"),
            ("integration-tests/tests/server/cuda_sim.rs", "integer_weights_score_close_to_the_cpu"),
        ],
    },
    Fact {
        what: "`--quantize` q6_k, q5_k, q4_k",
        cpu: "yes",
        gpu: "yes",
        families: "llama, mistral",
        tests: &[
            (
                "shard/tests/suite/quantize_at_load.rs",
                "matrices_that_do_not_fit_a_format_are_loaded_in_another",
            ),
            ("shard/tests/suite/quantize_at_load.rs", "a_gpu_multiplies_by_super_blocks"),
            ("integration-tests/tests/server/quantized.rs", "quantized_weights_score_close_to_16_bits"),
        ],
    },
    Fact {
        what: "`--quantize` nf4",
        cpu: "yes",
        gpu: "no",
        families: "llama, mistral, qwen3_moe (nf4)",
        tests: &[
            (
                "shard/tests/suite/quantize_at_load.rs",
                "matrices_that_do_not_fit_a_format_are_loaded_in_another",
            ),
            ("integration-tests/tests/server/quantized.rs", "quantized_weights_score_close_to_16_bits"),
        ],
    },
    Fact {
        what: "written by `millrace quantize`",
        cpu: "yes",
        gpu: "untested",
        families: "llama, qwen2, baichuan, mistral",
        tests: &[
            (
                "shard/tests/suite/quantize_checkpoint.rs",
                "logits_stay_close_to_those_of_the_dense_checkpoint",
            ),
            (
                "integration-tests/tests/server/quantize_command.rs",
                "new_checkpoints_are_read_by_others_and_served",
            ),
        ],
    },
];

/// The chat templates of families, by their names in the page's table of templates.
pub(super) const TEMPLATES: &[(&str, &[&str])] = &[
    ("llama", &["meta-llama-Llama-3.1-8B-Instruct", "llama31_tools"]),
    ("mistral", &["mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"]),
    ("qwen2", &["Qwen-Qwen2.5-7B-Instruct", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"]),
    ("qwen3", &["qwen_thinking"]),
    ("qwen3_moe", &["Qwen3-Coder", "qwen_thinking"]),
    ("gemma", &["gemma"]),
    ("gemma2", &["google-gemma-2-2b-it"]),
    ("phi3", &["microsoft-Phi-3.5-mini-instruct"]),
    ("chatglm", &["chatglm3", "glm4"]),
    ("glm4_moe", &["GLM-4.7-Flash"]),
    ("granite", &["granite"]),
    ("granitemoe", &["granite"]),
    ("cohere2", &["CohereForAI-c4ai-command-r7b-12-2024-tool_use"]),
    ("minimax_m2", &["MiniMax-M2"]),
    ("kimi_k2", &["Kimi-K2-Instruct"]),
    ("deepseek_v2", &["deepseek_v2"]),
    ("deepseek_v3", &["deepseek_v3"]),
];
