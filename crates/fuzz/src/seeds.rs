//! Small good files, built by code or taken from the tests of other crates, for damage to begin with.

pub mod gguf;

/// A good input.
pub struct Seed {
    /// The file.
    pub bytes: Vec<u8>,
    /// Whether running it takes milliseconds, so that it is used seldom.
    pub rare: bool,
}

impl Seed {
    /// One that is used often.
    pub fn common(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), rare: false }
    }

    /// One that is used seldom.
    pub fn rare(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), rare: true }
    }
}

/// A safetensors file with that header and so many bytes of data.
pub fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend((0..data).map(|i| i as u8));
    bytes
}

/// A safetensors file of f32 tensors with these names and shapes.
pub fn f32_tensors(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let mut at = 0;
    let entries = tensors.iter().map(|(name, shape)| {
        let start = at;
        at += 4 * shape.iter().product::<usize>();
        format!(r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{start},{at}]}}"#)
    });
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    safetensors(&header, at)
}
