//! What users of nbdkit, qemu-nbd and qemu-storage-daemon type by habit, and what to write instead.
//!
//! An option that `serve` has with the same meaning is taken and not in this table; one that it lacks, or that means different
//! things there, is refused by one sentence. Options are looked up when the command line was refused anyway, plugin
//! words only when no file has that name: nothing here can change what a valid line means.

use std::path::Path;

/// Spellings and the sentence that answers them.
type Answer = (&'static [&'static str], &'static str);

/// Options of other servers.
const OPTIONS: &[Answer] = &[
    (
        &["--daemon", "--daemonize", "--fork", "--background"],
        "`serve` has no daemon mode and stays in the foreground; `systemctl start headworks@NAME`, `systemd-run headworks serve ...` or a `&` behind the command runs it in the background",
    ),
    (
        &["--foreground", "--no-fork"],
        "`serve` always stays in the foreground; leave this option away",
    ),
    (
        &["-f", "--format"],
        "`serve` always stays in the foreground, and images are raw unless the SPEC names a format; leave `-f` away, or write qcow2:path=FILE or vmdk:path=FILE",
    ),
    (&["--image-opts"], "an image is a SPEC: FILE, qcow2:path=FILE or nbd:uri=URI"),
    (
        &["-t", "--threads", "--persistent"],
        "`serve` goes on when clients leave, as `qemu-nbd -t` does, and needs no threads for requests; leave `-t` away, or give --shards N to use more CPUs",
    ),
    (
        &["-e", "--shared"],
        "any number of clients share an export, up to --connections; leave `-e` away",
    ),
    (
        &["-x", "--export-name", "--exportname"],
        "an export's name stands before its SPEC: headworks serve NAME=FILE",
    ),
    (
        &["--filter"],
        "there are no filters: parts of an image (offset=, length=, partition=), limits (bps-read=), caches (cache=), and wrappers (delay:, error:, of=FILE) are keys and types of a SPEC; nbdkit with its filters can be served from: nbd:uri=nbd+unix:///?socket=PATH",
    ),
    (
        &["--offset"],
        "where a part of an image begins is a key of its SPEC, and so is its length: file:path=FILE,offset=1M,length=512M",
    ),
    (&["--partition"], "a partition is named by a key of its SPEC: file:path=FILE,partition=2"),
    (
        &["--tls-psk", "--tls-creds", "--tls-authz"],
        "pre-shared keys are not supported; use certificates: --tls require --tls-certificates DIR, and --tls-verify-peer for those of clients",
    ),
    (
        &["--exit-with-parent"],
        "`serve --run CMD` ends with the command; to end with another parent, start it by `setpriv --pdeathsig TERM headworks serve ...`",
    ),
    (&["-k", "--socket"], "the unix socket is given by -U PATH (--unix)"),
    (
        &["-b", "--bind", "--ipaddr"],
        "the TCP address is given by -i ADDR (--ip-addr), with -p PORT",
    ),
    (&["--pidfile"], "the file for the process id is given by -P FILE (--pid-file)"),
    (&["-g", "--group"], "the group is given with the user: --user USER:GROUP"),
    (
        &["-s", "--snapshot"],
        "to keep the image unchanged, make an overlay: headworks image create --base FILE test.hwo, and serve overlay:path=test.hwo",
    ),
    (
        &["-l", "--load-snapshot"],
        "internal snapshots of qcow2 are not read; qemu-img convert -l SNAPSHOT writes one into an image of its own",
    ),
    (&["-L", "--list"], "`headworks info URI` lists the exports of a server"),
    (
        &["--connect", "-d", "--disconnect"],
        "`serve` does not attach the kernel's client; nbd-client -unix PATH /dev/nbd0 does, and nbd-client -d /dev/nbd0 ends it",
    ),
    (
        &["-B", "--bitmap", "-A", "--allocation-depth"],
        "exports have base:allocation and no other metadata context; leave this option away",
    ),
    (
        &["-D", "--description", "--debug"],
        "an export has no free description (describe=on shows its SPEC to clients); -v and -vv log more",
    ),
    (&["--trace", "-T"], "-v and -vv log more; `headworks ctl why` says where requests wait"),
    (
        &["-n", "--nocache", "--aio"],
        "the cache of an export is a key of its SPEC: FILE,cache=none (no page cache, O_DIRECT where it works) or cache=writethrough",
    ),
    (
        &["--discard", "--detect-zeroes"],
        "trims are passed on to the image, and zeroes are written as given; leave this option away",
    ),
    (
        &["-o"],
        "where a part of an image begins (-o of qemu-nbd) is a key of its SPEC: file:path=FILE,offset=1M; only the newstyle handshake is spoken (-o of nbdkit)",
    ),
    (
        &["--newstyle", "--oldstyle"],
        "only the newstyle handshake is spoken; leave this option away",
    ),
    (
        &[
            "--no-sr",
            "--no-mc",
            "--no-eh",
            "--no-structured-replies",
            "--no-meta-contexts",
            "--mask-handshake",
        ],
        "what a client does not negotiate is not used; leave this option away",
    ),
    (&["--handshake-limit"], "the time of a handshake is limited by --handshake-timeout TIME"),
    (&["--vsock"], "sockets are unix (-U PATH) or TCP (-p PORT)"),
    (
        &["--swap"],
        "`systemctl` or `choom -n -1000` protect a server that holds swap; leave this option away",
    ),
    (
        &["--selinux-label"],
        "the socket gets the label of its directory's policy; chcon sets another",
    ),
    (
        &["--blockdev", "--export", "--nbd-server", "--chardev", "--monitor", "--object"],
        "exports are SPECs on the command line or sections of a file (--config), sockets are --listen, and the control socket is --control",
    ),
    (
        &["--single"],
        "a client is reached by a socket (-U PATH or -p PORT) and not by standard input",
    ),
];

