"""Tables of a bench's results: every figure with its spread, then ours against each peer, best placement against best.

ratios.py RESULTS --ours PREFIX [--json FILE]. A line of RESULTS: GROUP CELL SERVER PLACEMENT IOPS CPU (microseconds per I/O).
Variants of one server (nbdkit, nbdkit-t1) stand as one peer with their best figure. Ratios with a goal are followed by it, and by
MISSED if the ratio of the medians is below.
"""

import argparse
import collections
import json
import statistics

arguments = argparse.ArgumentParser()
arguments.add_argument("results")
arguments.add_argument("--ours", required=True)
arguments.add_argument("--json")
arguments = arguments.parse_args()

runs = collections.defaultdict(list)
for line in open(arguments.results):
    *key, iops, cpu = line.rstrip("\n").split("\t")
    runs[tuple(key)].append((float(iops), float(cpu)))

FAMILIES = ("headworks", "nbdkit", "qemu-nbd", "direct", "limit")


# How many times nbdkit's best our best must be, by cell, with exports in memory and cached ones. Writes and depth 1: not slower.
GOALS = {
    "randread-4k-32": 3.5,
    "randread-64k-16": 2.0,
    "randread-1M-4": 1.5,
    "randwrite-4k-32": 1.0,
    "randwrite-64k-16": 1.0,
    "randwrite-1M-4": 1.0,
    "randread-4k-1": 1.0,
    "randwrite-4k-1": 1.0,
}
# How many times qemu-nbd's best our best must be, reading one qcow2 image; on a disk both may be at its limit.
QCOW2_GOAL = 3.0
# Which share of the least that a server can do (benches/limit.c) our best must be, by the bytes of a request.
LIMIT_GOALS = {"4k": 0.7, "64k": 0.85, "1M": 0.85}


def verdict(group, cell, peer, ratio):
    goal = GOALS.get(cell) if group in ("mem", "cache") and peer == "nbdkit" else None
    if group.startswith("qcow2") and peer == "qemu-nbd" and cell == "randread-4k-32":
        goal = QCOW2_GOAL
    if peer == "limit":
        goal = LIMIT_GOALS.get(cell.split("-")[1])
    if goal is None or ratio is None:
        return ""
    return f"{goal}: {'met' if ratio[0] >= goal else 'MISSED'}"


def family(server):
    return next((name for name in FAMILIES if server.startswith(name)), server)


def unique(values):
    return list(dict.fromkeys(values))


def k(iops):
    return f"{iops / 1000:.4g}k"


rows = []
for (group, cell, server, placement), values in runs.items():
    iops = [v[0] for v in values]
    rows.append(
        dict(
            group=group,
            cell=cell,
            server=server,
            placement=placement,
            runs=len(iops),
            iops_min=min(iops),
            iops_median=statistics.median(iops),
            iops_max=max(iops),
            cpu_us=statistics.median(v[1] for v in values),
        )
    )


def best(candidates):
    return max(candidates, key=lambda row: row["iops_median"], default=None)


print(f"\n{'group':10} {'cell':16} {'server':22} {'placement':9} {'min':>8} {'median':>8} {'max':>8}  {'us CPU/IO':>9}")
for row in rows:
    print(
        f"{row['group']:10} {row['cell']:16} {row['server']:22} {row['placement']:9} {k(row['iops_min']):>8} "
        f"{k(row['iops_median']):>8} {k(row['iops_max']):>8}  {row['cpu_us']:9.2f}"
    )

ratios = []
peers = unique(family(row["server"]) for row in rows if family(row["server"]) != arguments.ours)
print(f"\n{arguments.ours} against its peers: ratios of medians; in brackets the least and the most that the spread allows")
print(f"{'group':10} {'cell':16} {'best of ours':36}", *(f"{'best of ' + peer:40} {'ratio':18} {'goal':12} {'unpinned':18}" for peer in peers))
for group, cell in unique((row["group"], row["cell"]) for row in rows):
    here = [row for row in rows if (row["group"], row["cell"]) == (group, cell)]

    def pick(name, placement=None):
        return best(r for r in here if family(r["server"]) == name and placement in (None, r["placement"]))

    def ratio(mine, theirs):
        if not mine or not theirs or not theirs["iops_min"]:
            return None
        return [
            mine["iops_median"] / theirs["iops_median"],
            mine["iops_min"] / theirs["iops_max"],
            mine["iops_max"] / theirs["iops_min"],
        ]

    def show(ratio):
        return "-" if ratio is None else f"{ratio[0]:.2f} ({ratio[1]:.2f}-{ratio[2]:.2f})"

    def name(row):
        return "-" if row is None else f"{k(row['iops_median'])} {row['server']}, {row['placement']}"

    mine = pick(arguments.ours)
    line = [f"{group:10} {cell:16} {name(mine):36}"]
    for peer in peers:
        theirs = pick(peer)
        both = ratio(mine, theirs)
        loose = ratio(pick(arguments.ours, "unpinned"), pick(peer, "unpinned"))
        goal = verdict(group, cell, peer, both)
        line.append(f"{name(theirs):40} {show(both):18} {goal:12} {show(loose):18}")
        ratios.append(dict(group=group, cell=cell, peer=peer, best_against_best=both, unpinned=loose, goal=goal))
    print(*line)

if arguments.json:
    with open(arguments.json, "w") as out:
        json.dump(dict(rows=rows, ratios=ratios), out, indent=1)
