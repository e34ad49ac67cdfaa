//! Compiling and rendering one template inside limits. Templates come out of model files, so they
//! are hostile: their source, stack, work, memory and output are bounded.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;

use crate::guard::{self, Outcome};
use crate::json::to_value;
use crate::messages::{self, Needs};
use crate::python::{self, Refused};

/// Real templates have up to 20 KiB; 128 KiB is what the C header says.
const MAX_SOURCE: usize = 128 * 1024;
/// Live memory of a compile or render: several copies of what goes in, and the values around it.
const MEMORY: usize = 32 << 20;
const MEMORY_PER_BYTE: usize = 16;
/// Fuel ends a render within a second or two; this is for work that fuel does not see.
const TIME: Duration = Duration::from_secs(60);
/// Compiling takes under a millisecond; folding a chain of thousands of `~` takes half a minute.
const COMPILE_TIME: Duration = Duration::from_secs(5);
/// One fuel is about an instruction, or 64 bytes written. A hostile template gets this much, half
/// a second; each input byte adds enough for a template that looks at it many times over.
const FUEL: u64 = 4_000_000;
const FUEL_PER_BYTE: u64 = 8;
/// Real templates add some KiB to what they are given.
const OUTPUT: usize = 16 << 20;
const OUTPUT_PER_BYTE: usize = 8;

pub struct Failure {
    pub code: i32,
    pub reason: String,
}

impl Failure {
    pub fn input(reason: impl Into<String>) -> Failure {
        Failure {
            code: 1,
            reason: reason.into(),
        }
    }

    fn syntax(reason: impl Into<String>) -> Failure {
        Failure {
            code: 2,
            reason: reason.into(),
        }
    }

    fn limit() -> Failure {
        Failure {
            code: 5,
            reason: "too much memory or time".into(),
        }
    }

    fn internal(reason: impl Into<String>) -> Failure {
        Failure {
            code: 6,
            reason: reason.into(),
        }
    }
}

/// What went wrong while rendering, without the engine's long form.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let mut code = if error.kind() == ErrorKind::OutOfFuel {
            5
        } else {
            4
        };
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(e) = source {
            if e.downcast_ref::<Refused>().is_some() {
                let reason = error.detail().unwrap_or("").to_owned();
                return Failure { code: 3, reason };
            }
            if e.downcast_ref::<TooLong>().is_some()
                || e.downcast_ref::<io::Error>()
                    .is_some_and(|e| e.kind() == io::ErrorKind::Other)
            {
                code = 5;
            }
            source = e.source();
        }
        Failure {
            code,
            reason: error.to_string(),
        }
    }
}

pub struct Inputs<'a> {
    pub messages: &'a [u8],
    pub tools: Option<&'a [u8]>,
    pub variables: Option<&'a [u8]>,
    pub bos: String,
    pub eos: String,
    pub add_generation_prompt: bool,
    pub adapt: bool,
    pub now: i64,
    pub protect: &'a dyn Fn(&str) -> String,
}

pub struct Template {
    env: Environment<'static>,
    needs: Needs,
    /// A render of it got stuck; there will be no other.
    spoiled: AtomicBool,
}

/// The budget of one render.
pub struct Budget {
    pub fuel: u64,
    pub output: usize,
    pub memory: usize,
    /// What the output will probably need.
    pub expected: usize,
}

#[derive(Debug)]
struct TooLong;

impl std::fmt::Display for TooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the template's output is too long")
    }
}

impl std::error::Error for TooLong {}

struct Bounded {
    bytes: Vec<u8>,
    left: usize,
}

impl io::Write for &mut Bounded {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.len() > self.left {
            return Err(io::Error::other(TooLong));
        }
        self.left -= data.len();
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `{% generation %}` marks the assistant's tokens for training; here it is a block that is always
/// shown. Its white-space control must keep working, so the tags become `if true` and `endif`.
fn replace_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let tag = &rest[at + 2..];
        out.push_str(&rest[..at + 2]);
        rest = tag;
        let word_at = tag.len() - tag.trim_start_matches(['-', '+']).trim_start().len();
        let word = &tag[word_at..];
        for (name, with) in [("generation", "if true"), ("endgeneration", "endif")] {
            let after = word
                .strip_prefix(name)
                .map(|t| t.trim_start().trim_start_matches(['-', '+']));
            if after.is_some_and(|t| t.starts_with("%}")) {
                out.push_str(&tag[..word_at]);
                out.push_str(with);
                rest = &word[name.len()..];
                if rest.starts_with(['-', '+', '%']) {
                    out.push(' ');
                }
            }
        }
    }
    out.push_str(rest);
    out
}

fn parse(bytes: &[u8], what: &str) -> Result<Json, Failure> {
    serde_json::from_slice(bytes).map_err(|e| Failure::input(format!("{what}: {e}")))
}

