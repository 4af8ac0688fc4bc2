//! Precedence of option sources, positions of errors, and dumps that serve the same as their source.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use headworks_core::QueueOptions;
use headworks_server::config::{Origin, dirty_options};
use headworks_server::{CacheSize, ServerOptions};

use super::super::{EffectiveOptions, plan};
use super::{OptionError, resolve};

/// A directory with a file `a.toml`.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, text: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("headworks-layers-{name}-{}", std::process::id()));
        std::fs::create_dir_all(path.join("a.d")).unwrap();
        let folder = Self(path);
        folder.write("a.toml", text);
        folder
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    fn file(&self) -> String {
        self.0.join("a.toml").display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn resolved(words: &str, variables: &[(&str, &str)]) -> Result<EffectiveOptions, OptionError> {
    let words = ["headworks", "serve"].into_iter().chain(words.split_whitespace());
    let words: Vec<OsString> = words.map(OsString::from).collect();
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    resolve(&words, &variables.iter().map(pair).collect::<BTreeMap<_, _>>())
}

/// Value of an option and its origin.
fn setting_of(effective: &EffectiveOptions, name: &str) -> (String, &'static str) {
    let setting = effective.config.server.iter().find(|setting| setting.name == name).unwrap();
    let origin = match setting.origin {
        Origin::Default => "default",
        Origin::File(_) => "file",
        Origin::Environment => "environment",
        Origin::CommandLine => "command line",
        Origin::Control => "ctl",
    };
    (setting.value.words().join(" "), origin)
}

#[test]
fn command_line_overrides_environment_overrides_file() {
    let text = "[server]\nport = 1\ncache = '1M'\ncpus = [0, 1]\nspread = true\nverbose = 1\n\
                ip-addr = '::1'\nread-only = true\nunix = '/f'";
    let folder = Folder::new("wins", text);
    let variables = [
        ("HEADWORKS_CACHE", "2M"),
        ("HEADWORKS_CPUS", "2,3"),
        ("HEADWORKS_SPREAD", "off"),
        ("HEADWORKS_VERBOSE", "2"),
        ("HEADWORKS_SHARDS", "2"),
        ("HEADWORKS_UNIX", "/e"),
    ];
    let words =
        format!("-c {} mem:size=1M --shards 3 --cpus 4 -U /c --read-only=off", folder.file());
    let effective = resolved(&words, &variables).unwrap();
    for (name, value, origin) in [
        ("port", "1", "file"),
        ("ip-addr", "::1", "file"),
        ("cache", "2M", "environment"),
        ("spread", "false", "environment"),
        ("verbose", "2", "environment"),
        ("shards", "3", "command line"),
        ("cpus", "4", "command line"),
        ("unix", "/c", "command line"),
        ("read-only", "false", "command line"),
        ("requests", "128", "default"),
        ("control", "", "default"),
    ] {
        assert_eq!(setting_of(&effective, name), (value.to_owned(), origin), "{name}");
    }
    let o = &effective.options;
    assert_eq!(
        (o.listening.port, o.cache, o.verbose, o.threads.shards),
        (Some(1), CacheSize::Bytes(2 << 20), 2, 3)
    );
    assert_eq!((&o.threads.cpus[..], o.threads.spread, o.read_only), (&[4][..], false, false));
    assert_eq!(o.listening.unix.as_deref(), Some(Path::new("/c")));
    // Options set only in the file keep its value, lists and switches too.
    let effective = resolved("mem:size=1M", &[("HEADWORKS_CONFIG", &folder.file())]).unwrap();
    let o = &effective.options;
    assert_eq!(
        (&o.threads.cpus[..], o.threads.spread, o.verbose, o.cache),
        (&[0, 1][..], true, 1, CacheSize::Bytes(1 << 20))
    );
    assert_eq!(setting_of(&effective, "cpus"), ("0 1".to_owned(), "file"));
}

#[test]
fn tunables_merge_one_by_one() {
    let text = "[server.queue]\nnr_requests = 1\nmax_sectors_kb = 64\nnomerges = 2\n\
                [server.vm]\ndirty_bytes = '1M'\nhw_max_pause_ms = 50";
    let folder = Folder::new("tunables", text);
    let variables = [
        ("HEADWORKS_NOMERGES", "1"),
        ("HEADWORKS_NR_REQUESTS", "2"),
        ("HEADWORKS_SET", "iosched/fifo_batch=5 vm/dirty_ratio=7 vm/hw_max_pause_ms=60"),
    ];
    let words =
        format!("-c {} mem:size=1M --nr-requests 3 --set vm/hw_max_pause_ms=70", folder.file());
    let effective = resolved(&words, &variables).unwrap();
    let mut queue = QueueOptions::default();
    effective.config.apply_queue(None, &mut queue).unwrap();
    let found = (queue.nr_requests, queue.max_sectors_kb, queue.nomerges as u8);
    assert_eq!((found, queue.deadline.fifo_batch), ((3, 64, 1), 5));
    let dirty = dirty_options(&effective.config.vm).unwrap();
    assert_eq!((dirty.dirty_bytes, dirty.dirty_ratio, dirty.max_pause_ms), (0, 7, 70));
}

#[test]
fn exports_of_command_line_extend_or_replace_those_of_file() {
    let text = "[[export]]\nname = 'a'\nmem.size = 1\n[[export]]\nname = 'b'\nmem.size = 2";
    let folder = Folder::new("exports", text);
    let names = |words: &str| {
        let effective = resolved(&format!("-c {} {words}", folder.file()), &[]).unwrap();
        let (specs, _) = plan(&effective).unwrap();
        let each = specs.iter().map(|spec| format!("{}={}", spec.name, spec.spec.size().unwrap()));
        each.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(""), "a=1 b=2");
    assert_eq!(names("b=mem:size=3 c=mem:size=4"), "a=1 b=3 c=4");
    // Beside other exports it needs a name.
    assert_eq!(names("mem:size=5"), "a=1 b=2 mem=5");
    let alone = resolved("mem:size=5", &[]).unwrap();
    assert_eq!(alone.config.exports[0].name, "");
    folder.write("a.d/20.toml", "[[export]]\nname = 'a'\nmem.size = 20\n[server]\nport = 20");
    folder.write("a.d/10.toml", "[[export]]\nname = 'a'\nmem.size = 10\n[server]\nport = 10");
    folder.write("a.d/30.conf", "no TOML at all");
    assert_eq!(names(""), "a=20 b=2");
    assert_eq!(
        resolved(&format!("-c {}", folder.file()), &[]).unwrap().options.listening.port,
        Some(20)
    );
}

#[test]
fn errors_name_their_position() {
    let text = "[server]\ncahce = 5\ncache = '5MB'\nport = [1, 2]\nnr-requests = 5\nunix_mode = 600\n\
                config = 'x'\nverbose = 'x'\nspread = 7\nengine = ''\n[[export]]\nname = 5\nfoo = 1";
    let folder = Folder::new("wrong", text);
    let error = resolved(&format!("-c {}", folder.file()), &[]).unwrap_err().to_string();
    let wanted = [
        "2:1: server has no `cahce`; the nearest is `cache`",
        "3:1: cache: `5MB` may mean",
        "4:1: port takes one value, not a list",
        "5:1: nr-requests belongs in [server.queue]",
        "6:1: server has no `unix_mode`; the nearest is `unix-mode`",
        "7:1: config can only be set",
        "8:1: verbose: `x` is not a number",
        "9:1: spread: `7` is neither on nor off",
        "12:8: export `5` needs one of file, nbd, null, mem, overlay",
        "13:1: an [[export]] has no `foo`",
    ];
    for (line, wanted) in error.lines().zip(wanted) {
        assert!(line.contains(&format!("a.toml:{wanted}")), "{wanted}\n{error}");
    }
    assert_eq!(error.lines().count(), wanted.len(), "{error}");
    let refused = |words: &str, variables: &[(&str, &str)]| match resolved(words, variables) {
        Err(wrong) => wrong.to_string(),
        Ok(effective) => plan(&effective).unwrap_err().to_string(),
    };
    let port = refused("", &[("HEADWORKS_PORT", "99999")]);
    assert!(port.starts_with("environment: HEADWORKS_PORT: port: `99999` is no port"), "{port}");
    let set = refused("", &[("HEADWORKS_SET", "vm/dirty_ratio=5 nonsense")]);
    assert!(set.starts_with("environment: HEADWORKS_SET: set: `nonsense` is not"), "{set}");
    assert!(refused("", &[]).starts_with("nothing to serve"));
    assert!(refused("--port x", &[]).contains("--port"));
    // As ctl leaves it that has removed every export.
    for text in ["[server]\n", "[[export]]\nname = 'a'\nenabled = false"] {
        folder.write("a.toml", text);
        let (specs, options) =
            plan(&resolved(&format!("-c {}", folder.file()), &[]).unwrap()).unwrap();
        assert!(specs.is_empty());
        let warnings = super::super::listen::warnings(&specs, &options);
        assert!(warnings[0].starts_with("nothing is served: no [[export]] is enabled"));
    }
    assert!(refused("-c /nowhere/a.toml", &[]).starts_with("cannot read /nowhere/a.toml"));
    folder.write("a.toml", "[server]\n\nshards = 65\n[[export]]\nname = 'a'\nmem.size = 1");
    let shards = refused(&format!("-c {}", folder.file()), &[]);
    assert!(shards.contains("a.toml:3:1: shards: 65 is not within"), "{shards}");
    let note = resolved("mem:size=1", &[("HEADWORKS_CAHCE", "1"), ("HEADWORKS_FOO", "1")]).unwrap();
    assert_eq!(note.notes, ["HEADWORKS_CAHCE is not an option; did you mean HEADWORKS_CACHE?"]);
}

#[test]
fn listener_at_the_servers_own_address_is_refused() {
    for (words, is_twin) in [
        ("-U /run/a.sock --listen unix=/run/a.sock mem:size=1M", true),
        ("-p 7 --listen address=127.0.0.1:7 mem:size=1M", true),
        ("-U /run/a.sock -p 7 --listen unix=/run/b.sock mem:size=1M", false),
    ] {
        let planned = plan(&resolved(words, &[]).unwrap());
        let said = planned.err().map(|problems| problems.to_string()).unwrap_or_default();
        assert_eq!(said.contains("offers every export there"), is_twin, "{words}: {said}");
    }
    let twice = "--listen unix=/a,name=x --listen unix=/b,name=x mem:size=1M";
    assert!(resolved(twice, &[]).unwrap_err().to_string().contains("two listeners are named `x`"));
}

/// A dump without its origin comments.
fn bare(dump: &str) -> String {
    let line =
        |line: &str| line.split("  #").next().unwrap().split(" # ").next().unwrap().to_owned();
    dump.lines().map(|text| line(text).trim_end().to_owned() + "\n").collect()
}

#[test]
fn dump_serves_the_same_exports_as_its_source() {
    let folder = Folder::new("dump", "");
    for words in [
        "mem:size=1M",
        "-U /run/x.sock --unix-mode 660 -p 0 -i ::1 --control /run/x.ctl -r a=x,y.img b=null:size=1T",
        "--size 10G --engine threads --poll-us 0 --shards 3 --spread --cpus 1,0 -P /run/p x.img",
        "--run true$uri --record r --cache 0 --buffers 65M --connections 5 --requests 6 -vv --json m=mem:size=5K",
        "--handshake-timeout 5ms --stall-timeout 1 --stop-timeout 0 --scheduler mq-deadline --nr-requests 5 \
         --queue-depth 6 --max-sectors-kb 64 --max-segments 7 --nomerges 1 --io-timeout 5 \
         --set iosched/fifo_batch=3 --set vm/dirty_bytes=64M --set vm/dirty_background_ratio=0 mem:size=1M",
        "--listen unix=/run/a.sock,mode=0660,exports=a-*+m,tenant=acme --listen address=[::1]:7 m=mem:size=1M",
        "error:rate=1%,weight=5,ioprio=idle,cache=unsafe,on-error=retry,of=delay:read=5ms,of=mem:size=1M",
    ] {
        let effective = resolved(words, &[]).unwrap();
        let planned = plan(&effective).unwrap();
        let dump = effective.config.with_defaults().to_string();
        folder.write("a.toml", &dump);
        let again = resolved(&format!("-c {}", folder.file()), &[]).unwrap();
        let replanned = plan(&again).unwrap();
        assert_eq!(bare(&again.config.clone().with_defaults().to_string()), bare(&dump), "{words}");
        assert_eq!(server(&replanned.1), server(&planned.1), "{words}");
        for (again, first) in replanned.0.iter().zip(&planned.0) {
            assert_eq!((&again.name, &again.spec), (&first.name, &first.spec), "{words}");
            assert_eq!((again.share, again.read_only), (first.share, first.read_only), "{words}");
        }
        let mut queues = [QueueOptions::default(); 2];
        settled_queue(words, &mut queues[0]);
        again.config.apply_queue(None, &mut queues[1]).unwrap();
        assert_eq!(queues[0], queues[1], "{words}");
    }
}

/// A server with a file is live, because the file can be reloaded; queues are compared by their effective options.
fn server(options: &ServerOptions) -> String {
    format!("{:?}", ServerOptions { live: true, queue: Vec::new(), ..options.clone() })
}

fn settled_queue(words: &str, queue: &mut QueueOptions) {
    resolved(words, &[]).unwrap().config.apply_queue(None, queue).unwrap();
}

#[test]
fn example_file_is_a_valid_configuration() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/headworks.toml");
    let effective = resolved(&format!("-c {path}"), &[]).unwrap();
    let (specs, server) = plan(&effective).unwrap();
    assert_eq!((specs.len(), effective.config.devices.len(), effective.notes.len()), (23, 1, 0));
    assert_eq!((server.cache, server.dirty.dirty_bytes), (1 << 30, 256 << 20));
    // Commented options must be valid, too, if each is one line of [server].
    let text = std::fs::read_to_string(path).unwrap();
    let (server, _) = text.split_once("\n[server.vm]").unwrap();
    let all: String = server
        .lines()
        .map(|line| line.strip_prefix("#:").unwrap_or(line).to_owned() + "\n")
        .collect();
    let folder = Folder::new("example", &(all + "[[export]]\nname = ''\nmem.size = '1M'"));
    let effective = resolved(&format!("-c {}", folder.file()), &[]).unwrap();
    plan(&effective).unwrap();
    let unset: Vec<&str> = effective
        .config
        .server
        .iter()
        .filter(|s| s.origin == Origin::Default)
        .map(|s| s.name.as_str())
        .collect();
    // --run, --record and --json are for the command line.
    assert_eq!(unset, ["json", "record", "run"], "packaging/headworks.toml shows every option");
}
