//! `pocketune pull NAME [--into DIR]`: fetches a model, and is the only place of the project that opens a socket.
//!
//! All of it is behind the `download` feature; a build without it has the command and none of the code, and says so.

#[cfg(not(feature = "download"))]
mod absent;
#[cfg(feature = "download")]
mod download;

#[cfg(not(feature = "download"))]
pub use absent::run;
#[cfg(feature = "download")]
pub use download::run;
