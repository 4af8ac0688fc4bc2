//! headworks-control(7): the control protocol, from the table that the server checks requests by.
//!
//! The page is in packaging/man; a test compares it with what `headworks man --control` prints.

use headworks_server::{CONTROL_METHODS, ControlMethod};

use crate::man::escaped;

const HEAD: &str = r#".TH HEADWORKS\-CONTROL 7 "" "headworks 0.1.0" Headworks
.ad l
.SH NAME
headworks\-control \- the control protocol of a Headworks server
.SH DESCRIPTION
A server with a control socket (serve \-\-control) accepts requests in JSON\-RPC 2.0, one object or batch per line.
headworks\-ctl(1) is a client of it.
The server accepts its own user and root, whatever the mode of the socket.
.PP
.nf
{"jsonrpc":"2.0","id":1,"method":"get","params":{"path":"hw0/queue/nr_requests"}}
{"jsonrpc":"2.0","id":1,"result":{"hw0/queue/nr_requests":256}}
{"jsonrpc":"2.0","id":2,"method":"set","params":{"path":"hw0/queue/nr_requests","value":0}}
{"jsonrpc":"2.0","id":2,"error":{"code":\-32000,"message":"...","data":{"errno":"EINVAL","accepted":"1..=4096"}}}
.fi
.PP
Parameters are an object; an unknown one is an error.
"#;

const TAIL: &str = r#".SH ERRORS
.TP
.B \-32700, \-32600, \-32601, \-32602
the line is not JSON, the request is malformed, there is no such method, the parameters do not fit
.TP
.B \-32000
the method failed; data has the name of an errno, and what would be accepted where that is known.
EEXIST: the name is taken.
ENOENT: there is no such path, export or tenant.
EBUSY: it has clients, or another change is in progress.
ENOSPC: a limit is reached, or there is no space for an image.
EINVAL, EROFS, EACCES, EIO, ENOTSUP and ESHUTDOWN have their usual meaning.
.SH LIMITS
16 clients, 64 KiB a line, 32 requests a batch, 60 s without a request.
.SH SEE ALSO
headworks\-ctl(1), headworks\-serve(1), headworks\-tuning(7)
"#;

/// Renders the page as troff source.
pub fn page() -> String {
    let methods: String = CONTROL_METHODS.iter().map(section).collect();
    format!("{HEAD}.SH METHODS\n{methods}{TAIL}")
}

fn section(method: &ControlMethod) -> String {
    let mut text = format!(".SS {}\n{}\n", escaped(method.name), escaped(method.about));
    for one in method.parameters {
        text += &entry('I', one.name, &format!("{}: {}", one.kind, one.about));
    }
    text += &format!(".PP\nThe result is {}.\n", escaped(method.result));
    for (name, about) in method.fields {
        text += &entry('B', name, about);
    }
    text
}

/// A tagged paragraph; parameters are in italics, fields of results bold.
fn entry(font: char, name: &str, about: &str) -> String {
    format!(".TP\n.{font} {}\n{}\n", escaped(name), escaped(about))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_page_is_that_of_the_table() {
        let installed = include_str!("../../../packaging/man/headworks-control.7");
        assert!(
            installed == page(),
            "make it again: headworks man --control >packaging/man/headworks-control.7"
        );
    }
}