impl Template {
    pub fn compile(source: &[u8]) -> Result<Template, Failure> {
        if source.len() > MAX_SOURCE {
            return Err(Failure::syntax(format!(
                "the chat template has {} bytes, at most {MAX_SOURCE} are allowed",
                source.len()
            )));
        }
        let source = std::str::from_utf8(source)
            .map_err(|_| Failure::syntax("the chat template is not UTF-8"))?;
        let source = replace_generation(source);
        let compiled = guard::run(8 * MEMORY, COMPILE_TIME, move || {
            let mut env = Environment::new();
            let syntax = SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build();
            env.set_syntax(syntax.map_err(|e| Failure::internal(e.to_string()))?);
            env.set_auto_escape_callback(|_| AutoEscape::None);
            env.set_fuel(Some(FUEL));
            python::install(&mut env);
            env.add_template_owned("template", source)
                .map_err(|e| Failure::syntax(e.to_string()))?;
            Ok::<_, Failure>(env)
        });
        let env = match compiled {
            Outcome::Done(result) => result?,
            Outcome::Stuck => return Err(Failure::syntax("too much memory or time to compile")),
            Outcome::Lost(reason) => return Err(Failure::internal(reason)),
        };
        let needs = Needs::default();
        let mut template = Template {
            env,
            needs,
            spoiled: AtomicBool::new(false),
        };
        template.needs = messages::probe(&template);
        Ok(template)
    }

    /// Render with these variables inside a budget.
    pub fn render_with(&self, variables: Value, budget: Budget) -> Result<String, Failure> {
        // Relaxed: a flag alone, nothing is published by it.
        if self.spoiled.load(Ordering::Relaxed) {
            return Err(Failure::limit());
        }
        let mut env = self.env.clone();
        env.set_fuel(Some(budget.fuel));
        let outcome = guard::run(budget.memory, TIME, move || -> Result<Vec<u8>, Failure> {
            let mut out = Bounded {
                bytes: Vec::with_capacity(budget.expected),
                left: budget.output,
            };
            env.get_template("template")?
                .render_captured_to(variables, &mut out)?;
            Ok(out.bytes)
        });
        match outcome {
            Outcome::Done(result) => {
                String::from_utf8(result?).map_err(|_| Failure::internal("output is not UTF-8"))
            }
            Outcome::Stuck => {
                self.spoiled.store(true, Ordering::Relaxed);
                Err(Failure::limit())
            }
            Outcome::Lost(reason) => Err(Failure::internal(reason)),
        }
    }

    pub fn render(&self, inputs: &Inputs) -> Result<String, Failure> {
        let mut messages = parse(inputs.messages, "messages")?;
        if !messages.is_array() {
            return Err(Failure::input("messages: not an array"));
        }
        let mut tools = inputs
            .tools
            .map(|bytes| parse(bytes, "tools"))
            .transpose()?;
        if tools
            .as_ref()
            .is_some_and(|t| !t.is_array() && !t.is_null())
        {
            return Err(Failure::input("tools: not an array"));
        }
        let extra = match inputs.variables {
            None => Json::Null,
            Some(bytes) => parse(bytes, "template variables")?,
        };
        if !extra.is_object() && !extra.is_null() {
            return Err(Failure::input("template variables: not an object"));
        }
        if inputs.adapt {
            messages::adapt(&self.needs, &mut messages, &mut tools)?;
        }
        let as_is = |text: &str| text.to_owned();
        let mut pairs: Vec<(String, Value)> = Vec::new();
        if let Json::Object(map) = &extra {
            pairs.extend(map.iter().map(|(k, v)| (k.clone(), to_value(v, &as_is))));
        }
        pairs.push(("messages".into(), to_value(&messages, inputs.protect)));
        if let Some(tools) = &tools {
            pairs.push(("tools".into(), to_value(tools, inputs.protect)));
        }
        pairs.push(("bos_token".into(), inputs.bos.as_str().into()));
        pairs.push(("eos_token".into(), inputs.eos.as_str().into()));
        pairs.push((
            "add_generation_prompt".into(),
            inputs.add_generation_prompt.into(),
        ));
        pairs.push(("__now".into(), inputs.now.into()));
        let n_input = inputs.messages.len() + inputs.tools.map_or(0, <[u8]>::len);
        let budget = Budget {
            fuel: FUEL + FUEL_PER_BYTE * n_input as u64,
            output: OUTPUT + OUTPUT_PER_BYTE * n_input,
            memory: MEMORY + MEMORY_PER_BYTE * n_input,
            expected: n_input + n_input / 8 + 1024,
        };
        self.render_with(Value::from_pairs(pairs), budget)
    }
}
