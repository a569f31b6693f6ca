//! The operations of a fine-tuning step on a CPU.
//!
//! Every operation has a scalar reference that stays forever, and faster forms chosen at run time. Nothing here allocates:
//! scratch memory is handed in, its size is asked for beforehand. Nothing here knows what a model is.
//!
//! Numbers: in `f32`, every output element is one chain of fused multiply-adds in ascending order of the summed index, whatever
//! the instruction set, the tile sizes and the number of threads. So all paths give the same bits, and a sum cut in pieces
//! (an accumulating call that continues from what is there) has the bits of the whole.

pub mod activation;
#[cfg(target_arch = "x86_64")]
mod amx;
pub mod attention;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod blocks;
pub mod cross_entropy;
pub mod dequant;
pub mod dora;
pub mod dropout;
pub mod elementwise;
pub mod embed;
#[cfg(all(debug_assertions, target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod emulated;
mod fetch;
pub mod gated;
pub mod isa;
mod lanes;
pub mod layer_norm;
pub mod levels;
pub mod math;
pub mod matmul;
pub mod norm;
mod per_isa;
pub mod perturb;
pub mod philox;
pub mod pool;
pub mod reference;
pub mod rope;
pub mod round;
mod rows;
pub mod scales;
pub mod shared_norm;
mod tile;
pub mod update;
pub mod values;
pub mod vera;

pub use blocks::BlockType;
pub use isa::Isa;
pub use pool::Pool;
pub use values::{Element, Values, ValuesMut};
