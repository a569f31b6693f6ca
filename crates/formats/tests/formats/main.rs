//! Files made by hand, byte by byte, good and bad; and real ones where they are at hand.

mod adapter;
mod bad_gguf;
mod bad_index;
mod bad_mlx;
mod bad_peft;
mod bad_safetensors;
mod good_gguf;
mod handmade;
mod hf_folder;
mod mutations;
mod real_model;
mod safetensors_file;
mod what_is_it;
