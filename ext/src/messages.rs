//! Fitting a client's messages to what a template can take. Clients send OpenAI messages; templates
//! were written for what their authors had at hand. What a template needs is found out once, by
//! rendering small conversations and looking for marks in the output.

use minijinja::Value;
use serde_json::{json, Map, Value as Json};

use crate::json::to_value;
use crate::template::{Budget, Failure, Template};

#[derive(Default)]
pub struct Needs {
    /// Tool calls' arguments must be objects, not JSON text.
    object_arguments: bool,
    /// The template writes assistant messages' tool calls at all.
    tool_calls: bool,
    /// The template writes tools at all.
    tools: bool,
    /// Content may be a list of parts / may be a string.
    parts: bool,
    strings: bool,
    /// An absent (null) content next to tool calls is written as "None" or fails.
    no_null_content: bool,
}

const MARK: &str = "q7needle";
/// Budget of one rendering of a few short messages. Real templates need under 10,000.
const PROBE_FUEL: u64 = 200_000;
const PROBE_MEMORY: usize = 8 << 20;

fn try_render(template: &Template, messages: Json, tools: Option<Json>) -> Option<String> {
    let as_is = |text: &str| text.to_owned();
    let mut pairs = vec![
        ("messages", to_value(&messages, &as_is)),
        ("bos_token", "".into()),
        ("eos_token", "".into()),
        ("add_generation_prompt", false.into()),
        (
            "tools",
            tools.map_or(Value::from(()), |tools| to_value(&tools, &as_is)),
        ),
    ];
    pairs.push(("__now", 0.into()));
    let budget = Budget {
        fuel: PROBE_FUEL,
        output: 256 * 1024,
        memory: PROBE_MEMORY,
        expected: 1024,
    };
    template.render_with(Value::from_pairs(pairs), budget).ok()
}

fn call_conversation(arguments: Json, content: Json) -> Json {
    json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": content, "tool_calls": [
            {"id": "call00001", "type": "function",
             "function": {"name": "probe", "arguments": arguments}}]},
    ])
}

/// The mark is there, and not as the inside of an escaped string.
fn shows_key(text: &Option<String>) -> bool {
    text.as_ref()
        .is_some_and(|t| t.contains(MARK) && !t.contains(&format!("\\\"{MARK}")))
}

pub fn probe(template: &Template) -> Needs {
    let shows = |text: &Option<String>| text.as_ref().is_some_and(|t| t.contains(MARK));
    let object = json!({MARK: "v"});
    let text = Json::String(object.to_string());
    // Some templates take only null content with calls, some only strings.
    let with = |arguments: &Json, content: Json| {
        try_render(
            template,
            call_conversation(arguments.clone(), content),
            None,
        )
    };
    let either = |arguments: &Json| {
        let first = with(arguments, json!(""));
        if shows_key(&first) {
            first
        } else {
            with(arguments, Json::Null)
        }
    };
    let text_works = shows_key(&either(&text));
    let object_result = either(&object);
    let object_works = shows_key(&object_result);
    let best = if text_works { &text } else { &object };
    let null = with(best, Json::Null);
    let empty = with(best, json!(""));
    let none_count = |t: &Option<String>| t.as_ref().map_or(0, |t| t.matches("None").count());
    let plain = try_render(template, json!([{"role": "user", "content": MARK}]), None);
    let parts = try_render(
        template,
        json!([{"role": "user", "content": [{"type": "text", "text": MARK}]}]),
        None,
    );
    let tool = json!([{"type": "function", "function": {"name": MARK, "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "d"}},
                       "required": ["a"]}}}]);
    let user = json!([{"role": "user", "content": "Hi"}]);
    let system = json!([{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]);
    Needs {
        object_arguments: object_works && !text_works,
        tool_calls: object_works || text_works || shows(&object_result),
        tools: shows(&try_render(template, user, Some(tool.clone())))
            || shows(&try_render(template, system, Some(tool))),
        parts: shows(&parts)
            && !parts
                .as_ref()
                .is_some_and(|t| t.contains("'type'") || t.contains("\"type\"")),
        strings: shows(&plain),
        no_null_content: empty.is_some()
            && (null.is_none() || none_count(&null) > none_count(&empty)),
    }
}

/// "text" of a list of text parts; `None` if a part is something else.
fn join_parts(parts: &[Json]) -> Result<String, Failure> {
    let mut out = String::new();
    for part in parts {
        let kind = part.get("type").and_then(Json::as_str).unwrap_or("");
        match (kind, part.get("text").and_then(Json::as_str)) {
            ("text" | "input_text" | "output_text", Some(text)) => out.push_str(text),
            ("refusal", _) => {
                out.push_str(part.get("refusal").and_then(Json::as_str).unwrap_or(""))
            }
            _ => {
                return Err(Failure::input(format!(
                    "messages: content of type \"{kind}\" is not supported"
                )))
            }
        }
    }
    Ok(out)
}

