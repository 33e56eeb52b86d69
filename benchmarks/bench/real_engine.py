"""The bench and the planner against a real engine: is the capacity true, do two points predict the rest?

python benchmarks/bench/real_engine.py OUT.json capacity|planner --url URL --model FOLDER --engine-pid PID

Each call adds one round to OUT.json and judges all rounds in it. The engine is started by the caller, who names its
first process, so that engine and clients keep to cores of their own (`engine_cores.py`):
VLLM_CPU_KVCACHE_SPACE=1 vllm serve FOLDER --dtype float32 --max-model-len 4096 --enforce-eager --served-model-name tiny
"""

import argparse
import asyncio
import csv
import itertools
import json
import math
import os
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

import yaml
from engine_cores import settle
from plain_client import nearest_rank, open_loop
from tonnage_command import command

SETTINGS = yaml.safe_load((Path(__file__).parent / "real_engine.yaml").read_text())
TOKENS = (SETTINGS["load"]["input_tokens"], SETTINGS["load"]["output_tokens"])
LENGTHS = ("--input-tokens", f"constant:{TOKENS[0]}", "--output-tokens", f"constant:{TOKENS[1]}")
Rows = list[dict[str, str]]


def searched(url: str, seed: int) -> dict[str, Any]:
    """The command's answer."""
    search, slo = SETTINGS["search"], SETTINGS["slo"]
    found = command(
        *("bench", "--url", url, "--capacity", "--prompt-format", "tokens", "--seed", str(seed), *LENGTHS),
        *("--rate", str(search["start_rps"]), "--tolerance", str(search["tolerance"])),
        *("--most-runs", str(search["most_runs"]), "--duration-s", str(search["duration_s"])),
        *("--slo-ttft-ms", str(slo["ttft_ms"]), "--slo-tpot-ms", str(slo["tpot_ms"])),
        *("--slo-percentile", str(slo["percentile"])),
    )
    curve = [{name: row[name] for name in ("rate_rps", "met", "percentiles", "notes")} for row in found["curve"]]
    capacity = found["capacity"]
    ends = {"passes_rps": capacity["capacity"], "fails_rps": capacity["failing"], "runs": capacity["runs"]}
    return ends | {"reason": capacity["reason"], "curve": curve}


def ladder(url: str, middle: float, seed: int) -> list[dict[str, float]]:
    """Each rate's percentiles by the plain client; `load` is the worst of them over its limit."""
    steps, slo, rows = SETTINGS["ladder"], SETTINGS["slo"], []
    for number in range(steps["rates"]):
        rate = middle * steps["low"] * steps["step"] ** number
        seen = asyncio.run(open_loop(url, rate, steps["duration_s"], TOKENS, 100 * seed + number))
        ttft, tpot = (
            nearest_rank([getattr(each, name) for each in seen], slo["percentile"]) * 1e3
            for name in ("ttft_s", "tpot_s")
        )
        worst = max(ttft / slo["ttft_ms"], tpot / slo["tpot_ms"])
        rows.append({"rate_rps": rate, "requests": len(seen), "ttft_ms": ttft, "tpot_ms": tpot, "load": worst})
    return [{name: round(value, 4) for name, value in row.items()} for row in rows]


def crossing(rows: list[dict[str, float]]) -> float | None:
    """The rate at which the load passes 1, after pooling adjacent violators: it cannot fall as the rate rises."""
    pools: list[tuple[int, float, float]] = []  # rates pooled, sum of their log loads, of their logs
    for row in sorted(rows, key=lambda each: each["rate_rps"]):
        pools.append((1, math.log(row["load"]), math.log(row["rate_rps"])))
        while len(pools) > 1 and pools[-2][1] / pools[-2][0] > pools[-1][1] / pools[-1][0]:
            last, before = pools.pop(), pools.pop()
            pools.append((before[0] + last[0], before[1] + last[1], before[2] + last[2]))
    means = [(load / count, rate / count) for count, load, rate in pools]
    for (low, slow), (high, fast) in itertools.pairwise(means):
        if low <= 0 < high:
            return math.exp(slow + (fast - slow) * -low / (high - low))
    return None


