//! The registers of a stopped thread, as Linux keeps them for a signal's handler.

use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Where `XSAVE` says which states are there, and where the vectors of 16 bytes lie.
const THERE: usize = 512;
const LOWEST: usize = 160;
/// The states' numbers: the upper halves of 32-byte vectors, masks, the upper halves of 64-byte vectors, and the last sixteen of these.
const UPPER: usize = 2;
const MASKS: usize = 5;
const HIGHEST: usize = 6;
const LAST: usize = 7;

/// Where each of the states begins, and how long it is.
type Layout = [(usize, usize); 8];

pub(super) struct Context {
    general: *mut [libc::greg_t; 23],
    states: *mut u8,
    layout: &'static Layout,
}

/// As the processor says; asked once, since a virtual one takes its time to answer.
pub(super) fn layout() -> &'static Layout {
    static LAYOUT: OnceLock<Layout> = OnceLock::new();
    LAYOUT.get_or_init(|| {
        std::array::from_fn(|state| {
            let said = __cpuid_count(13, state as u32);
            (said.ebx as usize, said.eax as usize)
        })
    })
}

impl Context {
    /// # Safety
    /// `context` is what the system handed to a handler that has not returned.
    pub unsafe fn new(context: *mut libc::c_void) -> Self {
        // SAFETY: the caller's promise.
        let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
        let states = machine.fpregs.cast::<u8>();
        let layout = layout();
        for state in [UPPER, MASKS, HIGHEST, LAST] {
            let (start, len) = layout[state];
            // SAFETY: `XSAVE`'s area in the plain format, which is that of a signal: each state where the processor says. One that is not there is all zeros.
            unsafe {
                let there = states.add(THERE).cast::<u64>();
                if *there >> state & 1 == 0 {
                    states.add(start).write_bytes(0, len);
                    *there |= 1 << state;
                }
            }
        }
        Self { general: &raw mut machine.gregs, states, layout }
    }

    /// Where the thread was stopped.
    pub fn code(&self) -> *const u8 {
        // SAFETY: the context lives as long as the handler.
        unsafe { (*self.general)[libc::REG_RIP as usize] as *const u8 }
    }

    /// Has the thread go on that many bytes later.
    pub fn go_on(&mut self, bytes: usize) {
        // SAFETY: as above.
        unsafe { (*self.general)[libc::REG_RIP as usize] += bytes as i64 };
    }

    /// A general register by the number that instructions have for it.
    pub fn general(&self, register: usize) -> u64 {
        const PLACES: [i32; 16] = [
            libc::REG_RAX,
            libc::REG_RCX,
            libc::REG_RDX,
            libc::REG_RBX,
            libc::REG_RSP,
            libc::REG_RBP,
            libc::REG_RSI,
            libc::REG_RDI,
            libc::REG_R8,
            libc::REG_R9,
            libc::REG_R10,
            libc::REG_R11,
            libc::REG_R12,
            libc::REG_R13,
            libc::REG_R14,
            libc::REG_R15,
        ];
        // SAFETY: as above.
        unsafe { (*self.general)[PLACES[register] as usize].cast_unsigned() }
    }

    pub fn mask(&self, register: usize) -> u64 {
        // SAFETY: eight masks of eight bytes.
        unsafe { *self.states.add(self.layout[MASKS].0 + 8 * register).cast() }
    }

    /// Where the parts of a vector lie, and how long each is.
    fn parts(&self, register: usize) -> [(usize, usize); 3] {
        let at = |state: usize| self.layout[state].0;
        match register {
            0..16 => [(LOWEST + 16 * register, 16), (at(UPPER) + 16 * register, 16), (at(HIGHEST) + 32 * register, 32)],
            _ => [(at(LAST) + 64 * (register - 16), 64), (0, 0), (0, 0)],
        }
    }

    pub fn vector(&self, register: usize) -> [u8; 64] {
        let mut bytes = [0; 64];
        let mut done = 0;
        for (at, len) in self.parts(register) {
            // SAFETY: a part of a register, inside its state.
            unsafe { std::ptr::copy_nonoverlapping(self.states.add(at), bytes[done..].as_mut_ptr(), len) };
            done += len;
        }
        bytes
    }

    pub fn set_vector(&mut self, register: usize, bytes: &[u8; 64]) {
        let mut done = 0;
        for (at, len) in self.parts(register) {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(bytes[done..].as_ptr(), self.states.add(at), len) };
            done += len;
        }
    }
}
