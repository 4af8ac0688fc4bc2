#!/usr/bin/env bash
# matrix: once
# A configuration file: served, checked, dumped, overruled, and read again.
. "$(dirname "$0")/lib.sh"

FILE=$DIR/main.toml
mkdir -p "$DIR/main.d"
uri() { echo "nbd+unix:///$1?socket=$SOCKET"; }
get() { "$HEADWORKS" ctl "$CONTROL" get "$1" | sed 's/^.* = //'; }
is() { test "$(get "$1")" = "$2" || { get "$1"; false; }; }
said() { grep -q -- "$1" "$LOG"; }

cat >"$FILE" <<E
[server]
unix = "$SOCKET"
control = "$CONTROL"
cache = "16M"
[server.vm]
dirty_bytes = "4M"
[server.queue]
nr_requests = 99
[[device]]
name = "fast"
[device.queue]
scheduler = "mq-deadline"
[device.queue.iosched]
fifo_batch = 7
[[export]]
name = "db"
device = "fast"
file = { path = "$IMAGES/db.img", size = "8M" }
weight = 400
[[export]]
name = "logs"
file = { path = "$IMAGES/logs.img", size = "9M" }
E

# check: nothing is made, errors have places, words and world have codes of their own.
summary() { "$HEADWORKS" check "$FILE" | grep -q "^export: db: .*8 MiB, to be made, device fast, weight 400"; }
check "check says what would be served" summary
check "and makes nothing" test ! -e "$IMAGES/db.img"
as_json() {
    "$HEADWORKS" check --json "$FILE" | "$PYTHON" -c '
import json, sys
found = json.load(sys.stdin)
assert found["devices"][0]["queue"]["scheduler"] == "mq-deadline", found
assert [export["size"] for export in found["exports"]] == [8 << 20, 9 << 20], found'
}
check "check --json is one object" as_json
wrong() { # CODE TEXT WORDS...
    local code=$1 words
    printf '%b' "$2" >"$DIR/wrong.toml"
    timeout 20 "$HEADWORKS" check "$DIR/wrong.toml" >"$DIR/said" 2>&1
    [ $? -eq "$code" ] || { cat "$DIR/said"; return 1; }
    shift 2
    for words; do grep -qF -- "wrong.toml:$words" "$DIR/said" || { cat "$DIR/said"; return 1; }; done
}
check "all that is wrong in the words at once, with 2" wrong 2 \
    '[server]\ncahce = 1\nport = "x"\n[[export]]\nname = "a"\nmem.sise = 1\n' \
    "2:1: server has no \`cahce\`; the nearest is \`cache\`" "3:1: port: \`x\`" "6:5: mem has no \`sise\`"
one_too_many() { # each section of three lines
    printf '[[export]]\nname = "e%s"\nnull.size = "1M"\n' {0..1024} >"$DIR/wrong.toml"
    "$HEADWORKS" check "$DIR/wrong.toml" 2>&1 | cut -c 1-200 >"$DIR/said"
    cat "$DIR/said"
    [ "$(grep -c 'e1024. is one too many' "$DIR/said")" -eq 1 ] && grep -q 'wrong.toml:307[45]:.*e1024' "$DIR/said"
}
check "one export too many is told once, with its line" one_too_many
twins() {
    printf '[[export]]\nname = "a"\nnull.size = "1M"\n%.0s' 1 2 >"$DIR/wrong.toml"
    ! timeout 20 "$HEADWORKS" serve --config "$DIR/wrong.toml" 2>"$DIR/said"
    grep -q 'wrong.toml:5:8: two exports are named `a`' "$DIR/said" || { cat "$DIR/said"; return 1; }
}
check "a start names the line of the second of two exports of one name" twins
hidden='[[export]]\nname = "a"\nweight = 0\nioprio = "best"\nfile = { path = "/no/dir/x.img", size = "1G" }\n'
check "wrong options of an export do not hide that its directory is missing" wrong 2 "[server]\nstrict = true\n$hidden" \
    "5:1: export a: weight: \`0\`" "6:1: export a: ioprio: " "4:8: export a: cannot create /no/dir/x.img: no such directory: /no/dir"
