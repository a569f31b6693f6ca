//! AMX with what goes with it (AVX-512's BF16 and VBMI), or `VPDPWSSD` (VNNI), on processors that have AVX-512 alone, so that tests can run everywhere what is
//! written for them. Only in debug builds, and only where `POCKETUNE_EMULATE=amx` or `vnni` asks for it.
//!
//! The processor refuses an instruction that it does not know, and the system tells the thread by a signal. The handler reads the instruction, does it on the
//! registers that the system keeps of the thread, and lets the thread go on behind it. Anything that it does not know itself ends the process, as it would
//! without it. A tile instruction takes some microseconds that way; all others run as they are.

mod context;
mod decode;

use std::cell::UnsafeCell;
use std::sync::OnceLock;

use half::bf16;

use context::Context;
use decode::{Code, Instruction, Place};

/// Whether `what`, `amx` or `vnni`, is emulated in this process: asked for, and possible.
pub(crate) fn is(what: &str) -> bool {
    static EMULATED: OnceLock<Option<String>> = OnceLock::new();
    let asked = || std::env::var("POCKETUNE_EMULATE").ok().filter(|_| handle());
    EMULATED.get_or_init(asked).as_deref() == Some(what)
}

/// Has the handler called for instructions that the processor does not know.
fn handle() -> bool {
    // So that the handler finds it made.
    context::layout();
    // SAFETY: a zeroed `sigaction` is a valid one, and the handler does nothing that a handler may not do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_unknown as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()) == 0
    }
}

extern "C" fn on_unknown(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let mut done = 0;
    // SAFETY: the system calls this with the context of the thread that it stopped, on that thread.
    unsafe {
        let mut context = Context::new(context);
        // Those that follow are done too: telling the thread takes longer than most of them.
        while decode::at(&context).is_some_and(|instruction| execute(&instruction, &mut context).is_some()) {
            done += 1;
        }
    }
    if done == 0 {
        // SAFETY: the instruction is tried again, and the process ends as if nobody had listened.
        unsafe { libc::signal(libc::SIGILL, libc::SIG_DFL) };
    }
}

/// A thread's tile registers and how they are configured: nothing where they are not.
struct Tiles {
    configured: bool,
    rows: [usize; 8],
    /// Bytes of a row.
    bytes: [usize; 8],
    values: [Tile; 8],
}

/// Sixteen rows of 64 bytes.
type Tile = [[u32; 16]; 16];

const EMPTY: Tile = [[0; 16]; 16];

thread_local! {
    static TILES: UnsafeCell<Tiles> =
        const { UnsafeCell::new(Tiles { configured: false, rows: [0; 8], bytes: [0; 8], values: [EMPTY; 8] }) };
}

/// Does an instruction and goes behind it; nothing where it can't be done.
///
/// # Safety
/// The instruction is the one at which the thread of `context`, which is this one, was stopped.
unsafe fn execute(instruction: &Instruction, context: &mut Context) -> Option<()> {
    match instruction.code {
        // SAFETY: as the caller promises, a thread asked for just this; it is inside one instruction at a time.
        Code::Configure | Code::Release | Code::Zero | Code::Load | Code::Store | Code::Multiply => unsafe {
            TILES.with(|tiles| on_tiles(instruction, &mut *tiles.get()))
        },
        // SAFETY: as above.
        _ => unsafe { on_vectors(instruction, context) },
    }?;
    context.go_on(instruction.length);
    Some(())
}

