//! Asking for memory before it is read. Processors guess what is read next, but late, and only within a page: passes over values that lie in a far
//! cache, and weights that are read once, take up to twice as long without.

/// Asks for the cache line at `at`, which need not be anybody's.
#[inline(always)]
pub(crate) fn line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it faults at no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint; it faults at no address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Asks for what lies `by` elements behind these.
#[inline(always)]
pub(crate) fn behind<T>(these: &[T], by: usize) {
    for first in these.chunks(64 / size_of::<T>()) {
        line(first.as_ptr().wrapping_add(by).cast());
    }
}
