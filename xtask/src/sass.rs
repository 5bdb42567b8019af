//! Parses the output of cuobjdump, and the table `kernels/cuda/sass.txt` of instructions that
//! machine code must or must not contain.

use std::collections::BTreeMap;

/// Machine code of a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    /// Architecture without the prefix `sm_`.
    pub(crate) architecture: String,
    /// Position of the first occurrence of each kind of instruction with its modifiers.
    pub(crate) instructions: BTreeMap<String, usize>,
    /// Number of instructions.
    pub(crate) length: usize,
    /// Registers per thread.
    pub(crate) registers: usize,
    /// Bytes of static shared memory.
    pub(crate) shared: usize,
}

/// A line of the table: requirements on the kernels that match a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Promise {
    kernels: String,
    pub(crate) architectures: Vec<String>,
    required: Vec<String>,
    forbidden: Vec<String>,
    /// Pairs of instructions of which the first must occur before every occurrence of the second.
    ordered: Vec<(String, String)>,
}

/// Reads the table.
///
/// # Errors
/// The number of a line that cannot be parsed.
pub(crate) fn parse(text: &str) -> Result<Vec<Promise>, String> {
    let lines =
        text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| {
            let mut words = line.split_whitespace();
            let (Some(kernels), Some(architectures)) = (words.next(), words.next()) else {
                return Err(format!("line {}: kernels, architectures, instructions", number + 1));
            };
            let mut promise = Promise {
                kernels: kernels.to_owned(),
                architectures: architectures.split(',').map(str::to_owned).collect(),
                required: Vec::new(),
                forbidden: Vec::new(),
                ordered: Vec::new(),
            };
            let mut words = words.peekable();
            if words.peek().is_none() {
                return Err(format!("line {}: no instructions", number + 1));
            }
            for word in words {
                match (word.strip_prefix('!'), word.split_once('<')) {
                    (Some(unwanted), _) => promise.forbidden.push(unwanted.to_owned()),
                    (None, Some((first, later))) => {
                        promise.ordered.push((first.to_owned(), later.to_owned()));
                    }
                    (None, None) => promise.required.push(word.to_owned()),
                }
            }
            Ok(promise)
        })
        .collect()
}

/// Returns a description of each promise that is not kept.
pub(crate) fn broken(promises: &[Promise], kernels: &[Kernel]) -> Vec<String> {
    let mut all = Vec::new();
    for promise in promises {
        for architecture in &promise.architectures {
            let of_architecture = kernels.iter().filter(|k| k.architecture == *architecture);
            let matching: Vec<&Kernel> =
                of_architecture.filter(|k| matches(&promise.kernels, &k.name)).collect();
            if matching.is_empty() {
                all.push(format!("{} for sm_{architecture}: there is no such kernel", promise.kernels));
            }
            for kernel in matching {
                let first = |wanted: &String| {
                    kernel.instructions.iter().filter(|(i, _)| is_kind(i, wanted)).map(|(_, &at)| at).min()
                };
                let has = |wanted: &String| first(wanted).is_some();
                let missing = promise.required.iter().filter(|wanted| !has(wanted));
                all.extend(missing.map(|i| format!("{} for sm_{architecture} has no {i}", kernel.name)));
                let present = promise.forbidden.iter().filter(|unwanted| has(unwanted));
                all.extend(present.map(|i| format!("{} for sm_{architecture} has {i}", kernel.name)));
                let late =
                    promise.ordered.iter().filter(|(before, after)| match (first(before), first(after)) {
                        (Some(before), after) => after.is_some_and(|after| after < before),
                        (None, _) => true,
                    });
                all.extend(late.map(|(before, after)| {
                    format!("{} for sm_{architecture} has no {before} before {after}", kernel.name)
                }));
            }
        }
    }
    all
}

/// Returns whether `instruction` is of the kind `wanted`, which may omit modifiers.
fn is_kind(instruction: &str, wanted: &str) -> bool {
    let (mut has, mut wants) = (instruction.split('.'), wanted.split('.'));
    let same = has.next() == wants.next();
    let modifiers: Vec<&str> = has.collect();
    same && wants.all(|modifier| modifiers.contains(&modifier))
}

/// Returns whether `name` matches one of the comma-separated `patterns` and none that begins with
/// `!`. In a pattern `*` stands for any text.
fn matches(patterns: &str, name: &str) -> bool {
    let (not, of): (Vec<&str>, Vec<&str>) = patterns.split(',').partition(|pattern| pattern.starts_with('!'));
    of.iter().any(|pattern| is_like(pattern, name)) && !not.iter().any(|pattern| is_like(&pattern[1..], name))
}

