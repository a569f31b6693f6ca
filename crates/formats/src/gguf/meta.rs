//! The metadata of a GGUF file: keys in memory, values left in the mapping and decoded when asked for.
//!
//! A vocabulary of 150,000 strings is walked once when the file is opened (to find its end) and costs no memory here.
//! Asking for a key with another type than it has is an error that names both; asking for one that is not there is
//! `None`.

use super::cursor::Cursor;
use super::{Problem, ValueType};
use crate::error::{Error, Result};
use crate::mapped::Mapped;

/// Key length, one byte of key, type, one byte of value.
pub(super) const MIN_BYTES: u64 = 8 + 1 + 4 + 1;

const MAX_KEY_BYTES: usize = 1024;

/// The metadata of a GGUF file.
#[derive(Debug)]
pub struct Meta {
    file: Mapped,
    entries: Vec<Entry>,
    /// Positions in `entries`, sorted by key.
    by_key: Vec<usize>,
}

#[derive(Debug)]
struct Entry {
    key: Box<str>,
    /// Of the value, or of the elements of an array.
    ty: ValueType,
    /// Number of elements of an array.
    array: Option<usize>,
    /// The value's bytes; of an array, those of its elements. Checked to hold exactly what the two fields above say.
    at: usize,
    bytes: usize,
}

/// A metadata value.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // The names say it.
pub enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// Usually, not certainly, UTF-8.
    String(&'a [u8]),
    Array(MetaArray<'a>),
}

/// An array in the metadata: a view of the file.
#[derive(Clone, Copy, Debug)]
pub struct MetaArray<'a> {
    file: &'a Mapped,
    key: &'a str,
    ty: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl Meta {
    pub(super) fn read(file: &Mapped, cursor: &mut Cursor<'_>, count: usize) -> std::result::Result<Self, Problem> {
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            entries.push(Entry::read(cursor)?);
        }
        let mut by_key: Vec<usize> = (0..count).collect();
        by_key.sort_unstable_by_key(|&i| &entries[i].key);
        if let Some(pair) = by_key.windows(2).find(|pair| entries[pair[0]].key == entries[pair[1]].key) {
            return Err(Problem::DuplicateKey { key: entries[pair[0]].key.to_string() });
        }
        Ok(Self { file: file.clone(), entries, by_key })
    }

    /// All keys and values, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|entry| (&*entry.key, self.value(entry)))
    }

    /// All keys, each with its whole entry as the file encodes it, for another file.
    pub fn encoded(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries.iter().map(|entry| {
            // Before the value: the key with its length, the type, and the type and number of an array's elements.
            let before = 8 + entry.key.len() + 4 + entry.array.map_or(0, |_| 4 + 8);
            (&*entry.key, &self.file.bytes()[entry.at - before..entry.at + entry.bytes])
        })
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.find(key).map(|entry| self.value(entry))
    }

    /// An integer of any type, not negative.
    ///
    /// # Errors
    /// When the value is something else.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>> {
        self.unsigned(key).map_err(|problem| self.error(problem))
    }

    /// A float.
    ///
    /// # Errors
    /// When the value is something else.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F32(value)) => Ok(Some(value)),
            Some(Value::F64(value)) => Ok(Some(value as f32)),
            Some(found) => Err(self.error(wrong_type(key, "a float", found))),
        }
    }

    /// A bool.
    ///
    /// # Errors
    /// When the value is something else.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(found) => Err(self.error(wrong_type(key, "a bool", found))),
        }
    }

    /// A string.
    ///
    /// # Errors
    /// When the value is something else, or not UTF-8.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(bytes)) => match std::str::from_utf8(bytes) {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(self.error(Problem::ValueNotUtf8 { key: key.into() })),
            },
            Some(found) => Err(self.error(wrong_type(key, "a string", found))),
        }
    }

    /// An array.
    ///
    /// # Errors
    /// When the value is something else.
    pub fn array(&self, key: &str) -> Result<Option<MetaArray<'_>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(found) => Err(self.error(wrong_type(key, "an array", found))),
        }
    }

    pub(super) fn unsigned(&self, key: &str) -> std::result::Result<Option<u64>, Problem> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(value)) => Ok(Some(value)),
            Some(Value::Signed(value)) => {
                u64::try_from(value).map(Some).map_err(|_| Problem::Negative { key: key.into(), found: value })
            }
            Some(found) => Err(wrong_type(key, "an integer", found)),
        }
    }

    fn find(&self, key: &str) -> Option<&Entry> {
        let at = self.by_key.binary_search_by_key(&key, |&i| &self.entries[i].key).ok()?;
        Some(&self.entries[self.by_key[at]])
    }

    fn value<'a>(&'a self, entry: &'a Entry) -> Value<'a> {
        let bytes = &self.file.bytes()[entry.at..entry.at + entry.bytes];
        match entry.array {
            Some(len) => Value::Array(MetaArray { file: &self.file, key: &entry.key, ty: entry.ty, len, bytes }),
            None => decode(entry.ty, bytes),
        }
    }

    fn error(&self, problem: Problem) -> Error {
        Error::Gguf { path: self.file.path().into(), problem }
    }
}

