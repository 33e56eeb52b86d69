"""Coverage-guided fuzzing of parsers and tables: python tests/fuzz.py TARGET [libFuzzer options].

Targets and their properties are those of tests/property/fuzz_*.py. Needs `pip install atheris`. A directory among the
options is the corpus, begun with the target's seeds; findings go to the working directory. Without a target the names
are listed.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import atheris

FILES = tuple(
    Path(__file__).resolve().parent / "property" / f"fuzz_{name}.py" for name in ("router", "parser", "upstream")
)


def _loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with atheris.instrument_imports(include=["tonnage_router", "tonnage_core"]):
        spec.loader.exec_module(module)
    return module


def main() -> None:
    """Run one target until libFuzzer's options end it; a finding ends it with the input in a file."""
    modules = {name: module for module in map(_loaded, FILES) for name in module.TARGETS}
    if len(sys.argv) < 2:
        sys.stdout.write("\n".join(modules) + "\n")
        return
    name = sys.argv.pop(1)
    if name not in modules:
        sys.exit(f"usage: python tests/fuzz.py {{{','.join(modules)}}} [libFuzzer options]")
    for directory in (Path(part) for part in sys.argv[1:] if not part.startswith("-")):
        for number, seed in enumerate(modules[name].SEEDS[name]):
            (directory / f"seed-{number}").write_bytes(seed)
    atheris.Setup(sys.argv, modules[name].TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
