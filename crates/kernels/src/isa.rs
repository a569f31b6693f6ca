//! Which instruction set the kernels use: found at run time, or forced by `POCKETUNE_ISA` (for tests and comparisons).

/// An instruction set that kernels are written for, from the plainest to the most capable of a processor family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// The reference: plain Rust, any processor.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 plus AMX-BF16 tiles, for which the kernel granted tile data.
    Amx,
}

impl Isa {
    /// The name used in `POCKETUNE_ISA` and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
        }
    }

    /// Whether this processor runs `self`.
    pub fn available(self) -> bool {
        self <= Self::best()
    }

    /// The most capable instruction set of this processor.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx512 {
                return Isa::Avx512;
            }
            if avx2 {
                return Isa::Avx2;
            }
        }
        Isa::Scalar
    }

    /// The one to use: `POCKETUNE_ISA` where it is set, the best otherwise.
    ///
    /// # Errors
    /// The sentence to show when the variable names something unknown or something this processor lacks.
    pub fn detect() -> Result<Self, String> {
        let best = Self::best();
        let Ok(wanted) = std::env::var("POCKETUNE_ISA") else {
            return Ok(best);
        };
        let all = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Amx];
        match all.into_iter().find(|isa| isa.name() == wanted) {
            Some(isa) if isa <= best => Ok(isa),
            Some(_) => Err(format!("POCKETUNE_ISA={wanted}: this processor has {} at most", best.name())),
            None => Err(format!("POCKETUNE_ISA={wanted}: not one of scalar, avx2, avx512, amx")),
        }
    }
}
