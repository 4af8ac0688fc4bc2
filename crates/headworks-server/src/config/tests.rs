//! Meaning of valid files, and messages for invalid ones.

use super::*;
use headworks_core::options::Scheduler;

fn file(text: &str) -> ConfigFile {
    ConfigFile::parse("f", text).unwrap_or_else(|problems| panic!("{problems}"))
}

fn wrong(text: &str) -> String {
    let (file, problems) = ConfigFile::read("f", text);
    match problems.or(()) {
        Err(problems) => problems.to_string(),
        Ok(()) => file.plan(None, false).unwrap_err().to_string(),
    }
}

const BOTH: &str = r#"
[server]
port = 10809
cpus = [0, 1]
spread = true
cache = "4G"
[server.vm]
dirty_bytes = "256M"
hw_throttle = "none"
[server.queue]
nr_requests = 64
iosched.fifo_batch = 32
[[device]]
name = "fast"
[device.queue]
scheduler = "mq-deadline"
nr_requests = 128
[[export]]
name = "db"
device = "fast"
weight = 400
ioprio = "rt:0"
cache = "writethrough"
on-error = "retry"
read-only = true
file = { path = "/srv/a,b \"c\".img", size = "10G", direct = false }
wrap = [{ error = { rate = 0.01, errno = "EIO" } }, { delay = { read = "5ms" } }]
[[export]]
name = ""
mem = { size = 65536 }
"#;

#[test]
fn file_expresses_every_specification() {
    let file = file(BOTH);
    let specs = file.plan(None, false).unwrap();
    let text = "error:weight=400,ioprio=rt:0,cache=writethrough,on-error=retry,rate=1%,errno=EIO,\
                of=delay:read=5ms,of=file:path=/srv/a,,b \"c\".img,size=10G,direct=off";
    let (spec, share) = crate::spec::Spec::parse_export(text).unwrap();
    assert_eq!((&specs[0].spec, specs[0].share), (&spec, share));
    assert!(specs[0].read_only && !specs[1].read_only);
    let fast = specs[0].device.as_ref().unwrap();
    assert_eq!((fast.name.as_str(), fast.queue.len()), ("fast", 3));
    assert_eq!((&specs[1].device, specs[1].name.as_str()), (&None, ""));
    assert_eq!(specs[1].spec.size(), Some(65536));
    let server: Vec<_> = file.server.iter().map(|s| (&s.name[..], s.value.words())).collect();
    assert_eq!(server[0], ("cache", &["4G".to_owned()][..]));
    assert_eq!(server[1], ("cpus", &["0".to_owned(), "1".to_owned()][..]));
    let dirty = dirty_options(&file.vm).unwrap();
    assert_eq!((dirty.dirty_bytes, DirtyTunable::Throttle.get(&dirty)), (256 << 20, 2));
}

#[test]
fn device_tunables_override_global_and_command_line_overrides_both() {
    let depth = |file: &ConfigFile, device| {
        let mut options = QueueOptions::default();
        file.apply_queue(device, &mut options).unwrap();
        (options.nr_requests, options.deadline.fifo_batch, options.scheduler)
    };
    let file = file(BOTH);
    assert_eq!(depth(&file, None), (64, 32, Scheduler::None));
    assert_eq!(depth(&file, Some("fast")), (128, 32, Scheduler::MqDeadline));
    for origin in [Origin::Environment, Origin::CommandLine] {
        let tuned = Tuned { tunable: Tunable::NrRequests, value: 7, origin };
        let told = file.clone().merged(ConfigFile { queue: vec![tuned], ..ConfigFile::default() });
        assert_eq!(depth(&told, None), (7, 32, Scheduler::None));
        assert_eq!(depth(&told, Some("fast")), (7, 32, Scheduler::MqDeadline));
        let shown = told.with_defaults();
        assert!(shown.devices[0].queue.iter().any(|tuned| tuned.value == 7));
    }
}