def capacity_round(url: str, number: int) -> dict[str, Any]:
    """The command's search, then the ladder around its answer."""
    load = round(os.getloadavg()[0], 1)
    bench = searched(url, number)
    found = bench["passes_rps"]
    rows = ladder(url, found, number) if found else []
    return {"load_average_1min": load, "bench": bench, "ladder": rows, "ladder_rps": crossing(rows) if rows else None}


def planner_round(url: str, model: Path, number: int) -> dict[str, Any]:
    """Sweeps in a row, each in an order of its own, so that each number of users meets the machine at several times and
    after others; the middle of each figure; and each count of these points against the others by
    `tonnage predict --calibrate`. A first short sweep warms the engine up and counts for nothing."""
    asked, load = SETTINGS["sweep"], round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="real-engine-") as name:
        file, card = Path(name) / "points.csv", Path(name) / "card.json"
        card.write_text(json.dumps({"schema": "tonnage.gpu_profile/1", **SETTINGS["card"]}))
        swept(url, model, file, -1 - number, rounds=1)
        sweeps = [swept(url, model, file, number * asked["repeats"] + repeat) for repeat in range(asked["repeats"])]
        rows = middle(sweeps)
        found = {f"{count}_points": judged(rows, count, model, card) for count in (2, 3)}
    return {"load_average_1min": load, **found, "points": [_point(row, sweeps) for row in rows]}


def swept(url: str, model: Path, file: Path, seed: int, rounds: int = SETTINGS["sweep"]["rounds"]) -> Rows:
    """One sweep's bench points."""
    asked = SETTINGS["sweep"]
    users = random.Random(seed).sample(asked["users"], len(asked["users"]))
    command(
        *("bench", "--url", url, "--prompt-format", "tokens", "--points", str(file), "--seed", str(seed)),
        *("--input-tokens", asked["input_tokens"], "--output-tokens", asked["output_tokens"]),
        *("--sweep-users", ",".join(map(str, users)), "--requests", str(asked["least"])),
        *("--requests-per-user", str(rounds), "--catalogue-model", model.name),
        *("--gpu", SETTINGS["card"]["name"], "--engine", SETTINGS["engine"], "--precision", SETTINGS["precision"]),
    )
    return list(csv.DictReader(file.read_text().splitlines()))


def middle(sweeps: list[Rows]) -> Rows:
    """The mean of the middle half of each figure and length, in the order of the sweep's users."""
    first = sorted(sweeps[0], key=lambda row: int(row["concurrency"]))
    same = [[row for rows in sweeps for row in rows if row["id"] == one["id"]] for one in first]
    return [
        rows[0] | {name: f"{middle_half([float(row[name]) for row in rows]):.6g}" for name in ("isl", "osl", "value")}
        for rows in same
    ]


def middle_half(values: list[float]) -> float:
    """Mean without the lowest and the highest quarter: the machine's slow moments move it little, and it scatters less
    than the median of as many."""
    out = len(values) // 4
    return statistics.fmean(sorted(values)[out : len(values) - out])


def _point(row: dict[str, str], sweeps: list[Rows]) -> dict[str, Any]:
    seen = [float(each["value"]) for rows in sweeps for each in rows if each["id"] == row["id"]]
    return {"users": int(row["concurrency"]), "metric": row["metric"], "middle": float(row["value"]), "repeats": seen}


def judged(rows: Rows, count: int, model: Path, card: Path) -> dict[str, Any]:
    """`held_out`, or why the planner refused the points: they stay in the round, which then does not hold."""
    try:
        return held_out(rows, count, model, card)
    except SystemExit as error:
        return {"mean": {"tpot_error": None, "ttft_error": None}, "refused": str(error)}


