//! Tuning results on disk: a text file per GPU, library and kind of choice, with one line for each
//! product and bucket.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::results::{ProductMethod, TunedProduct, TuningResults};
use crate::cache_folder::user_folder;
use crate::weights::{PackedFormat, SharedScale, WeightLayout};
use crate::{Algorithm, Elem};

/// The file of the results for one key. The key names everything that they depend on: the GPU, its
/// libraries and this program.
#[derive(Debug, Clone)]
pub(crate) struct TuningFile {
    folder: Option<PathBuf>,
    key: String,
}

impl TuningFile {
    /// The user's file for `key`, which is one line.
    pub(crate) fn of_user(key: String) -> TuningFile {
        TuningFile { folder: user_folder("products"), key }
    }

    /// Reads the results; they are empty if there is no file. The second value is a warning about a
    /// file that cannot be used.
    pub(crate) fn read(&self) -> (TuningResults, Option<String>) {
        let Some(file) = self.file() else { return (TuningResults::default(), None) };
        match fs::read_to_string(&file) {
            Ok(text) => match self.parse(&text) {
                Ok(results) => (results, None),
                Err(why) => (TuningResults::default(), Some(format!("{} is ignored: {why}", file.display()))),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => (TuningResults::default(), None),
            Err(error) => (TuningResults::default(), Some(format!("{} is ignored: {error}", file.display()))),
        }
    }

    /// Writes the results. Other processes see all of them or the previous ones. Returns a warning
    /// if writing fails.
    pub(crate) fn write(&self, results: &TuningResults) -> Option<String> {
        let file = self.file()?;
        let partial = file.with_extension(format!("{}.partial", std::process::id()));
        let _ = self.folder.as_ref().map(fs::create_dir_all);
        let written = fs::write(&partial, self.text(results)).and_then(|()| fs::rename(&partial, &file));
        written.err().map(|error| {
            let _ = fs::remove_file(&partial);
            format!("{} cannot be written: {error}", file.display())
        })
    }

    fn file(&self) -> Option<PathBuf> {
        let digest: String =
            Sha256::digest(&self.key)[..12].iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.folder.as_ref()?.join(format!("{digest}.txt")))
    }

    fn text(&self, results: &TuningResults) -> String {
        let mut text = format!("{}\n", self.key);
        for ((product, rows), method) in &results.0 {
            let TunedProduct { inputs, outputs, weight, out_elem } = product;
            let weight = layout_name(*weight);
            let method = match method {
                ProductMethod::Kernel => "kernel".to_owned(),
                ProductMethod::Tiles => "tiles".to_owned(),
                ProductMethod::Library(Algorithm(words)) => words.map(|word| format!("{word:016x}")).concat(),
            };
            text += &format!("{inputs} {outputs} {weight} {out_elem:?} {rows} {method}\n");
        }
        // The last line shows that the file is complete.
        text + "end\n"
    }

    fn parse(&self, text: &str) -> Result<TuningResults, String> {
        let mut lines = text.lines();
        if lines.next() != Some(&self.key) {
            return Err("it is for another GPU, library or version of this program".to_owned());
        }
        let mut results = TuningResults::default();
        for (number, line) in (2..).zip(lines.by_ref()) {
            if line == "end" {
                return Ok(results);
            }
            let (product, rows, method) =
                entry(line).ok_or_else(|| format!("line {number} cannot be read"))?;
            results.insert(product, rows, method);
        }
        Err("it is incomplete".to_owned())
    }
}

fn entry(line: &str) -> Option<(TunedProduct, usize, ProductMethod)> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [inputs, outputs, weight, out_elem, rows, method] = fields[..] else { return None };
    let product = TunedProduct {
        inputs: inputs.parse().ok()?,
        outputs: outputs.parse().ok()?,
        weight: layout(weight)?,
        out_elem: float(out_elem)?,
    };
    let method = match method {
        "kernel" => ProductMethod::Kernel,
        "tiles" => ProductMethod::Tiles,
        hex => ProductMethod::Library(algorithm(hex)?),
    };
    Some((product, rows.parse().ok()?, method))
}