#[test]
fn later_file_wins_by_name() {
    let later = file(
        "[server]\nport = 1\n[server.vm]\ndirty_ratio = 5\n[[device]]\nname = 'fast'\n\
         queue.nr_requests = 9\n[[device]]\nname = 'slow'\n\
         [[export]]\nname = 'db'\nnull.size = '1G'\n[[export]]\nname = 'new'\nnull.size = '2G'\n",
    );
    let both = file(BOTH).merged(later);
    let port = both.server.iter().find(|setting| setting.name == "port").unwrap();
    assert_eq!((port.word(), both.server.len()), ("1", 4));
    let dirty = dirty_options(&both.vm).unwrap();
    assert_eq!((dirty.dirty_bytes, dirty.dirty_ratio), (0, 5));
    let names: Vec<&str> = both.exports.iter().map(|export| export.name.as_str()).collect();
    assert_eq!(names, ["db", "", "new"]);
    assert_eq!(both.exports[0].parts[0].kind, "null");
    assert_eq!((both.devices.len(), both.devices[0].queue.len()), (2, 2));
    assert_eq!(both.notes(), ["device `fast` has no exports", "device `slow` has no exports"]);
}

#[test]
fn problem_has_line_column_and_remedy() {
    for (text, at, words) in [
        ("[server", "f:1:8", "this is not TOML"),
        ("\n\n[sever]", "f:3:2", "a file has no `sever`; the nearest is `server`"),
        ("server = 5", "f:1:10", "server is a table, not a number"),
        ("[server]\nport = {}", "f:2:1", "server has no `port`"),
        ("[server]\nport = 1979-05-27", "f:2:8", "port is one value, not a date"),
        ("[server]\nunix-mode = 0o660", "f:2:13", "numbers are decimal here"),
        ("[server]\nunix = \"a\\u0000\"", "f:2:8", "zero byte"),
        ("[server.vm]\ndirty_byte = 1", "f:2:1", "the nearest is `dirty_bytes`"),
        ("[server.vm]\ndirty_bytes = 1", "f:2:15", "8192.."),
        ("[server.vm]\ndirty_bytes = '1GB'", "f:2:15", "write 1G"),
        ("[server.vm]\ndirty_bytes = '1G'\ndirty_ratio = 5", "f:3:1", "keep one"),
        ("[server.queue]\nnr_request = 1", "f:2:1", "the nearest is `nr_requests`"),
        ("[server.queue]\nnr_requests = 0", "f:2:15", "nr_requests: 0 is not within 1..=4096"),
        ("[server.queue]\nnr_requests = []", "f:2:15", "nr_requests is one value, not a list"),
        ("[server.queue]\nfifo_batch = 1", "f:2:1", "stands in [server.queue.iosched]"),
        (
            "[server.queue]\n'iosched/fifo_batch' = 1",
            "f:2:1",
            "write fifo_batch in [server.queue.iosched]",
        ),
        ("[server.queue]\nwrite_cache = 1", "f:2:1", "describes the device"),
        ("[server.queue.iosch]\nx = 1", "f:1:15", "the nearest is `iosched`"),
        ("[server.queue.iosched]\nx = 1", "f:2:1", "it has read_expire, write_expire"),
        ("[server.queue]\nscheduler = 'cfq'", "f:2:13", "not one of none, mq-deadline, bfq"),
        ("device = 'x'", "f:1:10", "write [[device]] once for each"),
        ("[[device]]\nqueue = {}", "f:1:1", "needs a name"),
        ("[[device]]\nname = 'a b'", "f:2:8", "letters, digits"),
        ("[[device]]\nname = 'a'\nnr_requests = 1", "f:3:1", "it has name, queue"),
        ("[[export]]\nmem.size = 1", "f:1:1", "an [[export]] needs a name"),
        (
            "[[export]]\nname = 'a'",
            "f:2:8",
            "needs one of file, nbd, null, mem, overlay, qcow2, vmdk, rbd, as in file = {",
        ),
        (
            "[[export]]\nname = 'a'\nread_only = true\nmem.size = 1",
            "f:3:1",
            "the nearest is `read-only`",
        ),
        (
            "[[export]]\nname = 'a'\nmem.size = 1\nnull.size = 1",
            "f:4:1",
            "a mem and a null: keep one",
        ),
        ("[[export]]\nname = 'a'\nfile = '/x'", "f:3:8", "write file = { path = \"/x\" }"),
        ("[[export]]\nname = 'a'\nfile.pth = '/x'", "f:3:6", "the nearest is `path`"),
        ("[[export]]\nname = 'a'\nfile.weight = 5", "f:3:6", "belongs to the [[export]]"),
        ("[[export]]\nname = 'a'\nfile = {}", "f:3:1", "export a: path: a file needs one"),
        ("[[export]]\nname = 'a'\nmem = {}", "f:3:1", "export a: size: mem: needs a size"),
        ("[[export]]\nname = 'a'\nmem.size = 0", "f:3:5", "a size of 0 cannot be served"),
        ("[[export]]\nname = 'a'\nmem.size = '1GB'", "f:3:5", "write 1G"),
        ("[[export]]\nname = ''\nmem.size = 1\nweight = 0", "f:4:1", "export default: weight: `0`"),
        ("[[export]]\nname = 'a'\nmem.size = 1\nread-only = 'so'", "f:4:1", "neither on nor off"),
        ("[[export]]\nname = 'a'\nmem.size = 1\ndelay = {}", "f:4:1", "write wrap = [{ delay"),
        ("[[export]]\nname = 'a'\nmem.size = 1\nwrap = 'x'", "f:4:8", "wrap is a list"),
        (
            "[[export]]\nname = 'a'\nmem.size = 1\nwrap = [{}]",
            "f:4:9",
            "one of delay, error, powercut, model in each",
        ),
        (
            "[[export]]\nname = 'a'\nmem.size = 1\nwrap = [{ mem = {} }]",
            "f:4:11",
            "it has delay, error, powercut, model",
        ),
        (
            "[[export]]\nname = 'a'\nmem.size = 1\nwrap = [{delay.read=1},{delay.read='5m'}]",
            "f:4:31",
            "read: `5m` is not a time",
        ),
        (
            "[[export]]\nname = 'a'\nmem.size = 1\ndevice = 'b'",
            "f:4:1",
            "no [[device]] with the name `b`",
        ),
        (
            "[[device]]\nname = 'fast'\n[[export]]\nname = 'a'\nmem.size = 1\ndevice = 'fats'",
            "f:6:1",
            "the nearest is `fast`",
        ),
        (
            "[[export]]\nname = 'a'\nmem.size = 1\n[[export]]\nname = 'a'\nmem.size = 1",
            "f:5:8",
            "two exports are named `a`; the other is in file f:2",
        ),
        (
            "[[device]]\nname='d'\n[[export]]\nname = 'a'\nmem.size = 1\ndevice = 'd'\n\
             [[export]]\nname = 'b'\nfile.path = 'x'\ndevice = 'd'",
            "f:4:8",
            "export `a` cannot share the device `d`",
        ),
    ] {
        let message = wrong(text);
        assert!(message.starts_with(&format!("{at}: ")), "{text}\n{message}");
        assert!(message.contains(words), "{text}\n{message}");
    }
}

