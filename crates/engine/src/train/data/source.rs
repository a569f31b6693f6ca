//! Where records come from and how they are to be read; and the files of a folder. A folder holds `train`, perhaps `valid` (or
//! `validation`, `val`, `dev`) and perhaps `test`, each as `.jsonl`, `.json`, `.csv`, `.tsv` or `.txt`. It refuses two files for one part.

use std::path::{Path, PathBuf};

use pocketune_text::{ChatTemplate, Cloze, Mask, Reading, Tokenizer};

use crate::beside::Beside;
use crate::error::{Error, Result};
use crate::families::{Config, Family};
use crate::model::Model;
use crate::train::adapter;

/// Where records come from.
#[derive(Clone, Debug)]
pub enum DataSource {
    /// A file, or a folder with `train.jsonl` and perhaps `valid.jsonl` and `test.jsonl`.
    Path(PathBuf),
    /// JSON Lines inside the program.
    Embedded {
        /// What to train on.
        train: &'static str,
        /// What to measure on.
        valid: &'static str,
    },
}

impl DataSource {
    /// The file that is trained on, where the data is in files.
    ///
    /// # Errors
    /// When a folder has none or two, or the data is inside the program.
    pub fn training_file(&self) -> Result<PathBuf> {
        match self {
            DataSource::Path(path) if path.is_dir() => training_part(path),
            DataSource::Path(path) => Ok(path.clone()),
            DataSource::Embedded { .. } => Err(Error::System("the built-in data is in no file".into())),
        }
    }
}

/// What turns conversations into text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateChoice {
    /// The adapter's own template, where it has one, else the model's.
    Own,
    /// A template in a file.
    File(PathBuf),
    /// Nothing: a prompt and its answer are joined, conversations are refused.
    None,
}

impl TemplateChoice {
    /// The template for a model, perhaps with an adapter, where there is one.
    ///
    /// # Errors
    /// When it is missing or malformed.
    pub fn find(&self, model: &Model, adapter: Option<&Path>) -> Result<Option<ChatTemplate>> {
        match self {
            TemplateChoice::Own => match adapter.map(Beside::of).transpose()?.and_then(|beside| beside.template) {
                Some(source) => Ok(Some(ChatTemplate::new(&source)?)),
                None => model.chat_template(),
            },
            TemplateChoice::File(path) => Ok(Some(ChatTemplate::from_file(path)?)),
            TemplateChoice::None => Ok(None),
        }
    }
}

/// Records, and how they are to be read.
#[derive(Clone, Debug)]
pub struct DataOptions {
    /// Where they come from.
    pub source: DataSource,
    /// How an object becomes a record.
    pub reading: Reading,
    /// What of a conversation the loss is taken on.
    pub mask: Mask,
    /// What turns conversations into text.
    pub template: TemplateChoice,
    /// The adapter whose template, and whose head of classes, comes before the model's.
    pub adapter: Option<PathBuf>,
    /// Whether answers are classes, which a head of their own tells apart, and a fresh one where there is none.
    pub classes: bool,
    /// Whether lines that are no records are left out.
    pub skip_bad_lines: bool,
    /// The share of records that is kept for validation.
    pub val_split: Option<f64>,
    /// The seed of that draw.
    pub seed: u64,
    /// Whether the test set is wanted.
    pub test: bool,
}

