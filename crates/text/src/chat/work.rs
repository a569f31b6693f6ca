//! What a template may make and walk over: a number of bytes for each rendering, from which every string, every list and every
//! comparison is paid, before it is made where its size is known and at once after where it is at most the sum of its parts. So memory and
//! time are bounded together. Only filters, tests and functions that chat templates use are here, each with its price; it refuses
//! those that make much of little (`batch`, `format`, `center`), and values that nest deeper than any conversation.

use std::cell::Cell;
use std::sync::{Arc, LazyLock};

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions, tests};

use super::rewrite::Rewritten;
use super::slices::slice;

type Result<T> = std::result::Result<T, Error>;

/// Bytes for templates that make things of their own; real ones make some kilobytes.
const BASE: usize = 4 << 20;
/// Times that a template may touch each byte of the messages.
const TIMES_EACH: usize = 64;
/// What a value costs beside its text.
const VALUE: usize = 16;
/// What each element costs that is made of a string or copied from a list.
const ELEMENT: usize = 32;
/// How deep values may nest.
const MAX_NESTING: usize = 64;

// The names of the counting functions in rewritten templates.
pub(super) const TEXT: &str = "__text";
pub(super) const WEIGHED: &str = "__weighed";
pub(super) const STORED: &str = "__stored";
pub(super) const EACH: &str = "__each";
pub(super) const SLICE: &str = "__slice";
pub(super) const JOINED: &str = "__joined";
pub(super) const TIMES: &str = "__times";
pub(super) const MADE: &str = "__made";

thread_local! {
    /// What is left of the rendering that this thread is at; a rendering never leaves its thread.
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

/// Begins a rendering of messages of that many bytes.
pub(super) fn begin(bytes: usize) {
    LEFT.set(BASE.saturating_add(bytes.saturating_mul(TIMES_EACH)));
}

/// An error in a template, in words.
pub(super) fn refused(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}

fn spend(bytes: usize) -> Result<()> {
    match LEFT.get().checked_sub(bytes) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => Err(refused("it makes more of these messages than any chat template has a use for")),
    }
}

/// Pays for all that a walk over the value meets, however often; `namespaces` says whether one may be among it.
fn walk(value: &Value, depth: usize, namespaces: bool) -> Result<()> {
    if depth > MAX_NESTING {
        return Err(refused("a value in it nests too deep"));
    }
    if !namespaces && value.as_object().is_some_and(|object| object.type_name().ends_with("Namespace")) {
        return Err(refused("a namespace is kept in a namespace"));
    }
    spend(VALUE + value.as_str().map_or(0, str::len))?;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                walk(&item, depth + 1, namespaces)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                walk(&key, depth + 1, namespaces)?;
                walk(&value.get_item(&key)?, depth + 1, namespaces)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Pays for the elements alone: of a string its characters, each of which may become a value.
fn elements(value: &Value) -> Result<()> {
    let count = value.as_str().map_or_else(|| value.len().unwrap_or(0), str::len);
    spend(VALUE.saturating_add(count.saturating_mul(ELEMENT)))
}

/// Pays for a value that was made of others: a string by its length, anything else by its structure.
fn made(value: Value) -> Result<Value> {
    match value.as_str() {
        Some(text) => spend(VALUE + text.len())?,
        None if value.as_object().is_some() => walk(&value, 0, true)?,
        None => {}
    }
    Ok(value)
}

fn sliced(value: Value, start: Value, stop: Value, step: Value) -> Result<Value> {
    elements(&value)?;
    slice(&value, &start, &stop, &step)
}

fn weighed(value: Value) -> Result<Value> {
    walk(&value, 0, true)?;
    Ok(value)
}

fn stored(value: Value) -> Result<Value> {
    walk(&value, 0, false)?;
    Ok(value)
}

fn each(value: Value) -> Result<Value> {
    elements(&value)?;
    Ok(value)
}

fn joined(left: Value, right: Value) -> Result<String> {
    walk(&left, 0, true)?;
    walk(&right, 0, true)?;
    Ok(format!("{left}{right}"))
}

/// Numbers multiplied, or a text repeated.
fn times(left: Value, right: Value) -> Result<Value> {
    for (text, count) in [(&left, &right), (&right, &left)] {
        if let Some(text) = text.as_str() {
            let count =
                usize::try_from(count.clone()).map_err(|_| refused("a text can only be multiplied by a count"))?;
            spend(text.len().saturating_mul(count))?;
            return Ok(Value::from(text.repeat(count)));
        }
    }
    if left.is_integer() && right.is_integer() {
        let product = i128::try_from(left)?.checked_mul(i128::try_from(right)?);
        let product = product.ok_or_else(|| refused("a product is too large"))?;
        return Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from));
    }
    if left.is_number() && right.is_number() {
        return Ok(Value::from(f64::try_from(left)? * f64::try_from(right)?));
    }
    Err(refused("only numbers and texts can be multiplied"))
}

