//! Reads configuration numbers from GGUF metadata or from a Hugging Face `config.json`, under either name.

use pocketune_formats::{Gguf, ModelFiles};
use pocketune_kernels::activation::Act;
use pocketune_kernels::rope::Pairs;
use serde_json::Value;

use super::config::{MAX_LAYERS, MOST_CLASSES};
use super::{Config, Family, RopeSpec, Scaling};
use crate::error::{Error, Result};
use crate::graph::CLASSIFIER;

/// A model's configuration as its files state it.
pub(super) struct Source<'a> {
    files: &'a ModelFiles,
    kind: Kind<'a>,
}

enum Kind<'a> {
    Gguf {
        gguf: &'a Gguf,
        architecture: &'a str,
    },
    /// The text model's part of `config.json`.
    Hf(&'a Value),
}

impl<'a> Source<'a> {
    pub(super) fn new(files: &'a ModelFiles) -> Result<Self> {
        let kind = if let Some(gguf) = files.gguf() {
            let Some(architecture) = gguf.meta().get_str("general.architecture")? else {
                return Err(Error::Model {
                    path: files.path().into(),
                    fault: "general.architecture is missing".into(),
                });
            };
            Kind::Gguf { gguf, architecture }
        } else {
            let config = files.hf_config().unwrap_or(&Value::Null);
            Kind::Hf(config.get("text_config").unwrap_or(config))
        };
        Ok(Self { files, kind })
    }

    pub(super) fn fault(&self, fault: String) -> Error {
        Error::Model { path: self.files.path().into(), fault }
    }

    pub(super) fn is_gguf(&self) -> bool {
        matches!(self.kind, Kind::Gguf { .. })
    }

    pub(super) fn family(&self) -> Result<Family> {
        let (found, name): (_, fn(Family) -> Option<&'static str>) = match &self.kind {
            Kind::Gguf { architecture, .. } => (*architecture, Family::architecture),
            Kind::Hf(config) => match config.get("model_type") {
                Some(Value::String(model_type)) => (model_type.as_str(), |family| Some(family.model_type())),
                _ => return Err(self.fault("config.json has no model_type".into())),
            },
        };
        Family::ALL.into_iter().find(|&family| name(family) == Some(found)).ok_or_else(|| {
            let mut known: Vec<&str> = Family::ALL.into_iter().filter_map(name).collect();
            known.dedup();
            self.fault(format!("architecture '{found}' is unknown; known are {}", known.join(", ")))
        })
    }

    /// A count, under its Hugging Face name or its GGUF name after the architecture.
    pub(super) fn number(&self, hf: &str, gguf: &str) -> Result<Option<usize>> {
        let found = match &self.kind {
            Kind::Gguf { gguf: file, architecture } => file.meta().get_u64(&format!("{architecture}.{gguf}"))?,
            Kind::Hf(config) => match config.get(hf) {
                None | Some(Value::Null) => None,
                Some(value) => Some(
                    value.as_u64().ok_or_else(|| self.fault(format!("config.json: {hf} is {value}, not a count")))?,
                ),
            },
        };
        found.map(|n| usize::try_from(n).map_err(|_| self.fault(format!("{hf} {n} is too large")))).transpose()
    }

    pub(super) fn needed(&self, hf: &str, gguf: &str) -> Result<usize> {
        self.number(hf, gguf)?.ok_or_else(|| self.fault(format!("{} is missing", self.name(hf, gguf))))
    }

    /// The number of layers, checked at once: lists are made by it before the rest of the configuration is known.
    pub(super) fn layers(&self) -> Result<usize> {
        match self.needed("num_hidden_layers", "block_count")? {
            layers if layers <= MAX_LAYERS => Ok(layers),
            layers => Err(self.fault(format!("number of layers {layers}: it lies between 1 and {MAX_LAYERS}"))),
        }
    }

    fn name(&self, hf: &str, gguf: &str) -> String {
        match &self.kind {
            Kind::Gguf { architecture, .. } => format!("{architecture}.{gguf}"),
            Kind::Hf(_) => format!("config.json: {hf}"),
        }
    }

