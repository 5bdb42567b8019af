//! The log of the steps of `--device null`.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

/// A step that the shard answered.
#[derive(Debug, Clone)]
pub struct LoggedStep {
    /// The modelled time of the step.
    pub time: Duration,
    /// The slot and the number of prompt tokens of each sequence that the step admitted.
    pub admitted: Vec<(u64, u64)>,
    /// The rows.
    pub rows: Vec<LoggedRow>,
}

/// A row of a step: some positions of the sequence in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedRow {
    /// The slot.
    pub slot: u64,
    /// The first position.
    pub start: u64,
    /// The number of positions.
    pub count: u64,
}

/// The file to which a server with `--null-step-log` writes its steps. It is removed when this is
/// dropped.
pub struct StepLogFile(PathBuf);

impl StepLogFile {
    /// Names a file that does not exist yet. `name` must be unique within this process.
    pub fn new(name: &str) -> StepLogFile {
        let file = format!("millrace-steps-{name}-{}.jsonl", std::process::id());
        StepLogFile(std::env::temp_dir().join(file))
    }

    /// Returns the path.
    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Returns the steps so far. A line that is being written is left out.
    pub fn steps(&self) -> Vec<LoggedStep> {
        let text = std::fs::read_to_string(&self.0).unwrap();
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        complete.lines().map(|line| step(&serde_json::from_str(line).unwrap())).collect()
    }
}

impl Drop for StepLogFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn step(line: &Value) -> LoggedStep {
    let numbers = |list: &Value| -> Vec<u64> {
        list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
    };
    let lists =
        |name: &str| -> Vec<Vec<u64>> { line[name].as_array().unwrap().iter().map(numbers).collect() };
    LoggedStep {
        time: Duration::from_nanos(line["nanos"].as_u64().unwrap()),
        admitted: lists("admit").into_iter().map(|new| (new[0], new[2])).collect(),
        rows: lists("rows")
            .into_iter()
            .map(|row| LoggedRow { slot: row[0], start: row[1], count: row[2] })
            .collect(),
    }
}
