//! Lifetimes and offsets of a program's buffers.

use super::{Kind, Program};

/// Floats to which offsets are rounded: a cache line.
const ALIGN: usize = 16;

/// Instructions are grouped into so many stretches of time; a buffer that lives in one of them is looked for there.
const STRETCHES: usize = 32;

/// A buffer that has its place.
#[derive(Clone, Copy)]
struct Placed {
    offset: usize,
    end: usize,
    first: usize,
    last: usize,
}

/// Sets every buffer's lifetime and offset and the arena's length.
///
/// Largest first, each at the lowest offset that is free during its lifetime. Blocks are alike and their buffers few in size, so
/// this comes close to the sum of what is alive at the peak.
pub fn place(program: &mut Program) {
    lifetimes(program);
    let stretch = program.instrs.len().div_ceil(STRETCHES).max(1);
    // By offset: those that touch each stretch, and all.
    let mut placed: Vec<Vec<Placed>> = vec![Vec::new(); STRETCHES + 2];
    let all = STRETCHES + 1;
    let mut order: Vec<usize> = (0..program.buffers.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(program.buffers[i].len), program.buffers[i].first));
    program.len = 0;
    for i in order {
        let buffer = &mut program.buffers[i];
        let size = buffer.len.next_multiple_of(ALIGN);
        let life = buffer.first / stretch..buffer.last / stretch + 1;
        let beside = &placed[if life.len() == 1 { life.start } else { all }];
        let mut offset = 0;
        for other in beside.iter().filter(|other| other.first <= buffer.last && buffer.first <= other.last) {
            if other.offset >= offset + size {
                break;
            }
            offset = offset.max(other.end);
        }
        buffer.offset = offset;
        let here = Placed { offset, end: offset + size, first: buffer.first, last: buffer.last };
        for touched in life.chain([all]) {
            let after = placed[touched].partition_point(|other| other.offset <= offset);
            placed[touched].insert(after, here);
        }
        program.len = program.len.max(offset + size);
    }
}

/// From the first to the last instruction that uses a buffer; what a region reads or writes beyond one piece lives through all of it.
fn lifetimes(program: &mut Program) {
    let mut regions = program.regions.iter().peekable();
    for (at, instr) in program.instrs.iter().enumerate() {
        while regions.next_if(|region| region.end <= at).is_some() {}
        let region = regions.peek().filter(|region| region.start <= at);
        instr.buffers(&mut |buf, _| {
            let buffer = &mut program.buffers[buf.0];
            let (first, last) = match region {
                Some(region) if !buffer.local => (region.start, region.end - 1),
                _ => (at, at),
            };
            // A region's scratch is used by one instruction at a time, whatever the piece.
            let (first, last) =
                if buffer.cols.is_none() && buffer.kind == Kind::Scratch { (at, at) } else { (first, last) };
            buffer.first = buffer.first.min(first);
            buffer.last = buffer.last.max(last);
        });
    }
}

/// The most floats alive, apart from where the loss is computed, and what is alive there beside the loss's own work.
pub struct Peaks {
    /// At every other instruction.
    pub elsewhere: usize,
    /// Beside the loss's work.
    pub beside_loss: usize,
}

/// Finds the peaks of a program without laying it out: no layout can be smaller.
pub fn peaks(program: &mut Program) -> Peaks {
    lifetimes(program);
    let mut change = vec![0_isize; program.instrs.len() + 1];
    for buffer in program.buffers.iter().filter(|buffer| buffer.first <= buffer.last) {
        change[buffer.first] += buffer.len as isize;
        change[buffer.last + 1] -= buffer.len as isize;
    }
    let mut peaks = Peaks { elsewhere: 0, beside_loss: 0 };
    let mut live = 0;
    for (instr, change) in program.instrs.iter().zip(change) {
        live += change;
        match instr.loss() {
            Some(work) => peaks.beside_loss = live as usize - program.buffers[work.0].len,
            None => peaks.elsewhere = peaks.elsewhere.max(live as usize),
        }
    }
    peaks
}
