//! Choices on disk: a text file per card, library and kind of choice, one line for each shape and bucket.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::{Algorithm, Choices, Shape, Way};
use crate::cuda::folder::user_folder;
use crate::cuda::memory::Elem;

/// The file of choices that hold for one key: what of card, libraries and program they depend on.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    folder: Option<PathBuf>,
    key: String,
}

impl Table {
    /// The user's, for `key`, which is one line.
    pub(crate) fn of_user(key: String) -> Table {
        Table { folder: user_folder("products"), key }
    }

    /// What was kept; nothing if there is no file. A file that cannot be used is a warning.
    pub(crate) fn read(&self) -> (Choices, Option<String>) {
        let Some(file) = self.file() else { return (Choices::default(), None) };
        match fs::read_to_string(&file) {
            Ok(text) => match self.parse(&text) {
                Ok(choices) => (choices, None),
                Err(why) => (Choices::default(), Some(format!("{} is ignored: {why}", file.display()))),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => (Choices::default(), None),
            Err(error) => (Choices::default(), Some(format!("{} is ignored: {error}", file.display()))),
        }
    }

    /// Keeps `choices`; another process sees all of them or what was there before. A failure is a warning.
    pub(crate) fn write(&self, choices: &Choices) -> Option<String> {
        let file = self.file()?;
        let partial = file.with_extension(format!("{}.partial", std::process::id()));
        let _ = self.folder.as_ref().map(fs::create_dir_all);
        let written = fs::write(&partial, self.text(choices)).and_then(|()| fs::rename(&partial, &file));
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

    fn text(&self, choices: &Choices) -> String {
        let mut text = format!("{}\n", self.key);
        for ((shape, rows), way) in &choices.0 {
            let Shape { inputs, outputs, elem, out_elem } = shape;
            let way = match way {
                Way::Kernel => "kernel".to_owned(),
                Way::Tiles => "tiles".to_owned(),
                Way::Library(Algorithm(words)) => words.map(|word| format!("{word:016x}")).concat(),
            };
            text += &format!("{inputs} {outputs} {elem:?} {out_elem:?} {rows} {way}\n");
        }
        // So that a file that was cut off is known as such.
        text + "end\n"
    }

    fn parse(&self, text: &str) -> Result<Choices, String> {
        let mut lines = text.lines();
        if lines.next() != Some(&self.key) {
            return Err("it is not for this card, these libraries and this program".to_owned());
        }
        let mut choices = Choices::default();
        for (number, line) in (2..).zip(lines.by_ref()) {
            if line == "end" {
                return Ok(choices);
            }
            let (shape, rows, way) = entry(line).ok_or_else(|| format!("line {number} cannot be read"))?;
            choices.insert(shape, rows, way);
        }
        Err("its end is missing".to_owned())
    }
}

fn entry(line: &str) -> Option<(Shape, usize, Way)> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [inputs, outputs, elem, out_elem, rows, way] = fields[..] else { return None };
    let shape = Shape {
        inputs: inputs.parse().ok()?,
        outputs: outputs.parse().ok()?,
        elem: float(elem)?,
        out_elem: float(out_elem)?,
    };
    let way = match way {
        "kernel" => Way::Kernel,
        "tiles" => Way::Tiles,
        hex => Way::Library(algorithm(hex)?),
    };
    Some((shape, rows.parse().ok()?, way))
}

fn float(name: &str) -> Option<Elem> {
    [Elem::F32, Elem::F16, Elem::BF16, Elem::E4M3].into_iter().find(|elem| format!("{elem:?}") == name)
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
    use super::super::tests::{SHAPE, library};
    use super::*;

    fn table(name: &str, key: &str) -> Table {
        let folder = std::env::temp_dir().join(format!("millrace-products-{name}-{}", std::process::id()));
        Table { folder: Some(folder), key: key.to_owned() }
    }

    fn some_choices() -> Choices {
        let mut choices = Choices::default();
        choices.insert(SHAPE, 1, Way::Kernel);
        choices.insert(SHAPE, 24, library(7));
        choices.insert(Shape { out_elem: Elem::F32, ..SHAPE }, 1, library(u64::MAX));
        choices.insert(Shape { elem: Elem::E4M3, ..SHAPE }, 24, Way::Tiles);
        choices
    }

    #[test]
    fn choices_come_back_for_their_key_alone() {
        let kept = table("kept", "card, library 13.0");
        assert_eq!(kept.read(), (Choices::default(), None));
        assert_eq!(kept.write(&some_choices()), None);
        assert_eq!(kept.read(), (some_choices(), None));
        assert_eq!(
            Table { key: "card, library 13.1".to_owned(), ..kept.clone() }.read().0,
            Choices::default()
        );
        let folder = kept.folder.unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing partial is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn broken_files_are_ignored_with_a_warning() {
        let broken = table("broken", "key");
        broken.write(&some_choices());
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
            let (choices, warning) = broken.read();
            assert_eq!(choices, Choices::default(), "{case}");
            assert!(warning.unwrap().contains("is ignored"), "{case}");
        }
        fs::write(&file, [0xff, 0xfe]).unwrap();
        assert!(broken.read().1.is_some());
        broken.write(&some_choices());
        assert_eq!(broken.read(), (some_choices(), None));
        fs::remove_dir_all(broken.folder.unwrap()).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_a_warning() {
        let nowhere = Table { folder: Some("/proc/millrace".into()), key: "key".to_owned() };
        assert!(nowhere.write(&some_choices()).unwrap().contains("cannot be written"));
        let none = Table { folder: None, key: "key".to_owned() };
        assert_eq!((none.write(&some_choices()), none.read()), (None, (Choices::default(), None)));
    }
}
