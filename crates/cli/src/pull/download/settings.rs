//! Where downloads come from and how long they may keep silent: the environment variables that pip and the Hub's own tools know.
//!
//! | variable | what it says |
//! |---|---|
//! | `PIP_INDEX_URL` | a package index in place of PyPI's |
//! | `HF_ENDPOINT`, `HF_TOKEN` | another address of the Hub; who asks, for models that have terms to accept |
//! | `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY` | the way out |
//! | `SSL_CERT_FILE` | the certificates to trust in place of Mozilla's |
//!
//! Read once, here; nothing else of `pull` looks at the environment. No pip configuration file is read.

use std::path::PathBuf;
use std::time::Duration;

use super::error::PullError;
use super::url;

/// The package index that pip uses.
const INDEX: &str = "https://pypi.org/simple";
/// The Hugging Face Hub.
const HUB: &str = "https://huggingface.co";

/// The answers to every question that a download has about its surroundings.
#[derive(Debug)]
pub struct Settings {
    /// The package index, without a slash at its end.
    pub index: String,
    /// The Hub, without a slash at its end.
    pub hub: String,
    /// The Hub's token; sent to the Hub's own address and nowhere else.
    pub hub_token: Option<String>,
    /// A PEM file of trusted certificates.
    pub certificates: Option<PathBuf>,
    /// The proxy, where there is one.
    pub proxy: Option<ureq::Proxy>,
    /// How long to wait for a connection, an answer, or the next bytes of one.
    pub patience: Duration,
}

impl Settings {
    /// Those of this process.
    pub fn from_env() -> Result<Self, PullError> {
        let settings = Self::from_lookup(|variable| std::env::var(variable).ok())?;
        Ok(Self { proxy: ureq::Proxy::try_from_env(), ..settings })
    }

    /// Those that `lookup` gives, with no proxy; a variable that is set to nothing counts as not set.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, PullError> {
        let lookup = |variable| lookup(variable).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let address = |variable, default: &str| {
            let address = lookup(variable).unwrap_or_else(|| default.to_owned());
            match url::origin(&address) {
                Some(_) => Ok(address.trim_end_matches('/').to_owned()),
                None => Err(PullError::Setting { variable, fault: format!("{address} is no http(s) address") }),
            }
        };
        Ok(Self {
            index: address("PIP_INDEX_URL", INDEX)?,
            hub: address("HF_ENDPOINT", HUB)?,
            hub_token: lookup("HF_TOKEN"),
            certificates: lookup("SSL_CERT_FILE").map(PathBuf::from),
            proxy: None,
            patience: Duration::from_secs(60),
        })
    }
}
