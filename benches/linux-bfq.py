#!/usr/bin/env python3
"""The rows of a Linux guest beside ours: one line for each figure, and whether ours is behind Linux's bfq.

  benches/linux-bfq.py [--json] LINUX-ROWS OUR-ROWS

Rows are JSON lines of `headworks-lab run bfq-linux` and `headworks-lab run bfq --json`. Behind: worse than Linux's bfq by more than
10 %, the error of ratios between two runs on one modelled disk; shares by more than one percent of a fair share as well. The lines
`alone` compare the two worlds without a scheduler: one reader, one program. A figure that is known to be behind has its reason and a
bound of its own in KNOWN. Exit status 1: another figure is behind, one is worse than its bound, or a run failed.
"""
import json
import sys

SLACK = 0.1
POINT = 1.0
LOWER, HIGHER = "lower", "higher"


SLOT_S = 0.125


def slot_of_lightest(row):
    """A slot of the client with the smallest weight, in percent of its fair share in the run."""
    weights = row["weights"]
    return 100 * SLOT_S * sum(weights) / min(weights) / (row["ms"] / 1e3)


# What is behind, why, and the bound that it still meets: of our row and Linux's figure.
KNOWN = {
    ("E1", "worst share off by"): ("less than a slot of the lightest client in this run", lambda row, linux: linux + slot_of_lightest(row)),
    ("E8", "rest"): ("the price of the client's p99", lambda row, linux: 0.45 * linux),
}


def load(path):
    with open(path, encoding="utf-8") as file:
        items = [json.loads(line) for line in file if line.strip()]
    return [item for item in items if item.get("row") == "bfq"]


def share_off(row):
    """Error of the worst client's share in percent of its fair share."""
    weights, clients = row["weights"], row["weight_clients"]
    total = max(row["bytes"], 1)
    fair = [total * weight / sum(w * n for w, n in zip(weights, clients)) for weight in weights]
    pairs = [(value, part) for name in ("weight_least", "weight_most") for value, part in zip(row[name], fair)]
    return max(abs(value / part - 1) for value, part in pairs) * 100


def rate(row, name):
    return row[name] / 1e3 / row["ms"]


def mean_start(row):
    starts = row["starts_ms"]
    return (sum(starts) / len(starts) if starts else row["unfinished_ms"]) / 1e3


def longest_start(row):
    return max([*row["starts_ms"], row["unfinished_ms"]]) / 1e3


# Figure, unit, which is better, how; goals of the experiment in the same unit, where it has them.
FIGURES = {
    "E1": [
        ("worst share off by", "%", LOWER, share_off),
        ("all", "MB/s", HIGHER, lambda row: rate(row, "bytes")),
    ],
    "E5": [
        ("mean start", "s", LOWER, mean_start),
        ("longest start", "s", LOWER, longest_start),
        ("rest", "MB/s", HIGHER, lambda row: rate(row, "rest_bytes")),
    ],
    "E8": [
        ("p99", "ms", LOWER, lambda row: row["first_p99_us"] / 1e3),
        ("longest", "ms", LOWER, lambda row: row["first_longest_us"] / 1e3),
        ("rest", "MB/s", HIGHER, lambda row: rate(row, "rest_bytes")),
    ],
}


def goal(experiment, case, figure, alone):
    """The experiment's own goal for ours; None if it is no bound on this figure."""
    if (experiment, figure) == ("E1", "worst share off by"):
        return 3.0 if case in ("shares-1m", "shares-random") else 2.0
    if experiment == "E5" and alone and figure != "rest":
        return (1.35 if figure == "mean start" else 1.6) * mean_start(alone)
    if (experiment, figure) == ("E5", "rest"):
        return 50.0
    if (experiment, figure) == ("E8", "p99"):
        return 140.0 if "writers" in case else 100.0
    return 200.0 if (experiment, figure) == ("E8", "longest") else None


def one(rows, **cells):
    found = [row for row in rows if all(row[key] == value for key, value in cells.items())]
    return found[0] if found else None


def is_behind(ours, linux, better, unit):
    slack = max(abs(linux) * SLACK, POINT if unit == "%" else 0)
    return ours > linux + slack if better == LOWER else ours < linux - slack


