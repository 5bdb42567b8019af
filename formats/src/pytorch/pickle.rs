//! A machine for the pickles of state dictionaries.
//!
//! A pickle is a program, and Python's machine calls any function that it names. This machine calls
//! nothing: it knows the instructions that `torch.save` writes for tensors, and the few names that
//! occur in them. It refuses everything else.
//!
//! Values are indices into one list, so that a value that contains itself, or is nested deeply, is
//! neither followed nor copied.

use std::collections::HashMap;

use crate::cursor::Cursor;
use crate::fault::FileFault;

/// The largest pickle in bytes. The one of a model with a hundred thousand tensors has 30 MB.
const MAX_PICKLE: usize = 64 << 20;

/// The largest number of values. A tensor has about 25.
const MAX_VALUES: usize = 1 << 22;

/// The largest number of tuples and dictionaries that are open at once.
const MAX_DEPTH: usize = 1 << 10;

/// The index of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ValueId(u32);

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
    Tuple(Vec<ValueId>),
    List(Vec<ValueId>),
    /// A dictionary, or an ordered one.
    Dict(Vec<(ValueId, ValueId)>),
    Global(Global),
    /// The arguments of a storage: what `torch.save` calls a persistent id.
    Storage(ValueId),
    /// The arguments of a tensor.
    Tensor(ValueId),
}

/// The names that occur in state dictionaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    /// A class of storages.
    Storage(StorageType),
}

/// The element types of storages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StorageType {
    F64,
    F32,
    F16,
    BF16,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}

/// The names by module and name.
const GLOBALS: [(&str, &str, Global); 13] = [
    ("collections", "OrderedDict", Global::OrderedDict),
    ("torch._utils", "_rebuild_tensor_v2", Global::RebuildTensor),
    ("torch._utils", "_rebuild_parameter", Global::RebuildParameter),
    ("torch", "DoubleStorage", Global::Storage(StorageType::F64)),
    ("torch", "FloatStorage", Global::Storage(StorageType::F32)),
    ("torch", "HalfStorage", Global::Storage(StorageType::F16)),
    ("torch", "BFloat16Storage", Global::Storage(StorageType::BF16)),
    ("torch", "LongStorage", Global::Storage(StorageType::I64)),
    ("torch", "IntStorage", Global::Storage(StorageType::I32)),
    ("torch", "ShortStorage", Global::Storage(StorageType::I16)),
    ("torch", "CharStorage", Global::Storage(StorageType::I8)),
    ("torch", "ByteStorage", Global::Storage(StorageType::U8)),
    ("torch", "BoolStorage", Global::Storage(StorageType::Bool)),
];

/// The values of a pickle.
#[derive(Debug, Default)]
pub(super) struct Values<'a>(Vec<Value<'a>>);

impl<'a> Values<'a> {
    pub(super) fn get(&self, id: ValueId) -> &Value<'a> {
        &self.0[id.0 as usize]
    }

    /// Returns the elements of a tuple.
    pub(super) fn tuple(&self, id: ValueId) -> Option<&[ValueId]> {
        if let Value::Tuple(items) = self.get(id) { Some(items) } else { None }
    }

    /// Returns a number that is not negative.
    pub(super) fn count(&self, id: ValueId) -> Option<u64> {
        if let Value::Int(number) = self.get(id) { u64::try_from(*number).ok() } else { None }
    }

    /// Returns a text.
    pub(super) fn text(&self, id: ValueId) -> Option<&'a str> {
        if let Value::Text(text) = self.get(id) { Some(text) } else { None }
    }

    fn add(&mut self, value: Value<'a>) -> Result<ValueId, FileFault> {
        if self.0.len() == MAX_VALUES {
            return Err(too_many());
        }
        self.0.push(value);
        Ok(ValueId(self.0.len() as u32 - 1))
    }
}

