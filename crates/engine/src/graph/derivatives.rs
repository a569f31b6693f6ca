//! Derivatives that may be computed in another way than the plain one, each asked for by name. None changes the forward pass.

/// Which are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Derivatives {
    /// Smooth activations have a step function of four levels as their slope, of which two bits an element are kept; not exact.
    pub approx_act: bool,
    /// Norms before linears are differentiated from what they normalised, which their linears' adapters need anyway, and not from their input.
    pub ms_norm: bool,
    /// Strips of the vocabulary whose softmax entries are all below 2^-12 for a token are left out of its gradient; not exact.
    pub ce_skip: bool,
}

impl Derivatives {
    /// Whether gradients are those of the loss, to rounding.
    pub const fn exact(self) -> bool {
        !self.approx_act && !self.ce_skip
    }

    /// The option that asked for the first of them.
    pub fn option(self) -> Option<&'static str> {
        let asked = [(self.approx_act, "approx-act"), (self.ms_norm, "ms-norm"), (self.ce_skip, "ce-skip")];
        asked.into_iter().find_map(|(asked, name)| asked.then_some(name))
    }
}
