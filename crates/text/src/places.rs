//! Where places of a text lie among its tokens, found while it is encoded. It refuses to keep offsets of every token: only what was asked
//! for is looked for, in one pass.

/// Where a place of a text lies among its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first token that ends behind the place; the number of tokens where none does.
    pub token: usize,
    /// Whether that token begins before the place.
    pub inside: bool,
}

/// Looks for places, part by part of a text.
pub(crate) struct Seeker<'a> {
    places: &'a [usize],
    found: Vec<Place>,
    /// The places of this part that are not yet found, as bytes of its words; the last comes first.
    open: Vec<usize>,
    /// Where the last token of this part ended.
    done: usize,
}

impl<'a> Seeker<'a> {
    /// For places in ascending order.
    pub fn new(places: &'a [usize]) -> Self {
        Self { places, found: Vec::with_capacity(places.len()), open: Vec::new(), done: 0 }
    }

    /// A part of the text begins, which ends before `end`; `within` turns a place in it into bytes of its words.
    pub fn expect(&mut self, end: usize, within: impl Fn(usize) -> usize) {
        let begun = self.found.len() + self.open.len();
        let here = self.places[begun..].iter().take_while(|&&place| place < end).count();
        // Those that the part before left open (its characters have no token) are at this one's beginning.
        let left = std::mem::take(&mut self.open).len();
        self.open.extend(self.places[begun..begun + here].iter().rev().map(|&place| within(place)));
        self.open.extend(std::iter::repeat_n(0, left));
        self.done = 0;
    }

    /// Token number `token` of the text ends this part's words at `end`.
    pub fn token(&mut self, token: usize, end: usize) {
        while let Some(place) = self.open.pop_if(|place| *place < end) {
            self.found.push(Place { token, inside: place > self.done });
        }
        self.done = end;
    }

    /// What was found, in a text of `tokens` tokens.
    pub fn finish(mut self, tokens: usize) -> Vec<Place> {
        self.found.resize(self.places.len(), Place { token: tokens, inside: false });
        self.found
    }
}
