//! Random damage that knows a little of formats: bytes, ranges, words of a dictionary, integers of 4 and 8 bytes and decimal numbers at
//! the edges where arithmetic breaks. Everything follows from a seed and a number, so any input can be made again.

use pocketune_kernels::philox::Philox;

/// No input is larger: small ones reach the same code and leave time for more.
const MAX_INPUT: usize = 1 << 16;

/// Whole numbers at which counts, products and conversions break.
const EDGES: [u64; 22] = [
    0,
    1,
    2,
    3,
    7,
    8,
    31,
    32,
    127,
    255,
    256,
    65_535,
    65_536,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 40,
    1 << 62,
    i64::MAX as u64,
    u64::MAX - 31,
    u64::MAX,
];

/// Numbers as text, the ends of what floats and integers hold among them.
const NUMBERS: [&[u8]; 14] = [
    b"0",
    b"-1",
    b"1",
    b"0.5",
    b"-0.0",
    b"1e308",
    b"1e999",
    b"4294967295",
    b"4294967296",
    b"524288",
    b"9223372036854775807",
    b"18446744073709551615",
    b"18446744073709551616",
    b"99999999999999999999999",
];

/// Numbers drawn one after another from a stream.
pub struct Draws {
    stream: Philox,
    at: u64,
}

impl Draws {
    /// The draws of input number `input` of `seed`.
    pub fn new(seed: u64, input: u64) -> Self {
        Self { stream: Philox::new(seed, input), at: 0 }
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        self.at += 1;
        self.stream.below(self.at, bound as u64) as usize
    }

    /// A number whose size is drawn first, up to `bits` bits, so that small ones are common.
    fn small(&mut self, bits: usize) -> usize {
        let size = self.below(bits);
        self.below(1 << size)
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Damages `bytes` in one to six ways; `other` is another input to take parts of, `words` the format's dictionary.
pub fn mutate(bytes: &mut Vec<u8>, draws: &mut Draws, other: &[u8], words: &[&[u8]]) {
    for _ in 0..=draws.below(6) {
        once(bytes, draws, other, words);
    }
    bytes.truncate(MAX_INPUT);
}

fn once(bytes: &mut Vec<u8>, draws: &mut Draws, other: &[u8], words: &[&[u8]]) {
    let at = draws.below(bytes.len() + 1);
    let len = |draws: &mut Draws, left: usize| (1 + draws.small(8)).min(left);
    match draws.below(12) {
        0 if at < bytes.len() => bytes[at] ^= 1 << draws.below(8),
        1 if at < bytes.len() => {
            bytes[at] = *draws.pick(&[0, 0xff, b'"', b'{', b'[', b',', b':', b'\\', b'\n', b'9', b'%'])
        }
        2 if at < bytes.len() => bytes[at] = draws.below(256) as u8,
        3 => edge(bytes, draws, at, 4),
        4 => edge(bytes, draws, at, 8),
        5 | 6 => number(bytes, draws, at),
        7 => {
            let end = at + len(draws, bytes.len() - at);
            bytes.drain(at..end.min(bytes.len()));
        }
        8 => {
            let end = (at + len(draws, bytes.len() - at)).min(bytes.len());
            let copy = bytes[at..end].repeat(1 + draws.below(4));
            let to = draws.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
        9 if !other.is_empty() => {
            let start = draws.below(other.len());
            let end = start + len(draws, other.len() - start);
            let over = (at + (end - start) * draws.below(2)).min(bytes.len());
            bytes.splice(at..over, other[start..end].iter().copied());
        }
        10 if draws.below(8) == 0 => bytes.truncate(at),
        _ if !words.is_empty() => {
            let word = *draws.pick(words);
            let over = (at + word.len() * draws.below(2)).min(bytes.len());
            bytes.splice(at..over, word.iter().copied());
        }
        _ => bytes.truncate(at),
    }
}

/// Writes an integer at an edge, or beside one, over `width` bytes. Where a length or a count of the file is near, it is the target.
fn edge(bytes: &mut [u8], draws: &mut Draws, at: usize, width: usize) {
    // Small integers are most often counts, lengths and types: look for one, from here on.
    let small = |window: &[u8]| window[1..].iter().all(|&byte| byte == 0);
    let found = bytes.get(at..).and_then(|rest| rest.windows(width).take(256).position(small));
    let at = if draws.below(4) > 0 { found.map_or(at, |step| at + step) } else { at };
    let value = match draws.below(3) {
        0 => draws.pick(&EDGES).wrapping_add(draws.below(3) as u64).wrapping_sub(1),
        1 => draws.small(17) as u64,
        _ => *draws.pick(&EDGES),
    };
    if let Some(place) = bytes.get_mut(at..at + width) {
        place.copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

/// Replaces the next decimal number from `at` on.
fn number(bytes: &mut Vec<u8>, draws: &mut Draws, at: usize) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|step| at + step) else { return };
    let end = bytes[start..].iter().position(|byte| !byte.is_ascii_digit()).map_or(bytes.len(), |step| start + step);
    bytes.splice(start..end, draws.pick(&NUMBERS).iter().copied());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_makes_the_same_input_and_another_makes_another() {
        let make = |input| {
            let mut bytes = br#"{"a": 12, "b": [1, 2]}"#.to_vec();
            mutate(&mut bytes, &mut Draws::new(1, input), b"other", &[b"word"]);
            bytes
        };
        assert_eq!(make(7), make(7));
        assert!((0..20).filter(|&input| make(input) != make(7)).count() > 15);
    }
}
