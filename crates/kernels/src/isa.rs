//! Which instruction set the kernels use: found at run time, or forced by `POCKETUNE_ISA` (for tests and comparisons).

use crate::matmul::Precision;

/// An instruction set that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// The reference: plain Rust, any processor.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// The same with `vpdpwssd`, which multiplies pairs of 16-bit integers: AVX-VNNI, or what AVX-512 has of it for vectors of that length.
    Avx2Vnni,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// The same with `vpdpwssd`.
    Avx512Vnni,
    /// AVX-512 with BF16 and VBMI, plus AMX-BF16 tiles, for which the kernel granted tile data.
    Amx,
    /// Any 64-bit Arm.
    Neon,
    /// 64-bit Arm with BF16: `bfmmla` and `bfcvtn`.
    NeonBf16,
}

impl Isa {
    /// Those of this architecture, from the plainest to the most capable.
    pub const ALL: &'static [Isa] = if cfg!(target_arch = "x86_64") {
        &[Isa::Scalar, Isa::Avx2, Isa::Avx2Vnni, Isa::Avx512, Isa::Avx512Vnni, Isa::Amx]
    } else if cfg!(target_arch = "aarch64") {
        &[Isa::Scalar, Isa::Neon, Isa::NeonBf16]
    } else {
        &[Isa::Scalar]
    };

    /// The name used in `POCKETUNE_ISA` and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx2Vnni => "avx2-vnni",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512-vnni",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
            Isa::NeonBf16 => "neon-bf16",
        }
    }

    /// What it multiplies matrices fastest in.
    pub const fn precision(self) -> Precision {
        match self {
            Isa::Amx | Isa::NeonBf16 => Precision::Bf16,
            Isa::Avx512Vnni | Isa::Avx2Vnni => Precision::Int16,
            Isa::Scalar | Isa::Avx2 | Isa::Avx512 | Isa::Neon => Precision::F32,
        }
    }

    /// Whether this processor runs `self`.
    pub fn available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx2Vnni | Isa::Avx512 | Isa::Avx512Vnni | Isa::Amx => on_x86(self),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonBf16 => std::arch::is_aarch64_feature_detected!("bf16"),
            _ => false,
        }
    }

    /// The most capable instruction set of this processor.
    pub fn best() -> Self {
        Self::ALL.iter().rev().copied().find(|isa| isa.available()).unwrap_or(Isa::Scalar)
    }

    /// The one to use: `POCKETUNE_ISA` where it is set, the best otherwise.
    ///
    /// # Errors
    /// The sentence to show when the variable names something unknown or something this processor lacks.
    pub fn detect() -> Result<Self, String> {
        match std::env::var("POCKETUNE_ISA") {
            Ok(wanted) => Self::named(&wanted).map_err(|fault| format!("POCKETUNE_ISA={wanted}: {fault}")),
            Err(_) => Ok(Self::best()),
        }
    }

    /// The one called `name`, or what is wrong with asking for it.
    fn named(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ");
        match Self::ALL.iter().find(|isa| isa.name() == name) {
            Some(isa) if isa.available() => Ok(*isa),
            Some(_) => Err(format!("this processor has {} at most", Self::best().name())),
            None => Err(format!("not one of {} ({} has no other)", names(), std::env::consts::ARCH)),
        }
    }
}

/// Whether this processor has what `isa` stands for.
#[cfg(target_arch = "x86_64")]
fn on_x86(isa: Isa) -> bool {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
    let amx = || is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vbmi") && amx_granted();
    #[cfg(all(debug_assertions, target_os = "linux", target_env = "gnu"))]
    let (vnni, amx) = (vnni || (avx512 && crate::emulated::is("vnni")), || amx() || crate::emulated::is("amx"));
    match isa {
        Isa::Avx2 => avx2,
        Isa::Avx2Vnni => vnni || (avx2 && is_x86_feature_detected!("avxvnni")),
        Isa::Avx512 => avx512,
        Isa::Avx512Vnni => vnni,
        Isa::Amx => avx512 && amx(),
        _ => false,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_architecture_has_its_own_sets_and_refuses_those_of_another_by_name() {
        let x86 = [Isa::Avx2, Isa::Avx2Vnni, Isa::Avx512, Isa::Avx512Vnni, Isa::Amx];
        let everywhere = [&[Isa::Scalar, Isa::Neon, Isa::NeonBf16][..], &x86].concat();
        assert!(Isa::Scalar.available() && Isa::best().available());
        for isa in everywhere {
            let named = Isa::named(isa.name());
            if isa.available() {
                assert_eq!(named, Ok(isa));
            } else if Isa::ALL.contains(&isa) {
                assert_eq!(named, Err(format!("this processor has {} at most", Isa::best().name())));
            } else {
                let fault = named.unwrap_err();
                for known in Isa::ALL {
                    assert!(fault.contains(known.name()), "{fault}");
                }
                assert!(fault.contains(std::env::consts::ARCH) && !fault.contains('\n'), "{fault}");
            }
        }
        assert!(Isa::named("nonsense").is_err());
        #[cfg(target_arch = "x86_64")]
        assert!(Isa::ALL.contains(&Isa::Amx) && !Isa::Neon.available() && !Isa::NeonBf16.available());
        #[cfg(target_arch = "aarch64")]
        assert!(Isa::Neon.available() && !Isa::Avx2.available() && !Isa::Amx.available());
    }
}
