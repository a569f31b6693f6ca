//! Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"): random numbers as a function of a key and a
//! counter, so that any step's are reachable at once and a GPU can make the same ones.

/// A stream of random numbers: `seed` is the key, `stream` and the position are the counter.
#[derive(Clone, Copy, Debug)]
pub struct Philox {
    key: [u32; 2],
    stream: u64,
}

impl Philox {
    /// The stream number `stream` of `seed`.
    pub const fn new(seed: u64, stream: u64) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32], stream }
    }

    /// The four numbers at `position`.
    pub fn at(&self, position: u64) -> [u32; 4] {
        let counter = [position as u32, (position >> 32) as u32, self.stream as u32, (self.stream >> 32) as u32];
        rounds(counter, self.key)
    }

    /// The four numbers at each of `N` positions from `first` on, number by number: the loops run over positions, in lanes.
    #[inline(always)]
    pub fn lanes<const N: usize>(&self, first: u64) -> [[u32; N]; 4] {
        let position = |lane: usize| first.wrapping_add(lane as u64);
        let mut counter = [
            std::array::from_fn(|lane| position(lane) as u32),
            std::array::from_fn(|lane| (position(lane) >> 32) as u32),
            [self.stream as u32; N],
            [(self.stream >> 32) as u32; N],
        ];
        let mut key = self.key;
        for _ in 0..10 {
            let mut next = [[0; N]; 4];
            for lane in 0..N {
                let product0 = u64::from(counter[0][lane]) * 0xD251_1F53;
                let product1 = u64::from(counter[2][lane]) * 0xCD9E_8D57;
                next[0][lane] = (product1 >> 32) as u32 ^ counter[1][lane] ^ key[0];
                next[1][lane] = product1 as u32;
                next[2][lane] = (product0 >> 32) as u32 ^ counter[3][lane] ^ key[1];
                next[3][lane] = product0 as u32;
            }
            counter = next;
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        counter
    }

    /// A float in [0, 1) with 24 random bits, the `index`-th of the stream.
    pub fn uniform(&self, index: u64) -> f32 {
        (self.at(index / 4)[(index % 4) as usize] >> 8) as f32 / (1 << 24) as f32
    }

    /// Which place `index` has in a random order of `count`: how many of the numbers from `first` on are lower than its own.
    pub fn place(&self, first: u64, index: usize, count: usize) -> usize {
        let number = |index: usize| (self.at(first + index as u64)[0], index);
        let own = number(index);
        (0..count).filter(|&other| number(other) < own).count()
    }

    /// An integer below `bound` (at least 1), the `index`-th of the stream, from 64 bits.
    pub fn below(&self, index: u64, bound: u64) -> u64 {
        let four = self.at(index / 2);
        let pair = (index % 2 * 2) as usize;
        let bits = u64::from(four[pair]) | u64::from(four[pair + 1]) << 32;
        ((u128::from(bits) * u128::from(bound)) >> 64) as u64
    }
}

fn rounds(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let wide = |a: u32, b: u32| {
            let product = u64::from(a) * u64::from(b);
            ((product >> 32) as u32, product as u32)
        };
        let (high0, low0) = wide(0xD251_1F53, counter[0]);
        let (high1, low1) = wide(0xCD9E_8D57, counter[2]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::{Philox, rounds};

    #[test]
    fn lanes_are_the_numbers_of_their_positions() {
        let numbers = Philox::new(0x0123_4567_89ab_cdef, 1 << 63 | 77);
        for first in [0, 5, u64::from(u32::MAX) - 3, u64::MAX - 2] {
            let lanes = numbers.lanes::<8>(first);
            for lane in 0..8 {
                let one = numbers.at(first.wrapping_add(lane as u64));
                assert_eq!(lanes.map(|of| of[lane]), one, "{first} {lane}");
            }
        }
    }

    #[test]
    fn it_gives_the_known_answers_of_random123() {
        assert_eq!(rounds([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(rounds([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            rounds([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
