//! RMS norms to bf16 on processors with AVX-512 and BF16, which round 32 elements at once.

use std::arch::x86_64::*;

use half::bf16;

use super::{SPAN, rstd};
use crate::avx512::{floats, mask_32, round};
use crate::fetch;

/// [`super::forward`] of some rows.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
pub(super) unsafe fn forward(x: &[f32], w: &[f32], eps: f32, y: &mut [bf16]) {
    let c = w.len();
    for (x, y) in x.chunks_exact(c).zip(y.chunks_exact_mut(c)) {
        let rstd = _mm512_set1_ps(rstd(x, eps));
        for ((x, y), w) in x.chunks(SPAN).zip(y.chunks_mut(SPAN)).zip(w.chunks(SPAN)) {
            fetch::behind(x, c);
            fetch::behind(y, c);
            let scaled = |x, w| _mm512_mul_ps(_mm512_mul_ps(floats(x), rstd), floats(w));
            let ((x, more_x), (w, more_w)) = (x.split_at(x.len().min(16)), w.split_at(w.len().min(16)));
            let halves = round(scaled(x, w), scaled(more_x, more_w));
            // SAFETY: no more are written than there is room for.
            unsafe {
                _mm512_mask_storeu_epi16(y.as_mut_ptr().cast(), mask_32(y.len()), halves);
            }
        }
    }
}