    /// A float, under either name.
    pub(super) fn float(&self, hf: &str, gguf: &str) -> Result<Option<f32>> {
        match &self.kind {
            Kind::Gguf { gguf: file, architecture } => Ok(file.meta().get_f32(&format!("{architecture}.{gguf}"))?),
            Kind::Hf(config) => self.json_float(config, hf).map(|x| x.map(|x| x as f32)),
        }
    }

    fn json_float(&self, object: &Value, key: &str) -> Result<Option<f64>> {
        match object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value
                .as_f64()
                .map(Some)
                .ok_or_else(|| self.fault(format!("config.json: {key} is {value}, not a number"))),
        }
    }

    /// A yes or no of `config.json`, or what it is where nothing is said.
    pub(super) fn flag(&self, hf: &str, default: bool) -> bool {
        match &self.kind {
            Kind::Hf(config) => config.get(hf).and_then(Value::as_bool).unwrap_or(default),
            Kind::Gguf { .. } => default,
        }
    }

    /// A word of `config.json`.
    pub(super) fn text(&self, hf: &str) -> Option<String> {
        match &self.kind {
            Kind::Hf(config) => config.get(hf)?.as_str().map(String::from),
            Kind::Gguf { .. } => None,
        }
    }

    /// The activation that `config.json` names.
    pub(super) fn act(&self, hf: &str) -> Result<Act> {
        match self.text(hf).as_deref() {
            Some("relu") => Ok(Act::Relu),
            Some("gelu") => Ok(Act::Gelu),
            Some("gelu_new" | "gelu_pytorch_tanh") => Ok(Act::GeluTanh),
            Some("silu" | "swish") => Ok(Act::Silu),
            other => {
                let fault = format!("config.json: {hf} '{}' is unknown", other.unwrap_or("(missing)"));
                Err(self.fault(format!("{fault}; known are relu, gelu, gelu_new, silu")))
            }
        }
    }

    fn has_tensor(&self, family: Family, name: &str) -> Result<bool> {
        let name = match self.kind {
            Kind::Gguf { .. } => super::gguf_name(family, name).unwrap_or_default(),
            Kind::Hf(_) => name.into(),
        };
        Ok(self.files.info(&name).is_some())
    }

    /// What every family has.
    pub(super) fn base(&self, family: Family) -> Result<Config> {
        let hidden = self.needed("hidden_size", "embedding_length")?;
        let layers = self.layers()?;
        let heads = self.needed("num_attention_heads", "attention.head_count")?;
        let kv_heads = self.number("num_key_value_heads", "attention.head_count_kv")?.unwrap_or(heads);
        let head_dim = match self.number("head_dim", "attention.key_length")? {
            Some(head_dim) => head_dim,
            None => hidden / heads.max(1),
        };
        let prefix = self.prefix();
        let vocab = self.vocab(family, &prefix)?;
        let norm_eps = self.float("rms_norm_eps", "attention.layer_norm_rms_epsilon")?.ok_or_else(|| {
            self.fault(format!("{} is missing", self.name("rms_norm_eps", "attention.layer_norm_rms_epsilon")))
        })?;
        self.check_act(family)?;
        Ok(Config {
            family,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            ffn: self.needed("intermediate_size", "feed_forward_length")?,
            vocab,
            norm_eps,
            norm_plus: 0.0,
            tied: !self.has_tensor(family, "lm_head.weight")?,
            classes: None,
            act: Act::Silu,
            learned: None,
            rope: Some(self.rope(head_dim)?),
            local_rope: None,
            window: None,
            windowed: vec![false; layers],
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            qkv_bias: self.has_tensor(family, &format!("{prefix}layers.0.self_attn.q_proj.bias"))?,
            o_bias: self.has_tensor(family, &format!("{prefix}layers.0.self_attn.o_proj.bias"))?,
            mlp_bias: self.has_tensor(family, &format!("{prefix}layers.0.mlp.down_proj.bias"))?,
            embed_scale: 1.0,
            pairs: if self.is_gguf() && family.architecture() == Some("llama") {
                Pairs::Interleaved
            } else {
                Pairs::Halves
            },
            prefix,
            max_positions: self.number("max_position_embeddings", "context_length")?,
        })
    }

    /// Multimodal folders keep the text model one level down.
    fn prefix(&self) -> String {
        self.prefix_of(&["model.", "language_model.model.", "model.language_model."], "embed_tokens.weight")
    }

    /// The first of `prefixes` under which there is a tensor `name`; the very first where there is none.
    pub(super) fn prefix_of(&self, prefixes: &[&str], name: &str) -> String {
        let there = |prefix: &&&str| self.files.info(&format!("{prefix}{name}")).is_some();
        prefixes.iter().find(there).or(prefixes.first()).copied().unwrap_or_default().into()
    }

    /// How many rows the tensor called `name` has.
    pub(super) fn rows_of(&self, name: &str) -> Result<usize> {
        match self.files.info(name) {
            Some(info) => Ok(info.shape.first().copied().unwrap_or(0)),
            None => Err(self.fault(format!("tensor {name} is missing"))),
        }
    }

    /// How many classes the model's own head tells apart, where it has such a head.
    pub(super) fn classes(&self) -> Result<Option<usize>> {
        let [.., weight, _] = CLASSIFIER;
        match self.files.info(weight).map(|info| info.shape.first().copied().unwrap_or(0)) {
            Some(classes) if !(1..=MOST_CLASSES).contains(&classes) => {
                Err(self.fault(format!("tensor {weight} has {classes} rows: classes lie between 1 and {MOST_CLASSES}")))
            }
            found => Ok(found),
        }
    }

    /// The vocabulary is as large as the embedding, whatever else a file says.
    fn vocab(&self, family: Family, prefix: &str) -> Result<usize> {
        let hf = format!("{prefix}embed_tokens.weight");
        let name = if self.is_gguf() { super::gguf_name(family, &hf).unwrap_or_default() } else { hf };
        self.rows_of(&name)
    }

    fn check_act(&self, family: Family) -> Result<()> {
        let Kind::Hf(config) = &self.kind else { return Ok(()) };
        let (key, wanted) = match family {
            Family::Gemma3Text => ("hidden_activation", "gelu_pytorch_tanh"),
            _ => ("hidden_act", "silu"),
        };
        match config.get(key).and_then(Value::as_str) {
            Some(act) if act != wanted => {
                Err(self.fault(format!("config.json: {key} '{act}' where only {wanted} is known")))
            }
            _ => Ok(()),
        }
    }

    /// Qwen's optional sliding window, which no published model uses.
    pub(super) fn no_sliding_window(&self) -> Result<()> {
        if self.flag("use_sliding_window", false) {
            return Err(
                self.fault("config.json: use_sliding_window is set, which is not supported for this family".into())
            );
        }
        Ok(())
    }

    /// Refuses a number that this family's blocks would have to honour.
    pub(super) fn refuse_set(&self, key: &str) -> Result<()> {
        match &self.kind {
            Kind::Hf(config) if config.get(key).is_some_and(|value| !value.is_null()) => {
                Err(self.fault(format!("config.json: {key} is set, which is not supported")))
            }
            _ => Ok(()),
        }
    }

    /// Which layers have a window: from `layer_types`, or all but one in `pattern`.
    pub(super) fn layer_types(&self, layers: usize, pattern: usize) -> Result<Vec<bool>> {
        let by_pattern = |pattern: usize| (1..=layers).map(|layer| layer % pattern.max(1) != 0).collect();
        let Kind::Hf(config) = &self.kind else { return Ok(by_pattern(pattern)) };
        let Some(Value::Array(types)) = config.get("layer_types") else {
            return Ok(by_pattern(self.number("sliding_window_pattern", "")?.unwrap_or(pattern)));
        };
        if types.len() != layers {
            return Err(self.fault(format!("config.json: {} layer_types for {layers} layers", types.len())));
        }
        types
            .iter()
            .map(|kind| match kind.as_str() {
                Some("sliding_attention") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => Err(self.fault(format!("config.json: layer type {kind} is unknown"))),
            })
            .collect()
    }

    /// The rotation of layers that see everything.
    fn rope(&self, head_dim: usize) -> Result<RopeSpec> {
        match &self.kind {
            Kind::Gguf { .. } => self.gguf_rope(head_dim),
            Kind::Hf(config) => {
                let parameters = config.get("rope_parameters").filter(|value| !value.is_null());
                let parameters = parameters.map(|value| value.get("full_attention").unwrap_or(value));
                let theta = match parameters {
                    Some(parameters) => self.json_float(parameters, "rope_theta")?,
                    None => self.json_float(config, "rope_theta")?,
                };
                let scaling = parameters.or_else(|| config.get("rope_scaling").filter(|value| !value.is_null()));
                let scaling = scaling.map_or(Ok(Scaling::None), |scaling| self.hf_scaling(scaling, config))?;
                Ok(RopeSpec { theta: theta.unwrap_or(10_000.0), scaling })
            }
        }
    }

    fn hf_scaling(&self, scaling: &Value, config: &Value) -> Result<Scaling> {
        let kind = ["rope_type", "type"].into_iter().find_map(|key| scaling.get(key)).and_then(Value::as_str);
        let number = |key: &str| {
            self.json_float(scaling, key)?.ok_or_else(|| self.fault(format!("config.json: rope scaling lacks {key}")))
        };
        match kind.unwrap_or("default") {
            "default" => Ok(Scaling::None),
            "linear" => Ok(Scaling::Linear(number("factor")?)),
            "llama3" => Ok(Scaling::Llama3 {
                factor: number("factor")?,
                low: number("low_freq_factor")?,
                high: number("high_freq_factor")?,
                original: match self.json_float(scaling, "original_max_position_embeddings")? {
                    Some(original) => original,
                    None => self.json_float(config, "max_position_embeddings")?.unwrap_or(8192.0),
                },
            }),
            other => {
                Err(self
                    .fault(format!("config.json: rope type '{other}' is unknown; known are default, linear, llama3")))
            }
        }
    }

    fn gguf_rope(&self, head_dim: usize) -> Result<RopeSpec> {
        let theta = self.float("", "rope.freq_base")?.map_or(10_000.0, f64::from);
        if let Some(rotated) = self.number("", "rope.dimension_count")?.filter(|&rotated| rotated != head_dim) {
            return Err(self.fault(format!(
                "only {rotated} of {head_dim} elements of a head are rotated, which is not supported"
            )));
        }
        let scaling = if let Some(divisors) = self.files.tensor("rope_freqs.weight")? {
            if divisors.ty != pocketune_kernels::BlockType::F32 || divisors.shape != [head_dim / 2] {
                return Err(self.fault(format!(
                    "rope_freqs.weight has shape {:?} instead of [{}] in f32",
                    divisors.shape,
                    head_dim / 2
                )));
            }
            let floats =
                divisors.data.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            Scaling::Divisors(floats.collect())
        } else {
            match self.gguf_scaling_type()?.as_deref() {
                None | Some("none") => Scaling::None,
                Some("linear") => Scaling::Linear(self.float("", "rope.scaling.factor")?.map_or(1.0, f64::from)),
                Some(other) => {
                    return Err(self.fault(format!("rope scaling '{other}' is unknown; known are none, linear")));
                }
            }
        };
        Ok(RopeSpec { theta, scaling })
    }

    fn gguf_scaling_type(&self) -> Result<Option<String>> {
        let Kind::Gguf { gguf, architecture } = &self.kind else { return Ok(None) };
        Ok(gguf.meta().get_str(&format!("{architecture}.rope.scaling.type"))?.map(Into::into))
    }

    /// The rotation of windowed layers, never stretched.
    pub(super) fn local_rope(&self, default_theta: f64) -> Result<RopeSpec> {
        let theta = match &self.kind {
            Kind::Gguf { .. } => self.float("", "rope.local.freq_base")?.map(f64::from),
            Kind::Hf(config) => match config.get("rope_parameters").and_then(|value| value.get("sliding_attention")) {
                Some(parameters) => self.json_float(parameters, "rope_theta")?,
                None => self.json_float(config, "rope_local_base_freq")?,
            },
        };
        Ok(RopeSpec { theta: theta.unwrap_or(default_theta), scaling: Scaling::None })
    }
}
