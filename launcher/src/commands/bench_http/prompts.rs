//! Prompts of the load test.

use anyhow::{Context, Result, ensure};
use millrace_formats::regular_file;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::cli::BenchHttpArgs;

/// Common words that are one token in most vocabularies.
const WORDS: &[&str] = &[
    "the", "river", "of", "a", "house", "and", "then", "old", "light", "was", "water", "under", "long",
    "many", "stone", "to", "found", "green", "day", "with", "two", "road", "in", "small", "wind", "had",
    "tree", "from", "white", "night",
];

/// An endless source of prompts.
pub(super) enum Prompts {
    /// Prompts of a file, in turn.
    Lines(std::iter::Cycle<std::vec::IntoIter<String>>),
    /// Random words after a number, so that a prefix cache has no effect.
    Random(Box<StdRng>, u32),
}

/// The maximum number of bytes of a file with prompts.
const MAX_PROMPTS: u64 = 1 << 30;

impl Prompts {
    pub(super) fn new(args: &BenchHttpArgs) -> Result<Self> {
        let Some(path) = &args.prompts else {
            return Ok(Prompts::Random(Box::new(StdRng::seed_from_u64(args.seed)), args.prompt_words));
        };
        let about = || format!("--prompts {}", path.display());
        let text = regular_file::read_text(path, MAX_PROMPTS).with_context(about)?;
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
        ensure!(!lines.is_empty(), "{}: no prompt in it", about());
        Ok(Prompts::Lines(lines.into_iter().cycle()))
    }

    pub(super) fn next(&mut self) -> String {
        match self {
            Prompts::Lines(lines) => lines.next().unwrap_or_default(),
            Prompts::Random(random, words) => {
                let mut prompt = random.random::<u32>().to_string();
                for _ in 1..*words {
                    prompt.push(' ');
                    prompt.push_str(WORDS.choose(random).copied().unwrap_or_default());
                }
                prompt
            }
        }
    }
}
