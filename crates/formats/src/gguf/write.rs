//! The header of a GGUF file, version 3: metadata entries and the tensor list, in the order in which they are given. It writes only
//! the types that a model of ours needs, and refuses nothing: readers check.

use pocketune_kernels::BlockType;

/// The alignment of tensors that readers assume.
pub const ALIGNMENT: usize = 32;

/// The numbers that GGUF writes for the types of values.
#[derive(Clone, Copy)]
enum Kind {
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
}

/// Metadata entries and tensors of a file to be.
#[derive(Default)]
pub struct Header {
    entries: (u64, Vec<u8>),
    tensors: (u64, Vec<u8>),
    /// Where the next tensor begins, from the first.
    offset: usize,
}

impl Header {
    /// An entry that is a string.
    pub fn text(&mut self, key: &str, text: &str) {
        self.key(key, Kind::String);
        string(&mut self.entries.1, text);
    }

    /// An entry that is a count.
    pub fn number(&mut self, key: &str, number: usize) {
        self.key(key, Kind::U32);
        let number = u32::try_from(number).expect("counts of real models fit 32 bits");
        self.entries.1.extend(number.to_le_bytes());
    }

    /// An entry that is a float.
    pub fn float(&mut self, key: &str, float: f32) {
        self.key(key, Kind::F32);
        self.entries.1.extend(float.to_le_bytes());
    }

    /// An entry that is true or false.
    pub fn flag(&mut self, key: &str, flag: bool) {
        self.key(key, Kind::Bool);
        self.entries.1.push(flag.into());
    }

    /// An entry that is a list of strings.
    pub fn texts(&mut self, key: &str, texts: impl ExactSizeIterator<Item = String>) {
        self.array(key, Kind::String, texts.len());
        texts.for_each(|text| string(&mut self.entries.1, &text));
    }

    /// An entry that is a list of integers.
    pub fn integers(&mut self, key: &str, integers: impl ExactSizeIterator<Item = i32>) {
        self.array(key, Kind::I32, integers.len());
        self.entries.1.extend(integers.flat_map(i32::to_le_bytes));
    }

    /// An entry that is a list of floats.
    pub fn floats(&mut self, key: &str, floats: impl ExactSizeIterator<Item = f32>) {
        self.array(key, Kind::F32, floats.len());
        self.entries.1.extend(floats.flat_map(f32::to_le_bytes));
    }

    /// An entry of another file, as [`super::Meta::encoded`] gives it.
    pub fn encoded(&mut self, entry: &[u8]) {
        self.entries.0 += 1;
        self.entries.1.extend(entry);
    }

    /// The next tensor, `dims` outermost first, of `bytes` bytes.
    pub fn tensor(&mut self, name: &str, dims: &[usize], ty: BlockType, bytes: usize) {
        let id = (0..u32::from(u8::MAX)).find(|&id| BlockType::from_ggml_id(id) == Some(ty));
        let (count, out) = &mut self.tensors;
        *count += 1;
        string(out, name);
        out.extend((dims.len() as u32).to_le_bytes());
        out.extend(dims.iter().rev().flat_map(|&dim| (dim as u64).to_le_bytes()));
        out.extend(id.expect("every type has a number in GGUF").to_le_bytes());
        out.extend((self.offset as u64).to_le_bytes());
        self.offset = (self.offset + bytes).next_multiple_of(ALIGNMENT);
    }

    /// The bytes before the first tensor.
    pub fn finish(self) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(self.tensors.0.to_le_bytes());
        bytes.extend(self.entries.0.to_le_bytes());
        bytes.extend(self.entries.1);
        bytes.extend(self.tensors.1);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes
    }

    fn key(&mut self, key: &str, kind: Kind) {
        self.entries.0 += 1;
        string(&mut self.entries.1, key);
        self.entries.1.extend((kind as u32).to_le_bytes());
    }

    fn array(&mut self, key: &str, kind: Kind, len: usize) {
        self.key(key, Kind::Array);
        self.entries.1.extend((kind as u32).to_le_bytes());
        self.entries.1.extend((len as u64).to_le_bytes());
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
