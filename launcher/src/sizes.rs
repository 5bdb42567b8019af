//! Sizes that flags ask for, and that the model or the memory does not allow.

use millrace_router::engine::Ready;

use crate::cli::EngineArgs;

/// The sizes that flags ask for, in tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AskedSizes {
    max_total_tokens: Option<u32>,
    max_batch_total_tokens: Option<u32>,
    max_input_tokens: Option<usize>,
}

impl AskedSizes {
    /// Takes the sizes from the flags.
    pub(crate) fn new(engine: &EngineArgs, max_input_tokens: Option<usize>) -> Self {
        let EngineArgs { max_total_tokens, max_batch_total_tokens, .. } = *engine;
        AskedSizes { max_total_tokens, max_batch_total_tokens, max_input_tokens }
    }

    /// Returns a sentence for each size of the server that is not the one that was asked for, or
    /// that is smaller than the model would allow.
    pub(crate) fn differences(&self, ready: &Ready) -> Vec<String> {
        [self.sequence(ready), self.pool(ready), self.input(ready)].into_iter().flatten().collect()
    }

    fn sequence(&self, ready: &Ready) -> Option<String> {
        let Ready { max_sequence_tokens: holds, max_positions, .. } = *ready;
        match self.max_total_tokens {
            Some(asked) if asked > holds && holds == max_positions => Some(format!(
                "--max-total-tokens {asked}: sequences have up to {holds} tokens, because the model has no more \
                 positions; --rope-scaling and --rope-factor extend them"
            )),
            Some(asked) if asked > holds => Some(format!(
                "--max-total-tokens {asked}: sequences have up to {holds} tokens, because the KV cache has no room \
                 for more"
            )),
            None if holds < max_positions => Some(format!(
                "sequences have up to {holds} tokens instead of the model's {max_positions}, because the KV cache \
                 has no room for more; --kv-cache-dtype and --quantize save memory, and --max-total-tokens sets \
                 the length"
            )),
            _ => None,
        }
    }

    fn pool(&self, ready: &Ready) -> Option<String> {
        let asked = u64::from(self.max_batch_total_tokens?);
        let Ready { block_size, max_sequences, max_sequence_tokens, .. } = *ready;
        let pool = u64::from(ready.num_blocks) * u64::from(block_size);
        let why = match pool {
            pool if pool > asked => format!("it consists of blocks of {block_size}"),
            pool if pool < asked => {
                format!("{max_sequences} sequences of up to {max_sequence_tokens} tokens never use more")
            }
            _ => return None,
        };
        Some(format!("--max-batch-total-tokens {asked}: the KV cache has {pool} tokens, because {why}"))
    }

    fn input(&self, ready: &Ready) -> Option<String> {
        let (asked, holds) = (self.max_input_tokens?, ready.max_sequence_tokens as usize);
        // A smaller limit of the whole sequence is refused beside this one before the start.
        (asked >= holds && self.max_total_tokens.is_none_or(|total| total as usize > holds)).then(|| {
            let most = holds.saturating_sub(usize::from(!ready.headless));
            format!(
                "--max-input-tokens {asked}: prompts have up to {most} tokens, because sequences have up to {holds}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> Ready {
        Ready {
            max_positions: 1024,
            max_sequence_tokens: 1024,
            block_size: 16,
            num_blocks: 128,
            max_sequences: 2,
            ..Ready::default()
        }
    }

    /// Returns the only difference.
    fn difference(asked: AskedSizes, ready: &Ready) -> String {
        let mut all = asked.differences(ready);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    #[test]
    fn sizes_that_were_asked_for_are_not_announced() {
        let asked = AskedSizes {
            max_total_tokens: Some(1024),
            max_batch_total_tokens: Some(2048),
            max_input_tokens: Some(1023),
        };
        assert!(asked.differences(&ready()).is_empty());
        assert!(AskedSizes::default().differences(&ready()).is_empty());
    }

    #[test]
    fn sizes_that_are_changed_are_announced() {
        let asked = AskedSizes { max_total_tokens: Some(99_999), ..AskedSizes::default() };
        let text = difference(asked, &ready());
        assert!(text.contains("up to 1024 tokens") && text.ends_with("--rope-factor extend them"), "{text}");
        let short = Ready { max_sequence_tokens: 512, ..ready() };
        assert!(difference(asked, &short).ends_with("because the KV cache has no room for more"));
        let text = difference(AskedSizes::default(), &short);
        assert!(text.starts_with("sequences have up to 512 tokens instead of the model's 1024"), "{text}");

        for (pool, end) in [(2040, "because it consists of blocks of 16"), (5000, "never use more")] {
            let asked = AskedSizes { max_batch_total_tokens: Some(pool), ..AskedSizes::default() };
            let text = difference(asked, &ready());
            assert!(text.contains("the KV cache has 2048 tokens") && text.ends_with(end), "{text}");
        }

        let asked = AskedSizes { max_input_tokens: Some(5000), ..AskedSizes::default() };
        assert!(difference(asked, &ready()).contains("prompts have up to 1023 tokens"));
    }
}
