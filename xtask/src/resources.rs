//! Compares `kernels/cuda/resources.txt`, from which the simulated device knows the registers and
//! the static shared memory of each kernel, with the machine code.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use crate::sass::Kernel;

/// The committed table.
const TABLE: &str = "kernels/cuda/resources.txt";

/// The file that the table of the machine code is written to if it differs.
const NEW: &str = "target/cuda-resources.txt";

/// The architectures of the table's columns of registers.
const ARCHITECTURES: [&str; 2] = ["80", "90a"];

/// Checks that the committed table is that of the machine code.
///
/// # Errors
/// The first line that differs, and where the new table is.
pub(crate) fn check(kernels: &[Kernel]) -> Result<(), String> {
    let committed = fs::read_to_string(TABLE).map_err(|e| format!("{TABLE}: {e}"))?;
    let new = table(&committed, kernels);
    let Some(difference) = difference(&committed, &new) else { return Ok(()) };
    fs::write(NEW, new).map_err(|e| format!("{NEW}: {e}"))?;
    Err(format!("{TABLE} is not that of the machine code: {difference}. Copy {NEW} there"))
}

/// Writes the table of these kernels, below the comments of `committed`.
fn table(committed: &str, kernels: &[Kernel]) -> String {
    let mut rows: BTreeMap<&str, [Option<&Kernel>; 2]> = BTreeMap::new();
    for kernel in kernels {
        if let Some(column) = ARCHITECTURES.iter().position(|a| *a == kernel.architecture) {
            rows.entry(&kernel.name).or_default()[column] = Some(kernel);
        }
    }
    let comments = committed.lines().take_while(|line| line.starts_with('#'));
    let mut text: String = comments.flat_map(|line| [line, "\n"]).collect();
    for (name, columns) in rows {
        let shared = columns.iter().flatten().next().map_or(0, |kernel| kernel.shared);
        let [first, second] = columns
            .map(|kernel| kernel.map_or_else(|| "-".to_owned(), |kernel| kernel.registers.to_string()));
        writeln!(text, "{name:<44} {shared:>6} {first:>4} {second:>4}").expect("strings take all");
    }
    text
}

/// Describes the first line in which the tables differ.
fn difference(committed: &str, new: &str) -> Option<String> {
    let (mut old_lines, mut new_lines) = (committed.lines(), new.lines());
    loop {
        match (old_lines.next(), new_lines.next()) {
            (None, None) => return None,
            (old, new) if old == new => {}
            (old, new) => {
                return Some(format!(
                    "`{}` should be `{}`",
                    old.unwrap_or("the end"),
                    new.unwrap_or("the end")
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str, architecture: &str, registers: usize, shared: usize) -> Kernel {
        let (name, architecture) = (name.to_owned(), architecture.to_owned());
        Kernel { name, architecture, registers, shared, ..Kernel::default() }
    }

    #[test]
    fn the_table_lists_each_kernel_once() {
        let kernels = [
            kernel("norm_f32", "90a", 64, 1088),
            kernel("hopper", "90a", 168, 0),
            kernel("norm_f32", "80", 62, 64),
        ];
        let text = table("# comment\nold 1 2 3\n", &kernels);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines,
            [["#", "comment"].to_vec(), vec!["hopper", "0", "-", "168"], vec!["norm_f32", "64", "62", "64"]]
        );
    }

    #[test]
    fn the_first_difference_is_named() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(difference("a\nb\n", "a\nc\n").unwrap(), "`b` should be `c`");
        assert_eq!(difference("a\n", "a\nc\n").unwrap(), "`the end` should be `c`");
    }
}
