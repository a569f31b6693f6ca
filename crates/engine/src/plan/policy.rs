//! Which values stay in memory between the forward and the backward pass. What does not is computed again, to the same bits.

use crate::graph::Role;

/// The policies with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyName {
    /// Keep everything that a derivative reads.
    None,
    /// Keep the input of each block.
    Block,
    /// Keep the inputs of both sub-layers, the feed-forward's gate and up, and attention's output; recompute norms, q, k, v
    /// and what is cheap.
    Selective,
}

/// A choice of what to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its name in reports.
    pub name: PolicyName,
    /// Most rows of logits that exist at once.
    pub loss_rows: usize,
}

impl Policy {
    /// The named policy, with as many rows of logits as fit 32 MiB (and at least 16).
    pub fn named(name: PolicyName, vocab: usize) -> Self {
        const LOGITS_BYTES: usize = 32 << 20;
        Self { name, loss_rows: (LOGITS_BYTES / (4 * vocab.max(1))).max(16) }
    }

    /// Whether values of this role stay.
    pub fn keeps(&self, role: Role) -> bool {
        match self.name {
            PolicyName::None => true,
            PolicyName::Block => role == Role::BlockInput,
            PolicyName::Selective => matches!(
                role,
                Role::BlockInput | Role::Middle | Role::Ffn | Role::AttentionOut | Role::LogSumExp | Role::LowRank
            ),
        }
    }
}
