//! Blocks of a model that learn in turns. A block that rests has no gradient made and no tensor moved; the gradient goes through it to those below, and where none of
//! these learns either, the backward pass ends. A block that learns uses the state of the room that it was given, which is zero when its turn begins.

use super::{Cpu, Rule};
use crate::error::Result;
use crate::graph::{Graph, ParamId};
use crate::plan::{Instr, Program};

/// Floats of state that are set to zero at a time.
const ZEROS: usize = 1024;

/// Whose turn it is.
#[derive(Debug)]
pub(super) struct Turn {
    /// The trainable matrices of every block, in the same order in each.
    params: Vec<Vec<ParamId>>,
    /// The place of each trainable matrix among those of its block.
    places: Vec<usize>,
    /// The room that every block has, where it learns.
    rooms: Vec<Option<usize>>,
    /// The number of the update inside its turn, from 1.
    age: u64,
}

impl Turn {
    /// For a graph whose blocks take turns; it is nobody's yet.
    pub fn new(graph: &Graph) -> Option<Self> {
        graph.turns?;
        let mut params = vec![Vec::new(); graph.blocks];
        let blocks = graph.blocks_of_params();
        let mut place = |(at, block): (usize, &Option<usize>)| match block {
            Some(block) => {
                params[*block].push(ParamId(at));
                params[*block].len() - 1
            }
            None => 0,
        };
        let places = blocks.iter().enumerate().map(&mut place).collect();
        Some(Self { params, places, rooms: vec![None; graph.blocks], age: 1 })
    }
}

impl Cpu {
    /// From now on it is the turn of those blocks that `learns` says, in update `age` of it, from 1; there are no more of them than the graph has room for.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn take_turn(&mut self, learns: impl Fn(usize) -> bool, age: u64) -> Result<()> {
        let Some(turn) = &mut self.turn else { return Ok(()) };
        let mut free = 0..;
        for (block, room) in turn.rooms.iter_mut().enumerate() {
            *room = if learns(block) { free.next() } else { None };
        }
        turn.age = age;
        if age > 1 {
            return Ok(());
        }
        // Only those have a state that have room of their own.
        for id in (0..self.blocks.len()).map(ParamId) {
            if self.blocks[id.0].is_none() {
                continue;
            }
            self.write_state(id, &mut [0.0; ZEROS], &mut |part| {
                part.fill(0.0);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Whether nothing of `block` learns.
    pub(super) fn rests(&self, block: usize) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.rooms[block].is_none())
    }

    /// Where `program` ends: behind the lowest block that learns, where nothing below does.
    pub(super) fn end_of(&self, program: &Program) -> usize {
        let all = program.instrs.len();
        let Some(last) = program.passages.last().filter(|_| self.turn.is_some()) else { return all };
        if program.instrs[last.instrs.end..].iter().any(Instr::updates) {
            return all;
        }
        let lowest = program.passages.iter().rev().find(|passage| !self.rests(passage.block));
        lowest.map_or(all, |passage| passage.instrs.end)
    }

    /// The matrix whose room the state of `param` has now.
    pub(super) fn room_of(&self, param: ParamId) -> ParamId {
        match (&self.turn, self.blocks[param.0]) {
            (Some(turn), Some(block)) => {
                turn.rooms[block].map_or(param, |room| turn.params[room][turn.places[param.0]])
            }
            _ => param,
        }
    }

    /// The rule for `param`: in a block, updates are counted from the beginning of its turn.
    pub(super) fn rule_in_turn(&self, param: ParamId, rule: Rule) -> Rule {
        match (&self.turn, self.blocks[param.0]) {
            (Some(turn), Some(_)) => rule.at_step(turn.age),
            _ => rule,
        }
    }
}
