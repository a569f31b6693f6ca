//! Model and adapter files: GGUF, safetensors, Hugging Face folders; adapters of PEFT, MLX and llama.cpp.
//!
//! Files are mapped and read in place; every number that a file claims is checked against the bytes that are there
//! before anything is allocated or sliced. Nothing here knows what a model computes, and nothing here writes a file
//! under its final name: encoders write to what they are handed.

pub mod error;
pub mod folder;
pub mod gguf;
pub mod hf;
pub mod inspect;
pub mod json;
pub mod lora;
pub mod mapped;
pub mod mlx;
pub mod model;
pub mod packed;
pub mod peft;
pub mod safetensors_file;
pub mod tensor;

pub use error::{Error, Result};
pub use gguf::{Gguf, Meta, MetaArray};
pub use mapped::Mapped;
pub use model::ModelFiles;
pub use packed::{PackedMatrix, Part};
pub use pocketune_kernels::BlockType;
pub use tensor::{Element, Tensor, TensorInfo};
