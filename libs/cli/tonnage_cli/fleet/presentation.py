"""What `tonnage up` shows: the table of URLs, a progress bar a policy, the reports side by side."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tonnage_cli.output import print_table
from tonnage_loadgen.replay import OnProgress
from tonnage_loadgen.replay import Progress as Standing

WHAT = {
    "console": "open this in a browser: fleet, decisions, plans",
    "router": "OpenAI API: send requests here",
    "admin": "router: endpoints, decisions, queue, metrics",
    "planner": "targets with reasons, memory, OpenAPI at /docs",
    "agent": "GPU profiles and metrics",
    "coldstart": "staging and the node cache",
    "bench": "load jobs: tonnage bench --service",
    "fleet": "this fleet: processes, restarts, metrics",
}
LATENCIES = (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("E2E", "e2e_ms"))


class ProgressBars:
    """One bar a policy; silent when the console is no terminal."""

    def __init__(self, bars: Progress | None, total: int) -> None:
        self._bars = bars
        self._total = total

    def for_policy(self, policy: str) -> OnProgress | None:
        """Where the replay under `policy` tells how it stands."""
        if self._bars is None:
            return None
        bars, task = self._bars, self._bars.add_task(policy, total=self._total, standing="")

        def on_progress(at: Standing) -> None:
            bars.update(task, completed=at.done, standing=f"{at.in_flight} in flight, {at.errors} errors")
            bars.refresh()

        return on_progress


@contextlib.contextmanager
def progress_bars(console: Console, total: int) -> Iterator[ProgressBars]:
    """Bars while a comparison runs."""
    if not console.is_terminal:
        yield ProgressBars(None, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[standing]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, auto_refresh=False) as bars:
        yield ProgressBars(bars, total)


def print_urls(urls: Mapping[str, str | list[str]], console_token: str = "") -> None:
    """The table of URLs; with a token, the console's address that may act, whole on a line of its own."""
    rows = [(name, str(urls[name]), what) for name, what in WHAT.items()]
    rows += [(f"engine {i}", url, "vLLM API and metrics") for i, url in enumerate(urls["engines"])]
    print_table("The fleet is ready", ("part", "URL", "what"), rows, whole=("part", "URL"))
    if console_token:
        address = f"{urls['console']}#token={console_token}"
        Console().print(f"the console, allowed to drain: {address}", highlight=False, soft_wrap=True)


def print_comparison(documents: Mapping[str, Mapping[str, Any]]) -> None:
    """The reports side by side, a column a policy; a void run is said in red."""
    rows: list[tuple[str, ...]] = []
    for label, key in LATENCIES:
        rows += [
            (f"{label} {rank}, ms", *(_number(doc[key][rank]) for doc in documents.values())) for rank in ("p50", "p99")
        ]
    for label, value in FIGURES.items():
        rows.append((label, *(value(doc) for doc in documents.values())))
    print_table("The same trace under each policy (engine time)", ("", *documents), rows)
    console = Console()
    for policy, document in documents.items():
        for note in document["notes"]:
            style = "bold red" if note.startswith("VOID") else "yellow"
            console.print(f"{policy}: {note}", style=style, markup=False, highlight=False)
        for sample in document["error_samples"]:
            console.print(f"{policy}: {sample}", style="red", markup=False, highlight=False)


def print_scaling(scaled: Mapping[str, Any]) -> None:
    """What a scaled fleet did: the planner's moves with their reasons, and the engines' life."""
    moves = [(f"{one['at_s']:,.0f}", f"{one['before']} to {one['after']}", one["reason"]) for one in scaled["targets"]]
    print_table("The planner's targets (engine time)", ("at, s", "engines", "why"), moves)
    life = [(f"{one['at_s']:,.0f}", f"engine {one['engine']}", one["event"]) for one in scaled["engines"]]
    held = f"{scaled['min_replicas']} at first, {scaled['peak_replicas']} at most, {scaled['final_replicas']} now"
    cost = f"{scaled['replica_hours']} engine-hours, {scaled['cut_streams']} streams cut"
    print_table(f"Engines: {held}; {cost}", ("at, s", "engine", "event"), life)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f}"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"


FIGURES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "requests ok of sent": lambda doc: f"{doc['requests']['ok']} of {doc['requests']['sent']}",
    "in SLO": lambda doc: _share(doc["slo_attainment"]),
    "goodput, requests/s": lambda doc: _number(doc["goodput_rps"]),
    "prompt tokens from the prefix cache": lambda doc: _share(doc["prefix"]["hit_rate"]),
    "one shared cache would give": lambda doc: _share(doc["prefix"]["ceiling_hit_rate"]),
}
"""Label -> text of a report document."""