fn adapt_content(needs: &Needs, message: &mut Map<String, Json>) -> Result<(), Failure> {
    let has_calls = message
        .get("tool_calls")
        .is_some_and(|c| c.as_array().is_some_and(|c| !c.is_empty()));
    let Some(content) = message.get_mut("content") else {
        if needs.no_null_content || !has_calls {
            message.insert("content".into(), json!(""));
        } else {
            message.insert("content".into(), Json::Null);
        }
        return Ok(());
    };
    match content {
        Json::Null if needs.no_null_content || !has_calls => *content = json!(""),
        Json::Array(parts) => {
            let text = join_parts(parts)?;
            if !needs.parts || needs.strings {
                *content = Json::String(text);
            }
        }
        Json::String(text) if !needs.strings && needs.parts => {
            *content = json!([{"type": "text", "text": text.as_str()}]);
        }
        Json::Null | Json::String(_) => {}
        _ => {
            return Err(Failure::input(
                "messages: content is neither text nor a list of parts",
            ))
        }
    }
    Ok(())
}

/// Arguments as an object, where they are JSON text of one; anything else stays as it is.
fn parse_arguments(call: &mut Json) {
    let function = match call.get_mut("function") {
        Some(function) => function,
        None => call,
    };
    if let Some(arguments) = function.get_mut("arguments") {
        let parsed = arguments.as_str().and_then(|text| {
            if text.trim().is_empty() {
                return Some(json!({}));
            }
            serde_json::from_str::<Json>(text)
                .ok()
                .filter(Json::is_object)
        });
        if let Some(parsed) = parsed {
            *arguments = parsed;
        }
    }
}

/// A template that does not write calls gets them as text, in the form that `tool_prompt` asks for.
fn write_calls(message: &mut Map<String, Json>) {
    let Some(Json::Array(calls)) = message.remove("tool_calls") else {
        return;
    };
    let list: Vec<Json> = calls
        .into_iter()
        .map(|mut call| {
            parse_arguments(&mut call);
            let function = call.get("function").cloned().unwrap_or(call);
            json!({"name": function.get("name"), "arguments": function.get("arguments")})
        })
        .collect();
    if list.is_empty() {
        return;
    }
    let content = message.get("content").and_then(Json::as_str).unwrap_or("");
    let calls = spaced(&Json::Array(list));
    let text = if content.is_empty() {
        format!("<tool_call>{calls}</tool_call>")
    } else {
        format!("{content}\n<tool_call>{calls}</tool_call>")
    };
    message.insert("content".into(), Json::String(text));
}

/// JSON with a blank after each comma and colon, as models see it in training.
fn spaced(json: &Json) -> String {
    match json {
        Json::Array(items) => {
            format!(
                "[{}]",
                items.iter().map(spaced).collect::<Vec<_>>().join(", ")
            )
        }
        Json::Object(map) => {
            let pairs = map
                .iter()
                .map(|(k, v)| format!("{}: {}", json!(k), spaced(v)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        scalar => scalar.to_string(),
    }
}

/// What the model is told of its tools where the template is silent; the wording and form follow
/// SmolLM2's published prompt.
fn tool_prompt(tools: &Json) -> String {
    let list: Vec<Json> = tools
        .as_array()
        .map(|tools| {
            tools
                .iter()
                .map(|t| t.get("function").unwrap_or(t).clone())
                .collect()
        })
        .unwrap_or_default();
    format!(
        "You can call functions to help with the task. You have access to the following tools:\n\
         <tools>{}</tools>\n\n\
         To call one or more of them, answer with exactly this form and no other text:\n\
         <tool_call>[\n{{\"name\": \"func_name1\", \"arguments\": {{\"argument1\": \"value1\"}}}}\n]\
         </tool_call>\n\
         If no function is needed, answer in plain text.",
        spaced(&Json::Array(list))
    )
}

fn add_tool_prompt(messages: &mut Vec<Json>, tools: &Json) {
    let prompt = tool_prompt(tools);
    if let Some(Json::Object(first)) = messages.first_mut() {
        if first.get("role").and_then(Json::as_str) == Some("system") {
            if let Some(Json::String(text)) = first.get_mut("content") {
                *text = if text.is_empty() {
                    prompt
                } else {
                    format!("{text}\n\n{prompt}")
                };
                return;
            }
        }
    }
    messages.insert(0, json!({"role": "system", "content": prompt}));
}

pub fn adapt(needs: &Needs, messages: &mut Json, tools: &mut Option<Json>) -> Result<(), Failure> {
    let Json::Array(list) = messages else {
        return Ok(());
    };
    for (i, message) in list.iter_mut().enumerate() {
        let Json::Object(message) = message else {
            return Err(Failure::input(format!("messages[{i}]: not an object")));
        };
        if !message.get("role").is_some_and(Json::is_string) {
            return Err(Failure::input(format!("messages[{i}].role: not a string")));
        }
        adapt_content(needs, message)?;
        if matches!(message.get("tool_calls"), Some(Json::Null)) {
            message.remove("tool_calls");
        }
        if message.contains_key("tool_calls") {
            if !needs.tool_calls {
                write_calls(message);
            } else if needs.object_arguments {
                if let Some(Json::Array(calls)) = message.get_mut("tool_calls") {
                    calls.iter_mut().for_each(parse_arguments);
                }
            }
        }
    }
    let given = tools
        .as_ref()
        .filter(|t| t.as_array().is_some_and(|t| !t.is_empty()));
    if let (Some(given), false) = (given, needs.tools) {
        add_tool_prompt(list, given);
        *tools = Some(Json::Null);
    }
    Ok(())
}