/// # Safety
/// As [`execute`].
unsafe fn on_tiles(instruction: &Instruction, tiles: &mut Tiles) -> Option<()> {
    let to = instruction.to;
    if instruction.code == Code::Configure {
        let Place::Memory { start, .. } = instruction.from else { return None };
        // SAFETY: 64 bytes that the thread lets the processor read.
        let bytes = unsafe { std::ptr::read_unaligned(start as *const [u8; 64]) };
        tiles.configured = bytes[0] == 1;
        tiles.rows = std::array::from_fn(|tile| bytes[48 + tile].into());
        tiles.bytes =
            std::array::from_fn(|tile| u16::from_le_bytes([bytes[16 + 2 * tile], bytes[17 + 2 * tile]]).into());
        let fit = tiles.rows.iter().all(|&rows| rows <= 16) && tiles.bytes.iter().all(|&bytes| bytes <= 64);
        tiles.values = [EMPTY; 8];
        return (tiles.configured && fit).then_some(());
    }
    if instruction.code == Code::Release {
        tiles.configured = false;
        return Some(());
    }
    if !tiles.configured {
        return None;
    }
    let (rows, bytes) = (tiles.rows[to], tiles.bytes[to]);
    match (instruction.code, instruction.from) {
        (Code::Zero, _) => tiles.values[to] = EMPTY,
        (Code::Load, Place::Memory { start, stride }) => {
            tiles.values[to] = EMPTY;
            for (at, row) in tiles.values[to][..rows].iter_mut().enumerate() {
                let from = start.wrapping_add(stride.wrapping_mul(at as u64)) as *const u8;
                // SAFETY: memory that the thread lets the processor read, into a row of 64 bytes.
                unsafe { std::ptr::copy_nonoverlapping(from, row.as_mut_ptr().cast(), bytes) };
            }
        }
        (Code::Store, Place::Memory { start, stride }) => {
            for (at, row) in tiles.values[to][..rows].iter().enumerate() {
                let place = start.wrapping_add(stride.wrapping_mul(at as u64)) as *mut u8;
                // SAFETY: memory that the thread lets the processor write, from a row of 64 bytes.
                unsafe { std::ptr::copy_nonoverlapping(row.as_ptr().cast(), place, bytes) };
            }
        }
        (Code::Multiply, Place::Register(first)) => {
            let (first, second) = (first & 7, instruction.other & 7);
            let steps = tiles.bytes[first] / 4;
            if rows > tiles.rows[first] || steps > tiles.rows[second] || bytes > tiles.bytes[second] {
                return None;
            }
            let (a, b) = (tiles.values[first], tiles.values[second]);
            // SAFETY: nothing is emulated without AVX-512.
            unsafe { multiply(&mut tiles.values[to], &a, &b, rows, steps) };
        }
        _ => return None,
    }
    Some(())
}

/// `TDPBF16PS`: products of even elements and of odd ones are summed apart, then both are added to what was there. (Numbers below f32's normal ones are kept
/// here and are zeros there.)
#[target_feature(enable = "avx512f,avx2,fma")]
fn multiply(sums: &mut Tile, a: &Tile, b: &Tile, rows: usize, steps: usize) {
    let (even, odd) = (|pair: u32| f32::from_bits(pair << 16), |pair: u32| f32::from_bits(pair & 0xffff_0000));
    for (sums, a) in sums.iter_mut().zip(a).take(rows) {
        let mut apart = [[0.0_f32; 16]; 2];
        for (&a, b) in a.iter().zip(b).take(steps) {
            for (at, &b) in b.iter().enumerate() {
                apart[0][at] = even(a).mul_add(even(b), apart[0][at]);
                apart[1][at] = odd(a).mul_add(odd(b), apart[1][at]);
            }
        }
        for (at, sum) in sums.iter_mut().enumerate() {
            *sum = (f32::from_bits(*sum) + (apart[0][at] + apart[1][at])).to_bits();
        }
    }
}