/// What a filter, function or method is paid by before it is called.
#[derive(Clone, Copy)]
pub(super) enum Price {
    /// It looks at a value without walking over it.
    Look,
    /// It walks over its arguments.
    Walk,
    /// It makes an element of each character or element.
    Elements,
    /// It writes its arguments with marks and spaces between, some times over.
    Written,
}

fn pay(price: Price, arguments: &[Value]) -> Result<()> {
    match price {
        Price::Look => spend(VALUE),
        Price::Walk => arguments.iter().try_for_each(|argument| walk(argument, 0, true)),
        Price::Elements => arguments.iter().try_for_each(|argument| {
            elements(argument)?;
            walk(argument, 0, true)
        }),
        Price::Written => (0..ELEMENT / 2).try_for_each(|_| pay(Price::Walk, arguments)),
    }
}

/// `function` with its price.
fn priced(
    function: Value,
    price: Price,
) -> impl Fn(&mut State, Rest<Value>, Kwargs) -> Result<Value> + Send + Sync + 'static {
    move |state, Rest(mut arguments), named| {
        if named.args().next().is_some() {
            arguments.push(named.into());
        }
        pay(price, &arguments)?;
        made(function.call(state, &arguments)?)
    }
}

/// Adds a filter with its price.
pub(super) fn add_filter(environment: &mut Environment<'static>, name: &'static str, filter: Value, price: Price) {
    environment.add_filter(name, priced(filter, price));
}

/// Bytes of `text` with each `from` replaced by `to`.
fn replaced_bytes(text: &str, from: &str, to: &str) -> usize {
    let matches = if from.is_empty() { text.len() + 1 } else { text.matches(from).count() };
    text.len().saturating_add(matches.saturating_mul(to.len()))
}

fn replace(text: String, from: String, to: String) -> Result<String> {
    spend(text.len() + replaced_bytes(&text, &from, &to))?;
    Ok(text.replace(&from, &to))
}

/// As Jinja's: elements as text, with `separator` between.
fn join(state: &mut State, arguments: Rest<Value>) -> Result<Value> {
    pay(Price::Walk, &arguments)?;
    if let [list, rest @ ..] = &arguments[..] {
        let separator = rest.first().and_then(Value::as_str).map_or(0, str::len);
        let count = list.as_str().map_or_else(|| list.len().unwrap_or(0), str::len);
        spend(count.saturating_mul(separator))?;
    }
    made(Value::from_function(filters::join).call(state, &arguments)?)
}

/// As Jinja's, with at most as many columns as any code is indented by.
fn indent(state: &mut State, arguments: Rest<Value>) -> Result<Value> {
    const WIDEST: usize = 64;
    pay(Price::Walk, &arguments)?;
    let width =
        arguments.get(1).filter(|width| width.is_integer()).map_or(Ok(4), |width| usize::try_from(width.clone()))?;
    if width > WIDEST {
        return Err(refused("indent takes at most 64 columns"));
    }
    let lines = arguments[0].as_str().map_or(0, |text| text.lines().count());
    spend(lines.saturating_mul(width))?;
    made(Value::from_function(filters::indent).call(state, &arguments)?)
}

/// Methods of Python's strings, lists and dictionaries.
fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value> {
    let text = |at: usize| arguments.get(at).and_then(Value::as_str);
    match (name, value.as_str()) {
        ("get" | "items" | "keys" | "values", None) => {
            elements(value)?;
            pay(Price::Walk, arguments)?;
        }
        ("format", _) => return Err(Error::from(ErrorKind::UnknownMethod)),
        ("replace", Some(of)) => {
            spend(of.len() + replaced_bytes(of, text(0).unwrap_or_default(), text(1).unwrap_or_default()))?;
        }
        ("join", Some(separator)) => {
            pay(Price::Walk, arguments)?;
            let count = arguments.first().and_then(Value::len).unwrap_or(0);
            spend(count.saturating_mul(separator.len()))?;
        }
        ("split" | "splitlines", Some(of)) => {
            let pieces = match text(0).filter(|separator| !separator.is_empty()) {
                Some(separator) => of.matches(separator).count(),
                None => of.split_whitespace().count().max(of.lines().count()),
            };
            spend((2 * of.len()).saturating_add(pieces.saturating_mul(ELEMENT)))?;
        }
        _ => {
            walk(value, 0, true)?;
            pay(Price::Walk, arguments)?;
        }
    }
    made(minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)?)
}

