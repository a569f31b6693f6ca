//! Reads the instructions that are emulated; Intel's manual, volume 2, has their encoding.

use super::context::Context;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// `LDTILECFG`
    Configure,
    /// `TILERELEASE`
    Release,
    /// `TILEZERO`
    Zero,
    /// `TILELOADD` and `TILELOADDT1`
    Load,
    /// `TILESTORED`
    Store,
    /// `TDPBF16PS`
    Multiply,
    /// `VCVTNEPS2BF16`
    RoundOne,
    /// `VCVTNE2PS2BF16`
    RoundTwo,
    /// `VPERMB`
    Permute,
    /// `VPERMI2B`
    PermuteByThis,
    /// `VPERMT2B`
    PermuteThis,
    /// `VPMULTISHIFTQB`
    Shift,
    /// `VPDPWSSD`
    AddPairs,
}

/// Where the last operand is: in a register, or in memory, where rows of a tile are `stride` bytes apart and a vector begins that many bytes later.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Register(usize),
    Memory { start: u64, stride: u64 },
}

#[derive(Debug)]
pub(super) struct Instruction {
    pub code: Code,
    /// The register that is written (of a store: read).
    pub to: usize,
    /// The operand that the prefix names.
    pub other: usize,
    pub from: Place,
    /// Bytes of a vector.
    pub bytes: usize,
    /// Bytes of a number in memory that stands for all elements.
    pub broadcast: Option<usize>,
    /// The mask's register; 0 is none.
    pub mask: usize,
    /// Whether elements that the mask leaves out become zero.
    pub zeroing: bool,
    /// Bytes of the instruction itself.
    pub length: usize,
}

/// Bits of the prefix that lengthen the numbers of registers.
struct Extension {
    index: usize,
    base: usize,
}

/// The instruction at which a thread was stopped, where it is one of those.
///
/// # Safety
/// There is an instruction.
pub(super) unsafe fn at(context: &Context) -> Option<Instruction> {
    // SAFETY: an instruction is read as far as it goes.
    let byte = |at: usize| unsafe { usize::from(*context.code().add(at)) };
    if !matches!(byte(0), 0x62 | 0xc4) {
        return None;
    }
    // Whether an inverted bit is set.
    let clear = |at: usize, bit: u32| usize::from(byte(at) >> bit & 1 == 0);
    let extension = Extension { index: clear(1, 6) << 3, base: clear(1, 5) << 3 };
    let wide = byte(2) >> 7 == 1;
    let (other, kind) = (!(byte(2) >> 3) & 15, byte(2) & 3);
    match byte(0) {
        0xc4 if byte(1) & 31 == 2 && !wide && byte(2) & 4 == 0 => {
            let form = byte(4);
            let memory = form >> 6 != 3;
            let code = match (byte(3), kind, memory) {
                (0x49, 0, true) => Code::Configure,
                (0x49, 0, false) => Code::Release,
                (0x49, 3, false) => Code::Zero,
                (0x4b, 1 | 3, true) => Code::Load,
                (0x4b, 2, true) => Code::Store,
                (0x5c, 2, false) => Code::Multiply,
                _ => return None,
            };
            let (from, length) = place(context, 4, 1, &extension, byte);
            let to = form >> 3 & 7;
            Some(Instruction { code, to, other, from, bytes: 64, broadcast: None, mask: 0, zeroing: false, length })
        }
        0x62 if byte(1) & 7 == 2 => {
            let code = match (byte(4), kind, wide) {
                (0x72, 2, false) => Code::RoundOne,
                (0x72, 3, false) => Code::RoundTwo,
                (0x8d, 1, false) => Code::Permute,
                (0x75, 1, false) => Code::PermuteByThis,
                (0x7d, 1, false) => Code::PermuteThis,
                (0x83, 1, true) => Code::Shift,
                (0x52, 1, false) => Code::AddPairs,
                _ => return None,
            };
            let bytes = 16 << (byte(3) >> 5 & 3);
            let number = if wide { 8 } else { 4 };
            let broadcast = (byte(3) >> 4 & 1 == 1).then_some(number);
            let (from, length) = place(context, 5, broadcast.unwrap_or(bytes), &extension, byte);
            // A register's number has its fifth bit where memory has an index.
            let from = match from {
                Place::Register(register) => Place::Register(register | extension.index << 1),
                memory => memory,
            };
            Some(Instruction {
                code,
                to: byte(5) >> 3 & 7 | clear(1, 7) << 3 | clear(1, 4) << 4,
                other: other | clear(3, 3) << 4,
                from,
                bytes,
                broadcast,
                mask: byte(3) & 7,
                zeroing: byte(3) >> 7 == 1,
                length,
            })
        }
        _ => None,
    }
}

/// The operand that the byte at `form` describes, and where the instruction ends. A distance of one byte counts in steps of `scale`.
fn place(
    context: &Context,
    form: usize,
    scale: usize,
    extension: &Extension,
    byte: impl Fn(usize) -> usize,
) -> (Place, usize) {
    let (mode, low) = (byte(form) >> 6, byte(form) & 7);
    if mode == 3 {
        return (Place::Register(low | extension.base), form + 1);
    }
    let mut end = form + 1;
    let (mut base, mut stride) = (Some(low | extension.base), 0);
    let mut low = low;
    if low == 4 {
        let index = byte(end) >> 3 & 7 | extension.index;
        // The stack pointer is no index.
        if index != 4 {
            stride = context.general(index) << (byte(end) >> 6);
        }
        low = byte(end) & 7;
        base = Some(low | extension.base);
        end += 1;
    }
    let far = |end: usize| (0..4).fold(0_u32, |sum, at| sum | (byte(end + at) as u32) << (8 * at)).cast_signed();
    let distance = match mode {
        0 if low == 5 => {
            base = None;
            end += 4;
            i64::from(far(end - 4))
        }
        0 => 0,
        1 => {
            end += 1;
            i64::from((byte(end - 1) as u8).cast_signed()) * scale as i64
        }
        _ => {
            end += 4;
            i64::from(far(end - 4))
        }
    };
    // Without a base, a distance is one from the instruction's end, unless an index was named.
    let origin = match base {
        Some(register) => context.general(register),
        None if byte(form) & 7 == 5 => context.code() as u64 + end as u64,
        None => 0,
    };
    (Place::Memory { start: origin.wrapping_add_signed(distance), stride }, end)
}
