//! When a run should go on: a policy over what the device says of itself (power, battery, heat, memory, its user, the hour), with
//! hysteresis, so that a run does not flap at a threshold. What is read comes from a [`Source`]: Linux's files here, the host
//! application's own readings elsewhere. Nothing here stops anything: the answer is [`crate::train::Advice`].

mod linux;
mod policy;

pub use linux::Linux;
pub use policy::{Conditions, Policy, Window};

/// What a device says of itself at one moment; `None` where it doesn't.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Readings {
    /// Whether it is fed from outside.
    pub on_power: Option<bool>,
    /// What is left in the battery, in percent.
    pub battery: Option<u8>,
    /// The hottest sensor, in degrees Celsius.
    pub celsius: Option<f32>,
    /// Bytes of memory that can be had without swapping.
    pub available: Option<usize>,
    /// Bytes of memory of this process's own. What it holds of files is part of what can be had.
    pub own: usize,
    /// The share of the last ten seconds in which something waited for memory, in percent.
    pub pressure: Option<f32>,
    /// Whether somebody is using the device.
    pub user_active: Option<bool>,
    /// Minutes since midnight, as the device's user counts them.
    pub minute: Option<u16>,
}

/// Where readings come from.
pub trait Source {
    /// Looks at the device.
    fn read(&mut self) -> Readings;
}