#[test]
fn all_problems_are_reported_in_order() {
    let text =
        "[server]\nport = {}\n[server.vm]\nx = 1\n[[export]]\nname = 'a'\nmem.sise = 1\nfoo = 2";
    let message = wrong(text);
    let places: Vec<&str> = message.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["f:2:1", "f:4:1", "f:7:5", "f:8:1"], "{message}");
    assert!(wrong(&"#".repeat(TEXT_MAX + 1)).contains("at most 1048576 bytes"));
}

#[test]
fn mistakes_of_an_export_leave_what_it_opens_known() {
    let text = "[[export]]\nname = 'a'\nweight = 0\nioprio = 'best'\nread-only = 3\nfile.path = '/a'\nfile.size = '5MB'\nfile.direct = 'x'\n\
                [[export]]\nname = 'b'\nmem.size = '1M'\ndelay = 7\nweight = 0\n[[export]]\nname = 'c'\nfile.size = 'y'";
    let (config, read) = ConfigFile::read("f", text);
    assert_eq!(read.0.len(), 1, "{read}");
    let (specs, problems) = config.plan_rest(None, false);
    let message = problems.or(()).unwrap_err().to_string();
    let places: Vec<&str> = message.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(
        places,
        ["f:3:1", "f:4:1", "f:5:1", "f:7:6", "f:8:6", "f:13:1", "f:16:6"],
        "{message}"
    );
    let kept = specs.iter().map(|spec| (spec.name.as_str(), spec.spec.base.path()));
    let wanted = [("a", Some(std::path::Path::new("/a"))), ("b", None)];
    assert_eq!(kept.collect::<Vec<_>>(), wanted);
    let (specs, problems) =
        file("[[export]]\nname = 'd'\nfile.direct = true").plan_rest(None, false);
    assert!(specs.is_empty() && problems.to_string().contains("path"), "{problems}");
}

