//! Hostile inputs for every parser of files that strangers write: mutations of small real-like files, each of which must be answered
//! with a value or one line, inside limits of memory and time. One function a parser takes bytes ([`targets`]), so that any fuzzer can
//! drive it; the driver here needs nothing but a stable compiler. It is no part of the product, and it refuses to hide a fault: whatever
//! breaks a rule is written to a file and counted.

pub mod drive;
pub mod measure;
pub mod mutate;
pub mod seeds;
pub mod targets;
