//! pocketune fine-tunes a language model on the device that holds the data, inside a memory budget, with exact gradients.
//!
//! The way of the data, one module a floor: model files become a [`families`] configuration, that becomes a [`graph`] of coarse
//! operations, a [`plan`] decides what is kept and where everything lies, the [`backend`] runs the resulting flat program over one
//! arena, [`train`] repeats it, and [`store`] writes what is left behind. Nothing here opens a socket.

pub mod backend;
pub mod beside;
pub mod conditions;
pub mod convert;
pub mod error;
pub mod export;
pub mod families;
pub mod graph;
mod groups;
pub mod memory;
pub mod model;
pub mod plan;
pub mod store;
pub mod threads;
pub mod train;

pub use error::{Error, Result};
