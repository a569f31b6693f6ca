//! Configuration files: the options of a command under their long names, read as if they had been typed, so that there is one set of words
//! and one set of checks. What was typed wins. And the way back: what will run, as such a file. It refuses keys that are no options, with
//! the nearest that is.

mod yaml;

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use pocketune::train::{LoraChoice, Method, TrainOptions};

use crate::Failure;

/// No configuration is larger.
const LIMIT: u64 = 1 << 20;

/// Options that say how a command is called, not what it does.
const NOT_KEPT: [&str; 4] = ["config", "print_config", "help", "version"];

/// The words of the configuration that was named by what was typed, put before it; nothing where none was named.
pub fn expand(command: &Command, typed: &ArgMatches, words: &[OsString]) -> Result<Option<Vec<OsString>>, Failure> {
    let Some((name, matches)) = typed.subcommand() else { return Ok(None) };
    let Ok(Some(path)) = matches.try_get_one::<std::path::PathBuf>("config") else { return Ok(None) };
    let Some(command) = command.find_subcommand(name) else { return Ok(None) };
    let fault = |reason: String| Failure(format!("{}: {reason}", path.display()));
    let at = words.iter().position(|word| word == OsStr::new(name)).map_or(words.len(), |at| at + 1);
    let mut all = words[..at].to_vec();
    for entry in as_options(yaml::parse(&read(path)?).map_err(fault)?) {
        let arg = find(command, &entry.key).map_err(|reason| fault(format!("line {}: {reason}", entry.line)))?;
        if matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine) || entry.values.is_empty() {
            continue;
        }
        all.extend(typed_as(arg, &entry).map_err(|reason| fault(format!("line {}: {reason}", entry.line)))?);
    }
    all.extend_from_slice(&words[at..]);
    Ok(Some(all))
}

/// mlx-lm keeps what it says of adapters inside `lora_parameters`, with the scale itself in place of alpha.
fn as_options(mut entries: Vec<yaml::Entry>) -> Vec<yaml::Entry> {
    let rank = entries.iter().find(|entry| matches!(&*entry.key, "lora_parameters.rank" | "lora_rank" | "lora_r"));
    let rank = rank.and_then(|entry| entry.values.first()?.parse::<f64>().ok()).unwrap_or(8.0);
    for entry in &mut entries {
        let name = match entry.key.strip_prefix("lora_parameters.") {
            Some("rank") => "lora_rank",
            Some("alpha") => "lora_alpha",
            Some("dropout") => "lora_dropout",
            Some("keys") => "lora_targets",
            Some("scale") => {
                for value in &mut entry.values {
                    *value = value.parse::<f64>().map_or(value.clone(), |scale| (scale * rank).to_string());
                }
                "lora_alpha"
            }
            _ => continue,
        };
        entry.key = name.into();
    }
    entries
}

fn read(path: &Path) -> Result<String, Failure> {
    let fault = |reason: String| Failure(format!("{}: {reason}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| fault(error.to_string()))?;
    if !file.metadata().is_ok_and(|about| about.is_file()) {
        return Err(fault("not a regular file".into()));
    }
    let mut text = String::new();
    file.take(LIMIT + 1).read_to_string(&mut text).map_err(|error| fault(error.to_string()))?;
    if text.len() as u64 > LIMIT {
        return Err(fault(format!("larger than the limit of {LIMIT} bytes")));
    }
    Ok(text)
}

/// An entry as it would be typed.
fn typed_as(arg: &Arg, entry: &yaml::Entry) -> Result<Vec<OsString>, String> {
    let long = format!("--{}", arg.get_long().unwrap_or_default());
    let value = entry.values.join(",");
    match (arg.get_action(), value.as_str()) {
        (ArgAction::SetTrue, "true") => Ok(vec![long.into()]),
        (ArgAction::SetTrue, "false") => Ok(Vec::new()),
        (ArgAction::SetTrue, _) => Err(format!("`{}` is true or false, not `{value}`", entry.key)),
        _ => Ok(vec![format!("{long}={value}").into()]),
    }
}

/// The option of a key, by its long name or one of its other names; blanks may be dashes or underscores.
fn find<'a>(command: &'a Command, key: &str) -> Result<&'a Arg, String> {
    let wanted = key.replace('_', "-");
    let names = |arg: &'a Arg| arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default());
    let options = || command.get_arguments().filter(|arg| !NOT_KEPT.contains(&arg.get_id().as_str()));
    if let Some(arg) = options().find(|arg| names(arg).any(|name| name == wanted)) {
        return Ok(arg);
    }
    let nearest = options().filter_map(Arg::get_long).min_by_key(|name| distance(name, &wanted));
    let hint = nearest.filter(|name| distance(name, &wanted) <= wanted.len() / 2);
    Err(match hint {
        Some(name) => format!("`{key}` is no option; `{}` is", name.replace('-', "_")),
        None => format!("`{key}` is no option; `pocketune {} --help` lists them", command.get_name()),
    })
}

