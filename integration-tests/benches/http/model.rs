//! The models that are measured, and the sizes of the measurements with each.

/// A model, and the sizes of the measurements with it.
pub(crate) struct BenchModel {
    pub(crate) name: &'static str,
    /// The flags of `millrace serve` for the table of throughput.
    pub(crate) flags: Vec<String>,
    /// The number of tokens that each client requests with 1, 8, 16 and 32 clients.
    pub(crate) tokens: [usize; 4],
    /// The number of tokens of each of 16 streams that run without other requests.
    pub(crate) steady: usize,
    /// The number of requests of each client.
    pub(crate) rounds: usize,
    /// The approximate number of characters of the prompts that measure the prefill.
    pub(crate) prompt_chars: usize,
    /// The number of characters of a prompt that is sent twice.
    pub(crate) prefix_chars: usize,
    /// The number of tokens of a stream whose gaps are measured. When it has ended, its client
    /// starts another one.
    pub(crate) stream_tokens: usize,
}

/// Returns the models, in the order in which they are measured.
pub(crate) fn all() -> [BenchModel; 2] {
    let shape = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/llama-1.1b");
    [
        BenchModel {
            name: "demo",
            flags: vec![],
            tokens: [400, 200, 200, 100],
            rounds: 8,
            steady: 900,
            prompt_chars: 2000,
            prefix_chars: 2700,
            stream_tokens: 800,
        },
        BenchModel {
            name: "llama-1.1b",
            flags: ["--model-id", shape, "--load-format", "dummy", "--max-batch-total-tokens", "32768"]
                .map(str::to_owned)
                .to_vec(),
            tokens: [32, 24, 20, 16],
            rounds: 1,
            steady: 24,
            prompt_chars: 1500,
            prefix_chars: 12_800,
            // No stream ends within a run, so that the gaps are those of decodes beside the prompt.
            stream_tokens: 3000,
        },
    ]
}
