//! Reasoning: the text with which a model thinks before it answers, and how it is told from the
//! answer.
//!
//! | file | its job |
//! |---|---|
//! | `format` | the formats of reasoning, and how a model's format is detected |
//! | `marks` | the texts around the reasoning, and how an answer may begin with them |
//! | `splitter` | separates the reasoning of an answer from the rest while it is streamed |
//! | `gate` | finds the beginning of the answer for the search for stop strings |
//! | `after` | applies a grammar to the text after the reasoning |
//! | `budget` | ends the reasoning after a number of tokens |

mod after;
mod budget;
mod format;
mod gate;
mod marks;
mod splitter;

pub use after::after_reasoning;
pub use budget::{ReasoningLimit, ReasoningPlace, ThinkingBudget};
pub use format::{ReasoningFormat, ReasoningParser, UnknownReasoningParser};
pub use gate::ReasoningGate;
pub use marks::{ReasoningMarks, ReasoningStart};
pub use splitter::{ReasoningSplitter, SplitText};
