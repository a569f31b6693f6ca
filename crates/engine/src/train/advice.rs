//! What the surroundings of a run advise: how fast to go on, and with how much memory.

/// How fast a run should go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As fast as it can.
    Run,
    /// With rests between steps, as long as the steps.
    Slow,
    /// Not at all for now: nothing is computed until the pace changes.
    Pause,
}

/// What a host advises between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// How fast to go on.
    pub pace: Pace,
    /// The memory that the process may take now, where that is less than its budget.
    pub memory: Option<usize>,
}

impl Advice {
    /// Nothing stands in the way.
    pub const GO: Self = Self { pace: Pace::Run, memory: None };
}