/// An environment with all that chat templates use, and nothing else. It is made once; copies share it.
pub(super) fn environment() -> Environment<'static> {
    static BASE: LazyLock<Environment<'static>> = LazyLock::new(base);
    BASE.clone()
}

fn base() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| {
        walk(value, 0, true)?;
        minijinja::escape_formatter(out, state, value)
    });
    add_filters(&mut environment);
    add_tests(&mut environment);
    environment.add_function(WEIGHED, weighed);
    environment.add_function(STORED, stored);
    environment.add_function(EACH, each);
    environment.add_function(SLICE, sliced);
    environment.add_function(JOINED, joined);
    environment.add_function(TIMES, times);
    environment.add_function(MADE, made);
    environment.add_function("range", functions::range);
    environment.add_function("dict", priced(Value::from_function(functions::dict), Price::Elements));
    environment.add_function("namespace", priced(Value::from_function(functions::namespace), Price::Walk));
    environment
}

fn add_filters(environment: &mut Environment<'static>) {
    macro_rules! filters {
        ($price:ident: $($name:literal $filter:ident),*) => {
            $(add_filter(environment, $name, Value::from_function(filters::$filter), Price::$price);)*
        };
    }
    filters!(Look: "length" length, "count" length, "first" first, "last" last, "default" default, "d" default);
    filters!(Walk: "trim" trim, "upper" upper, "lower" lower, "title" title, "capitalize" capitalize, "string" string, "int" int,
        "float" float, "bool" bool, "abs" abs, "round" round, "safe" safe, "min" min, "max" max, "sum" sum, "attr" attr);
    filters!(Elements: "list" list, "items" items, "dictsort" dictsort, "reverse" reverse, "sort" sort, "unique" unique, "map" map,
        "select" select, "selectattr" selectattr, "reject" reject, "rejectattr" rejectattr, "split" split, "lines" lines);
    environment.add_filter("replace", replace);
    environment.add_filter("join", join);
    environment.add_filter("indent", indent);
}

fn add_tests(environment: &mut Environment<'static>) {
    macro_rules! tests {
        ($price:ident: $($name:literal $test:ident),*) => {
            $(environment.add_test($name, {
                let test = priced(Value::from_function(tests::$test), Price::$price);
                move |state: &mut State, arguments: Rest<Value>, named: Kwargs| {
                    Ok::<_, Error>(test(state, arguments, named)?.is_true())
                }
            });)*
        };
    }
    tests!(Look: "defined" is_defined, "undefined" is_undefined, "none" is_none, "boolean" is_boolean, "true" is_true, "false" is_false,
        "string" is_string, "number" is_number, "integer" is_integer, "int" is_integer, "float" is_float, "mapping" is_mapping,
        "sequence" is_sequence, "iterable" is_iterable, "odd" is_odd, "even" is_even, "divisibleby" is_divisibleby, "sameas" is_sameas);
    tests!(Walk: "eq" is_eq, "equalto" is_eq, "==" is_eq, "ne" is_ne, "!=" is_ne, "lt" is_lt, "lessthan" is_lt, "<" is_lt, "le" is_le,
        "<=" is_le, "gt" is_gt, "greaterthan" is_gt, ">" is_gt, "ge" is_ge, ">=" is_ge, "in" is_in, "startingwith" is_startingwith,
        "endingwith" is_endingwith, "lower" is_lower, "upper" is_upper);
}

/// Adds a rewritten template under `name`.
pub(super) fn add_template(
    environment: &mut Environment<'static>,
    name: &'static str,
    template: Rewritten,
) -> Result<()> {
    let texts: Vec<Arc<str>> = template.texts.into_iter().map(Arc::from).collect();
    environment.add_function(TEXT, move |number: usize| texts.get(number).cloned().map(Value::from));
    environment.add_template_owned(name, template.source)
}
