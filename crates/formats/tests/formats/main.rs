//! Files made by hand, byte by byte, good and bad; and real ones where they are at hand.

mod adapter;
mod bad_gguf;
mod good_gguf;
mod handmade;
mod hf_folder;
mod mutations;
mod real_model;
mod safetensors_file;
mod what_is_it;
