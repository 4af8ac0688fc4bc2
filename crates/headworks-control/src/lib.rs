//! The control protocol of a Headworks server: what clients of the control socket ask, and what they are answered.
//!
//! ```text
//!   client: call(socket, Request) --line of JSON--> server: Request::read -> answer, a struct -> reply --line of JSON--> R::Answer
//! ```
//!
//! Rule: each method is declared once, in [`methods`]: its name, what it does, its parameters and the type of its answer. Each object of an
//! answer is a struct in [`answers`]. The documentation of methods and fields is the reference: headworks-control(7) is made of it, see
//! [`reference`](mod@reference). A new answer is one struct.
//!
//! Answers keep names and types of fields between versions. A reader takes what it knows: a field that an older server does not send has
//! its default, one that a newer server adds is passed over.
//!
//! | module | content |
//! |---|---|
//! | [`shape`] | what the reference says of a type: kind, fields, their documentation |
//! | [`param`] | the types of parameters, and the sentences that refuse others |
//! | [`methods`] | all methods |
//! | [`answers`] | the objects of answers |
//! | [`rpc`] | JSON-RPC 2.0 and its errors |
//! | [`client`] | one request to a server |
//! | [`reference`](mod@reference) | the manual page's part on methods and objects |

#![forbid(unsafe_code)]

pub mod answers;
pub mod client;
pub mod methods;
pub mod param;
pub mod reference;
pub mod rpc;
pub mod shape;

pub use methods::{Method, Request};
pub use rpc::{Params, RpcFault, RpcResult};

/// The answer of a method as JSON.
///
/// # Errors
/// The answer cannot be said in JSON, which no type of this crate makes happen.
pub fn reply(answer: &impl serde::Serialize) -> RpcResult {
    serde_json::to_value(answer)
        .map_err(|error| RpcFault::refused("EIO", format!("the answer cannot be written: {error}")))
}
