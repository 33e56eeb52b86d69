"""Probe the GPUs of this machine without the agent: `python -m tonnage_gpu_agent --suite quick`.

Needs torch, Triton and NVIDIA's NVML bindings only, so that it runs inside an engine's image. Prints the probe report
as JSON; exit code 0 when every GPU was measured, 1 when one was not, 2 for a wrong option.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from tonnage_core.errors import BadInputError, TonnageError
from tonnage_gpu_agent.local_run import LocalOptions, local_probe
from tonnage_gpu_agent.probes import PROBES, SUITES


def parser() -> argparse.ArgumentParser:
    """Options of the stand-alone runner."""
    made = argparse.ArgumentParser(prog="python -m tonnage_gpu_agent", description=__doc__)
    made.add_argument("--suite", choices=SUITES, default="quick")
    made.add_argument("--only", action="append", default=[], metavar="NAME", help="run this probe only; repeatable")
    made.add_argument("--gpu", action="append", default=[], metavar="INDEX", help="probe this GPU only; repeatable")
    made.add_argument("--out", default="", metavar="FILE", help="write the report here instead of standard output")
    made.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--scratch-dir", default="", metavar="DIR", help="where the disk probe writes its file")
    made.add_argument("--rehearse", action="store_true", help="every probe at toy size on the host, without a GPU")
    made.add_argument("--list", action="store_true", help="list the probes")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    arguments = parser().parse_args(argv)
    if arguments.list:
        sys.stdout.writelines(f"{p.name:24} {'quick' if p.quick else 'full':6} {p.summary}\n" for p in PROBES)
        return 0
    options = LocalOptions(
        arguments.suite,
        tuple(arguments.only),
        tuple(arguments.gpu),
        arguments.timeout,
        arguments.seed,
        arguments.scratch_dir,
        arguments.rehearse,
    )
    try:
        _check_writable(arguments.out)
        report = local_probe(options)
    except TonnageError as error:
        sys.stderr.write(f"tonnage probe: {error}\n")
        return 2 if isinstance(error, BadInputError) else 1
    written = _write(json.dumps(report, indent=1) + "\n", arguments.out)
    return 0 if report["measured"] and written else 1


def _check_writable(path: str) -> None:
    """A run takes minutes: a file that cannot be written is told before."""
    if path:
        try:
            with open(path, "a", encoding="utf-8"):
                pass
        except OSError as error:
            raise BadInputError(f"--out {path}: {error.strerror}") from error


def _write(text: str, path: str) -> bool:
    """To the file; to standard output when there is none or it cannot be written, so that no run is lost."""
    if path:
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return True
        except OSError as error:
            sys.stderr.write(f"tonnage probe: --out {path}: {error.strerror}; the report follows on standard output\n")
    sys.stdout.write(text)
    return not path


if __name__ == "__main__":
    sys.exit(main())
