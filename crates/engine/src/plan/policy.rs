//! What happens to every value between the forward and the backward pass, and in what pieces a step is worked through. No choice
//! here changes a number: what is not kept is fetched or computed again to the same bits.

use crate::graph::Role;

/// A set of roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Roles(u16);

impl Roles {
    /// Every role.
    pub const ALL: Roles = Roles(u16::MAX);

    /// The set of `roles`.
    pub const fn of(roles: &[Role]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < roles.len() {
            bits |= 1 << roles[at] as u16;
            at += 1;
        }
        Self(bits)
    }

    /// The name of the policy that keeps these, or the roles by name.
    pub fn words(self) -> String {
        let names = [PolicyName::None, PolicyName::Block, PolicyName::Selective];
        if let Some(name) = names.into_iter().find(|name| name.keeps() == self) {
            return format!("'{}'", name.word());
        }
        let kept: Vec<&str> = Role::ALL.into_iter().filter(|&role| self.contains(role)).map(Role::word).collect();
        kept.join("+")
    }

    /// Whether `role` is in the set.
    pub const fn contains(self, role: Role) -> bool {
        self.0 >> role as u16 & 1 == 1
    }
}

/// The policies with a name: what they keep of a block, where the search does not keep all of the last one.
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

impl PolicyName {
    /// What it keeps of a block.
    pub const fn keeps(self) -> Roles {
        match self {
            PolicyName::None => Roles::ALL,
            PolicyName::Block => Roles::of(&[Role::BlockInput]),
            PolicyName::Selective => Roles::of(&[
                Role::BlockInput,
                Role::Middle,
                Role::Ffn,
                Role::AttentionOut,
                Role::LogSumExp,
                Role::LowRank,
            ]),
        }
    }

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            PolicyName::None => "none",
            PolicyName::Block => "block",
            PolicyName::Selective => "selective",
        }
    }
}

/// What stays of the first blocks and of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Of blocks below `split`.
    pub first: Roles,
    /// Of the other blocks.
    pub rest: Roles,
    /// How many blocks are the first ones.
    pub split: usize,
}

impl Keep {
    /// The same of every block.
    pub const fn all(roles: Roles) -> Self {
        Self { first: roles, rest: roles, split: 0 }
    }

    /// In words, for a model of `blocks` blocks.
    pub fn words(&self, blocks: usize) -> String {
        if self.split == 0 || self.first == self.rest {
            return format!("keep {}", self.rest.words());
        }
        format!(
            "keep {} of {} blocks, {} of {}",
            self.first.words(),
            self.split,
            self.rest.words(),
            blocks - self.split
        )
    }

    /// What stays of block `block`.
    pub const fn of(&self, block: usize) -> Roles {
        if block < self.split { self.first } else { self.rest }
    }
}

/// Where kept values wait for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spill {
    /// In memory.
    No,
    /// In the spill file, written and read while the neighbouring block is computed.
    Ahead,
    /// In the spill file, one block's values in memory at a time.
    Tight,
}

/// A complete choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What stays of each block.
    pub keep: Keep,
    /// Where it stays.
    pub spill: Spill,
    /// Blocks between two kept block inputs, and between two of those that are computed again inside; 1 and 1 keep all.
    pub every: [usize; 2],
    /// Records of groups that a pass of a step handles at most, where a step looks at perturbed losses; a number of at least all means one pass.
    pub at_once: usize,
    /// Rows at a time in everything but attention; a number of at least the step's tokens means all.
    pub rows: usize,
    /// Labelled rows at a time in head and loss.
    pub loss_rows: usize,
    /// Whether mapped weights are released after use.
    pub stream: bool,
    /// Whether the optimizer's state waits on disk.
    pub page_optimizer: bool,
}

impl Policy {
    /// Rows of head and loss at a time where there is room: with more, kernels would go over the head's weights once more all the same.
    pub const LOSS_ROWS: usize = 512;

    /// The named policy with everything else at its roomiest.
    pub fn named(name: PolicyName) -> Self {
        Self {
            keep: Keep::all(name.keeps()),
            spill: Spill::No,
            every: [1, 1],
            at_once: usize::MAX,
            rows: usize::MAX,
            loss_rows: Self::LOSS_ROWS,
            stream: false,
            page_optimizer: false,
        }
    }
}
