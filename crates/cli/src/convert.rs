//! `pocketune convert`: an adapter for another runtime.

use pocketune::convert::convert;
use pocketune::model::{Model, Source};
use pocketune_formats::lora::Kind;

use crate::args::{AdapterKindArg, ConvertArgs};
use crate::{Failure, note};

/// Converts, and says what was written and who reads it.
pub fn run(args: &ConvertArgs) -> Result<(), Failure> {
    let to = match args.to {
        AdapterKindArg::Peft => Kind::Peft,
        AdapterKindArg::Mlx => Kind::Mlx,
        AdapterKindArg::Gguf => Kind::Gguf,
    };
    let model = match &args.model {
        Some(path) => Some(Model::open(&Source::Path(path.clone())).map_err(Failure::new)?),
        None => None,
    };
    let done = convert(&args.adapter, model.as_ref(), to, &args.output).map_err(Failure::new)?;
    let out = args.output.display();
    let reader = match to {
        Kind::Peft => format!("PeftModel.from_pretrained(model, \"{out}\")"),
        Kind::Mlx => format!("mlx_lm.generate --adapter-path {out}"),
        Kind::Gguf => format!("llama-cli --lora {out}"),
    };
    let (from, to) = (name(done.from), name(to));
    note(&format!("Wrote {} adapted linears of rank {} ({from} to {to}) to {out}", done.modules, done.rank));
    note(&format!("Next: {reader}"));
    Ok(())
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Peft => "PEFT",
        Kind::Mlx => "MLX",
        Kind::Gguf => "GGUF",
    }
}
