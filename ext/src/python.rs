//! What templates expect of Python and of Hugging Face's Jinja environment and minijinja does not
//! have: methods of strings and lists, a few functions and tests.

use std::fmt;
use std::sync::{Arc, Mutex};

use minijinja::value::{from_args, Enumerator, Kwargs, Object, ObjectRepr, Rest, ValueKind};
use minijinja::value::{Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use crate::json;

/// Marks an error as raised by the template itself.
#[derive(Debug)]
pub struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("raise_exception")
    }
}

impl std::error::Error for Refused {}

fn raise_exception(message: Value) -> Result<Value, Error> {
    let text = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, text).with_source(Refused))
}

/// A list that can grow, as Python's do. Lists given to namespace() become this: templates append
/// to those; literals stay immutable.
#[derive(Debug, Default)]
struct List(Mutex<Vec<Value>>);

impl List {
    fn with<R>(&self, f: impl FnOnce(&mut Vec<Value>) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(|e| e.into_inner()))
    }
}

/// Python's index: negative counts from the end.
fn position(index: i64, len: usize) -> Option<usize> {
    let i = if index < 0 { index + len as i64 } else { index };
    usize::try_from(i).ok().filter(|i| *i < len)
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_i64()?;
        self.with(|items| position(index, items.len()).map(|i| items[i].clone()))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.with(|items| items.len()))
    }

    fn call_method(
        self: &Arc<Self>,
        state: &mut State,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        let out_of_range = || Error::new(ErrorKind::InvalidOperation, "list index out of range");
        match method {
            "append" => {
                let (item,): (Value,) = from_args(args)?;
                // A list inside itself would never be freed.
                if item
                    .as_object()
                    .is_some_and(|o| o.downcast_ref::<List>().is_some())
                {
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        "list of growing lists",
                    ));
                }
                state.consume_fuel(1)?;
                self.with(|items| items.push(item));
            }
            "extend" => {
                let (more,): (Value,) = from_args(args)?;
                let more: Vec<Value> = more.try_iter()?.collect();
                state.consume_fuel(more.len() as u64)?;
                self.with(|items| items.extend(more));
            }
            "insert" => {
                let (index, item): (i64, Value) = from_args(args)?;
                state.consume_fuel(1)?;
                self.with(|items| {
                    let at = position(index, items.len()).unwrap_or(items.len());
                    items.insert(at, item)
                });
            }
            "pop" => {
                let (index,): (Option<i64>,) = from_args(args)?;
                return self.with(|items| {
                    let at = position(index.unwrap_or(-1), items.len()).ok_or_else(out_of_range)?;
                    Ok(items.remove(at))
                });
            }
            "clear" => {
                let () = from_args(args)?;
                self.with(Vec::clear);
            }
            _ => return Err(Error::from(ErrorKind::UnknownMethod)),
        }
        Ok(Value::from(()))
    }
}

/// namespace(...) whose lists can grow.
fn namespace(kwargs: Option<ValueOrKwargs>) -> Result<Value, Error> {
    let Some(defaults) = kwargs.map(ValueOrKwargs::into_value) else {
        return minijinja::functions::namespace(None);
    };
    if defaults.kind() != ValueKind::Map {
        return minijinja::functions::namespace(Some(defaults.into()));
    }
    let mut pairs = Vec::new();
    for key in defaults.try_iter()? {
        let mut value = defaults.get_item(&key)?;
        if value.kind() == ValueKind::Seq && !value.is_tuple() {
            value = Value::from_object(List(Mutex::new(value.try_iter()?.collect())));
        }
        pairs.push((key.to_string(), value));
    }
    let kwargs: Kwargs = pairs.into_iter().collect();
    minijinja::functions::namespace(Some(Value::from(kwargs).into()))
}

extern "C" {
    fn time(out: *mut i64) -> i64;
    fn localtime_r(time: *const i64, out: *mut [u64; 16]) -> *mut [u64; 16];
    fn strftime(out: *mut u8, max: usize, format: *const u8, tm: *const [u64; 16]) -> usize;
}

/// strftime in local time; `now` < 0: the clock's. struct tm has 56 bytes; 128 are given.
fn format_time(now: i64, format: &str) -> Result<String, Error> {
    let bad = || Error::new(ErrorKind::InvalidOperation, "strftime_now: bad format");
    if format.is_empty() {
        return Ok(String::new());
    }
    if format.len() > 256 || format.contains('\0') {
        return Err(bad());
    }
    let c_format = format!("{format}\0");
    let mut out = vec![0u8; 4096];
    let n = unsafe {
        let seconds = if now < 0 {
            time(std::ptr::null_mut())
        } else {
            now
        };
        let mut tm = [0u64; 16];
        if localtime_r(&seconds, &mut tm).is_null() {
            return Err(bad());
        }
        strftime(out.as_mut_ptr(), out.len(), c_format.as_ptr(), &tm)
    };
    out.truncate(n);
    String::from_utf8(out).map_err(|_| bad())
}

