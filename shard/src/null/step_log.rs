//! The log of the steps that a shard without a device answered.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use millrace_proto::Step;
use serde::Serialize;

/// A file with one JSON object per line for each step, in their order. Tests read it to learn how
/// the router divides its work into steps, which does not depend on the speed of the machine.
#[derive(Debug)]
pub(super) struct StepLog {
    file: File,
}

/// One line of the log.
#[derive(Debug, Serialize)]
struct Line<'a> {
    step: u64,
    /// The modelled time of the step in nanoseconds.
    nanos: u64,
    /// The slots that the step released.
    release: &'a [u32],
    /// The slot, the known tokens and the prompt tokens of each admitted sequence.
    admit: Vec<(u32, usize, u32)>,
    /// The slot, the first position and the number of positions of each row.
    rows: Vec<(u32, u32, u32)>,
}

impl StepLog {
    /// Opens the log. A shard that replaces a lost one continues its file.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(StepLog { file: File::options().create(true).append(true).open(path)? })
    }

    /// Adds a step that takes `time`. The line is in the file when this returns.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn add(&mut self, step: &Step, time: Duration) -> io::Result<()> {
        let admitted = |new: &millrace_proto::Admission| (new.slot, new.tokens.len(), new.prompt_len);
        let line = Line {
            step: step.id,
            nanos: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            release: &step.release,
            admit: step.admit.iter().map(admitted).collect(),
            rows: step.rows.iter().map(|row| (row.slot, row.start, row.count)).collect(),
        };
        let mut text = serde_json::to_vec(&line).map_err(io::Error::other)?;
        text.push(b'\n');
        self.file.write_all(&text)
    }
}

#[cfg(test)]
mod tests {
    use millrace_proto::{Admission, Row};

    use super::*;

    #[test]
    fn a_line_says_what_a_step_has_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("steps");
        let row = Row { slot: 3, start: 16, count: 4, ..Row::default() };
        let new = Admission { slot: 3, tokens: vec![7; 20], prompt_len: 18, ..Admission::default() };
        let step = Step { id: 9, release: vec![2], admit: vec![new], rows: vec![row], ..Step::default() };
        StepLog::open(&path).unwrap().add(&step, Duration::from_micros(5)).unwrap();
        // Another shard continues the file.
        StepLog::open(&path).unwrap().add(&Step { id: 10, ..Step::default() }, Duration::ZERO).unwrap();
        let expected = "{\"step\":9,\"nanos\":5000,\"release\":[2],\"admit\":[[3,20,18]],\"rows\":[[3,16,4]]}\n\
                        {\"step\":10,\"nanos\":0,\"release\":[],\"admit\":[],\"rows\":[]}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    }
}
