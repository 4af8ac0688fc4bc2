#!/usr/bin/env bash
# matrix: once
# Weights of exports that share a device, while all their requests have tags: the device has room for 8 of 96.
. "$(dirname "$0")/lib.sh"

CONFIG=$DIR/main.toml BEHIND=$DIR/behind.sock BEHIND_PID=0
trap 'kill -9 "$BEHIND_PID" 2>/dev/null; cleanup' EXIT
"$HEADWORKS" serve --engine "$ENGINE" --cache 0 -U "$BEHIND" delay:read=4ms,of=null:size=1G >"$DIR/behind.log" 2>&1 &
BEHIND_PID=$!
wait_until 20 test -S "$BEHIND"

cat >"$CONFIG" <<EOF
[[device]]
name = "one"
[device.queue]
queue_depth = 8
EOF
for export in light:100 middle:700 heavy:5000; do
    cat >>"$CONFIG" <<EOF
[[export]]
name = "${export%:*}"
device = "one"
weight = ${export#*:}
cache = "none"
nbd = { uri = "nbd+unix:///?socket=$BEHIND" }
EOF
done

# The bounds are of parts, not of times, and hold on a busy machine. Equal parts are a third each.
divide() {
    local export pids=()
    for export in light middle heavy; do
        "$HEADWORKS" bench --uri "$(at $export)" --rw randread --bs 4k --iodepth 32 --runtime 2s --json >"$DIR/$export.json" &
        pids+=($!)
    done
    wait "${pids[@]}"
    "$PYTHON" - "$DIR" <<'EOF'
import json, sys
ios = [json.load(open(f"{sys.argv[1]}/{name}.json"))["ios"] for name in ("light", "middle", "heavy")]
parts = [count / sum(ios) for count in ios]
print("answers", ios, "parts", [round(part, 3) for part in parts], "of 0.017, 0.121, 0.862")
assert parts[2] > 0.7, "the heavy export has not its part"
assert parts[1] < 0.25 and parts[0] < 0.1, "the others have more than theirs"
EOF
}

for scheduler in none mq-deadline; do
    serve --config "$CONFIG" --scheduler "$scheduler"
    check "parts follow weights with $scheduler" divide
    stop_server
done