/// Python's split from the right.
fn rsplit(s: &str, sep: Option<&str>, max: Option<i64>) -> Result<Value, Error> {
    let max = max
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = Vec::new();
    match sep {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(sep) => parts = s.rsplitn(max.saturating_add(1), sep).collect(),
        None => {
            let mut rest = s.trim_end();
            while parts.len() < max {
                let Some(at) = rest.rfind(char::is_whitespace) else {
                    break;
                };
                let width = rest[at..].chars().next().map_or(1, char::len_utf8);
                parts.push(&rest[at + width..]);
                rest = rest[..at].trim_end();
            }
            let rest = if parts.len() < max {
                rest.trim_start()
            } else {
                rest
            };
            if !rest.is_empty() {
                parts.push(rest);
            }
        }
    }
    Ok(parts.into_iter().rev().map(Value::from).collect())
}

fn three(a: &str, b: &str, c: &str) -> Value {
    Value::from(minijinja::value::Tuple::from([
        Value::from(a),
        Value::from(b),
        Value::from(c),
    ]))
}

fn pad(state: &State, s: &str, args: &[Value], method: &str) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let fill = fill.unwrap_or(if method == "zfill" { "0" } else { " " });
    let missing = usize::try_from(width)
        .unwrap_or(0)
        .saturating_sub(s.chars().count());
    state.consume_fuel(missing as u64 / 64)?;
    if missing > 1 << 20 {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "width out of range",
        ));
    }
    let (left, right) = match method {
        "ljust" => (0, missing),
        "center" => (missing / 2, missing - missing / 2),
        _ => (missing, 0),
    };
    Ok(Value::from(format!(
        "{}{s}{}",
        fill.repeat(left),
        fill.repeat(right)
    )))
}

fn string_method(
    state: &State,
    s: &str,
    method: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "rsplit" => {
            let (sep, max, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let max = max.or(kwargs.get("maxsplit")?);
            let sep = sep.or(kwargs.get("sep")?);
            rsplit(s, sep, max)?
        }
        "partition" => {
            let (sep,): (&str,) = from_args(args)?;
            match s.split_once(sep) {
                Some((a, b)) => three(a, sep, b),
                None => three(s, "", ""),
            }
        }
        "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            match s.rsplit_once(sep) {
                Some((a, b)) => three(a, sep, b),
                None => three("", "", s),
            }
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(s.strip_prefix(prefix).unwrap_or(s))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(s.strip_suffix(suffix).unwrap_or(s))
        }
        "casefold" => Value::from(s.to_lowercase()),
        "swapcase" => Value::from(
            s.chars()
                .flat_map(|c| -> Vec<char> {
                    if c.is_uppercase() {
                        c.to_lowercase().collect()
                    } else {
                        c.to_uppercase().collect()
                    }
                })
                .collect::<String>(),
        ),
        "ljust" | "rjust" | "center" | "zfill" => pad(state, s, args, method)?,
        "index" => {
            let (what,): (&str,) = from_args(args)?;
            let at = s
                .find(what)
                .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Value::from(s[..at].chars().count())
        }
        _ => return Ok(None),
    }))
}

fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(s) = value.as_str() {
        if let Some(result) = string_method(state, s, name, args)? {
            return Ok(result);
        }
    }
    match (value.kind(), name) {
        (ValueKind::Map, "copy") => return Ok(value.clone()),
        (ValueKind::Seq, "copy") => return value.try_iter().map(|items| items.collect()),
        (ValueKind::Seq, "index") => {
            let (what,): (Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == what);
            return at.map(Value::from).ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, "value is not in the list")
            });
        }
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// In Jinja strings and mappings are sequences too, and so is an undefined value.
fn is_sequence(value: &Value) -> bool {
    if value.kind() == ValueKind::Iterable {
        return value.len().is_some(); // list + list
    }
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

/// Jinja's indent filter: lines after the first get `width` blanks (or that string) in front, empty
/// ones only with `blank`, the first one only with `first`.
fn indent(state: &State, text: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (width, first, blank, kwargs): (Option<Value>, Option<bool>, Option<bool>, Kwargs) =
        from_args(&args)?;
    let width = match width {
        Some(width) => Some(width),
        None => kwargs.get::<Option<Value>>("width")?,
    };
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let prefix = match width {
        None => "    ".to_owned(),
        Some(v) => match v.as_str() {
            Some(s) => s.to_owned(),
            None => " ".repeat(usize::try_from(v)?.min(1024)),
        },
    };
    let text = text.to_string();
    let n_lines = text.matches('\n').count() + 1;
    state.consume_fuel((n_lines as u64).saturating_mul(prefix.len() as u64 + 16) / 64 + 1)?;
    let mut out = String::with_capacity(text.len() + n_lines * prefix.len());
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 {
            first
        } else {
            blank || !line.is_empty()
        } {
            out.push_str(&prefix);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

pub fn install(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(method);
    env.add_function("raise_exception", raise_exception);
    env.add_function("namespace", namespace);
    env.add_function("strftime_now", |state: &State, format: &str| {
        let now = state.lookup("__now").and_then(|v| v.as_i64()).unwrap_or(-1);
        format_time(now, format)
    });
    env.add_filter("tojson", json::tojson);
    env.add_filter("indent", indent);
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", is_iterable);
    // Printed by nothing else; a template that calls it gets the empty string, not our internals.
    env.add_function("debug", |_args: Rest<ValueOrKwargs>| String::new());
}