/// How many letters have to be added, taken away or changed to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// What a training run will do, as a configuration: what was typed, what is the default, and what that came to.
pub fn effective(command: &Command, typed: &ArgMatches, options: &TrainOptions) -> String {
    let mut text =
        String::from("# What this run of `pocketune train` does; `pocketune train -c FILE` does it again.\n");
    let (Some((name, matches)), Some(known)) = (typed.subcommand(), command.find_subcommand("train")) else {
        return text;
    };
    debug_assert_eq!(name, "train");
    for arg in known.get_arguments().filter(|arg| !NOT_KEPT.contains(&arg.get_id().as_str())) {
        let id = arg.get_id().as_str();
        let value = match arg.get_action() {
            ArgAction::SetTrue => matches.get_flag(id).then(|| "true".to_owned()),
            _ => matches
                .get_raw(id)
                .map(|words| words.map(|word| yaml::written(&word.to_string_lossy())).collect::<Vec<_>>().join(","))
                .or_else(|| resolved(id, options)),
        };
        if let Some(value) = value {
            text.push_str(&format!("{}: {value}\n", id.trim_start_matches('_')));
        }
    }
    text
}

/// The options of `command` that were typed for another command which has them too, as words to type again, but for those in `without`.
pub fn retyped(all: &Command, command: &str, matches: &ArgMatches, without: &[&str]) -> Vec<OsString> {
    let mut words = Vec::new();
    let known = all.find_subcommand(command).into_iter().flat_map(Command::get_arguments);
    for arg in
        known.filter(|arg| !NOT_KEPT.contains(&arg.get_id().as_str()) && !without.contains(&arg.get_id().as_str()))
    {
        let (id, long) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        match arg.get_action() {
            ArgAction::SetTrue => words.push(format!("--{long}").into()),
            _ => words.extend(matches.get_raw(id).into_iter().flatten().map(|value| {
                let mut word = OsString::from(format!("--{long}="));
                word.push(value);
                word
            })),
        }
    }
    words
}

/// What a default came to that depends on other options.
fn resolved(id: &str, options: &TrainOptions) -> Option<String> {
    let lora = match &options.lora {
        LoraChoice::New(_) if options.trains_all() => None,
        LoraChoice::New(spec) => Some(spec),
        LoraChoice::From(_) => None,
    };
    Some(match id {
        "iters" if options.epochs.is_none() => options.iters.to_string(),
        "learning_rate" => options.schedule.peak.to_string(),
        "weight_decay" => options.decay().to_string(),
        "optimizer" if options.method.zeroth().is_none() && options.method.optimizer().is_none() => "adamw".into(),
        "store" if options.trains_all() && options.method != Method::Qzo => "bf16".into(),
        "switch_every" => options.shifts()?.every.to_string(),
        "zo_eps" if options.method.zeroth().is_some() => options.zo_eps().to_string(),
        "lora_rank" => lora?.rank.to_string(),
        "lora_alpha" if options.method != Method::Vera => lora?.alpha.to_string(),
        "lora_dropout" => lora?.dropout.to_string(),
        "fine_tune_type" => if lora?.dora { "dora" } else { "lora" }.into(),
        "lora_targets" if lora.is_some() => options.method.defaults().targets.into(),
        "num_layers" if lora.is_some() => "-1".into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn distances_count_letters() {
        for (a, b, want) in [("iters", "iters", 0), ("iters", "iter", 1), ("", "abc", 3), ("kitten", "sitting", 3)] {
            assert_eq!((distance(a, b), distance(b, a)), (want, want), "{a} {b}");
        }
    }
}