def held_out(rows: Rows, count: int, model: Path, card: Path) -> dict[str, Any]:
    """Errors at the numbers of users that did not calibrate; those that did are spread evenly, ends included."""
    levels = sorted({int(row["concurrency"]) for row in rows})
    used = [levels[round(index * (len(levels) - 1) / (count - 1))] for index in range(count)]
    few = card.with_name(f"few-{count}.csv")
    with few.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(row for row in rows if int(row["concurrency"]) in used)
    errors = []
    for users in levels:
        if users in used:
            continue
        here = [row for row in rows if int(row["concurrency"]) == users]
        seen = {row["metric"]: float(row["value"]) for row in here}
        said = command(
            *("predict", "--model", str(model), "--gpu", str(card), "--engine", SETTINGS["engine"]),
            *("--isl", here[0]["isl"], "--osl", here[0]["osl"], "--concurrency", str(users)),
            *("--length-spread", "0", "--precision", SETTINGS["precision"], "--calibrate", str(few)),
        )
        one: dict[str, Any] = {"users": users, "class": said["class"]}
        for name in ("tpot_ms", "ttft_ms"):
            one[name.replace("ms", "error")] = round(said[name]["value"] / seen[name] - 1, 4)
            one[name.replace("ms", "inside_90")] = said[name]["lo90"] <= seen[name] <= said[name]["hi90"]
        errors.append(one)
    mean = {name: round(statistics.fmean(abs(row[name]) for row in errors), 4) for name in ("tpot_error", "ttft_error")}
    return {"calibrated_on": used, "mean": mean, "held_out": errors}


def verdict(document: dict[str, Any]) -> dict[str, Any]:
    """Of all rounds. The capacity's error compares means of the logarithms; `noise` is the largest over the smallest
    answer of one method, less 1."""
    limits = SETTINGS["limits"]
    found: dict[str, Any] = {}
    unanswered = sum(not (one["bench"]["passes_rps"] and one["ladder_rps"]) for one in document["capacity"])
    found["capacity_unanswered"] = unanswered
    if rounds := [one for one in document["capacity"] if one["bench"]["passes_rps"] and one["ladder_rps"]]:
        ends = [(one["bench"]["passes_rps"], one["bench"]["fails_rps"] or math.nan) for one in rounds]
        ours = [math.sqrt(low * high) for low, high in ends]
        theirs = [one["ladder_rps"] for one in rounds]
        error = statistics.geometric_mean(ours) / statistics.geometric_mean(theirs) - 1
        found["capacity_rps"] = {"bench": [round(one, 3) for one in ours], "ladder": [round(one, 3) for one in theirs]}
        found["capacity_error"] = round(error, 4)
        found["capacity_errors"] = [round(a / b - 1, 4) for a, b in zip(ours, theirs, strict=True)]
        found["noise"] = {name: round(max(x) / min(x) - 1, 4) for name, x in (("bench", ours), ("ladder", theirs))}
        found["capacity_holds"] = abs(error) <= limits["capacity"]
        found["runs_hold"] = all(one["bench"]["runs"] < limits["runs"] for one in rounds)
    for count, name in ((2, "tpot"), (2, "ttft"), (3, "tpot")):
        key = f"{name}_{count}_points"
        means = [one[f"{count}_points"]["mean"][f"{name}_error"] for one in document["planner"]]
        if means:
            found[key] = means
            found[f"{key}_holds"] = None not in means and statistics.fmean(means) <= limits[key]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("part", choices=("capacity", "planner"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--engine-pid", type=int, required=True)
    given = parser.parse_args()
    if not given.out.parent.is_dir():
        parser.error(f"{given.out.parent} is no folder: the round, minutes long, could not be kept")
    new: dict[str, Any] = {"benchmark": "bench/real_engine", "settings": SETTINGS, "capacity": [], "planner": []}
    document = json.loads(given.out.read_text()) if given.out.exists() else new
    if document["settings"] != SETTINGS:
        raise SystemExit(f"{given.out} holds rounds of other settings: name another file")
    number = len(document[given.part])
    cores = {"cores": settle(given.engine_pid)}
    if given.part == "capacity":
        document["capacity"].append(cores | capacity_round(given.url, number))
    else:
        document["planner"].append(cores | planner_round(given.url, given.model, number))
    document["verdict"] = verdict(document)
    print(json.dumps(document["verdict"], indent=1))
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