/// The configuration without origins.
fn bare(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("  # ").next().unwrap().trim_end());
    lines.map(|line| line.split(" # file").next().unwrap()).collect::<Vec<_>>().join("\n")
}

#[test]
fn written_file_parses_to_same_values() {
    let once = file(BOTH).with_defaults();
    let text = once.to_string();
    let again = file(&text);
    assert_eq!(bare(&again.to_string()), bare(&text));
    assert_eq!(again.plan(None, false).unwrap()[0].spec, once.plan(None, false).unwrap()[0].spec);
    for line in [
        "cpus = [0, 1]                            # file f:4",
        "dirty_bytes = \"256M\"                     # file f:8",
        "dirty_background_ratio = 10              # default",
        "queue_depth = 128                        # default",
        "[device.queue]",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("dirty_ratio"), "{text}");
    let odd = "[[export]]\nname = \"a \\\"\\\\ \\u007F\"\nfile.path = '5'\n[server]\n'a b' = '007'\nx = '-5'";
    let text = file(odd).to_string();
    assert!(text.contains("path = \"5\"") && text.contains("\"a b\" = \"007\""), "{text}");
    assert!(text.contains("x = -5") && text.contains(r#"name = "a \"\\ \u007F""#), "{text}");
    assert_eq!(bare(&file(&text).to_string()), bare(&text));
}

#[test]
fn command_line_specification_makes_export_section() {
    let text = "delay:read=5ms,weight=7,ioprio=idle,cache=none,on-error=retry,of=/a,b";
    let export =
        ExportSection::from_words(&format!("n={text}"), true, &Origin::CommandLine).unwrap();
    let spec = export.plan(None, false).unwrap();
    let (expected, share) = crate::spec::Spec::parse_export(text).unwrap();
    assert_eq!((spec.spec, spec.share), (expected, share));
    let written = ConfigFile { exports: vec![export], ..ConfigFile::default() }.to_string();
    assert!(
        written.contains("weight = 7                               # command line"),
        "{written}"
    );
    assert_eq!(file(&written).plan(None, false).unwrap()[0].share, share);
    assert!(ExportSection::from_words("mem:sise=1", true, &Origin::CommandLine).is_err());
}

#[test]
fn key_of_a_wrapper_is_not_that_of_the_export_of_the_same_name() {
    let export = "[[export]]\nname = \"a\"\ncache = \"none\"\nmem = { size = \"1M\" }\n";
    let text = format!("{export}wrap = [{{ powercut = {{ seed = 7, cache = \"1M\" }} }}]\n");
    let specs = file(&text).plan(None, false).unwrap();
    let (expected, _) =
        crate::spec::Spec::parse_export("delay:of=powercut:seed=7,cache=1M,of=mem:size=1M")
            .unwrap();
    assert_eq!(specs[0].spec.wrappers, expected.wrappers[1..]);
    assert_eq!(specs[0].share.mode, Some(headworks_core::WriteMode::None));
}

const TENANTS: &str = r#"
[[tenant]]
name = "acme"
weight = 400
ioprio-max = "be:2"
exports = ["db", "web-*"]
[[tenant]]
name = "beta"
[[export]]
name = "db"
mem = { size = 65536 }
[[export]]
name = "web-1"
tenant = "beta"
mem = { size = 65536 }
[[export]]
name = "web-2"
tenant = "none"
mem = { size = 65536 }
[[export]]
name = "logs"
mem = { size = 65536 }
"#;

#[test]
fn exports_belong_to_the_tenant_that_they_name_or_that_lists_them() {
    let tenants = |file: &ConfigFile| -> Vec<Option<String>> {
        let specs = file.plan(None, false).unwrap();
        specs.iter().map(|spec| spec.share.tenant.map(|name| name.to_string())).collect()
    };
    let names = [Some("acme".to_owned()), Some("beta".to_owned()), None, None];
    assert_eq!(tenants(&file(TENANTS)), names);
    let [acme, beta] = file(TENANTS).plan_tenants().unwrap()[..] else { panic!("two tenants") };
    assert_eq!((acme.options.weight, beta.options.weight), (400, 100));
    assert_eq!(acme.options.ioprio_max.unwrap().to_string(), "be,2");
    // A later file changes single values; a command line, too.
    let later = file("[[tenant]]\nname = 'acme'\nweight = 7\n[[tenant]]\nname = 'gamma'");
    let both = file(TENANTS).merged(later);
    let words = TenantSection::from_words("beta,weight=100,ioprio-max=idle", &Origin::CommandLine);
    let tenants_only = ConfigFile { tenants: vec![words.unwrap()], ..ConfigFile::default() };
    let both = both.merged(tenants_only);
    let planned = both.plan_tenants().unwrap();
    let words: Vec<String> =
        planned.iter().map(|one| format!("{:?}", one.options.words())).collect();
    assert!(words[0].contains("\"7\"") && words[0].contains("be,2"), "{words:?}");
    assert!(planned[1].options.weight == 100 && words[1].contains("idle"), "{words:?}");
    assert_eq!((planned.len(), tenants(&both)), (3, names.to_vec()));
}

#[test]
fn mistakes_of_tenants_are_named_with_their_position() {
    let with = |change: &str| wrong(&(TENANTS.to_owned() + change));
    for (text, said) in [
        ("[[tenant]]\nname = 'acme'", "two tenants are named `acme`"),
        ("[[tenant]]\nweight = 1", "a [[tenant]] needs a name"),
        ("[[tenant]]\nname = 'none'", "the word for no tenant"),
        ("[[tenant]]\nname = 'a b'", "no name of a tenant"),
        ("[[tenant]]\nname = 'c'\nwieght = 1", "the nearest is `weight`"),
        ("[[tenant]]\nname = 'c'\nexports = 'db'", "is listed by the tenants `acme` and `c`"),
        ("[[export]]\nname = 'x'\ntenant = 'acmee'\nmem.size = 512", "the nearest is `acme`"),
        ("[[export]]\nname = 'x'\nmem = { size = 512, tenant = 'acme' }", "tenant belongs to"),
    ] {
        let message = with(text);
        assert!(message.contains(said) && message.starts_with("f:"), "{text}: {message}");
    }
    let file = file(&(TENANTS.to_owned() + "[[tenant]]\nname = 'c'\nweight = 0"));
    let message = file.plan_tenants().unwrap_err().to_string();
    assert!(message.contains("tenant c: weight: `0` is not a weight"), "{message}");
}
