//! An encoder of GGUF files, separate from the reader that it feeds.

const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// A GGUF file that is being put together.
#[derive(Default)]
pub struct GgufFile {
    entries: u64,
    metadata: Vec<u8>,
    tensors: u64,
    list: Vec<u8>,
    data: usize,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl GgufFile {
    fn entry(mut self, key: &str, ty: u32, value: &[u8]) -> Self {
        self.entries += 1;
        self.metadata.extend([&string(key), &ty.to_le_bytes()[..], value].concat());
        self
    }

    fn array(self, key: &str, ty: u32, len: usize, elements: &[u8]) -> Self {
        let value = [&ty.to_le_bytes(), &(len as u64).to_le_bytes()[..], elements].concat();
        self.entry(key, ARRAY, &value)
    }

    /// A string.
    pub fn text(self, key: &str, value: &str) -> Self {
        self.entry(key, STRING, &string(value))
    }

    /// A count.
    pub fn number(self, key: &str, value: u32) -> Self {
        self.entry(key, U32, &value.to_le_bytes())
    }

    /// A float.
    pub fn float(self, key: &str, value: f32) -> Self {
        self.entry(key, F32, &value.to_le_bytes())
    }

    /// A yes or no.
    pub fn flag(self, key: &str, value: bool) -> Self {
        self.entry(key, BOOL, &[u8::from(value)])
    }

    /// A list of strings.
    pub fn texts(self, key: &str, values: &[&str]) -> Self {
        self.array(key, STRING, values.len(), &values.iter().flat_map(|text| string(text)).collect::<Vec<_>>())
    }

    /// A list of floats.
    pub fn floats(self, key: &str, values: &[f32]) -> Self {
        self.array(key, F32, values.len(), &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    /// A list of signed integers.
    pub fn integers(self, key: &str, values: &[i32]) -> Self {
        self.array(key, I32, values.len(), &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    /// A tensor of f32, columns first.
    pub fn tensor(mut self, name: &str, dims: &[u64]) -> Self {
        self.tensors += 1;
        self.list.extend(string(name));
        self.list.extend((dims.len() as u32).to_le_bytes());
        self.list.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        self.list.extend(0u32.to_le_bytes());
        self.list.extend((self.data as u64).to_le_bytes());
        self.data = (self.data + 4 * dims.iter().product::<u64>() as usize).next_multiple_of(32);
        self
    }

    /// The file.
    pub fn bytes(self) -> Vec<u8> {
        let counts = [3u32.to_le_bytes().as_slice(), &self.tensors.to_le_bytes(), &self.entries.to_le_bytes()].concat();
        let mut bytes = [b"GGUF", &counts[..], &self.metadata, &self.list].concat();
        bytes.resize(bytes.len().next_multiple_of(32) + self.data, 0);
        bytes
    }
}
