//! Which neighbouring characters can ever end up in one token. Where two can't, a long text is cut without changing a
//! single id, which keeps the merging of a whole document (Llama 2 and Gemma split no words) within a few kilobytes.
//! It refuses to be clever: it may answer "perhaps" for a pair that never joins, never "no" for one that does.

/// Bits of the hashed table for characters: 128 KiB.
const CHAR_BITS: usize = 1 << 20;

/// A set of (left, right) pairs of neighbouring units (bytes or characters) inside tokens.
pub(crate) struct Joins {
    /// Empty when every pair may join.
    bits: Vec<u64>,
    bytes: bool,
}

impl Joins {
    /// A set that answers "perhaps" to every pair.
    pub fn any() -> Self {
        Self { bits: Vec::new(), bytes: false }
    }

    /// The pairs inside the tokens of a byte-level vocabulary: one bit for each of the 65,536 pairs.
    pub fn of_bytes<'a>(tokens: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut joins = Self { bits: vec![0; (1 << 16) / 64], bytes: true };
        for token in tokens {
            for pair in token.windows(2) {
                joins.set(u32::from(pair[0]), u32::from(pair[1]));
            }
        }
        joins
    }

    /// The pairs inside the tokens of a vocabulary of characters, hashed.
    pub fn of_chars<'a>(tokens: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut joins = Self { bits: vec![0; CHAR_BITS / 64], bytes: false };
        for token in tokens.filter_map(|token| std::str::from_utf8(token).ok()) {
            for (left, right) in token.chars().zip(token.chars().skip(1)) {
                joins.set(left.into(), right.into());
            }
        }
        joins
    }

    fn bit(&self, left: u32, right: u32) -> usize {
        if self.bytes {
            return (left << 8 | right) as usize;
        }
        let key = (u64::from(left) << 32 | u64::from(right)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (key >> 40) as usize % CHAR_BITS
    }

    fn set(&mut self, left: u32, right: u32) {
        let bit = self.bit(left, right);
        self.bits[bit / 64] |= 1 << (bit % 64);
    }

    /// Whether a token may hold `left` directly before `right`.
    pub fn may(&self, left: u32, right: u32) -> bool {
        let bit = self.bit(left, right);
        self.bits.get(bit / 64).is_none_or(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.bits.capacity() * 8
    }
}
