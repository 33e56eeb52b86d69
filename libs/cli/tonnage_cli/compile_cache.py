"""`tonnage compile-cache`: compiled code kept between an engine's starts, by engine, GPU, model and flags."""

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from tonnage_cli.compile_detect import detected_driver, detected_gpu, installed, model_digest
from tonnage_cli.directory import Directory
from tonnage_cli.finite import FiniteRange
from tonnage_cli.output import json_option, print_json, print_table
from tonnage_cli.supervised import Command, run_command
from tonnage_coldstart.compile_cache import QUOTA_BYTES, CompileCache, Restored
from tonnage_core.coldstart.compile_key import CompileKey, engine_flags
from tonnage_core.errors import BadInputError, TonnageError
from tonnage_core.units import GIB, MIB

PLACES = {
    "inductor": ("TORCHINDUCTOR_CACHE_DIR", ""),
    "triton": ("TRITON_CACHE_DIR", ""),
    "vllm": ("VLLM_CACHE_ROOT", "torch_compile_cache"),
}
"""Where compilers keep their code: the variable that says so, and the directory below it."""

cache_option = click.option("--cache", type=Directory(), required=True, help="Directory of the entries.")
quota_option = click.option(
    "--quota-gib",
    type=FiniteRange(0, 1e9, min_open=True),
    default=QUOTA_BYTES / GIB,
    show_default=True,
    help="Most GiB of all entries; the least recently used leave first.",
)


def key_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What compiled code depends on; found in this environment where it is not said."""
    for option in (
        click.option("--driver", help="Driver or runtime version; asked of the GPU by default."),
        click.option("--gpu", help="Product and capability; asked of the first GPU by default."),
        click.option("--torch", "torch_", help="Version of torch; the installed one by default."),
        click.option("--engine", help="Engine and version, as vllm:0.32.0; the installed vLLM by default."),
        click.option("--model", required=True, help="The model's directory, or a name for it."),
    ):
        function = option(function)
    return function


flag_option = click.option(
    "--flag", "flags", multiple=True, metavar="NAME=VALUE", help="An engine argument that counts."
)
root_option = click.option(
    "--root", "roots", multiple=True, required=True, metavar="NAME=DIR", help="inductor, triton or vllm."
)


@click.group()
def command() -> None:
    """Keep what an engine compiled and give it back to the next start.

    An entry fits a start with the same engine, torch, GPU, driver, model and flags, and no other. Every file is checked
    against its SHA-256 before it is put in place.
    """


@command.command(context_settings={"ignore_unknown_options": True})
@cache_option
@key_options
@click.option(
    "--ready", metavar="URL", help="Keep what was compiled once this answers 200, as http://127.0.0.1:8000/health."
)
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), help="Where the engine compiles to.")
@click.option("--every-s", type=FiniteRange(0, 3600, min_open=True), default=2.0, show_default=True, hidden=True)
@quota_option
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    cache: Path, ready: str | None, work: Path | None, every_s: float, quota_gib: float, arguments: tuple[str, ...],
    **given: Any,
) -> int:  # fmt: skip
    """Start an engine with its compiled code: tonnage compile-cache run --cache DIR --model DIR -- vllm serve ...

    Restores before the start and captures after it: once --ready answers, else when the engine ends. A cache that
    fails, or whose key is unknown, is said on stderr and never keeps the engine from starting. Signals go on to the
    engine; its exit code is returned.
    """
    if ready is not None and not _can_answer(ready):
        raise BadInputError(f"--ready {ready}: an http:// address is expected, as http://127.0.0.1:8000/health")
    try:
        key = _key(given, arguments)
    except BadInputError as error:
        click.echo(f"compile cache: not used: {error}", err=True)
        return run_command(Command(arguments, os.environ), lambda: None)
    store = CompileCache(cache.absolute(), quota_bytes=int(quota_gib * GIB))
    with ExitStack() as stack:
        folder = work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tonnage-compile-")))
        environment, roots = _environment(folder.absolute(), os.environ)
        found = _restored(store, key, roots)

        def capture() -> None:
            _capture(store, key, roots, found)

        return run_command(Command(arguments, environment, ready, every_s), capture)


@command.command()
@cache_option
@key_options
@flag_option
@root_option
@quota_option
@json_option
def capture(
    cache: Path, flags: tuple[str, ...], roots: tuple[str, ...], quota_gib: float, as_json: bool, **given: Any
) -> int:
    """Keep what the directories hold now; an entry of the same key is replaced."""
    key = _key(given, [f"--{flag}" for flag in flags])
    size = CompileCache(cache.absolute(), quota_bytes=int(quota_gib * GIB)).capture(key, _named(roots))
    document = {"schema": "tonnage.compile_capture/1", "version": 1, "key": key.document(), "bytes": size}
    print_json(document) if as_json else click.echo(f"kept {size / MIB:.1f} MiB as {key.digest}")
    return 0


@command.command()
@cache_option
@key_options
@flag_option
@root_option
@json_option
def restore(cache: Path, flags: tuple[str, ...], roots: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Put an entry's files into the directories; exit code 1 when nothing fits."""
    key = _key(given, [f"--{flag}" for flag in flags])
    found = CompileCache(cache.absolute()).restore(key, _named(roots))
    document = {"schema": "tonnage.compile_restore/1", "version": 1, "key": key.document(), "hit": found.hit}
    document |= {"files": found.files, "bytes": found.bytes, "reason": found.reason}
    print_json(document) if as_json else click.echo(_said(key, found))
    return 0 if found.hit else 1