impl DataOptions {
    /// Records as they are, with nothing masked, left out or kept apart.
    pub fn plain(source: DataSource) -> Self {
        Self {
            source,
            reading: Reading::default(),
            mask: Mask::None,
            template: TemplateChoice::Own,
            adapter: None,
            classes: false,
            skip_bad_lines: false,
            val_split: None,
            seed: 0,
            test: false,
        }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// When a share can't work.
    pub fn check(&self) -> Result<()> {
        match self.val_split.filter(|share| !(*share > 0.0 && *share <= 0.5)) {
            None => Ok(()),
            Some(share) => {
                let fault = "a share lies above 0 and at most at 0.5".into();
                Err(Error::Option { option: "val-split", value: share.to_string(), fault })
            }
        }
    }

    /// The template that conversations go through.
    ///
    /// # Errors
    /// When it is missing or malformed.
    pub fn template(&self, model: &Model) -> Result<Option<ChatTemplate>> {
        self.template.find(model, self.adapter.as_deref())
    }

    /// How many classes a head tells apart, where answers are classes: where that is asked for, or the adapter or the model has such a head.
    ///
    /// # Errors
    /// When the data has other classes than the head, or none.
    pub fn classes(&self, config: &Config) -> Result<Option<usize>> {
        let option = |fault: String| Error::Option { option: "classification-head", value: String::new(), fault };
        let recipe = match self.reading {
            Reading::Task(recipe) => recipe,
            Reading::Fields(_) if self.classes => {
                return Err(option("classes are learnt from labelled data, as in --task sst2".into()));
            }
            Reading::Fields(_) => return Ok(None),
        };
        let brought = self.adapter.as_deref().map(|path| adapter::classes(path, &adapter::open(path)?)).transpose()?;
        let there = brought.flatten().or(config.classes);
        if self.classes && config.family != Family::Roberta {
            return Err(option(format!("a model of the family {} has no such head here", config.family.model_type())));
        }
        if !self.classes && there.is_none() {
            return Ok(None);
        }
        let classes =
            recipe.classes().ok_or_else(|| option(format!("the answers of {} are sentences", recipe.name())))?;
        match there.filter(|there| *there != classes) {
            Some(there) => {
                Err(option(format!("there is a head of {there} classes, and {} has {classes}", recipe.name())))
            }
            None => Ok(Some(classes)),
        }
    }

    /// How the answers of labelled data are asked for, of a model without a next token.
    ///
    /// # Errors
    /// When the data is not labelled, or the tokenizer has no mask or no token for an answer.
    pub fn cloze(&self, model: &Model, tokenizer: &Tokenizer) -> Result<Option<Cloze>> {
        model.check_reading(&self.reading)?;
        let Reading::Task(recipe) = self.reading else { return Ok(None) };
        if !model.config.family.is_encoder() {
            return Ok(None);
        }
        if self.classes(&model.config)?.is_some() {
            return Ok(Some(Cloze::of_classes(tokenizer, recipe)?));
        }
        let cloze = Cloze::new(tokenizer, recipe)?;
        for id in [cloze.mask].iter().chain(&cloze.words) {
            let fault =
                |fault| Error::Model { path: model.files.path().into(), fault: format!("its tokenizer: {fault}") };
            model.check_tokens(&[*id]).map_err(fault)?;
        }
        Ok(Some(cloze))
    }

    /// What an evaluation reads of it: of a folder, what there is to validate on, else what there is to train on.
    ///
    /// # Errors
    /// When the folder has neither.
    pub(in crate::train) fn to_measure(&self) -> Result<Self> {
        let source = match &self.source {
            DataSource::Path(path) if path.is_dir() => DataSource::Path(match part(path, VALID)? {
                Some(valid) => valid,
                None => training_part(path)?,
            }),
            other => other.clone(),
        };
        Ok(Self { source, val_split: None, test: false, ..self.clone() })
    }
}

/// The files of a data set.
pub(super) struct Files {
    pub train: PathBuf,
    pub valid: Option<PathBuf>,
    pub test: Option<PathBuf>,
}

const VALID: &[&str] = &["valid", "validation", "val", "dev"];
const EXTENSIONS: &[&str] = &["jsonl", "json", "csv", "tsv", "txt"];

impl Files {
    /// The files at `path` that `options` ask for.
    pub fn find(path: &Path, options: &DataOptions) -> Result<Self> {
        let missing_test = |place: &Path| Error::Option {
            option: "test",
            value: String::new(),
            fault: format!("there is no test.jsonl in {}", place.display()),
        };
        if !path.is_dir() {
            return match options.test {
                true => Err(missing_test(path)),
                false => Ok(Self { train: path.into(), valid: None, test: None }),
            };
        }
        let valid = part(path, VALID)?;
        if let (Some(valid), Some(share)) = (&valid, options.val_split) {
            let fault = format!("the folder has {} already", valid.display());
            return Err(Error::Option { option: "val-split", value: share.to_string(), fault });
        }
        let test = if options.test { Some(part(path, &["test"])?.ok_or_else(|| missing_test(path))?) } else { None };
        Ok(Self { train: training_part(path)?, valid, test })
    }
}

fn training_part(folder: &Path) -> Result<PathBuf> {
    // Where there is none, opening it says so.
    Ok(part(folder, &["train"])?.unwrap_or_else(|| folder.join("train.jsonl")))
}

/// The one file of a folder that has one of these names.
fn part(folder: &Path, names: &[&str]) -> Result<Option<PathBuf>> {
    let paths = names.iter().flat_map(|name| EXTENSIONS.iter().map(move |extension| format!("{name}.{extension}")));
    let mut found = paths.map(|name| folder.join(name)).filter(|path| path.exists());
    match (found.next(), found.next()) {
        (Some(one), Some(other)) => {
            let fault = format!("both {} and {} are there", one.display(), other.display());
            Err(Error::Data { path: folder.into(), fault })
        }
        (first, _) => Ok(first),
    }
}
