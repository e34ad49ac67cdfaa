//! JSON in and out, as Python's json module does it: templates are written and trained against it.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use serde_json::Value as Json;

/// Parsed JSON to a template value; every string (keys too) goes through `protect`.
pub fn to_value(json: &Json, protect: &dyn Fn(&str) -> String) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => number(&n.to_string()),
        Json::String(s) => Value::from(protect(s)),
        Json::Array(items) => items.iter().map(|item| to_value(item, protect)).collect(),
        Json::Object(map) => {
            Value::from_pairs(map.iter().map(|(k, v)| (protect(k), to_value(v, protect))))
        }
    }
}

/// Integers exactly (up to 128 bits), everything else as a double, as Python reads them.
fn number(text: &str) -> Value {
    if let Ok(n) = text.parse::<i64>() {
        return Value::from(n);
    }
    if let Ok(n) = text.parse::<i128>() {
        return Value::from(n);
    }
    Value::from(text.parse::<f64>().unwrap_or(f64::NAN))
}

/// repr() of a Python float: the shortest digits, an exponent from 1e16 and below 1e-4.
pub fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let magnitude = x.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(rest) => ('-', rest),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = x.to_string();
    if text.contains('.') {
        text
    } else {
        text + ".0"
    }
}

#[derive(Clone)]
struct Style {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

/// Values nest this deep at most; the recursion of the writer below stays small.
const MAX_DEPTH: usize = 200;

fn not_serializable(what: &str) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("object of type {what} is not JSON serializable"),
    )
}

fn write_string(out: &mut String, s: &str, ensure_ascii: bool) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && !c.is_ascii()) => {
                let mut units = [0u16; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn new_line(out: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        for _ in 0..depth {
            out.push_str(indent);
        }
    }
}

/// A scalar's text; `None` for containers.
fn scalar(value: &Value) -> Result<Option<String>, Error> {
    Ok(Some(match value.kind() {
        ValueKind::None => "null".into(),
        ValueKind::Bool => if value.is_true() { "true" } else { "false" }.into(),
        ValueKind::Number if value.is_integer() => value.to_string(),
        ValueKind::Number => python_float(f64::try_from(value.clone())?),
        ValueKind::Undefined => return Err(not_serializable("Undefined")),
        ValueKind::Seq | ValueKind::Map | ValueKind::String => return Ok(None),
        // What list + list gives; a generator has no length.
        ValueKind::Iterable if value.len().is_some() => return Ok(None),
        kind => return Err(not_serializable(&kind.to_string())),
    }))
}

fn write(
    out: &mut String,
    state: &State,
    value: &Value,
    style: &Style,
    depth: usize,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "value nests too deep for JSON",
        ));
    }
    if let Some(s) = value.as_str() {
        write_string(out, s, style.ensure_ascii);
        // A quarter of a unit of fuel a byte, like the engine's own serializer.
        return state.consume_fuel(s.len() as u64 / 4);
    }
    if let Some(text) = scalar(value)? {
        out.push_str(&text);
        return state.consume_fuel(1);
    }
    let map = value.kind() == ValueKind::Map;
    let mut items: Vec<Value> = value.try_iter()?.collect();
    state.consume_fuel(items.len() as u64 + 1)?;
    if map && style.sort_keys {
        items.sort();
    }
    out.push(if map { '{' } else { '[' });
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, style, depth + 1);
        if map {
            match item.as_str() {
                Some(key) => write_string(out, key, style.ensure_ascii),
                None => match scalar(item)? {
                    Some(text) => write_string(out, &text, style.ensure_ascii),
                    None => return Err(not_serializable("key")),
                },
            }
            out.push_str(&style.key_separator);
            write(out, state, &value.get_item(item)?, style, depth + 1)?;
        } else {
            write(out, state, item, style, depth + 1)?;
        }
    }
    if !items.is_empty() {
        new_line(out, style, depth);
    }
    out.push(if map { '}' } else { ']' });
    Ok(())
}

/// The `tojson` filter of Hugging Face's tokenizers: json.dumps without HTML escapes, keys in order.
/// A positional argument is the indent (Jinja's order) if it is a number, else ensure_ascii.
pub fn tojson(
    state: &State,
    value: &Value,
    first: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let mut indent: Option<Value> = kwargs.get("indent")?;
    let mut ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let separators: Option<Value> = kwargs.get("separators")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    match first {
        Some(v) if v.kind() == ValueKind::Bool => ensure_ascii = Some(v.is_true()),
        Some(v) if !v.is_none() => indent = Some(v),
        _ => {}
    }
    let indent = match indent {
        None => None,
        Some(v) if v.is_none() => None,
        Some(v) => Some(match v.as_str() {
            Some(s) if s.len() <= 64 => s.to_owned(),
            _ => " ".repeat(usize::try_from(v)?.min(64)),
        }),
    };
    let mut style = Style {
        item_separator: if indent.is_some() { "," } else { ", " }.into(),
        key_separator: ": ".into(),
        indent,
        ensure_ascii: ensure_ascii.unwrap_or(false),
        sort_keys: sort_keys.unwrap_or(false),
    };
    if let Some(pair) = separators.filter(|v| !v.is_none()) {
        style.item_separator = pair.get_item_by_index(0)?.to_string();
        style.key_separator = pair.get_item_by_index(1)?.to_string();
    }
    let mut out = String::new();
    write(&mut out, state, value, &style, 0)?;
    Ok(Value::from(out))
}