@command.command("list")
@cache_option
@json_option
def list_entries(cache: Path, as_json: bool) -> int:
    """The entries: what is kept, for which starts."""
    entries = CompileCache(cache.absolute()).entries()
    if as_json:
        print_json({"schema": "tonnage.compile_entries/1", "version": 1, "entries": entries})
        return 0
    rows = [
        (e["key"]["digest"], e["key"]["engine"], e["key"]["gpu"], e["key"]["model"][:12], f"{e['bytes'] / MIB:.1f}")
        for e in entries
    ]
    print_table("Compiled code", ("entry", "engine", "GPU", "model", "MiB"), rows)
    return 0


@command.command()
@cache_option
@click.argument("digest")
def drop(cache: Path, digest: str) -> int:
    """Remove an entry by the digest that `list` shows."""
    if not CompileCache(cache.absolute()).drop(digest):
        raise BadInputError(f"{digest}: no such entry in {cache}; `tonnage compile-cache list` shows them")
    return 0


def _key(given: Mapping[str, Any], arguments: tuple[str, ...] | list[str]) -> CompileKey:
    return CompileKey(
        engine=given["engine"] or f"vllm:{installed('vllm', '--engine')}",
        torch=given["torch_"] or installed("torch", "--torch"),
        gpu=given["gpu"] or detected_gpu(),
        driver=given["driver"] or detected_driver(),
        model=model_digest(given["model"]),
        flags=engine_flags(arguments),
    )


def _named(roots: tuple[str, ...]) -> dict[str, Path]:
    found = {}
    for text in roots:
        name, _, path = text.partition("=")
        if name not in PLACES or not path:
            raise BadInputError(f"--root {text}: NAME=DIR is expected, NAME one of {', '.join(PLACES)}")
        found[name] = Path(path).absolute()
    return found


def _can_answer(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0 and not re.search(r"[^!-~]", url)
    except ValueError:  # a port or an address that is none
        return False


def _environment(work: Path, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Path]]:
    """The engine's environment, and where each compiler keeps its code: as the environment says, else below `work`."""
    environment, roots = dict(given), {}
    for name, (variable, below) in PLACES.items():
        environment[variable] = given.get(variable) or str(work / name)
        roots[name] = Path(environment[variable]).absolute() / below
    return environment, roots


def _restored(store: CompileCache, key: CompileKey, roots: Mapping[str, Path]) -> Restored:
    try:
        found = store.restore(key, roots)
    except TonnageError as error:
        found = Restored(False, 0, 0, str(error))
    click.echo(f"compile cache: {_said(key, found)}", err=True)
    return found


def _capture(store: CompileCache, key: CompileKey, roots: Mapping[str, Path], before: Restored) -> None:
    """Keep what is there now, unless it is what was restored."""
    try:
        if before.hit and not store.adds(key, roots):
            return
        size = store.capture(key, roots)
        click.echo(f"compile cache: kept {size / MIB:.1f} MiB as {key.digest}", err=True)
    except TonnageError as error:
        click.echo(f"compile cache: nothing kept: {error}", err=True)


def _said(key: CompileKey, found: Restored) -> str:
    if not found.hit:
        return f"miss ({found.reason}) for {key.digest}"
    return f"hit, {found.files} files put in place, {found.bytes / MIB:.1f} MiB, {key.digest}"
