//! Gradients: their sums, whether they are numbers, and the rules by which they change the matrices. What is not finite is never applied.

use pocketune_kernels::update::{AdaLomo, AdamW, Apollo, Galore, Mlorc, Sgd};
use pocketune_kernels::{elementwise, update};

use super::Cpu;
use super::state::failed;
use crate::error::Result;
use crate::graph::{Graph, Of, ParamId};
use crate::plan::States;

/// How gradients are applied.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// AdamW.
    AdamW(AdamW),
    /// AdamW with moments in 8 bits.
    AdamW8bit(AdamW),
    /// Plain SGD.
    Sgd(Sgd),
    /// AdaLomo, of a model's own tensors.
    AdaLomo(AdaLomo),
    /// APOLLO, of a model's own tensors.
    Apollo(Apollo),
    /// MLorc, of a model's own tensors.
    Mlorc(Mlorc),
    /// GaLore, of a model's own tensors.
    Galore(Galore),
}

impl Rule {
    /// The same with `times` the learning rate.
    fn quicker(self, times: f32) -> Self {
        match self {
            Rule::AdamW(rule) => Rule::AdamW(AdamW { lr: rule.lr * times, ..rule }),
            Rule::AdamW8bit(rule) => Rule::AdamW8bit(AdamW { lr: rule.lr * times, ..rule }),
            Rule::Sgd(rule) => Rule::Sgd(Sgd { lr: rule.lr * times, ..rule }),
            Rule::AdaLomo(rule) => Rule::AdaLomo(AdaLomo { lr: rule.lr * times, ..rule }),
            Rule::Apollo(rule) => {
                Rule::Apollo(Apollo { adamw: AdamW { lr: rule.adamw.lr * times, ..rule.adamw }, ..rule })
            }
            Rule::Mlorc(rule) => {
                Rule::Mlorc(Mlorc { adamw: AdamW { lr: rule.adamw.lr * times, ..rule.adamw }, ..rule })
            }
            Rule::Galore(rule) => {
                Rule::Galore(Galore { adamw: AdamW { lr: rule.adamw.lr * times, ..rule.adamw }, ..rule })
            }
        }
    }

    /// The same as update number `step`, from 1.
    pub(super) fn at_step(self, step: u64) -> Self {
        match self {
            Rule::AdamW(rule) => Rule::AdamW(AdamW { step, ..rule }),
            Rule::AdamW8bit(rule) => Rule::AdamW8bit(AdamW { step, ..rule }),
            Rule::Sgd(rule) => Rule::Sgd(rule),
            Rule::AdaLomo(rule) => Rule::AdaLomo(AdaLomo { step, ..rule }),
            Rule::Apollo(rule) => Rule::Apollo(Apollo { adamw: AdamW { step, ..rule.adamw }, ..rule }),
            Rule::Mlorc(rule) => Rule::Mlorc(Mlorc { adamw: AdamW { step, ..rule.adamw }, ..rule }),
            Rule::Galore(rule) => Rule::Galore(Galore { adamw: AdamW { step, ..rule.adamw }, ..rule }),
        }
    }

    /// The same without decay.
    fn without_decay(self) -> Self {
        match self {
            Rule::AdamW(rule) => Rule::AdamW(AdamW { weight_decay: 0.0, ..rule }),
            Rule::AdamW8bit(rule) => Rule::AdamW8bit(AdamW { weight_decay: 0.0, ..rule }),
            Rule::Sgd(rule) => Rule::Sgd(Sgd { weight_decay: 0.0, ..rule }),
            Rule::AdaLomo(rule) => Rule::AdaLomo(AdaLomo { weight_decay: 0.0, ..rule }),
            Rule::Apollo(rule) => Rule::Apollo(Apollo { adamw: AdamW { weight_decay: 0.0, ..rule.adamw }, ..rule }),
            Rule::Mlorc(rule) => Rule::Mlorc(Mlorc { adamw: AdamW { weight_decay: 0.0, ..rule.adamw }, ..rule }),
            Rule::Galore(rule) => Rule::Galore(Galore { adamw: AdamW { weight_decay: 0.0, ..rule.adamw }, ..rule }),
        }
    }

    /// What it remembers of every matrix.
    pub const fn states(&self) -> States {
        match self {
            Rule::AdamW(_) => States::F32,
            Rule::AdamW8bit(_) => States::Bits8,
            Rule::Sgd(_) => States::None,
            Rule::AdaLomo(_) => States::Factored,
            Rule::Apollo(rule) => States::Projected(rule.rank),
            Rule::Mlorc(_) => States::Compressed,
            Rule::Galore(rule) => States::Subspace(rule.rank),
        }
    }
}

