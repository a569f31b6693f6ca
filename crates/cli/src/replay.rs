//! `pocketune replay`: the adapter of a run without gradients, from its updates.

use pocketune::train::{ReplayOptions, replay};

use crate::args::ReplayArgs;
use crate::{Failure, demo, say};

/// Makes the adapter again and says of how many updates.
pub fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let model = args.model.clone().map_or(demo::MODEL, |path| args.kernels.source(path));
    let options = ReplayOptions {
        run: &args.run,
        model: &model,
        start: args.init_adapter.as_deref(),
        output: &args.output,
        kernels: args.kernels.options(),
    };
    let updates = replay(&options).map_err(Failure::new)?;
    say(&format!("Made {} again of {updates} updates\n", args.output.display()));
    Ok(())
}
