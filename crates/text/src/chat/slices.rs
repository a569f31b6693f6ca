//! Slices as Python has them, for strings and lists. minijinja's own go out of bounds where what is sliced backwards is empty.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::work::refused;

/// `value[start:stop:step]`; parts that are left out are none.
pub(super) fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let part = |part: &Value| match part.is_none() || part.is_undefined() {
        true => Ok(None),
        false => i64::try_from(part.clone()).map(Some),
    };
    let (start, stop, step) = (part(start)?, part(stop)?, part(step)?.unwrap_or(1));
    if let Some(text) = value.as_str() {
        let all: Vec<char> = text.chars().collect();
        return Ok(Value::from(places(start, stop, step, all.len())?.map(|at| all[at]).collect::<String>()));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let all: Vec<Value> = value.try_iter()?.collect();
            Ok(Value::from(places(start, stop, step, all.len())?.map(|at| all[at].clone()).collect::<Vec<_>>()))
        }
        ValueKind::Undefined | ValueKind::None => Ok(Value::from(Vec::<Value>::new())),
        kind => Err(refused(&format!("value of type {kind} cannot be sliced"))),
    }
}

/// The places that a slice of `len` elements takes, in order, by Python's rules.
fn places(start: Option<i64>, stop: Option<i64>, step: i64, len: usize) -> Result<impl Iterator<Item = usize>, Error> {
    if step == 0 {
        return Err(refused("cannot slice by step size of 0"));
    }
    let (len, step) = (len as i128, i128::from(step));
    // Backwards it begins at the last element and ends before the first.
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let bound = |part: Option<i64>, default: i128| {
        let part = part.map(i128::from).map(|part| if part < 0 { part + len } else { part });
        part.map_or(default, |part| part.clamp(lowest, highest))
    };
    let (start, stop) = if step > 0 {
        (bound(start, lowest), bound(stop, highest))
    } else {
        (bound(start, highest), bound(stop, lowest))
    };
    let inside = move |at: &i128| if step > 0 { *at < stop } else { *at > stop };
    Ok(std::iter::successors(Some(start), move |at| Some(at + step)).take_while(inside).map(|at| at as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_those_of_python() {
        let text = |start: Option<i64>, stop: Option<i64>, step: Option<i64>, of: &str| {
            let [start, stop, step] = [start, stop, step].map(|part| part.map_or(Value::from(()), Value::from));
            slice(&Value::from(of), &start, &stop, &step).unwrap().to_string()
        };
        // From CPython.
        for (start, stop, step, want) in [
            (None, None, None, "abcde"),
            (Some(1), Some(3), None, "bc"),
            (Some(-2), None, None, "de"),
            (None, Some(-9), None, ""),
            (None, None, Some(2), "ace"),
            (None, None, Some(-1), "edcba"),
            (Some(3), Some(0), Some(-1), "dcb"),
            (Some(9), None, Some(-2), "eca"),
            (Some(1), Some(4), Some(-1), ""),
            (Some(-1), Some(-4), Some(-1), "edc"),
            (None, Some(-9), Some(-2), "eca"),
            (Some(2), None, Some(i64::MAX), "c"),
            (None, None, Some(i64::MIN), "e"),
            (Some(i64::MIN), Some(i64::MAX), None, "abcde"),
        ] {
            assert_eq!(text(start, stop, step, "abcde"), want, "{start:?} {stop:?} {step:?}");
        }
        for step in [1, -1, i64::MIN, -i64::MAX] {
            assert_eq!(text(None, None, Some(step), ""), "", "{step}");
        }
        let list = Value::from(vec![1, 2, 3]);
        let none = Value::from(());
        assert_eq!(slice(&list, &none, &none, &Value::from(-1)).unwrap(), Value::from(vec![3, 2, 1]));
        assert!(slice(&list, &none, &none, &Value::from(0)).is_err());
        assert!(slice(&Value::from(5), &none, &none, &none).is_err());
    }
}
