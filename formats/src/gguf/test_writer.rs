//! Writes GGUF files for tests.

/// A file in the making: metadata and tensors in the order in which they were added.
pub(crate) struct TestFile {
    version: u32,
    keys: Vec<Vec<u8>>,
    tensors: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) alignment: usize,
}

/// A value of the metadata.
pub(crate) enum TestValue<'a> {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(&'a str),
    Texts(&'a [&'a str]),
    F32s(&'a [f32]),
    I32s(&'a [i32]),
    Bools(&'a [bool]),
}

impl TestFile {
    pub(crate) fn new(version: u32) -> Self {
        TestFile { version, keys: Vec::new(), tensors: Vec::new(), alignment: 32 }
    }

    fn length(&self, length: usize) -> Vec<u8> {
        match self.version {
            1 => (length as u32).to_le_bytes().to_vec(),
            _ => (length as u64).to_le_bytes().to_vec(),
        }
    }

    pub(crate) fn text(&self, text: &str) -> Vec<u8> {
        [self.length(text.len()), text.into()].concat()
    }

    /// Adds a key with a value as bytes: the number of its type and the value.
    pub(crate) fn raw(mut self, key: &str, value: &[u8]) -> Self {
        self.keys.push([&self.text(key), value].concat());
        self
    }

    pub(crate) fn key(self, key: &str, value: TestValue<'_>) -> Self {
        let word = |id: u32| id.to_le_bytes().to_vec();
        let array = |id: u32, count| [word(9), word(id), self.length(count)].concat();
        let value = match value {
            TestValue::U32(number) => [word(4), word(number)].concat(),
            TestValue::F32(number) => [word(6), number.to_le_bytes().to_vec()].concat(),
            TestValue::Bool(value) => [word(7), vec![value.into()]].concat(),
            TestValue::Text(text) => [word(8), self.text(text)].concat(),
            TestValue::Texts(texts) => {
                texts.iter().fold(array(8, texts.len()), |bytes, text| [bytes, self.text(text)].concat())
            }
            TestValue::F32s(numbers) => numbers
                .iter()
                .fold(array(6, numbers.len()), |bytes, x| [&bytes[..], &x.to_le_bytes()].concat()),
            TestValue::I32s(numbers) => numbers
                .iter()
                .fold(array(5, numbers.len()), |bytes, x| [&bytes[..], &x.to_le_bytes()].concat()),
            TestValue::Bools(values) => {
                values.iter().fold(array(7, values.len()), |bytes, x| [bytes, vec![(*x).into()]].concat())
            }
        };
        self.raw(key, &value)
    }

    /// Adds a tensor whose axes are those of the file, the inner one first.
    pub(crate) fn tensor(mut self, name: &str, axes: &[usize], id: u32, data: &[u8]) -> Self {
        let axes: Vec<u8> = axes.iter().flat_map(|&size| self.length(size)).collect();
        let count = axes.len() / self.length(0).len();
        let info =
            [self.text(name), (count as u32).to_le_bytes().into(), axes, id.to_le_bytes().into()].concat();
        self.tensors.push((info, data.to_vec()));
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = [b"GGUF", &self.version.to_le_bytes()[..]].concat();
        bytes.extend(self.length(self.tensors.len()));
        bytes.extend(self.length(self.keys.len()));
        self.keys.iter().for_each(|key| bytes.extend(key));
        let mut data: Vec<u8> = Vec::new();
        for (info, content) in &self.tensors {
            data.resize(data.len().next_multiple_of(self.alignment), 0);
            bytes.extend(info);
            bytes.extend((data.len() as u64).to_le_bytes());
            data.extend(content);
        }
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(data);
        bytes
    }
}
