//! The types of parameters. Each says what it takes, and refuses anything else with one sentence.

use serde_json::Value;

use crate::rpc::{Params, RpcFault};

/// A type of a parameter.
pub trait Param: Sized {
    /// What it takes, as the reference says it.
    const KIND: &'static str;

    /// Reads the parameter `name`.
    ///
    /// # Errors
    /// What it takes instead.
    fn read(name: &str, value: Option<&Value>) -> Result<Self, RpcFault>;

    /// The value in a request; none if it is left out.
    fn write(&self) -> Option<Value>;
}

fn wrong(message: impl Into<String>) -> RpcFault {
    RpcFault::params(message)
}

impl Param for Option<String> {
    const KIND: &'static str = "string, may be missing";

    fn read(name: &str, value: Option<&Value>) -> Result<Self, RpcFault> {
        match value {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(wrong(format!("{name} is a string"))),
        }
    }

    fn write(&self) -> Option<Value> {
        self.as_ref().map(|text| text.as_str().into())
    }
}

impl Param for String {
    const KIND: &'static str = "string";

    fn read(name: &str, value: Option<&Value>) -> Result<Self, RpcFault> {
        Option::<Self>::read(name, value)?.ok_or_else(|| wrong(format!("{name} is missing")))
    }

    fn write(&self) -> Option<Value> {
        Some(self.as_str().into())
    }
}

impl Param for bool {
    const KIND: &'static str = "boolean, false if missing";

    fn read(name: &str, value: Option<&Value>) -> Result<Self, RpcFault> {
        match value {
            None => Ok(false),
            Some(Value::Bool(on)) => Ok(*on),
            Some(_) => Err(wrong(format!("{name} must be true or false"))),
        }
    }

    fn write(&self) -> Option<Value> {
        // Left out if it is false: a server that does not know it yet takes the rest.
        self.then(|| true.into())
    }
}

/// A directory of the client; anything but a string counts as none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folder(pub Option<String>);

impl Param for Folder {
    const KIND: &'static str = "string, may be missing";

    fn read(_name: &str, value: Option<&Value>) -> Result<Self, RpcFault> {
        Ok(Self(value.and_then(Value::as_str).map(str::to_owned)))
    }

    fn write(&self) -> Option<Value> {
        self.0.write()
    }
}

/// A time limit in seconds, at most [`TimeLimit::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeLimit(pub Option<f64>);

impl TimeLimit {
    /// Longest time limit that a client can ask for, in seconds.
    pub const MAX: f64 = 3600.0;
}

impl Param for TimeLimit {
    const KIND: &'static str = "number, 60 if missing";

    fn read(name: &str, value: Option<&Value>) -> Result<Self, RpcFault> {
        let seconds = match value {
            None | Some(Value::Null) => return Ok(Self(None)),
            Some(value) => value.as_f64(),
        };
        let fits = |seconds: &f64| (0.001..=Self::MAX).contains(seconds);
        seconds.filter(fits).map(|seconds| Self(Some(seconds))).ok_or_else(|| {
            let message = format!("{name} is a number of seconds, 0.001 to {}", Self::MAX);
            RpcFault::refused("EINVAL", message)
        })
    }

    fn write(&self) -> Option<Value> {
        self.0.map(Value::from)
    }
}

/// Whole seconds of the past that are looked at, at most [`LookBack::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookBack(pub Option<u64>);

impl LookBack {
    /// Seconds of which a server keeps the slowest requests.
    pub const MAX: u64 = 60;
}

impl Param for LookBack {
    const KIND: &'static str = "number, 60 if missing";

    fn read(name: &str, value: Option<&Value>) -> Result<Self, RpcFault> {
        let Some(value) = value else { return Ok(Self(None)) };
        let seconds = value.as_u64().filter(|seconds| (1..=Self::MAX).contains(seconds));
        let wrong = || wrong(format!("{name} is a number of 1 to {}, not {value}", Self::MAX));
        Ok(Self(Some(seconds.ok_or_else(wrong)?)))
    }

    fn write(&self) -> Option<Value> {
        self.0.map(Value::from)
    }
}

/// The requests of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestOp(pub Option<String>);

impl RequestOp {
    /// The words for them, as answers have them.
    pub const ALL: [&'static str; 7] =
        ["read", "write", "flush", "trim", "zero", "prefetch", "block_status"];
}

impl Param for RequestOp {
    const KIND: &'static str = "string, may be missing";

    fn read(name: &str, value: Option<&Value>) -> Result<Self, RpcFault> {
        let word = Option::<String>::read(name, value)?;
        match word {
            Some(word) if !Self::ALL.contains(&&*word) => {
                let [all @ .., last] = Self::ALL;
                let all = all.join(", ");
                Err(wrong(format!("{name} is {all} or {last}, not `{word}`")))
            }
            word => Ok(Self(word)),
        }
    }

