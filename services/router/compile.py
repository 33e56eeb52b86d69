"""Compiles the router's data path and the decisions it calls to C, by mypyc: the same modules, at about half the CPU.

    python services/router/compile.py DESTINATION

Copies `tonnage_core` and `tonnage_router` there, with an extension module beside each compiled source; Python prefers
the former, so whoever has the folder first on its path runs compiled. Needs mypy, setuptools and a C compiler.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("libs/core/tonnage_core", "services/router/tonnage_router")
TYPES = "libs/runtime/tonnage_runtime"
"""Read for its types, not compiled."""
MODULES = {
    "tonnage_core": ("slo",),
    "tonnage_core/flow_control": ("breaker", "drain_rate", "retry_budget", "tenants", "token_bucket", "ttft_admission"),
    "tonnage_core/prefix_index": ("block_hash", "exact_index", "index", "token_estimate"),
    "tonnage_core/scheduling": (
        "answers", "decide", "filters", "pace", "pickers", "profile", "residency", "scheduler", "scorers", "types",
    ),
    "tonnage_core/tracing": ("otlp",),
    "tonnage_router": (
        "access_log", "admission", "decisions", "errors", "exchange", "fleet", "gateway", "holding", "limits", "lora",
        "metrics", "objectives", "prompt_keys", "rewriter", "shared_index", "slo_admission", "sweeper", "tenants",
    ),
    "tonnage_router/body": ("facts", "shapes", "splice", "sse", "usage"),
    "tonnage_router/wire": ("answers", "client", "headers", "heads", "incoming", "pool", "repeated_event", "upstream"),
}  # fmt: skip
"""What a request passes, and the sweeper, which looks at each that is under way. Left out: what is rarely run, and
`fair_queue`, whose generic dataclass mypyc cannot build."""


def main(destination: Path) -> int:
    """Compile in a scratch folder, then put the packages in place."""
    from mypyc.build import mypycify
    from setuptools import setup

    destination.mkdir(parents=True, exist_ok=True)
    target = destination.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        for package in (*PACKAGES, TYPES):
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / package, Path(scratch) / Path(package).name, ignore=ignored)
        os.chdir(scratch)
        paths = [f"{folder}/{name}.py" for folder, names in MODULES.items() for name in names]
        extensions = mypycify(["--ignore-missing-imports", *paths], opt_level="3")
        setup(name="tonnage-router-compiled", ext_modules=extensions, script_args=["-q", "build_ext", "--inplace"])
        for package in PACKAGES:
            shutil.copytree(Path(package).name, target / Path(package).name, dirs_exist_ok=True)
        for shared in Path().glob("*.so"):
            shutil.copy2(shared, target)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