/// # Safety
/// As [`execute`].
unsafe fn on_vectors(instruction: &Instruction, context: &mut Context) -> Option<()> {
    let (to, other) = (context.vector(instruction.to), context.vector(instruction.other));
    let from = match instruction.from {
        Place::Register(register) => context.vector(register),
        // SAFETY: memory that the thread lets the processor read: a number for all elements, or as many bytes as the vectors have.
        Place::Memory { start, stride } => unsafe { operand(start.wrapping_add(stride) as *const u8, instruction) },
    };
    let bytes = instruction.bytes;
    let mut result = [0; 64];
    let width = match instruction.code {
        Code::RoundOne | Code::RoundTwo => {
            let floats = bytes / 4;
            let sources: &[&[u8; 64]] = if instruction.code == Code::RoundOne { &[&from] } else { &[&from, &other] };
            for (half, source) in sources.iter().enumerate() {
                for (at, float) in source.as_chunks::<4>().0[..floats].iter().enumerate() {
                    let place = 2 * (half * floats + at);
                    result[place..place + 2].copy_from_slice(&round(f32::from_le_bytes(*float)).to_le_bytes());
                }
            }
            2
        }
        Code::Permute => {
            for (to, &index) in result[..bytes].iter_mut().zip(&other) {
                *to = from[usize::from(index) % bytes];
            }
            1
        }
        // Of two tables: the places stand in the vector that is overwritten, or the first table does.
        Code::PermuteByThis | Code::PermuteThis => {
            let (index, first) = if instruction.code == Code::PermuteByThis { (&to, &other) } else { (&other, &to) };
            for (result, &index) in result[..bytes].iter_mut().zip(index) {
                let index = usize::from(index) % (2 * bytes);
                *result = if index < bytes { first[index] } else { from[index - bytes] };
            }
            1
        }
        Code::Shift => {
            for (at, to) in result[..bytes].iter_mut().enumerate() {
                let eight = u64::from_le_bytes(from.as_chunks::<8>().0[at / 8]);
                *to = eight.rotate_right(u32::from(other[at]) % 64) as u8;
            }
            1
        }
        Code::AddPairs => {
            let pairs =
                |bytes: &[u8; 4]| [[bytes[0], bytes[1]], [bytes[2], bytes[3]]].map(i16::from_le_bytes).map(i32::from);
            let sums = result[..bytes].as_chunks_mut::<4>().0.iter_mut().zip(to.as_chunks().0);
            for ((result, sum), (a, b)) in sums.zip(other.as_chunks().0.iter().zip(from.as_chunks().0)) {
                let ([a0, a1], [b0, b1]) = (pairs(a), pairs(b));
                // Both products of -32,768 with itself at once are more than 31 bits hold.
                *result = i32::from_le_bytes(*sum).wrapping_add((a0 * b0).wrapping_add(a1 * b1)).to_le_bytes();
            }
            4
        }
        _ => return None,
    };
    if instruction.mask != 0 {
        let mask = context.mask(instruction.mask);
        let written = if instruction.code == Code::RoundOne { bytes / 2 } else { bytes };
        for (at, byte) in result[..written].iter_mut().enumerate() {
            if mask >> (at / width) & 1 == 0 {
                *byte = if instruction.zeroing { 0 } else { to[at] };
            }
        }
    }
    context.set_vector(instruction.to, &result);
    Some(())
}

/// # Safety
/// A number, or as many bytes as the instruction's vectors have, can be read at `start`.
unsafe fn operand(start: *const u8, instruction: &Instruction) -> [u8; 64] {
    let mut bytes = [0; 64];
    let len = instruction.broadcast.unwrap_or(instruction.bytes);
    // SAFETY: the caller's promise; no more than 64.
    unsafe { std::ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), len) };
    for at in len..instruction.bytes {
        bytes[at] = bytes[at - len];
    }
    bytes
}

