//! All changes as one PEFT adapter, for whoever runs the model with its adapters beside it. Its scale is 1, its rank the largest sum of ranks, and linears
//! without a change have zeros. An adapter with magnitudes, which is always alone, is converted as it is.

use std::path::Path;

use pocketune_formats::lora::Kind;
use pocketune_formats::peft::{self, AdapterConfig, Targets, TensorSpec, write_tensors};

use super::change::Changes;
use crate::convert::{convert, modules};
use crate::error::Result;
use crate::graph::Target;
use crate::model::Model;
use crate::store::FolderWriter;

/// Writes the adapter to the folder `out`.
///
/// # Errors
/// When it can't be written.
pub fn write_joined(model: &Model, changes: &Changes, out: &Path) -> Result<()> {
    if let Some(adapter) = changes.alone() {
        return convert(adapter, Some(model), Kind::Peft, out).map(|_| ());
    }
    let (rank, naming) = (changes.rank().max(1), model.config.family.naming());
    let targets = changes.targets();
    let modules: Vec<_> = modules(model)?.into_iter().filter(|module| targets.contains(&module.target)).collect();
    let config = AdapterConfig {
        rank,
        alpha: rank as f64,
        targets: Targets::Modules(targets.iter().filter_map(|target| target.name(naming)).map(Into::into).collect()),
        task: Some("CAUSAL_LM".into()),
        ..AdapterConfig::default()
    };
    let mut specs = Vec::new();
    for module in &modules {
        let shapes = [vec![rank, module.cols], vec![module.rows, rank]];
        let names = peft::tensor_names(&module.path, module.target == Target::Embedding).into_iter();
        specs.extend(names.zip(shapes).map(|(name, shape)| TensorSpec { name, shape }));
    }
    let mut writer = FolderWriter::open(out)?;
    writer.file(peft::TENSORS_FILE, |file| {
        write_tensors(file, &specs, &mut |at, file| {
            let module = &modules[at / 2];
            let change = Target::read(&module.path).and_then(|(layer, target)| changes.load_linear(layer, target));
            let [a, b] = match change {
                Some(change) => change.padded(rank),
                None => [vec![0.0; rank * module.cols], vec![0.0; module.rows * rank]],
            };
            file.write_all(bytemuck::cast_slice(if at % 2 == 0 { &a } else { &b }))
        })
    })?;
    writer.file(peft::CONFIG_FILE, |file| file.write_all(config.to_json().as_bytes()))?;
    writer.commit()
}
