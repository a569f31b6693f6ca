//! The little of web addresses that downloads need: joining a reference to its page, comparing origins, showing one to a person.
//!
//! Only `http` and `https`; no normalisation beyond `.` and `..` in a path, no decoding. Anything else is refused.

/// The address that `reference`, found at `base`, stands for; `None` where it isn't one of the web.
pub fn join(base: &str, reference: &str) -> Option<String> {
    let reference = reference.split('#').next().unwrap_or_default();
    let (scheme, origin) = (scheme(base)?, origin(base)?);
    if reference.contains(|c: char| c.is_control() || c == ' ') {
        return None;
    }
    if let Some(colon) = reference.find(':')
        && !reference[..colon].contains(['/', '?'])
    {
        return origin_end(reference).map(|_| reference.to_owned());
    }
    if let Some(rest) = reference.strip_prefix("//") {
        return Some(format!("{scheme}://{rest}")).filter(|url| origin_end(url).is_some());
    }
    let page = base[origin.len()..].split(['?', '#']).next().unwrap_or_default();
    let (path, query) = reference.split_at(reference.find('?').unwrap_or(reference.len()));
    let folder = &page[..page.rfind('/').map_or(0, |slash| slash + 1)];
    let whole = match (path.starts_with('/'), path.is_empty()) {
        (true, _) => path.to_owned(),
        (_, true) => page.to_owned(),
        _ => format!("{folder}{path}"),
    };
    Some(format!("{origin}{}{query}", without_dots(&whole)))
}

/// Scheme, credentials, host and port, up to where the path begins.
pub fn origin(url: &str) -> Option<&str> {
    origin_end(url).map(|end| &url[..end])
}

/// `url` without credentials, query and fragment.
pub fn shown(url: &str) -> String {
    let plain = url.split(['?', '#']).next().unwrap_or_default();
    let (Some(origin), Some(scheme)) = (origin(plain), scheme(plain)) else { return plain.to_owned() };
    let host = origin.rsplit(['@', '/']).next().unwrap_or_default();
    format!("{scheme}://{host}{}", &plain[origin.len()..])
}

/// `http` or `https`, however it is written.
pub fn scheme(url: &str) -> Option<&'static str> {
    ["https", "http"].into_iter().find(|scheme| {
        url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
            && url[scheme.len()..].starts_with("://")
    })
}

fn origin_end(url: &str) -> Option<usize> {
    let start = scheme(url)?.len() + "://".len();
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    (end > start).then_some(end)
}

fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut parts = path.strip_prefix('/').unwrap_or(path).split('/').peekable();
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        match part {
            "." | ".." => {
                if part == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            _ => kept.push(part),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::{join, origin, shown};

    #[test]
    fn a_reference_is_joined_to_its_page() {
        let page = "https://index.test/simple/a/?q#f";
        for (reference, whole) in [
            ("../../files/a.whl#sha256=0", "https://index.test/files/a.whl"),
            ("a.whl?x=../y", "https://index.test/simple/a/a.whl?x=../y"),
            ("./b/../a.whl", "https://index.test/simple/a/a.whl"),
            ("/a.whl", "https://index.test/a.whl"),
            ("../../../../a.whl", "https://index.test/a.whl"),
            ("//files.test/a.whl", "https://files.test/a.whl"),
            ("http://files.test/a.whl", "http://files.test/a.whl"),
            ("", "https://index.test/simple/a/"),
        ] {
            assert_eq!(join(page, reference).as_deref(), Some(whole), "{reference}");
        }
        assert_eq!(join("http://host", "x").as_deref(), Some("http://host/x"));
    }

    #[test]
    fn only_the_web_is_an_address() {
        for reference in ["file:///etc/passwd", "ftp://a/b", "https:///a", "javascript:x", "a\u{1b}[2J", "a b"] {
            assert_eq!(join("https://index.test/", reference), None, "{reference}");
        }
        assert_eq!(join("file:///a", "b"), None);
    }

    #[test]
    fn what_is_shown_holds_no_secret() {
        assert_eq!(shown("https://me:word@host:8080/a/b?sig=1#x"), "https://host:8080/a/b");
        assert_eq!(origin("https://host:8080/a@b"), Some("https://host:8080"));
    }
}
