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
    /// AVX-512 with BF16, plus AMX-BF16 tiles, for which the kernel granted tile data.
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
            if avx512 && is_x86_feature_detected!("avx512bf16") && amx_granted() {
                return Isa::Amx;
            }
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

/// Whether this processor has AMX with bf16 and Linux lets this process use its tile registers, which it must be asked for once.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn amx_granted() -> bool {
    use std::sync::OnceLock;
    /// `ARCH_REQ_XCOMP_PERM`, and the number of the tile data among the processor's states.
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| {
        let leaf = std::arch::x86_64::__cpuid_count(7, 0);
        let (bf16, tile) = (leaf.edx >> 22 & 1 == 1, leaf.edx >> 24 & 1 == 1);
        // SAFETY: the call takes two numbers and changes nothing but a permission of this process.
        bf16 && tile && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
    })
}

/// Other systems grant tiles in other ways, or not at all.
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn amx_granted() -> bool {
    false
}
