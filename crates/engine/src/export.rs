//! Model files out: a model in other blocks ([`quantize`]), and with adapters added to it ([`merge`]). Tensors go through strip by strip, never whole, each dequantised, put into the
//! order that the file wants, and quantised again; what stays as it is is copied. It refuses families that the format has no name for,
//! numbers that are not finite, and to write over the model that it reads.

mod change;
mod description;
mod folder;
mod joined;
mod merge;
mod quantize;
mod room;
mod rows;
mod stream;
mod tensors;
mod types;

pub use change::Changes;
pub use folder::{BESIDE, write_back};
pub use joined::write_joined;
pub use merge::{Merged, check_output, merge};
pub use quantize::{Quantized, quantize, write_store};
pub use stream::Kept;
pub use types::Fallback;

use std::path::Path;

use crate::error::{Error, Result};
use crate::model::Model;

/// Checks that `out` is not what `model` is read from.
fn check_apart(model: &Model, out: &Path) -> Result<()> {
    let same = match (out.canonicalize(), model.files.path().canonicalize()) {
        (Ok(out), Ok(model)) => out == model,
        _ => false,
    };
    if !same {
        return Ok(());
    }
    let fault = "the model itself is there; name another place".into();
    Err(Error::Option { option: "output", value: out.display().to_string(), fault })
}