impl Cpu {
    /// From now on all but first factors are trained with `times` the learning rate (LoRA+).
    pub fn quicken(&mut self, graph: &Graph, times: f32) {
        let first = |id: usize| match self.of[id] {
            Of::Module(module) => graph.modules[module].a == ParamId(id),
            Of::Shared | Of::Saved(_) | Of::Matrix(_) | Of::Vector(_) => true,
        };
        self.quicker = (0..self.ranks.len()).map(|id| if first(id) { 1.0 } else { times }).collect();
    }

    /// How many gradients were not applied since the last call, because they are not finite.
    pub fn refused(&mut self) -> usize {
        std::mem::take(&mut self.refused)
    }

    /// The gradient sum of a trainable matrix, where the layout has them.
    pub fn grad(&self, id: ParamId) -> &[f32] {
        self.arena.get(self.layout.grads[id.0].range())
    }

    /// From now on the sum of squares of every gradient is remembered as it is applied, for [`Cpu::watched`].
    pub fn watch(&mut self) {
        self.watch = Some(vec![f64::NAN; self.ranks.len()]);
    }

    /// What was remembered since [`Cpu::watch`]; NaN where no gradient was applied. Ends the watch.
    pub fn watched(&mut self) -> Option<Vec<f64>> {
        self.watch.take()
    }

    /// Sets all gradient sums to zero.
    pub fn clear_grads(&mut self) {
        for at in 0..self.layout.grads.len() {
            self.arena.get_mut(self.layout.grads[at].range()).fill(0.0);
        }
    }

    /// Applies all gradient sums, times `scale`.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn apply_grads(&mut self, rule: Rule, scale: f32) -> Result<()> {
        for at in 0..self.layout.grads.len() {
            if self.layout.grads[at].len == 0 || self.blocks[at].is_some_and(|block| self.dropped[block]) {
                continue;
            }
            // SAFETY: no other slice of the arena is alive; `update` writes the matrix and its states, which lie apart.
            let grad = unsafe { self.arena.write(self.layout.grads[at].range()) };
            if scale != 1.0 {
                elementwise::scale(&self.pool, grad, scale);
            }
            // Between runs the program's part of the arena is free: paged states pass through its start.
            let room = self.layout.len..self.layout.len + rule.states().floats(grad.len());
            // SAFETY: as above.
            let room = (!self.layout.paged.is_empty()).then(|| unsafe { self.arena.write(room) });
            self.update(ParamId(at), grad, room, rule)?;
        }
        Ok(())
    }

    /// Whether all gradient sums are finite.
    pub fn grads_are_finite(&self) -> bool {
        self.layout.grads.iter().all(|span| elementwise::all_finite(self.arena.get(span.range())))
    }

    /// The norm of all gradient sums together.
    pub fn grad_norm(&self) -> f64 {
        self.layout.grads.iter().map(|span| elementwise::square_sum(self.arena.get(span.range()))).sum::<f64>().sqrt()
    }

    /// Applies one gradient, if it is finite; `room` holds a state that waits on disk meanwhile.
    pub(super) fn update(&mut self, param: ParamId, grad: &[f32], room: Option<&mut [f32]>, rule: Rule) -> Result<()> {
        if let Some(watch) = &mut self.watch {
            watch[param.0] = elementwise::square_sum(grad);
        }
        if !elementwise::all_finite(grad) {
            self.refused += 1;
            return Ok(());
        }
        self.forget_lengths(param);
        let isa = self.machine.isa;
        // SAFETY: the layout keeps a matrix, its states and all gradients apart.
        let matrix = unsafe { self.arena.write(self.layout.param(param).range()) };
        let kept = self.room_of(param).0;
        let paged = self.layout.paged.get(kept).map(|at| self.states_at + at);
        let state = match (room, paged) {
            (Some(room), Some(at)) => {
                self.disk().read_now(room, at).map_err(failed)?;
                room
            }
            // SAFETY: as above.
            _ => self.layout.states.get(kept).map_or(&mut [][..], |span| unsafe { self.arena.write(span.range()) }),
        };
        let rule = self.rule_in_turn(param, rule).quicker(self.quicker[param.0]);
        let rule = if self.of[param.0].decays() { rule } else { rule.without_decay() };
        match rule {
            Rule::Sgd(rule) => update::sgd(isa, &self.pool, rule, matrix, grad),
            // A vector has no smaller side to project, and nothing to compress.
            Rule::AdamW(rule)
            | Rule::Apollo(Apollo { adamw: rule, .. })
            | Rule::Mlorc(Mlorc { adamw: rule, .. })
            | Rule::Galore(Galore { adamw: rule, .. }) => {
                let (m, v) = state.split_at_mut(grad.len());
                update::adamw(isa, &self.pool, rule, matrix, grad, m, v);
            }
            Rule::AdamW8bit(rule) => update::adamw_8bit(isa, &self.pool, rule, matrix, grad, state),
            Rule::AdaLomo(rule) => rule.vector(isa, matrix, grad, state),
        }
        match paged {
            Some(at) => self.disk().write_now(state, at).map_err(failed),
            None => Ok(()),
        }
    }
}