check "nor do wrong options of the server" wrong 2 "[server]\nstrict = true\nunix = \"/no/sock/s\"\ncahce = 1\n$hidden" \
    "3:1: unix: no such directory: /no/sock" "4:1: server has no \`cahce\`" "7:1: export a: weight: \`0\`" "6:8: export a: cannot create /no/dir/x.img"
check "nor does a wrong size, which is no reason to miss one" wrong 2 "[server]\nstrict = true\n${hidden/1G/5MB}" \
    "7:34: export a: size: \`5MB\`" "4:8: export a: cannot create /no/dir/x.img" "5:1: export a: weight"
wrong_and_absent() { wrong 2 "$hidden" "3:1: export a: weight" && grep -q '^headworks: note: export a is absent: its image /no/dir/x.img does not exist' "$DIR/said"; }
check "and an image that is not there without strict is named" wrong_and_absent
check "no TOML" wrong 2 '[server\n' "1:8: this is not TOML"
check "a range, with its line" wrong 2 '[server]\nshards = 65\n[[export]]\nname = ""\nmem.size = "1M"\n' \
    "2:1: shards: 65 is not within 1..=64"
check "an image that is not there, with 1 if that is strict" wrong 1 \
    '[server]\nstrict = true\n[[export]]\nname = "a"\nfile.path = "/nowhere/a.img"\n' "4:8: export a: /nowhere/a.img does not exist"
check "else it is said, with 0" wrong 0 '[[export]]\nname = "a"\nfile.path = "/nowhere/a.img"\n'
check "as absent" grep -q '^export: a: /nowhere/a.img, ABSENT' "$DIR/said"
mkfifo "$DIR/pipe"
check "a pipe for an image, which is not waited for" wrong 1 "[[export]]\\nname = 'a'\\nfile.path = '$DIR/pipe'\\n" \
    "2:8: export a: $DIR/pipe is neither a regular file nor a block device"

# Served: two queues, each as the file says.
start() { # ARGUMENTS...
    : >"$OUT"
    : >"$LOG"
    "$HEADWORKS" serve --engine "$ENGINE" "$@" >"$OUT" 2>"$LOG" &
    SERVER=$!
    wait_until 20 is_up_or_gone
    if is_gone "$SERVER"; then
        wait "$SERVER"
        STATUS=$?
        SERVER=0
        say "not ok" "the server starts: serve $*"
        quote <"$LOG"
        exit 1
    fi
}
start -c "$FILE"
db=$(get exports/db/device) logs=$(get exports/logs/device)
check "a device with a name is not the filesystem's" test "$db" != "$logs"
check "its scheduler is the file's" is "$db/queue/scheduler" "none [mq-deadline] bfq"
check "its fifo_batch too" is "$db/queue/iosched/fifo_batch" 7
check "the other has what the file says of all" is "$logs/queue/nr_requests" 99
check "and the default of the rest" is "$logs/queue/scheduler" "[none] mq-deadline bfq"
check "write-back is the file's" is vm/dirty_bytes $((4 << 20))
check "the weight is the file's" is exports/db/weight 400
sizes() { test "$(nbdinfo --size "$(uri db)") $(nbdinfo --size "$(uri logs)")" = "$((8 << 20)) $((9 << 20))"; }
check "the sizes are the file's" sizes