/// Runs a pickle. Returns its values, and which one is the result.
pub(super) fn run(bytes: &[u8]) -> Result<(Values<'_>, ValueId), FileFault> {
    if bytes.len() > MAX_PICKLE {
        let (count, limit) = (bytes.len() as u64, MAX_PICKLE as u64);
        return Err(FileFault::TooMany { what: "bytes of names and shapes", count, limit });
    }
    let mut machine = Machine {
        cursor: Cursor::new(bytes),
        values: Values::default(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    loop {
        if let Some(result) = machine.step()? {
            return Ok((machine.values, result));
        }
    }
}

struct Machine<'a> {
    cursor: Cursor<'a>,
    values: Values<'a>,
    stack: Vec<ValueId>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u32, ValueId>,
}

const WHAT: &str = "the list of tensors";

impl<'a> Machine<'a> {
    /// Runs an instruction. Returns the result if it was the last one.
    fn step(&mut self) -> Result<Option<ValueId>, FileFault> {
        let at = self.cursor.at();
        match self.cursor.u8(WHAT)? {
            0x80 => self.protocol()?,
            b'.' => return self.pop().map(Some),
            b'(' => self.mark()?,
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'J' => self.number(|cursor| cursor.i32(WHAT).map(i64::from))?,
            b'K' => self.number(|cursor| cursor.u8(WHAT).map(i64::from))?,
            b'M' => self.number(|cursor| cursor.u16(WHAT).map(i64::from))?,
            0x8a => self.long()?,
            b'G' => {
                let number = f64::from_bits(self.cursor.u64(WHAT)?.swap_bytes());
                self.push(Value::Float(number))?;
            }
            b'X' => {
                let length = self.cursor.u32(WHAT)?;
                let text = std::str::from_utf8(self.cursor.take(length.into(), WHAT)?);
                let not_text =
                    |_| FileFault::NotText { what: format!("the text at byte {at} of its data.pkl") };
                self.push(Value::Text(text.map_err(not_text)?))?;
            }
            b'c' => self.global()?,
            b')' => self.push(Value::Tuple(Vec::new()))?,
            0x85 => self.small_tuple(1)?,
            0x86 => self.small_tuple(2)?,
            0x87 => self.small_tuple(3)?,
            b't' => {
                let items = self.since_mark()?;
                self.push(Value::Tuple(items))?;
            }
            b']' => self.push(Value::List(Vec::new()))?,
            b'a' => {
                let item = self.pop()?;
                self.extend_list(&[item])?;
            }
            b'e' => {
                let items = self.since_mark()?;
                self.extend_list(&items)?;
            }
            b'}' => self.push(Value::Dict(Vec::new()))?,
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.extend_dict(&[key, value])?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.extend_dict(&items)?;
            }
            b'q' => {
                let index = self.cursor.u8(WHAT)?;
                self.remember(index.into())?;
            }
            b'r' => {
                let index = self.cursor.u32(WHAT)?;
                self.remember(index)?;
            }
            b'h' => {
                let index = self.cursor.u8(WHAT)?;
                self.recall(index.into())?;
            }
            b'j' => {
                let index = self.cursor.u32(WHAT)?;
                self.recall(index)?;
            }
            b'Q' => {
                let arguments = self.pop()?;
                self.push(Value::Storage(arguments))?;
            }
            b'R' => self.call()?,
            b'b' => self.build()?,
            other => {
                return Err(refused(&format!("the instruction {other:#04x} at byte {at}")));
            }
        }
        Ok(None)
    }

    fn protocol(&mut self) -> Result<(), FileFault> {
        match self.cursor.u8(WHAT)? {
            2 => Ok(()),
            found => Err(FileFault::Version {
                found: found.into(),
                known: "pickle protocol 2, which torch.save writes",
            }),
        }
    }

    fn mark(&mut self) -> Result<(), FileFault> {
        if self.marks.len() == MAX_DEPTH {
            return Err(FileFault::Nested { key: "its data.pkl".to_owned(), limit: MAX_DEPTH });
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), FileFault> {
        let id = self.values.add(value)?;
        self.stack.push(id);
        Ok(())
    }

    fn pop(&mut self) -> Result<ValueId, FileFault> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(damaged());
        }
        self.stack.pop().ok_or_else(damaged)
    }

    /// Returns the last value, which stays where it is.
    fn top(&mut self) -> Result<&mut Value<'a>, FileFault> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.last() {
            Some(id) if self.stack.len() > floor => Ok(&mut self.values.0[id.0 as usize]),
            _ => Err(damaged()),
        }
    }

    /// Takes the values since the last mark.
    fn since_mark(&mut self) -> Result<Vec<ValueId>, FileFault> {
        let mark = self.marks.pop().ok_or_else(damaged)?;
        Ok(self.stack.split_off(mark))
    }

    fn number(
        &mut self,
        read: impl FnOnce(&mut Cursor<'a>) -> Result<i64, FileFault>,
    ) -> Result<(), FileFault> {
        let number = read(&mut self.cursor)?;
        self.push(Value::Int(number))
    }

    /// Reads a number of up to eight bytes, of which the last one has the sign.
    fn long(&mut self) -> Result<(), FileFault> {
        let length = self.cursor.u8(WHAT)?;
        let bytes = self.cursor.take(length.into(), WHAT)?;
        if bytes.len() > 8 {
            return Err(refused("a number of more than 64 bits"));
        }
        let fill = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
        let mut number = [fill; 8];
        number[..bytes.len()].copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(number)))
    }

    fn line(&mut self) -> Result<&'a str, FileFault> {
        /// The longest name of a module or of something in it.
        const LONGEST: u64 = 256;
        let mut ahead = self.cursor;
        let mut length = 0;
        while ahead.u8("a name")? != b'\n' {
            length += 1;
            if length > LONGEST {
                return Err(damaged());
            }
        }
        let bytes = self.cursor.take(length, "a name")?;
        self.cursor.take(1, "a name")?;
        std::str::from_utf8(bytes).map_err(|_| damaged())
    }

    fn global(&mut self) -> Result<(), FileFault> {
        let (module, name) = (self.line()?, self.line()?);
        match GLOBALS.iter().find(|known| (known.0, known.1) == (module, name)) {
            Some((.., global)) => self.push(Value::Global(*global)),
            None => {
                let shown: String = format!("{module}.{name}").chars().filter(|c| !c.is_control()).collect();
                Err(refused(&shown))
            }
        }
    }

    fn small_tuple(&mut self, count: usize) -> Result<(), FileFault> {
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push(Value::Tuple(items))
    }

    fn extend_list(&mut self, items: &[ValueId]) -> Result<(), FileFault> {
        match self.top()? {
            Value::List(list) => list.extend(items),
            _ => return Err(damaged()),
        }
        Ok(())
    }

    fn extend_dict(&mut self, items: &[ValueId]) -> Result<(), FileFault> {
        let (pairs, rest) = items.as_chunks::<2>();
        match self.top()? {
            Value::Dict(dict) if rest.is_empty() => {
                dict.extend(pairs.iter().map(|&[key, value]| (key, value)))
            }
            _ => return Err(damaged()),
        }
        Ok(())
    }

    fn remember(&mut self, index: u32) -> Result<(), FileFault> {
        self.top()?;
        let id = self.stack.last().copied().ok_or_else(damaged)?;
        if self.memo.len() == MAX_VALUES {
            return Err(too_many());
        }
        self.memo.insert(index, id);
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Result<(), FileFault> {
        let id = self.memo.get(&index).copied().ok_or_else(damaged)?;
        // Values that are recalled take memory on the stack.
        if self.stack.len() == MAX_VALUES {
            return Err(too_many());
        }
        self.stack.push(id);
        Ok(())
    }

    /// Calls one of the known functions.
    fn call(&mut self) -> Result<(), FileFault> {
        let arguments = self.pop()?;
        let function = self.pop()?;
        let Some(items) = self.values.tuple(arguments) else { return Err(damaged()) };
        match (self.values.get(function), items) {
            (Value::Global(Global::OrderedDict), []) => self.push(Value::Dict(Vec::new())),
            (Value::Global(Global::RebuildTensor), _) => self.push(Value::Tensor(arguments)),
            // A parameter is its tensor.
            (Value::Global(Global::RebuildParameter), &[tensor, ..]) => {
                self.stack.push(tensor);
                Ok(())
            }
            _ => Err(damaged()),
        }
    }

    /// Drops the attributes of a dictionary: the versions of the modules, which nothing needs.
    fn build(&mut self) -> Result<(), FileFault> {
        self.pop()?;
        match self.top()? {
            Value::Dict(_) => Ok(()),
            _ => Err(refused("an object with attributes")),
        }
    }
}

fn refused(what: &str) -> FileFault {
    FileFault::Kind(format!(
        "its data.pkl has {what}, which no dictionary of tensors has, and which is not run; \
         save the tensors alone with `torch.save(model.state_dict(), …)`"
    ))
}

fn too_many() -> FileFault {
    FileFault::TooMany { what: "values", count: MAX_VALUES as u64 + 1, limit: MAX_VALUES as u64 }
}

fn damaged() -> FileFault {
    FileFault::Kind("its data.pkl contradicts itself; the file is damaged, download it again".to_owned())
}