impl Entry {
    fn read(cursor: &mut Cursor<'_>) -> std::result::Result<Self, Problem> {
        let key = cursor.name("metadata key", MAX_KEY_BYTES)?;
        let read_type = |cursor: &mut Cursor<'_>| {
            let id = cursor.u32("type of a metadata value")?;
            ValueType::from_id(id).ok_or_else(|| Problem::UnknownValueType { key: key.into(), id })
        };
        let (mut ty, mut array) = (read_type(cursor)?, None);
        if ty == ValueType::Array {
            ty = read_type(cursor)?;
            if ty == ValueType::Array {
                return Err(Problem::NestedArray { key: key.into() });
            }
            let count = cursor.u64("length of a metadata array")?;
            // A string has at least its length.
            let min_bytes = ty.size().unwrap_or(size_of::<u64>()) as u64;
            array = Some(cursor.count("elements of a metadata array", count, min_bytes, u64::MAX)?);
        }
        let at = cursor.at();
        let len = array.unwrap_or(1);
        match ty.size() {
            // `count` has seen that so many bytes are left, so the product fits.
            Some(size) => _ = cursor.take("metadata value", (len * size) as u64)?,
            None => {
                for _ in 0..len {
                    cursor.string("metadata string")?;
                }
            }
        }
        let bytes = cursor.since(at);
        if ty == ValueType::Bool
            && let Some(&found) = bytes.iter().find(|&&byte| byte > 1)
        {
            return Err(Problem::BadBool { key: key.into(), found });
        }
        Ok(Self { key: key.into(), ty, array, at, bytes: bytes.len() })
    }
}

impl<'a> MetaArray<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The type of the elements.
    pub fn element_type(&self) -> ValueType {
        self.ty
    }

    /// The elements, of whatever type, one after the other.
    pub fn values(&self) -> impl ExactSizeIterator<Item = Value<'a>> + use<'a> {
        Elements { ty: self.ty, left: self.len, bytes: self.bytes }
    }

    /// The elements of an array of strings; usually, not certainly, UTF-8.
    ///
    /// # Errors
    /// When it is an array of something else.
    pub fn strings(&self) -> Result<impl ExactSizeIterator<Item = &'a [u8]> + use<'a>> {
        self.expect("strings", self.ty == ValueType::String)?;
        Ok(self.values().map(|value| match value {
            Value::String(bytes) => bytes,
            _ => unreachable!("elements have the array's type"),
        }))
    }

    /// The elements of an array of f32.
    ///
    /// # Errors
    /// When it is an array of something else.
    pub fn f32s(&self) -> Result<impl ExactSizeIterator<Item = f32> + use<'a>> {
        self.expect("f32", self.ty == ValueType::F32)?;
        Ok(self.values().map(|value| match value {
            Value::F32(value) => value,
            _ => unreachable!("elements have the array's type"),
        }))
    }

    /// The elements of an array of integers of any type but u64 (which might not fit).
    ///
    /// # Errors
    /// When it is an array of something else.
    pub fn integers(&self) -> Result<impl ExactSizeIterator<Item = i64> + use<'a>> {
        use ValueType::{I8, I16, I32, I64, U8, U16, U32};
        self.expect("integers", matches!(self.ty, U8 | I8 | U16 | I16 | U32 | I32 | I64))?;
        Ok(self.values().map(|value| match value {
            Value::Unsigned(value) => value as i64,
            Value::Signed(value) => value,
            _ => unreachable!("elements have the array's type"),
        }))
    }

    fn expect(&self, wanted: &'static str, holds: bool) -> Result<()> {
        if holds {
            return Ok(());
        }
        let problem = Problem::WrongArray { key: self.key.into(), wanted, found: self.ty };
        Err(Error::Gguf { path: self.file.path().into(), problem })
    }
}

/// Walks the elements of an array that [`Entry::read`] walked before, so that the bytes are known to hold them.
struct Elements<'a> {
    ty: ValueType,
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let size = self.ty.size().unwrap_or_else(|| 8 + u64::from_le_bytes(head(self.bytes)) as usize);
        let (element, rest) = self.bytes.split_at(size);
        self.bytes = rest;
        Some(decode(self.ty, element))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Elements<'_> {}

/// The value that `bytes`, checked to be one of type `ty`, are.
fn decode(ty: ValueType, bytes: &[u8]) -> Value<'_> {
    match ty {
        ValueType::U8 => Value::Unsigned(u8::from_le_bytes(head(bytes)).into()),
        ValueType::U16 => Value::Unsigned(u16::from_le_bytes(head(bytes)).into()),
        ValueType::U32 => Value::Unsigned(u32::from_le_bytes(head(bytes)).into()),
        ValueType::U64 => Value::Unsigned(u64::from_le_bytes(head(bytes))),
        ValueType::I8 => Value::Signed(i8::from_le_bytes(head(bytes)).into()),
        ValueType::I16 => Value::Signed(i16::from_le_bytes(head(bytes)).into()),
        ValueType::I32 => Value::Signed(i32::from_le_bytes(head(bytes)).into()),
        ValueType::I64 => Value::Signed(i64::from_le_bytes(head(bytes))),
        ValueType::F32 => Value::F32(f32::from_le_bytes(head(bytes))),
        ValueType::F64 => Value::F64(f64::from_le_bytes(head(bytes))),
        ValueType::Bool => Value::Bool(bytes[0] == 1),
        ValueType::String => Value::String(&bytes[8..]),
        ValueType::Array => unreachable!("arrays of arrays are refused when the file is read"),
    }
}

fn head<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("the value was measured when the file was read")
}

fn wrong_type(key: &str, wanted: &'static str, found: Value<'_>) -> Problem {
    let found = match found {
        Value::Unsigned(_) | Value::Signed(_) => "an integer".into(),
        Value::F32(_) | Value::F64(_) => "a float".into(),
        Value::Bool(_) => "a bool".into(),
        Value::String(_) => "a string".into(),
        Value::Array(array) => format!("an array of {}", array.ty),
    };
    Problem::WrongType { key: key.into(), wanted, found }
}