def lines_of(linux, ours):
    cases = dict.fromkeys((row["experiment"], row["case"], row["ms"]) for row in linux)
    for experiment, case, ms in cases:
        # Rows of another length are other experiments.
        mine = one(ours, case=case, ms=ms, scheduler="bfq", bounds="default", hold_ms=0, part="all")
        held = one(ours, case=case, ms=ms, scheduler="bfq", bounds="default", hold_ms=100, part="all")
        names = ("bfq", "mq-deadline")
        theirs = {name: one(linux, case=case, ms=ms, scheduler=f"linux-{name}", part="all") for name in names}
        alone = one(ours, case=case, scheduler="none", part="first")
        for figure, unit, better, how in FIGURES.get(experiment, []):
            if not mine or not theirs["bfq"]:
                continue
            values = {name: how(row) if row else None for name, row in theirs.items()}
            behind = is_behind(how(mine), values["bfq"], better, unit)
            reason, bound = KNOWN.get((experiment, figure), (None, None))
            still = bound(mine, values["bfq"]) if bound else None
            known = behind and bound and (how(mine) <= still if better == LOWER else how(mine) >= still)
            yield {
                "experiment": experiment, "case": case, "figure": figure, "unit": unit, "better": better,
                "goal": goal(experiment, case, figure, alone), "ours": how(mine),
                "linux_bfq": values["bfq"], "linux_mq_deadline": values["mq-deadline"], "met": not behind,
                "ours_hold_100": how(held) if held else None, "known": reason if known else None,
            }


def equivalence(linux, ours):
    """Clients alone, without a scheduler: the model in virtual time and in the guest."""
    for row in linux:
        mine = one(ours, case=row["case"], ms=row["ms"], scheduler="none", part=row["part"])
        if row["scheduler"] != "linux-none" or not mine:
            continue
        if row["starts_ms"]:
            yield {"alone": f"{row['case']}: mean start", "unit": "s", "ours": mean_start(mine), "linux": mean_start(row)}
        elif row["part"] == "first":
            p50 = [it["first_p50_us"] / 1e3 for it in (mine, row)]
            per_second = [it["bios"] * 1e3 / it["ms"] for it in (mine, row)]
            yield {"alone": "random reader, 4 KiB, depth 1", "unit": "IO/s", "ours": per_second[0], "linux": per_second[1]}
            yield {"alone": "random reader, p50", "unit": "ms", "ours": p50[0], "linux": p50[1]}
        else:
            both = [rate(it, "rest_bytes") for it in (mine, row)]
            yield {"alone": "sequential reader, 128 KiB, depth 1", "unit": "MB/s", "ours": both[0], "linux": both[1]}


def word(item):
    if item["met"]:
        return "MET"
    return f"MISSED (known: {item['known']})" if item["known"] else "MISSED"


def number(value):
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def table(header, lines):
    widths = [max(len(line[column]) for line in [header, *lines]) for column in range(len(header))]
    for line in [header, *lines]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def main():
    arguments = sys.argv[1:]
    as_json = "--json" in arguments
    paths = [argument for argument in arguments if argument != "--json"]
    if len(paths) != 2:
        sys.exit(__doc__)
    linux, ours = map(load, paths)
    figures, alone = list(lines_of(linux, ours)), list(equivalence(linux, ours))
    failed = [row for row in linux + ours if row["failed"]]
    if as_json:
        for item in [*linux, *alone, *figures]:
            print(json.dumps(item))
    else:
        seconds = sorted({row["ms"] // 1000 for row in linux})
        print(f"modelled disk hdd-32; {', '.join(map(str, seconds))} s a row; behind: worse than Linux's bfq by more than 10 %")
        header = ["alone, none", "unit", "ours", "guest"]
        table(header, [[item["alone"], item["unit"], number(item["ours"]), number(item["linux"])] for item in alone])
        print()
        header = ["case", "figure", "unit", "goal", "ours", "ours, hold 100 ms", "Linux bfq", "Linux mq-deadline", ""]
        sign = {LOWER: "<= ", HIGHER: ">= "}
        table(header, [
            [f"{it['experiment']} {it['case']}", it["figure"], it["unit"], sign[it["better"]] + number(it["goal"]) if it["goal"] else "-",
             number(it["ours"]), number(it["ours_hold_100"]), number(it["linux_bfq"]), number(it["linux_mq_deadline"]), word(it)]
            for it in figures
        ])
        met, known = sum(it["met"] for it in figures), sum(it["known"] is not None for it in figures)
        print(f"\nnot behind Linux's bfq: {met} of {len(figures)} figures, {known} missed as known; failed runs: {len(failed)}")
    sys.exit(0 if figures and not failed and all(it["met"] or it["known"] for it in figures) else 1)


if __name__ == "__main__":
    main()
