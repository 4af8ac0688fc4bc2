//! headworks-control(7): the control protocol, from the types of its requests and answers.
//!
//! The page is in packaging/man; a test compares it with what `headworks man --control` prints.

const HEAD: &str = r#".TH HEADWORKS\-CONTROL 7 "" "headworks 0.2.0" Headworks
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
Answers keep the names and types of their fields between versions; a later version may add fields.
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
    format!("{HEAD}{}{TAIL}", headworks_control::reference::sections())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_page_is_that_of_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/man/headworks-control.7");
        if std::env::var_os("ANSWERS").is_some_and(|what| what == "write") {
            std::fs::write(path, page()).unwrap();
        }
        let installed = std::fs::read_to_string(path).unwrap();
        assert!(
            installed == page(),
            "make it again: headworks man --control >packaging/man/headworks-control.7"
        );
    }
}
