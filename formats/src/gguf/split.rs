//! Models that are split into several files, `NAME-00001-of-00003.gguf` and so on.

use super::file::Header;
use crate::error::Error;
use crate::fault::FileFault;
use crate::mapped_file::MappedFile;

/// The largest number of files of a model.
const MAX_FILES: u64 = 4096;

const COUNT: &str = "split.count";

/// Splits the name of a part into the name of the model, the number of the part from 1 on, and the
/// number of parts. Returns `None` for other names.
pub fn split_model_name(name: &str) -> Option<(&str, u64, u64)> {
    let stem = name.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (model, number) = rest.rsplit_once('-')?;
    let parse = |digits: &str| (digits.len() == 5).then(|| digits.parse().ok())?;
    Some((model, parse(number)?, parse(count)?))
}

/// Returns all files of the model whose first file is `first`.
pub(super) fn all(
    first: MappedFile,
    beside: impl Fn(&str) -> Result<Option<MappedFile>, Error>,
) -> Result<Vec<MappedFile>, Error> {
    let header = Header::read(&first.path, &first);
    first.check_readable()?;
    let header = header?;
    let count = header.count(COUNT)?.unwrap_or(1);
    let fault = |reason: String| header.fault(FileFault::Split(reason));
    if count <= 1 {
        return Ok(vec![first]);
    }
    if count > MAX_FILES {
        return Err(fault(format!("{COUNT} is {count}, more than the limit of {MAX_FILES}")));
    }
    let number = header.count("split.no")?.unwrap_or(0);
    let Some((model, 1, stated)) = split_model_name(&first.name).filter(|_| number == 0) else {
        return Err(fault(format!(
            "not the first one; give the file whose name ends with -00001-of-{count:05}.gguf"
        )));
    };
    if stated != count {
        return Err(fault(format!("its name says that there are {stated} parts, but {COUNT} is {count}")));
    }
    let names: Vec<String> =
        (2..=count).map(|part| format!("{model}-{part:05}-of-{count:05}.gguf")).collect();
    let mut files = Vec::new();
    for name in names {
        match beside(&name)? {
            Some(file) => files.push(file),
            None => return Err(fault(format!("{name} is missing beside it; download it"))),
        }
    }
    files.insert(0, first);
    Ok(files)
}

/// Checks that the files belong together.
pub(super) fn check(headers: &[Header<'_>]) -> Result<(), Error> {
    let Some((first, rest)) = headers.split_first() else { return Ok(()) };
    if rest.is_empty() {
        return Ok(());
    }
    for (index, header) in headers.iter().enumerate() {
        let fault = |reason: String| Err(header.fault(FileFault::Split(reason)));
        if header.count("split.no")? != Some(index as u64) {
            return fault(format!("split.no is not {index}, as its name says"));
        }
        if header.count(COUNT)? != Some(headers.len() as u64) {
            return fault(format!("{COUNT} is not {}, as in the first part", headers.len()));
        }
    }
    let found: usize = headers.iter().map(|header| header.tensors.len()).sum();
    match first.count("split.tensors.count")? {
        Some(stated) if stated != found as u64 => Err(first.fault(FileFault::Split(format!(
            "all parts together should have {stated} tensors, but have {found}; download them again"
        )))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_split() {
        assert_eq!(split_model_name("a-b-00002-of-00013.gguf"), Some(("a-b", 2, 13)));
        for other in
            ["a.gguf", "a-1-of-2.gguf", "a-00001-of-00002.bin", "a-0000x-of-00002.gguf", "-of-00002.gguf"]
        {
            assert_eq!(split_model_name(other), None, "{other}");
        }
    }
}