# A broken file on SIGHUP: a client does not notice.
pseudo_random 4 config >"$DIR/source"
check "a client writes" nbdcopy "$DIR/source" "$(uri db)"
cp "$FILE" "$DIR/good"
printf '[server]\nunix = 5x\n' >"$FILE"
kill -HUP "$SERVER"
check "a broken file is refused with its place" wait_until 10 said "nothing changed: .*main.toml:2:"
served() { nbdcopy "$(uri db)" "$DIR/found" && cmp -n $((4 << 20)) "$DIR/found" "$DIR/source"; }
check "what was written is still served" served
ctl_reload() { # STATUS PATTERN OPTIONS...
    "$HEADWORKS" ctl "$CONTROL" reload "${@:3}" >"$DIR/said" 2>&1
    local status=$?
    cat "$DIR/said"
    [ $status -eq "$1" ] && grep -qE -- "$2" "$DIR/said"
}
check "ctl reload prints the errors of a broken file" ctl_reload 1 "^headworks: error: .*main.toml:2:"
check "as a list for programs" ctl_reload 1 '"reloaded": false' --json
loaded() { test "$(grep -c "configuration reloaded" "$LOG")" -gt "$1"; }
reload() {
    local before
    before=$(grep -c "configuration reloaded" "$LOG")
    kill -HUP "$SERVER"
    wait_until 10 loaded "$before"
}
names() {
    nbdinfo --list --json "nbd+unix:///?socket=$SOCKET" | "$PYTHON" -c '
import json, sys
print(" ".join(sorted(export["export-name"] for export in json.load(sys.stdin)["exports"])))'
}
has() { test "$(names)" = "$1" || { names; false; }; }

# A changed file: exports come, go and change; a device that is new has its own queue.
sed -e 's/weight = 400/weight = 300/' -e '/name = "logs"/,$d' "$DIR/good" | sed '$d' >"$FILE"
cat >"$DIR/main.d/10.toml" <<E
[server]
shards = 2
[[device]]
name = "slow"
queue.nr_requests = 5
[[export]]
name = "new"
device = "slow"
file = { path = "$IMAGES/new.img", size = "3M" }
[[export]]
name = "fourth"
device = "slow"
file = { path = "$IMAGES/fourth.img", size = "4M" }
E
check "a changed file is loaded" reload
check "exports come and go" has "db fourth new"
check "a weight changes" is exports/db/weight 300
slow=$(get exports/new/device)
check "a device that is new is a queue of its own" test "$slow" != "$db"
check "as the file says" is "$slow/queue/nr_requests" 5
check "which its exports share" is exports/fourth/device "$slow"
check "what needs a new start is said" said "shards changed in the configuration"
check "what was written is still served" served
cat >"$DIR/main.d/15.toml" <<E
[server.vm]
dirty_bytes = "3M"
[server.queue]
nr_requests = 77
[[device]]
name = "fast"
[device.queue]
scheduler = "none"
E
"$HEADWORKS" ctl "$CONTROL" add tmp=mem:size=1M >/dev/null
"$HEADWORKS" ctl "$CONTROL" set "$slow/queue/nomerges" 1 >/dev/null
check "tunables in the file are loaded" reload
check "a dirty limit" is vm/dirty_bytes $((3 << 20))
check "the scheduler of a named device" is "$db/queue/scheduler" "[none] mq-deadline bfq"
check "what the file says of all" is "$db/queue/nr_requests" 77
check "but not where a device has its own" is "$slow/queue/nr_requests" 5
check "it is said" said "vm/dirty_bytes is 3145728 now"
check "what ctl set and the file says nothing of stays" is "$slow/queue/nomerges" 1
check "and what ctl added" has "db fourth new tmp"
"$HEADWORKS" ctl "$CONTROL" remove tmp >/dev/null
printf '[[export]]\nname = "new"\nmem.size = "1M"\n' >"$DIR/main.d/20.toml"
check "a file with another image for an export is loaded" reload
check "the export stays as it is, which is said" said "export new not changed: its image and its device changed"
check "diff says which image a restart takes" says_like 'exports/new/image: .*, configured ' diff
check "and which device" says_like 'exports/new/device: .*, configured ' diff
rm "$DIR/main.d/"*.toml
cp "$DIR/good" "$FILE"
check "the first file is loaded again" reload
check "its exports are back" has "db logs"
stop_server

