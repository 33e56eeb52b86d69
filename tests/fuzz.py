"""Coverage-guided fuzzing of the router's parsers and tables: python tests/fuzz.py TARGET [libFuzzer options].

Targets and their properties are those of tests/property/test_router_fuzz.py. Needs `pip install atheris`. A directory
among the options is the corpus, begun with the target's seeds; findings go to the working directory.
"""

import importlib.util
import sys
from pathlib import Path

import atheris

FILE = Path(__file__).resolve().parent / "property" / "test_router_fuzz.py"


def main() -> None:
    """Run one target until libFuzzer's options end it; a finding ends it with the input in a file."""
    spec = importlib.util.spec_from_file_location("router_fuzz", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with atheris.instrument_imports(include=["tonnage_router", "tonnage_core"]):
        spec.loader.exec_module(module)
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in module.TARGETS:
        sys.exit(f"usage: python tests/fuzz.py {{{','.join(module.TARGETS)}}} [libFuzzer options]")
    for directory in (Path(part) for part in sys.argv[1:] if not part.startswith("-")):
        for number, seed in enumerate(module.SEEDS[name]):
            (directory / f"seed-{number}").write_bytes(seed)
    atheris.Setup(sys.argv, module.TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
