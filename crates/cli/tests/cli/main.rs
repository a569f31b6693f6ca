//! The program as its user meets it: every test runs the real binary in a folder of its own, through [`place::Place`], and
//! looks at what it printed, what it wrote and how it ended.

mod adapters;
mod against_pytorch;
mod bad_adapter;
mod bad_data;
mod bad_model;
mod bad_options;
mod bad_output;
mod bench;
mod budget;
mod built_in;
#[cfg(unix)]
mod changing_files;
mod chat;
mod classes;
mod closed_output;
mod comparing;
mod config;
mod continuing;
mod converting;
mod eight_bits;
mod encoders;
mod forms;
mod generating;
mod identity;
mod killed;
mod layouts;
mod learned_positions;
mod masks;
mod measuring;
mod merging;
mod methods;
mod models;
mod moved;
mod not_finite;
mod options;
mod order;
mod packed;
mod packing;
mod picture;
mod place;
#[cfg(unix)]
mod private;
mod quantizing;
mod records;
mod reports;
mod resuming;
mod signals;
mod spilling;
mod talking;
mod tasks;
mod travelling;
mod validating;
mod whole;
mod whole_learned;