# The same for an operator who asks for it.
start -c "$FILE"
check "ctl reload of what is loaded" ctl_reload 0 "^nothing changed$"
sed -i 's/weight = 400/weight = 350/' "$FILE"
printf '[[export]]\nname = "extra"\nmem.size = "1M"\n' >>"$FILE"
sed -i 's/^cache = "16M"/cache = "17M"/' "$FILE"
check "ctl reload says what changed" ctl_reload 0 "^export db has weight 350 now$"
check "what was added" grep -q "^export extra added$" "$DIR/said"
check "and what needs a restart" grep -q "^cache changed in the configuration; it takes effect after a restart$" "$DIR/said"
check "it did" is exports/db/weight 350
# A second one meanwhile waits or is refused, and the server takes the next.
both() {
    "$HEADWORKS" ctl "$CONTROL" reload >"$DIR/one" 2>&1 &
    "$HEADWORKS" ctl "$CONTROL" reload >"$DIR/two" 2>&1
    local status=$?
    wait $!
    cat "$DIR/one" "$DIR/two"
    [ $status -eq 0 ] || grep -q "a reload is in progress.*EBUSY" "$DIR/two"
}
check "two at once" both
cp "$DIR/good" "$FILE"
check "and back" ctl_reload 0 "^export extra removed$"
stop_server
serve --control "$CONTROL" mem:size=1M
check "without a file there is nothing to load" ctl_reload 1 "nothing to load: .*--config"
stop_server

# A live grow: the file's size is that of a new image, so check, reload and a start accept the larger one.
start -c "$FILE"
check "an export grows" "$HEADWORKS" ctl "$CONTROL" resize db 11M
check "by a size, too" "$HEADWORKS" ctl "$CONTROL" resize db +1M
check "a reload has nothing against it" reload
not_said() { ! grep -q -- "$1" "$LOG"; }
check "and says nothing of it" not_said "export db not changed"
shrinks() { ! "$HEADWORKS" ctl "$CONTROL" resize db -4M >"$DIR/said" 2>&1 && grep -q "cannot shrink" "$DIR/said"; }
check "but does not shrink" shrinks
sed -i 's/size = "8M"/size = "20M"/' "$FILE"
check "a larger size in the file is loaded" reload
check "and it says how to grow the image" said "export db not changed: its image has 12 MiB, less than size=20 MiB; .ctl resize db 20971520"
cp "$DIR/good" "$FILE"
stop_server
grown() { "$HEADWORKS" check "$FILE" | grep -q "^export: db: .*12 MiB,"; }
check "check says the size that is served" grown
start -c "$FILE"
db_size() { test "$(nbdinfo --size "$(uri db)")" = $((12 << 20)); }
check "the server starts again with the image as it is" db_size
check "which a note says" grep -q "note: .*db.img has 12 MiB and is served as it is" "$OUT"
stop_server
refuses_small() {
    sed 's/size = "8M"/size = "20M"/' "$DIR/good" >"$DIR/small.toml"
    ! "$HEADWORKS" serve -c "$DIR/small.toml" 2>"$DIR/said" && grep -q "db.img exists with 12 MiB .*, less than 20 MiB" "$DIR/said"
}
check "an image that is smaller than its size is refused" refuses_small
truncate -s 8M "$IMAGES/db.img"