/// The name of a layout in the file.
fn layout_name(layout: WeightLayout) -> String {
    match layout {
        WeightLayout::Dense(elem) => format!("{elem:?}"),
        WeightLayout::Packed(format, shared) => format!("{format:?}/{shared:?}"),
    }
}

fn layout(name: &str) -> Option<WeightLayout> {
    let packed = |shared| PackedFormat::ALL.map(|format| WeightLayout::Packed(format, shared));
    let all = [SharedScale::Row, SharedScale::Group].into_iter().flat_map(packed);
    let mut all = all.chain([Elem::F32, Elem::F16, Elem::BF16].map(WeightLayout::Dense));
    all.find(|layout| layout_name(*layout) == name)
}

fn float(name: &str) -> Option<Elem> {
    [Elem::F32, Elem::F16, Elem::BF16].into_iter().find(|elem| format!("{elem:?}") == name)
}

fn algorithm(hex: &str) -> Option<Algorithm> {
    if hex.len() != 8 * 16 || !hex.is_ascii() {
        return None;
    }
    let mut words = [0; 8];
    for (index, word) in words.iter_mut().enumerate() {
        *word = u64::from_str_radix(&hex[index * 16..(index + 1) * 16], 16).ok()?;
    }
    Some(Algorithm(words))
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{PRODUCT, library};
    use super::*;

    fn table(name: &str, key: &str) -> TuningFile {
        let folder = std::env::temp_dir().join(format!("millrace-products-{name}-{}", std::process::id()));
        TuningFile { folder: Some(folder), key: key.to_owned() }
    }

    fn some_results() -> TuningResults {
        let mut results = TuningResults::default();
        results.insert(PRODUCT, 1, ProductMethod::Kernel);
        results.insert(PRODUCT, 24, library(7));
        results.insert(TunedProduct { out_elem: Elem::F32, ..PRODUCT }, 1, library(u64::MAX));
        results.insert(TunedProduct { weight: WeightLayout::FP8_ROWS, ..PRODUCT }, 24, ProductMethod::Tiles);
        results
    }

    #[test]
    fn results_are_read_only_for_their_key() {
        let kept = table("kept", "GPU, library 13.0");
        assert_eq!(kept.read(), (TuningResults::default(), None));
        assert_eq!(kept.write(&some_results()), None);
        assert_eq!(kept.read(), (some_results(), None));
        assert_eq!(
            TuningFile { key: "GPU, library 13.1".to_owned(), ..kept.clone() }.read().0,
            TuningResults::default()
        );
        let folder = kept.folder.unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "a partial file is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn broken_files_are_ignored_with_a_warning() {
        let broken = table("broken", "key");
        broken.write(&some_results());
        let file = broken.file().unwrap();
        let good = fs::read_to_string(&file).unwrap();
        let cases = [
            good[..good.len() - 5].to_owned(),
            good[..good.len() / 2].to_owned(),
            String::new(),
            good.replacen("BF16", "I8", 1),
            good.replacen("kernel", "colonel", 1),
            good.replacen("64 ", "-64 ", 1),
            good.replacen("key", "another key", 1),
            good.replace("0000000000000007", "000000000000000é"),
        ];
        for case in cases {
            fs::write(&file, &case).unwrap();
            let (results, warning) = broken.read();
            assert_eq!(results, TuningResults::default(), "{case}");
            assert!(warning.unwrap().contains("is ignored"), "{case}");
        }
        fs::write(&file, [0xff, 0xfe]).unwrap();
        assert!(broken.read().1.is_some());
        broken.write(&some_results());
        assert_eq!(broken.read(), (some_results(), None));
        fs::remove_dir_all(broken.folder.unwrap()).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_a_warning() {
        let nowhere = TuningFile { folder: Some("/proc/millrace".into()), key: "key".to_owned() };
        assert!(nowhere.write(&some_results()).unwrap().contains("cannot be written"));
        let none = TuningFile { folder: None, key: "key".to_owned() };
        assert_eq!((none.write(&some_results()), none.read()), (None, (TuningResults::default(), None)));
    }
}
