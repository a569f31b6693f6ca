//! Compiles one Rust body for each instruction set. The compiler never reorders float arithmetic, so the vectorised copies
//! give the bits of the scalar one. On 64-bit Arm there is one copy: NEON and its fused multiply-add are part of every such processor.

/// `per_isa!(pub fn name(args) = body)` makes `name(isa, args)`, which runs `body(args)` compiled for `isa`. `body` must be
/// `#[inline(always)]`, as everything hot that it calls.
macro_rules! per_isa {
    ($(#[$doc:meta])* $vis:vis fn $name:ident $(<$($life:lifetime),*>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name $(<$($life),*>)? (isa: $crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx512 $(<$($life),*>)? ($($arg: $ty),*) $(-> $ret)? { $body($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx2 $(<$($life),*>)? ($($arg: $ty),*) $(-> $ret)? { $body($($arg),*) }
            match isa {
                // SAFETY: an `Isa` above `Scalar` is only made where the processor has its features.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx512 | $crate::Isa::Avx512Vnni | $crate::Isa::Amx => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx2 | $crate::Isa::Avx2Vnni => unsafe { avx2($($arg),*) },
                _ => $body($($arg),*),
            }
        }
    };
}
pub(crate) use per_isa;