# What serve refuses check refuses, and in the same words.
same_refusal() { # TOML
    printf '%b' "$1" >"$DIR/wrong.toml"
    "$HEADWORKS" check "$DIR/wrong.toml" >/dev/null 2>"$DIR/checked" && { echo "check accepts it"; return 1; }
    timeout 20 "$HEADWORKS" serve -c "$DIR/wrong.toml" >/dev/null 2>"$DIR/served" && { echo "serve accepts it"; return 1; }
    # The last part of a message is the same; check says the place first.
    local words
    words=$(sed 's/.*: //' "$DIR/served" | tail -n 1)
    grep -qF -- "$words" "$DIR/checked" || { cat "$DIR/checked" "$DIR/served"; return 1; }
}
many() { for i in $(seq "$1"); do printf '[[export]]\nname="e%s"\nmem={size="1M"}\n' "$i"; done; }
check "65 devices" same_refusal "$(many 65)"
check "1200 exports" same_refusal "$(many 1200)"
check "64 devices are accepted" wrong 0 "$(many 64)"
exports="[[export]]\nname='m'\nmem.size='1M'\n"
check "a cache that is too small for its threads" same_refusal "[server]\ncache='1M'\nshards=2\nspread=true\n[[export]]\nname='a'\nmem.size='1M'\ncache='writeback'\n[[export]]\nname='b'\nmem.size='1M'\ncache='writeback'\n"
check "certificates that are not there" same_refusal "[server]\ntls='on'\ntls-certificates='$DIR/nowhere'\n$exports"
check "a socket that is another file" same_refusal "[server]\nunix='$FILE'\n$exports"
check "a control socket in no directory" same_refusal "[server]\ncontrol='$DIR/nowhere/ctl'\n$exports"
check "a cache larger than memory" same_refusal "[server]\\ncache='900T'\\n$exports"
check "a path that is too long" same_refusal "[server]\nunix='/tmp/$(printf 'n%.0s' $(seq 110))'\n$exports"
check "a user that is not there" same_refusal "[server]\nuser='nobody-of-this-name'\n$exports"
check "a pid file that is a directory" same_refusal "[server]\npid-file='$DIR'\n$exports"
check "a record that is a directory" wrong 1 "[server]\nrecord='$DIR'\n$exports"
check "memory of the cache in no directory" wrong 1 "[server]\ncache='16M'\ncache-file='/dev/shm/hw-nowhere/cache'\n$exports"
case $(stat -f -c %T "$DIR") in
tmpfs | hugetlbfs) ;;
*) check "memory of the cache on a disk" wrong 1 "[server]\ncache='16M'\ncache-file='$DIR/cache'\n$exports" ;;
esac
# Root may open it for writing.
truncate -s 1M "$IMAGES/locked.img"
if disk=$(losetup --read-only --find --show "$IMAGES/locked.img" 2>/dev/null); then
    check "a block device that is set read-only" same_refusal "[[export]]\nname='l'\nfile.path='$disk'\n"
    check "which can be read" wrong 0 "[[export]]\nname='l'\nread-only=true\nfile.path='$disk'\n"
    losetup -d "$disk"
else
    skip "a block device that is set read-only" "no loop devices"
fi
printf 12345 >"$IMAGES/odd.img"
# tmpfs takes any length.
if [ "$(stat -f -c %T "$IMAGES")" != tmpfs ]; then
    check "an image with a tail, for direct I/O" same_refusal "[[export]]\nname='a'\nfile={path='$IMAGES/odd.img',direct='on'}\n"
fi
check "an empty image" same_refusal "[[export]]\nname='a'\nfile.path='/dev/null'\n"
check "an image in no directory, if that is strict" same_refusal "[server]\nstrict=true\n[[export]]\nname='a'\nfile={path='$DIR/nowhere/a.img',size='1M'}\n"