/// Plugins of nbdkit, with what stands for `PLUGIN OPERAND` here; `{}` is the operand.
const PLUGINS: &[Answer] = &[
    (&["file"], "an image is named by its path alone: headworks serve {}"),
    (&["memory"], "a disk in memory is mem:size={}"),
    (&["null"], "a disk without data is null:size={}"),
    (&["nbd"], "an export of another NBD server is nbd:uri={}"),
    (&["vddk"], "a VMDK image is vmdk:path={}, read-only"),
    (
        &["cow", "tmpdisk"],
        "a scratch disk is mem:size={}; one on a base is an overlay: headworks image create --base FILE disk.hwo",
    ),
    (
        &[
            "curl",
            "ssh",
            "S3",
            "python",
            "perl",
            "sh",
            "eval",
            "pattern",
            "data",
            "split",
            "floppy",
            "iso",
            "partitioning",
            "random",
            "zero",
            "full",
            "sparse-random",
        ],
        "this plugin of nbdkit has no counterpart; let nbdkit serve it on a unix socket, and name that here: nbd:uri=nbd+unix:///?socket=PATH",
    ),
];

/// The answer to an option that `serve` does not have, as another server spells it.
pub fn option_answer(option: &str) -> Option<&'static str> {
    OPTIONS.iter().find(|(spellings, _)| spellings.contains(&option)).map(|(_, answer)| *answer)
}

/// The answer to operands that begin with a plugin of nbdkit, such as `memory 1G`; none if a file has the plugin's name.
pub fn plugin_answer(operands: &[String]) -> Option<String> {
    let [plugin, operand, ..] = operands else { return None };
    let (_, answer) = PLUGINS.iter().find(|(plugins, _)| plugins.contains(&plugin.as_str()))?;
    // nbdkit's parameters have names, which these plugins let out: file=disk.img, size=1G.
    let operand = operand.split_once('=').map_or(operand.as_str(), |(_, value)| value);
    (!Path::new(plugin).exists()).then(|| answer.replace("{}", operand))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::{ContextKind, ErrorKind};

    #[test]
    fn every_spelling_is_refused_by_the_command_line_and_has_one_answer() {
        let mut seen = std::collections::BTreeSet::new();
        for option in OPTIONS.iter().flat_map(|(spellings, _)| *spellings) {
            assert!(seen.insert(option), "{option} stands twice");
            let error = crate::command().try_get_matches_from(["headworks", "serve", option, "x"]);
            let error = error.expect_err(option);
            assert_eq!(error.kind(), ErrorKind::UnknownArgument, "{option}");
            let name = error.get(ContextKind::InvalidArg).map(ToString::to_string);
            assert_eq!(name.as_deref(), Some(*option), "as the answer is looked up");
            assert!(!option_answer(option).unwrap().contains('\n'));
        }
        assert_eq!(option_answer("--read-only"), None);
    }

    #[test]
    fn plugin_words_are_answered_with_the_spec() {
        let answer = |words: &[&str]| {
            plugin_answer(&words.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(answer(&["memory", "1G"]).unwrap(), "a disk in memory is mem:size=1G");
        assert_eq!(answer(&["memory", "size=1G"]).unwrap(), "a disk in memory is mem:size=1G");
        assert!(answer(&["file", "disk.img"]).unwrap().ends_with("headworks serve disk.img"));
        assert_eq!(answer(&["disk.img", "memory"]), None);
        assert_eq!(answer(&["memory"]), None, "a path");
    }
}
