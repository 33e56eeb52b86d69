"""`tonnage probe`: GPU microbenchmarks and verdicts on this machine."""

from typing import Any

import click

from tonnage_cli.output import json_option, print_json, print_table
from tonnage_core.errors import NotFittingError
from tonnage_gpu_agent.errors import NoGpuError
from tonnage_gpu_agent.local_run import SCHEMA, VERSION, LocalOptions, local_probe
from tonnage_gpu_agent.probes import SUITES


@click.command(name="probe")
@click.option("--suite", type=click.Choice(SUITES), default="quick", show_default=True, help="Which probes run.")
@click.option("--only", multiple=True, metavar="NAME", help="Run this probe only; may be given several times.")
@click.option("--gpu", "gpus", multiple=True, metavar="INDEX", help="Probe this GPU only; may be given several times.")
@click.option("--timeout", "timeout_s", type=float, default=300.0, show_default=True, help="Seconds a GPU at most.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the data that is moved and multiplied.")
@click.option("--rehearse", is_flag=True, help="Run every probe at toy size on the host, without a GPU.")
@json_option
def command(
    suite: str, only: tuple[str, ...], gpus: tuple[str, ...], timeout_s: float, seed: int, rehearse: bool, as_json: bool
) -> int:
    """Measure this machine's GPUs: memory, arithmetic, PCIe, attention, launch cost, with correctness checked.

    An idle GPU only: the run stops within seconds when another process comes, and says UNKNOWN. Exit code 1 when a GPU
    fails or could not be measured.
    """
    try:
        report = local_probe(LocalOptions(suite, only, gpus, timeout_s, seed, rehearse=rehearse))
    except NoGpuError as error:
        if as_json:
            print_json(
                {
                    "schema": SCHEMA,
                    "version": VERSION,
                    "suite": suite,
                    "mode": "no_gpu",
                    "reason": str(error),
                    "gpus": [],
                    "duration_s": 0.0,
                }
            )
        raise NotFittingError(f"no GPU to probe: {error}") from error
    if as_json:
        print_json(report)
    else:
        _print_tables(report)
    failed = any(gpu["verdict"]["status"] == "FAIL" for gpu in report["gpus"])
    return 1 if failed or not report["measured"] else 0


def _print_tables(report: dict[str, Any]) -> None:
    for gpu in report["gpus"]:
        rows = [(key, f"{value:,.4g}") for key, value in gpu["ceilings"].items()]
        print_table(f"GPU {gpu['index']}: {gpu['product']}", ("ceiling", "measured"), rows)
        ratios = [(r["name"], f"{r['guide']:.1f}", f"{r['measured']:.1f}") for r in gpu["guide_ratios"]]
        if ratios:
            print_table("ratios of the inference guide", ("ratio", "guide", "here"), ratios)
        other = [p for p in gpu["probes"] if p["status"] != "ok"]
        if other:
            print_table(
                "not measured", ("probe", "status", "why"), [(p["name"], p["status"], p.get("detail")) for p in other]
            )
        verdict = gpu["verdict"]
        click.echo(f"verdict: {verdict['status']}" + "".join(f"\n  {reason}" for reason in verdict["reasons"]))
    click.echo(f"{report['duration_s']:.1f} s")
