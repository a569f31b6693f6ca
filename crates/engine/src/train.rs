//! The training loop and what belongs to it.
pub mod adapter;
