//! One HTTP client with limits on everything: redirects, silence, and, for what is read whole, bytes.
//!
//! Redirects are followed here and not by the client, for two reasons: the Hub puts a file's size and hash on the redirect, and a
//! token must not travel to another origin. An `https` address is never left for an `http` one.

use std::fs;
use std::io::Read;
use std::path::Path;

use ureq::http::{HeaderMap, StatusCode, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use super::error::PullError;
use super::settings::Settings;
use super::url;

/// How often an answer may point elsewhere.
const MAX_REDIRECTS: usize = 8;
/// The most bytes of a listing or another answer that is read whole.
pub const MAX_PAGE: u64 = 16 << 20;

/// Makes requests.
pub struct Http {
    agent: ureq::Agent,
}

/// An answer whose body is still to be read.
pub struct Answer {
    /// Where it came from in the end.
    pub address: String,
    /// Whether it says that it is JSON.
    pub is_json: bool,
    /// How many bytes it says it has.
    pub length: Option<u64>,
    /// The size of the file as the Hub states it (`X-Linked-Size`).
    pub linked_size: Option<u64>,
    /// The SHA-256 of the file as the Hub states it (`X-Linked-ETag`, for files kept outside git).
    pub linked_sha256: Option<String>,
    /// The bytes.
    pub body: Box<dyn Read>,
}

impl Http {
    /// A client for these surroundings.
    pub fn new(settings: &Settings) -> Result<Self, PullError> {
        let roots = match &settings.certificates {
            Some(file) => certificates(file)?,
            None => RootCerts::WebPki,
        };
        let patience = Some(settings.patience);
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(settings.proxy.clone())
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .user_agent(concat!("pocketune/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(patience)
            .timeout_connect(patience)
            .timeout_send_request(patience)
            .timeout_recv_response(patience)
            .timeout_per_read(patience)
            .build();
        Ok(Self { agent: config.into() })
    }

    /// Asks for `address`; `token` goes to that address's own origin only.
    pub fn get(&self, address: &str, accept: &str, token: Option<&str>) -> Result<Answer, PullError> {
        let mut at = address.to_owned();
        let mut linked = (None, None);
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.agent.get(&at).header(header::ACCEPT, accept);
            if let Some(token) = token
                && url::origin(&at) == url::origin(address)
            {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = request.call().map_err(|error| PullError::network(&at, error))?;
            let headers = response.headers();
            linked.0 = linked.0.or_else(|| text(headers, "x-linked-size")?.parse().ok());
            linked.1 = linked.1.or_else(|| sha256_of_etag(text(headers, "x-linked-etag")?));
            let status = response.status();
            if status.is_redirection() {
                at = redirected(&at, headers)?;
                continue;
            }
            if status != StatusCode::OK {
                return Err(PullError::Status { address: url::shown(&at), status: status.as_u16(), hint: "" });
            }
            return Ok(Answer {
                is_json: text(headers, "content-type").is_some_and(|kind| kind.contains("json")),
                length: text(headers, "content-length").and_then(|length| length.parse().ok()),
                linked_size: linked.0,
                linked_sha256: linked.1,
                body: Box::new(response.into_body().into_reader()),
                address: at,
            });
        }
        Err(PullError::network(address, format!("more than {MAX_REDIRECTS} redirects")))
    }

    /// Asks for `address` and reads all of it, up to [`MAX_PAGE`].
    pub fn page(&self, address: &str, accept: &str, token: Option<&str>) -> Result<(Answer, Vec<u8>), PullError> {
        let mut answer = self.get(address, accept, token)?;
        let mut page = Vec::new();
        let read = answer.body.by_ref().take(MAX_PAGE + 1).read_to_end(&mut page);
        read.map_err(|error| PullError::network(&answer.address, error))?;
        match page.len() as u64 > MAX_PAGE {
            true => Err(PullError::TooLarge { what: url::shown(&answer.address), limit: MAX_PAGE }),
            false => Ok((answer, page)),
        }
    }
}

fn redirected(at: &str, headers: &HeaderMap) -> Result<String, PullError> {
    let to = text(headers, "location").and_then(|location| url::join(at, location));
    let to = to.ok_or_else(|| PullError::network(at, "a redirect to nowhere"))?;
    match url::scheme(at) == Some("https") && url::scheme(&to) != Some("https") {
        true => Err(PullError::network(at, format!("a redirect from https to {}", url::shown(&to)))),
        false => Ok(to),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The hash in an entity tag such as `"b179…"`; files kept in git have 40 digits there, which are no SHA-256 of the file.
fn sha256_of_etag(tag: &str) -> Option<String> {
    let digits = tag.trim_start_matches("W/").trim_matches('"');
    (digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())).then(|| digits.to_ascii_lowercase())
}

fn certificates(file: &Path) -> Result<RootCerts, PullError> {
    let fault = |fault: String| PullError::Setting { variable: "SSL_CERT_FILE", fault };
    let pem = fs::read(file).map_err(|error| fault(format!("{}: {error}", file.display())))?;
    let certificates: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    match certificates.is_empty() {
        true => Err(fault(format!("{}: no certificate in it", file.display()))),
        false => Ok(RootCerts::new_with_certs(&certificates)),
    }
}

#[cfg(test)]
mod tests {
    use super::{HeaderMap, redirected, sha256_of_etag};

    #[test]
    fn a_redirect_never_gives_up_encryption() {
        let to = |location: &str| {
            let headers =
                HeaderMap::from_iter([("location".parse().expect("a name"), location.parse().expect("a value"))]);
            redirected("https://a.test/x", &headers).map_err(|error| error.to_string())
        };
        assert_eq!(to("HTTPS://b.test/y").as_deref(), Ok("HTTPS://b.test/y"));
        assert_eq!(to("/y").as_deref(), Ok("https://a.test/y"));
        for location in ["http://b.test/y", "HTTP://b.test/y"] {
            let error = to(location).expect_err("plain http");
            assert_eq!(error, "https://a.test/x: a redirect from https to http://b.test/y");
        }
    }

    #[test]
    fn only_sixty_four_digits_are_a_hash() {
        let hash = "0123456789ABCDEF".repeat(4);
        assert_eq!(sha256_of_etag(&format!("W/\"{hash}\"")), Some(hash.to_lowercase()));
        assert_eq!(sha256_of_etag("\"0123456789abcdef0123456789abcdef01234567\""), None);
        assert_eq!(sha256_of_etag(&"x".repeat(64)), None);
    }
}