    fn write(&self) -> Option<Value> {
        self.0.write()
    }
}

/// Names of exports and patterns, 1 to [`Names::MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(pub Vec<String>);

impl Names {
    /// Most words of one request; each may be a pattern of any number of exports.
    pub const MAX: usize = 1024;
}

impl Param for Names {
    const KIND: &'static str = "list of strings";

    fn read(name: &str, value: Option<&Value>) -> Result<Self, RpcFault> {
        let words = match value {
            Some(Value::Array(words)) if (1..=Self::MAX).contains(&words.len()) => words,
            _ => &Vec::new(),
        };
        let words: Option<Vec<&str>> = words.iter().map(Value::as_str).collect();
        match words {
            Some(words) if !words.is_empty() => {
                Ok(Self(words.into_iter().map(str::to_owned).collect()))
            }
            _ => Err(wrong(format!("{name} is a list of names of exports, with at least one"))),
        }
    }

    fn write(&self) -> Option<Value> {
        Some(self.0.clone().into())
    }
}

/// A size: bytes as a number, or a word of the server's such as `20G` and `+5G`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// It is left out.
    #[default]
    Missing,
    /// A word.
    Word(String),
    /// Bytes.
    Bytes(u64),
}

impl Param for Size {
    const KIND: &'static str = "string or number, may be missing";

    fn read(name: &str, value: Option<&Value>) -> Result<Self, RpcFault> {
        match value {
            None | Some(Value::Null) => Ok(Self::Missing),
            Some(Value::String(word)) => Ok(Self::Word(word.trim().to_owned())),
            Some(Value::Number(number)) => number
                .as_u64()
                .map(Self::Bytes)
                .ok_or_else(|| RpcFault::refused("EINVAL", format!("{name}: {number} is no size"))),
            Some(_) => Err(wrong(format!("{name} is a string or a number"))),
        }
    }

    fn write(&self) -> Option<Value> {
        match self {
            Self::Missing => None,
            Self::Word(word) => Some(word.as_str().into()),
            Self::Bytes(bytes) => Some((*bytes).into()),
        }
    }
}

/// The new value of a setting as a word; of a boolean 0 or 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word(pub String);

impl Param for Option<Word> {
    const KIND: &'static str = "string, number or boolean, with path";

    fn read(name: &str, value: Option<&Value>) -> Result<Self, RpcFault> {
        let word = match value {
            None => return Ok(None),
            Some(Value::String(text)) => text.trim().to_owned(),
            Some(Value::Number(number)) => number.to_string(),
            Some(Value::Bool(switch)) => u8::from(*switch).to_string(),
            Some(_) => return Err(wrong(format!("{name} must be a string or a number"))),
        };
        Ok(Some(Word(word)))
    }

    fn write(&self) -> Option<Value> {
        self.as_ref().map(|word| word.0.as_str().into())
    }
}

/// Paths and their new values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignments(pub Vec<(String, String)>);

impl Assignments {
    /// The path and the value of one.
    ///
    /// # Errors
    /// One of them is missing.
    pub fn one(path: Option<String>, value: Option<Word>) -> Result<(String, String), RpcFault> {
        let path = path.ok_or_else(|| wrong("path is missing"))?;
        Ok((path, value.ok_or_else(|| wrong("value is missing"))?.0))
    }

    /// The refusal of anything but such a list.
    #[must_use]
    pub fn refusal() -> RpcFault {
        wrong("values is a list of objects with path and value, without path and value beside it")
    }

    fn read_one(params: &Params) -> Result<(String, String), RpcFault> {
        let path = Option::<String>::read("path", params.get("path"))?;
        Self::one(path, Option::<Word>::read("value", params.get("value"))?)
    }
}

impl Param for Option<Assignments> {
    const KIND: &'static str = "list, instead of path and value";

    fn read(_name: &str, value: Option<&Value>) -> Result<Self, RpcFault> {
        let list = match value {
            None => return Ok(None),
            Some(Value::Array(list)) if !list.is_empty() => list,
            Some(_) => return Err(Assignments::refusal()),
        };
        let one = |value: &Value| {
            Assignments::read_one(value.as_object().ok_or_else(Assignments::refusal)?)
        };
        Ok(Some(Assignments(list.iter().map(one).collect::<Result<_, _>>()?)))
    }

    fn write(&self) -> Option<Value> {
        let one =
            |(path, value): &(String, String)| serde_json::json!({ "path": path, "value": value });
        self.as_ref().map(|all| all.0.iter().map(one).collect())
    }
}