# An image that is missing: the others are served, and it is when it is there.
cat >"$FILE" <<E
[server]
unix = "$SOCKET"
control = "$CONTROL"
[[export]]
name = "late"
file.path = "$IMAGES/late.img"
[[export]]
name = "later"
file = { path = "$IMAGES/mounted/later.img", size = "2M" }
[[export]]
name = "there"
file = { path = "$IMAGES/there.img", size = "1M" }
E
start -c "$FILE"
check "an export without its image does not stop the others" has there
check "it is said" said "export late is absent: its image $IMAGES/late.img does not exist"
check "and the other one's directory" said "export later is absent"
state() { "$HEADWORKS" ctl "$CONTROL" exports | awk -v name="$1" '$1 == name { print $NF }'; }
state_is() { test "$(state "$1")" = "$2" || { "$HEADWORKS" ctl "$CONTROL" exports; false; }; }
check "ctl exports has its state" state_is late absent
check "and its reason" bash -c '"$1" ctl "$2" exports | grep -q "^late: its image .*/late.img does not exist"' - "$HEADWORKS" "$CONTROL"
refused_clearly() { ! "$HEADWORKS" info "$(uri late)" 2>"$DIR/said" && grep -q 'export "late" is not available' "$DIR/said" && ! grep -q "$IMAGES" "$DIR/said"; }
check "a client is told why it is refused" refused_clearly
check "the default export is one that is served" nbdinfo --size "nbd+unix:///?socket=$SOCKET"
check "a reload changes nothing" reload
check "of that" state_is late absent
truncate -s 3M "$IMAGES/late.img"
check "when the image is there" reload
check "it is served" has "late there"
check "and serving" state_is late serving
"$HEADWORKS" ctl "$CONTROL" resize later 5M 2>"$DIR/said"
check "ctl says why an absent export cannot be changed" grep -q "export later is absent: its image" "$DIR/said"
mkdir "$IMAGES/mounted"
check "ctl add serves an absent one" "$HEADWORKS" ctl "$CONTROL" add "later=file:path=$IMAGES/mounted/later.img,size=2M"
check "once" has "late later there"
stop_server
rm "$IMAGES/late.img"
start -c "$FILE"
check "ctl remove takes an absent one away" "$HEADWORKS" ctl "$CONTROL" remove late
check "from the list" state_is late ""
stop_server
strict() { ! "$HEADWORKS" serve -c "$FILE" --strict 2>"$DIR/said" && grep -q "late.img does not exist" "$DIR/said"; }
check "strict refuses to start" strict
alone() { ! "$HEADWORKS" serve "$IMAGES/late.img" --control "$CONTROL" 2>"$DIR/said" && grep -q "late.img does not exist" "$DIR/said"; }
check "so does a command line with nothing to serve" alone
rm -r "$IMAGES/mounted" "$IMAGES/there.img"
cp "$DIR/good" "$FILE"

# What ctl changed: shown, saved as a drop-in, and there after a restart and a reload.
start -c "$FILE" extra=mem:size=1M
db=$(get exports/db/device)
differs() { ctl diff | grep -qxF -- "$1" || { ctl diff; false; }; }
check "nothing differs" differs "no differences"
nothing() { test "$(ctl save)" = "nothing to save" && test ! -e "$DIR/main.d/99-ctl.toml"; }
check "there is nothing to save" nothing
ahead=$(get "$db/queue/read_ahead_kb")
ctl add "tmp=error:weight=70,rate=0%,of=mem:size=3M" >/dev/null
(cd "$IMAGES" && ctl add --read-only "other=file:path=logs.img" >/dev/null)
ctl set exports/db/weight 123 >/dev/null
ctl set exports/extra/ioprio idle >/dev/null
ctl set "$db/queue/nr_requests" 33 >/dev/null
ctl set "$(get exports/logs/device)/queue/read_ahead_kb" 64 >/dev/null
ctl set "$(get exports/tmp/device)/queue/read_ahead_kb" 64 >/dev/null
ctl set "$(get exports/extra/device)/queue/read_ahead_kb" 64 >/dev/null
ctl set vm/dirty_ratio 7 >/dev/null
check "diff: an export that was added" differs "exports/tmp: error:rate=0%,weight=70,of=mem:size=3M, configured none"
check "diff: a weight" differs "exports/db/weight: 123, configured 400"
check "diff: a queue" differs "$db/queue/nr_requests: 33, configured 99"
check "diff: write-back" differs "vm/dirty_ratio: 7, configured 0"
check "diff: what no file can say" differs "note: not for a file: export extra is on the command line, which wins over a file; change it there"
check "save --print shows the file" bash -c '"$1" ctl "$2" save --print | grep -q "^nr_requests = 33 "' - "$HEADWORKS" "$CONTROL"
check "and writes nothing" test ! -e "$DIR/main.d/99-ctl.toml"
unwritten() { mkdir "$DIR/main.d/99-ctl.toml" && ! ctl save 2>/dev/null; rmdir "$DIR/main.d/99-ctl.toml" && differs "exports/db/weight: 123, configured 400"; }
mkdir -p "$DIR/main.d"
check "a save that fails changes nothing" unwritten
check "save writes a drop-in" bash -c '"$1" ctl "$2" save | grep -q "main.d/99-ctl.toml: .* changes saved"' - "$HEADWORKS" "$CONTROL"
check "what is saved differs no longer" bash -c '! "$1" ctl "$2" diff | grep -q "^exports/db/weight"' - "$HEADWORKS" "$CONTROL"
check "as JSON" bash -c '"$1" ctl "$2" --json save | python3 -c "import json, sys; assert json.load(sys.stdin)[\"file\"] is None"' - "$HEADWORKS" "$CONTROL"
check "which check accepts" "$HEADWORKS" check "$FILE"
check "a reload has nothing to change" reload
gone() { ! differs "$1"; }
check "and what is saved differs no longer" gone "exports/db/weight: 123, configured 400"
ctl remove tmp >/dev/null
ctl remove logs >/dev/null
check "diff: an export that was removed" bash -c '"$1" ctl "$2" diff | grep -q "^exports/logs: none, configured file:"' - "$HEADWORKS" "$CONTROL"
check "it is saved, too" ctl save
check "a reload does not bring it back" reload
check "it stays away" has "db extra other"
stop_server
start -c "$FILE"
check "after a restart the exports are those that were left" has "db other"
check "the weight" is exports/db/weight 123
check "the queue of a named device" is "$(get exports/db/device)/queue/nr_requests" 33
check "that of others" is "$(get exports/other/device)/queue/read_ahead_kb" 64
check "which a named one does not get" is "$(get exports/db/device)/queue/read_ahead_kb" "$ahead"
check "write-back" is vm/dirty_ratio 7
check "read-only" nbdinfo --is read-only "$(uri other)"
check "nothing differs any more" differs "no differences"
# Nothing is left, and it starts again so.
ctl remove db >/dev/null && ctl remove other >/dev/null && ctl save >/dev/null
check "a reload with nothing to serve" reload
ctl upgrade >"$DIR/said"
SERVER=$(sed -n 's/^upgraded: process \([0-9]*\) .*/\1/p' "$DIR/said")
check "and an upgrade" test -n "$SERVER"
stop_with TERM
start -c "$FILE"
check "a start, with a warning" grep -q "note: nothing is served: no \[\[export\]\] is enabled" "$OUT"
check "and an export can be added" ctl add tmp=mem:size=1M
stop_server
rm "$DIR/main.d/99-ctl.toml"

