//! What a thread keeps of keys and values between tiles of queries that meet them one after the other: the forms that products read,
//! which take a quarter of a sweep to make, and sums of their gradients.

use super::TILE;
#[cfg(target_arch = "x86_64")]
use super::body::Task;
use super::kit::padded;

/// What a thread keeps of the keys of a segment and a head, from one task to the next: how many tiles of them, each in how many
/// forms, and whether their gradients too.
#[derive(Clone, Copy)]
pub(super) struct Keeping {
    tiles: usize,
    forms: usize,
    gradients: bool,
}

impl Keeping {
    /// Tiles that are kept at most: 2,048 keys.
    const MOST: usize = 32;
    /// Floats before the tiles: whose they are, and how many rows of each were met.
    const HEADER: usize = (2 + Self::MOST).next_multiple_of(16);
    /// Keys as they are and values turned.
    pub const FORWARD: Self = Self { tiles: 0, forms: 2, gradients: false };
    /// Keys as they are and turned, and values as they are.
    pub const BACKWARD: Self = Self { tiles: 0, forms: 3, gradients: true };

    /// Floats of a tile of heads of `d` elements.
    fn tile(self, d: usize) -> usize {
        let form = TILE * padded(d) / 2;
        self.forms * form + if self.gradients { 4 * form } else { 0 }
    }

    /// So many tiles, or as many as are kept at most.
    pub fn tiles(self, tiles: usize) -> Self {
        Self { tiles: tiles.min(Self::MOST), ..self }
    }

    /// As many tiles as `len` floats have room for.
    pub fn within(self, len: usize, d: usize) -> Self {
        self.tiles(len.saturating_sub(Self::HEADER) / self.tile(d))
    }

    /// Whether there is room to keep any.
    pub fn any(self) -> bool {
        self.tiles > 0
    }

    /// Floats of all of it.
    pub fn len(self, d: usize) -> usize {
        if !self.any() { 0 } else { Self::HEADER + self.tiles * self.tile(d) }
    }

    /// Forgets what memory that was used for something else seems to say.
    pub fn forget(self, memory: &mut [f32]) {
        if self.any() {
            memory[..Self::HEADER].fill(0.0);
        }
    }
}

/// The forms that a thread keeps.
#[cfg(target_arch = "x86_64")]
pub(super) struct Kept<'a> {
    header: &'a mut [f32],
    forms: &'a mut [f32],
    /// Floats of the forms of a tile.
    len: usize,
    /// The tile turned to, if it is one that is kept.
    pub tile: Option<usize>,
}

#[cfg(target_arch = "x86_64")]
impl<'a> Kept<'a> {
    /// In memory of [`Keeping::len`], with what is there if it is of the keys that `task` meets; and the part for gradients.
    pub fn new(memory: &'a mut [f32], keeping: Keeping, task: Task) -> (Self, &'a mut [f32]) {
        let (header, rest) = memory.split_at_mut(memory.len().min(Keeping::HEADER));
        let len = keeping.forms * TILE * padded(task.heads.d) / 2;
        let (forms, gradients) = rest.split_at_mut(keeping.tiles * len);
        let whose = [task.segment.k_start, task.kv_head()].map(|number| f32::from_bits(number as u32));
        if let [first, second, rows @ ..] = &mut *header
            && [*first, *second].map(f32::to_bits) != whose.map(f32::to_bits)
        {
            [*first, *second] = whose;
            rows.fill(0.0);
        }
        (Self { header, forms, len, tile: None }, gradients)
    }

    pub fn forms(&self, tile: usize) -> &[f32] {
        &self.forms[tile * self.len..][..self.len]
    }

    pub fn forms_mut(&mut self, tile: usize) -> &mut [f32] {
        &mut self.forms[tile * self.len..][..self.len]
    }

    /// [`super::kit::Kit::turn_to`].
    pub fn turn_to(&mut self, tile: usize, rows: usize) -> bool {
        self.tile = Some(tile).filter(|tile| tile * self.len < self.forms.len());
        let Some(tile) = self.tile else { return false };
        std::mem::replace(&mut self.header[2 + tile], rows as f32) == rows as f32
    }
}