/// As `VCVTNEPS2BF16` rounds: to the nearest, to the even one of two, with zeros for what is below the normal numbers.
fn round(x: f32) -> bf16 {
    bf16::from_f32(if x.is_subnormal() { 0.0_f32.copysign(x) } else { x })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::arch::asm;

    /// `$what` on `zmm3`, `zmm20` (which it writes) and 64 bytes at `{from}`, with a mask in `k1`.
    macro_rules! on {
        ($what:literal, $third:expr, $twentieth:expr, $from:expr, $mask:expr) => {{
            let (third, twentieth, from): ([u8; 64], [u8; 64], [u8; 192]) = ($third, $twentieth, $from);
            let mut result = [0_u8; 64];
            // SAFETY: no more is read and written than there is; the registers are named.
            unsafe {
                asm!(
                    "kmovq k1, {mask} /* {from} {eight}, which not all have */",
                    "vmovdqu64 zmm3, [{third}]",
                    "vmovdqu64 zmm20, [{twentieth}]",
                    $what,
                    "vmovdqu64 [{result}], zmm20",
                    mask = in(reg) $mask,
                    third = in(reg) third.as_ptr(),
                    twentieth = in(reg) twentieth.as_ptr(),
                    from = in(reg) from.as_ptr(),
                    eight = in(reg) 8_u64,
                    result = in(reg) result.as_mut_ptr(),
                    out("zmm3") _,
                    out("zmm20") _,
                    out("k1") _,
                );
            }
            result
        }};
    }

    fn bytes<const N: usize>(seed: u32) -> [u8; N] {
        let mut state = seed;
        std::array::from_fn(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
    }

    /// Finite floats of all sizes, some of them below the normal ones.
    fn floats<const N: usize>(seed: u32) -> [u8; N] {
        let mut all = bytes::<N>(seed);
        for last in all.iter_mut().skip(3).step_by(4) {
            *last &= 0xbe;
        }
        all[..4].copy_from_slice(&1.0e-40_f32.to_le_bytes());
        all
    }

    /// Where the processor has these instructions, it is the processor that is tested: the expectations are.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx512vbmi")]
    fn vectors() {
        let (third, twentieth, from) = (bytes::<64>(1), bytes::<64>(2), bytes::<192>(3));
        let second = &from[64..128];
        let permuted = on!("vpermb zmm20, zmm3, [{from} + 64]", third, twentieth, from, 0_u64);
        let expected: [u8; 64] = std::array::from_fn(|at| second[usize::from(third[at] & 63)]);
        assert_eq!(permuted, expected);

        let of_two = |index: u8, first: &[u8]| {
            if index & 64 == 0 { first[usize::from(index & 63)] } else { second[usize::from(index & 63)] }
        };
        let permuted = on!("vpermi2b zmm20, zmm3, [{from} + 8 * {eight}]", third, twentieth, from, 0_u64);
        let expected: [u8; 64] = std::array::from_fn(|at| of_two(twentieth[at], &third));
        assert_eq!(permuted, expected);
        let mask = 0x0123_4567_89ab_cdef_u64;
        let permuted = on!("vpermt2b zmm20{{k1}}, zmm3, [{from} + 64]", third, twentieth, from, mask);
        let expected: [u8; 64] =
            std::array::from_fn(|at| if mask >> at & 1 == 1 { of_two(third[at], &twentieth) } else { twentieth[at] });
        assert_eq!(permuted, expected);

        let shifted = on!("vpmultishiftqb zmm20, zmm3, qword ptr [{from} + 8]{{1to8}}", third, twentieth, from, 0_u64);
        let eight = u64::from_le_bytes(*from[8..].first_chunk().unwrap());
        let expected: [u8; 64] = std::array::from_fn(|at| eight.rotate_right(u32::from(third[at]) & 63) as u8);
        assert_eq!(shifted, expected);
        let low = on!("vpermb ymm20, ymm3, ymm20", third, twentieth, from, 0_u64);
        let expected: [u8; 64] =
            std::array::from_fn(|at| if at < 32 { twentieth[usize::from(third[at] & 31)] } else { 0 });
        assert_eq!(low, expected);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx512vbmi")]
    fn roundings() {
        let (third, twentieth, from) = (floats::<64>(4), floats::<64>(5), floats::<192>(6));
        let rounded = |of: &[u8], at: usize| {
            let x = f32::from_le_bytes(of.as_chunks::<4>().0[at]);
            if x.is_subnormal() { (x.to_bits() >> 16) as u16 & 0x8000 } else { bf16::from_f32(x).to_bits() }
        };
        let halves = |bytes: &[u8; 64], at: usize| u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]);

        let both = on!("vcvtne2ps2bf16 zmm20, zmm3, zmm20", third, twentieth, from, 0_u64);
        for at in 0..16 {
            assert_eq!((halves(&both, at), halves(&both, at + 16)), (rounded(&twentieth, at), rounded(&third, at)));
        }
        let one = on!(
            "vcvtne2ps2bf16 zmm20{{k1}}{{z}}, zmm3, dword ptr [{from} + 8]{{1to16}}",
            third,
            twentieth,
            from,
            0x0f0f_0f0f_u64
        );
        for at in 0..32 {
            let value = if at < 16 { rounded(&from, 2) } else { rounded(&third, at - 16) };
            assert_eq!(halves(&one, at), if at & 4 == 0 { value } else { 0 });
        }
        let half = on!("vcvtneps2bf16 ymm20, zmmword ptr [{from} + 128]", third, twentieth, from, 0_u64);
        for at in 0..32 {
            assert_eq!(halves(&half, at), if at < 16 { rounded(&from[128..], at) } else { 0 });
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    fn sums_of_pairs() {
        let (third, mut twentieth, mut from) = (bytes::<64>(7), bytes::<64>(8), bytes::<192>(9));
        twentieth[..4].copy_from_slice(&i32::MAX.to_le_bytes());
        from[..4].copy_from_slice(&[0, 0x80, 0, 0x80]);
        let words = |bytes: &[u8], at: usize| {
            let pair = bytes.as_chunks::<4>().0[at];
            [i16::from_le_bytes([pair[0], pair[1]]), i16::from_le_bytes([pair[2], pair[3]])].map(i64::from)
        };
        let sum = |at: usize, other: [i64; 2]| {
            let (sum, pair) = (i32::from_le_bytes(twentieth.as_chunks::<4>().0[at]), words(&third, at));
            (i64::from(sum) + pair[0] * other[0] + pair[1] * other[1]) as i32
        };
        let numbers =
            |bytes: [u8; 64]| bytes.as_chunks::<4>().0.iter().map(|x| i32::from_le_bytes(*x)).collect::<Vec<_>>();
        let all = numbers(on!("vpdpwssd zmm20, zmm3, [{from} + 64]", third, twentieth, from, 0_u64));
        assert_eq!(all, (0..16).map(|at| sum(at, words(&from[64..], at))).collect::<Vec<_>>());
        let one =
            numbers(on!("vpdpwssd zmm20{{k1}}, zmm3, dword ptr [{from}]{{1to16}}", third, twentieth, from, 0x0f0f_u64));
        let kept = |at: usize| i32::from_le_bytes(twentieth.as_chunks::<4>().0[at]);
        let expected = |at: usize| if at & 4 == 0 { sum(at, words(&from, 0)) } else { kept(at) };
        assert_eq!(one, (0..16).map(expected).collect::<Vec<_>>());
        let low = numbers(on!("vpdpwssd ymm20, ymm3, ymm3", third, twentieth, from, 0_u64));
        assert_eq!(low, (0..16).map(|at| if at < 8 { sum(at, words(&third, at)) } else { 0 }).collect::<Vec<_>>());
    }

    #[test]
    fn instructions_do_what_the_manual_says() {
        let there = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        if !there {
            eprintln!("nothing is emulated: this processor has no AVX-512");
            return;
        }
        assert!(handle());
        // SAFETY: what the processor lacks of these is emulated.
        unsafe {
            vectors();
            roundings();
            sums_of_pairs();
        }
    }
}
