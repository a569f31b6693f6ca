//! A place in the bytes of a GGUF file that moves only over bytes that are there.

use super::Problem;

type Result<T> = std::result::Result<T, Problem>;

/// Reads forward; `what` is the word for messages.
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn file_len(&self) -> usize {
        self.bytes.len()
    }

    /// What was read since the cursor was at `start`.
    pub fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.at]
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub fn take(&mut self, what: &'static str, need: u64) -> Result<&'a [u8]> {
        let left = self.left();
        let Some(len) = usize::try_from(need).ok().filter(|&len| len <= left) else {
            return Err(Problem::Truncated { what, at: self.at, need, left });
        };
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        Ok(*self.take(what, N as u64)?.as_array().expect("`take` gives as many bytes as asked for"))
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// The bytes of a string of any length that the file has.
    pub fn string(&mut self, what: &'static str) -> Result<&'a [u8]> {
        let len = self.u64(what)?;
        self.take(what, len)
    }

    /// A string that names something: UTF-8, not empty, at most `limit` bytes.
    pub fn name(&mut self, what: &'static str, limit: usize) -> Result<&'a str> {
        let at = self.at;
        let name = self.string(what)?;
        if name.is_empty() {
            return Err(Problem::EmptyName { what, at });
        }
        if name.len() > limit {
            return Err(Problem::NameTooLong { what, at, len: name.len(), limit });
        }
        std::str::from_utf8(name).map_err(|_| Problem::NotUtf8 { what, at })
    }

    /// Checks a claimed number of things of at least `min_bytes` each, so that memory may be taken for them.
    pub fn count(&self, what: &'static str, count: u64, min_bytes: u64, limit: u64) -> Result<usize> {
        let (need, left) = (u128::from(count) * u128::from(min_bytes), self.left());
        if need > left as u128 {
            return Err(Problem::CountBeyondFile { what, count, need, at: self.at, left });
        }
        match usize::try_from(count) {
            Ok(fits) if count <= limit => Ok(fits),
            _ => Err(Problem::TooMany { what, count, limit }),
        }
    }
}