fn is_like(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len()).any(|at| name.is_char_boundary(at) && is_like(rest, &name[at..]))
        }),
    }
}

/// Parses the output of `cuobjdump -sass` for one architecture.
pub(crate) fn instructions(text: &str, architecture: &str) -> Vec<Kernel> {
    let mut all: Vec<Kernel> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Function : ") {
            let (name, architecture) = (name.to_owned(), architecture.to_owned());
            all.push(Kernel { name, architecture, ..Kernel::default() });
        } else if let (Some(kernel), Some(instruction)) = (all.last_mut(), instruction(line)) {
            if !kernel.instructions.contains_key(instruction) {
                kernel.instructions.insert(instruction.to_owned(), kernel.length);
            }
            kernel.length += 1;
        }
    }
    all
}

/// Returns the instruction of a line: `LDG.E.128` of `/*0040*/  @P0 LDG.E.128 R4, [R2] ;`.
fn instruction(line: &str) -> Option<&str> {
    let (_, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    let mut words = rest.trim_start().split([' ', ';', '{']).filter(|word| !word.is_empty());
    let first = words.next()?;
    let word = if first.starts_with('@') { words.next()? } else { first };
    word.starts_with(|c: char| c.is_ascii_uppercase()).then_some(word)
}

/// Adds registers and shared memory from the output of `cuobjdump -res-usage` for the same
/// architecture.
pub(crate) fn resources(text: &str, kernels: &mut [Kernel]) {
    let mut name = "";
    for line in text.lines().map(str::trim) {
        if let Some(function) = line.strip_prefix("Function ") {
            name = function.trim_end_matches(':');
        } else if let Some(kernel) = kernels.iter_mut().find(|k| k.name == name && line.starts_with("REG:")) {
            let number = |what: &str| -> usize {
                let found = line.split_whitespace().find_map(|word| word.strip_prefix(what)?.parse().ok());
                found.unwrap_or_default()
            };
            kernel.registers = number("REG:");
            kernel.shared = number("SHARED:");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SASS: &str = "
\tcode for sm_90a
\t\tFunction : copy_bf16
\t.headerflags\t@\"EF_CUDA_SM90\"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                  /* 0x00000a00ff017b82 */
                                                                           /* 0x000fe20000000800 */
        /*0010*/             @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ; /* 0x0000000402047981 */
        /*0020*/                   EXIT ;                                  /* 0x000000000000794d */
\t\tFunction : other_f16
        /*0000*/                   { HFMA2.MMA R3, -RZ, RZ, 0, 0 ;          /* 0x00 */
";

    #[test]
    fn machine_code_is_read() {
        let mut kernels = instructions(SASS, "90a");
        resources(" Function copy_bf16:\n  REG:29 STACK:0 SHARED:64 LOCAL:0\n", &mut kernels);
        assert_eq!(kernels.len(), 2);
        let copy = &kernels[0];
        assert_eq!((copy.name.as_str(), copy.length, copy.registers, copy.shared), ("copy_bf16", 3, 29, 64));
        assert!(copy.instructions["LDG.E.128.CONSTANT"] == 1 && copy.instructions["EXIT"] == 2);
        assert!(kernels[1].instructions.contains_key("HFMA2.MMA"));
    }

    #[test]
    fn promises_are_held_against_it() {
        let kernels = instructions(SASS, "90a");
        let broken = |table: &str| broken(&parse(table).unwrap(), &kernels);
        assert!(broken("copy_* 90a LDG.E.128 LDG !STL !LDG.64\n# nothing\n\n* 90a !LDL").is_empty());
        assert!(broken("copy_f16,copy_bf16 90a LDG").is_empty());
        assert_eq!(broken("copy_* 90a LDS"), ["copy_bf16 for sm_90a has no LDS"]);
        assert_eq!(broken("*_bf* 90a !LDG.128"), ["copy_bf16 for sm_90a has LDG.128"]);
        assert!(
            broken("copy_* 90a LDG<EXIT LDC<STG").is_empty(),
            "an order holds if the second instruction does not occur"
        );
        assert_eq!(broken("copy_* 90a LDG<LDC"), ["copy_bf16 for sm_90a has no LDG before LDC"]);
        assert_eq!(broken("*,!*_bf16 90a EXIT<LDC"), ["other_f16 for sm_90a has no EXIT before LDC"]);
        assert_eq!(broken("copy 90a LDG").len(), 1, "a pattern that matches nothing proves nothing");
        assert_eq!(broken("* 80 LDG"), ["* for sm_80: there is no such kernel"]);
        assert!(parse("copy_* 90a").is_err() && parse("copy_*").is_err());
    }
}