# Who wins.
export HEADWORKS_CACHE=24M HEADWORKS_NR_REQUESTS=88 HEADWORKS_SET="vm/dirty_bytes=5M iosched/fifo_batch=5"
start -c "$FILE" --cache 32M --set iosched/fifo_batch=3 extra=mem:size=1M
check "the command line wins over all" grep -q '^cache: 32 MiB' "$OUT"
check "even over a device's own" is "$db/queue/iosched/fifo_batch" 3
check "the environment wins over the file" is "$logs/queue/nr_requests" 88
check "in write-back, too" is vm/dirty_bytes $((5 << 20))
check "an export of the command line is added" nbdinfo --size "$(uri extra)"
stop_server

# A dump, and what it serves.
bare() { sed 's/ *# .*//' "$1"; }
dump() { "$HEADWORKS" serve "$@" --dump-config; }
dump -c "$FILE" --read-only extra=mem:size=1M >"$DIR/dump.toml"
for line in '^cache = "24M" *# environment' '^read-only = true *# command line' '^unix = .*# file .*main.toml:2' \
    '^requests = 128 *# default'; do
    check "a dump says ${line##*# }" grep -q "$line" "$DIR/dump.toml"
done
unset HEADWORKS_CACHE HEADWORKS_NR_REQUESTS HEADWORKS_SET
check "check accepts it" "$HEADWORKS" check "$DIR/dump.toml"
dump -c "$DIR/dump.toml" >"$DIR/again.toml"
same() { test -s "$1" && diff <(bare "$1") <(bare "$2"); }
check "its dump is the same" same "$DIR/dump.toml" "$DIR/again.toml"
start -c "$DIR/dump.toml"
check "a server from it has its cache" grep -q '^cache: 24 MiB' "$OUT"
check "and its queues" is "$db/queue/nr_requests" 88
check "and is read-only" nbdinfo --is read-only "$(uri extra)"
stop_server
