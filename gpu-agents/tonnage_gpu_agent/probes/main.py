"""The probe process: runs probes on one GPU and writes what it finds, line by line, to a pipe.

It is a child of the agent (or of the command line) so that it can be killed: a hung driver call, a time-out or
another user of the GPU ends this process, never the agent. Messages are JSON objects, one a line:
`hello` (versions, device), `memory` (what the allocator holds, 20 times a second), `begin`, `point`, `end`, `done`.
"""

import argparse
import contextlib
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_gpu_agent.probes.lifeline import end_with_parent

PUBLISH_S = 0.05
SETTLE_S = 0.6
"""Stillness after the first word, in which the guard learns what the driver holds for this process."""
RELEASE_S = 2.0
"""What the driver may take to give back the memory of a node's ended ranks; 0.6 s was once too short on two H200s."""


class Channel:
    """Where messages go; safe to use from the memory thread and the probes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, kind: str, **fields: Any) -> None:
        """Write one message; the parent is gone when that fails, and then so are we."""
        line = json.dumps({"type": kind, **fields}) + "\n"
        with self._lock:
            view = memoryview(line.encode())
            try:
                while view:
                    view = view[os.write(self._fd, view) :]
            except BrokenPipeError:
                os._exit(3)


class Phase:
    """Whether a timed region runs (the process then takes no driver memory) or anything else does."""

    def __init__(self) -> None:
        self.warming = True
        self.helpers = False
        self.say: Callable[[], None] = lambda: None
        """Tells the guard at once; the thread that does it 20 times a second may wait for the interpreter."""

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Around a timed region."""
        self.warming = False
        try:
            yield
        finally:
            self.warming = True

    @contextlib.contextmanager
    def helping(self) -> Iterator[None]:
        """While processes of ours run on the GPU."""
        self.helpers = True
        self.say()
        try:
            yield
        finally:
            time.sleep(RELEASE_S)
            self.helpers = False
            self.say()


def say_memory(channel: Channel, phase: Phase) -> None:
    """Say what the allocator holds, so that the guard can tell our memory from a stranger's."""
    import torch

    channel.send("memory", reserved=int(torch.cuda.memory_reserved()), warming=phase.warming, helpers=phase.helpers)


def publish_memory(phase: Phase) -> None:
    """Say it for ever."""
    while True:
        phase.say()
        time.sleep(PUBLISH_S)


def start_libraries(torch: Any, device: Any) -> None:
    """Create the context and let the framework load what every probe uses, before the guard watches for strangers."""
    made = torch.randn(256, 256, device=device, dtype=torch.bfloat16)
    whole = torch.randint(0, 9, (16384, 8192), device=device, dtype=torch.int32)
    (made @ made).double().sum().item()
    bool(torch.isfinite(made.float()).all()) and bool(torch.equal(whole, whole.clone()))
    del made, whole
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def make_bench(arguments: argparse.Namespace, channel: Channel) -> Any:
    """The `Bench` of the visible GPU, or of the host in a rehearsal."""
    import torch

    from tonnage_gpu_agent.probes.context import sampler, versions
    from tonnage_gpu_agent.probes.probe import Bench
    from tonnage_gpu_agent.probes.timing import CudaTimer, HostTimer

    quick = arguments.suite == "quick"
    if arguments.rehearse:
        channel.send("hello", versions=versions(), product="host")
        host = torch.device("cpu")
        return Bench(host, HostTimer(), torch.Generator().manual_seed(arguments.seed), quick=quick)
    phase = Phase()
    phase.say = partial(say_memory, channel, phase)
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    start_libraries(torch, device)
    properties = torch.cuda.get_device_properties(device)
    threading.Thread(target=publish_memory, args=(phase,), daemon=True).start()
    time.sleep(SETTLE_S)
    channel.send("hello", versions=versions(), product=properties.name, memory_bytes=int(properties.total_memory))
    return Bench(
        device,
        CudaTimer(sampler(arguments.device.split(",")[0]), phase.measuring),
        torch.Generator(device=device).manual_seed(arguments.seed),
        quick=quick,
        l2_bytes=int(properties.L2_cache_size),
        multiprocessors=int(properties.multi_processor_count),
        peers=[torch.device("cuda", i) for i in range(1, torch.cuda.device_count())],
        scratch_dir=arguments.scratch_dir,
        helping=phase.helping,
    )


def run_probe(name: str, module: str, bench: Any, channel: Channel) -> None:
    """One probe: its points as they come. What it raises is its own error; the next probe still runs."""
    import torch

    channel.send("begin", name=name)
    began = time.monotonic()
    try:
        probe = import_module(module).probe
        why = probe.unsupported(bench)
        if why is not None:
            send_point(channel, Measurement(name, PointStatus.UNSUPPORTED, detail=why))
        else:
            for point in probe.points(bench):
                send_point(channel, point)
    except torch.OutOfMemoryError as error:
        send_point(channel, Measurement(name, PointStatus.ERROR, detail=f"could not allocate: {first_line(error)}"))
    except ImportError as error:
        send_point(channel, Measurement(name, PointStatus.UNSUPPORTED, detail=first_line(error)))
    except Exception as error:  # noqa: BLE001 - a task boundary: one plugin's fault must not end the others
        send_point(channel, Measurement(name, PointStatus.ERROR, detail=f"{type(error).__name__}: {first_line(error)}"))
    gc.collect()
    if not bench.rehearsal:
        torch.cuda.empty_cache()
    channel.send("end", name=name, seconds=round(time.monotonic() - began, 3))


def first_line(error: BaseException) -> str:
    """The error's first line, which is what fits a report."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def send_point(channel: Channel, point: Measurement) -> None:
    """A point, as its document."""
    channel.send("point", point=point.document())


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the child."""
    parser = argparse.ArgumentParser(prog="tonnage_gpu_agent.probes.main")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--device", default="")
    parser.add_argument("--suite", default="quick")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch-dir", default="")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("probes", nargs="+", metavar="NAME=MODULE")
    arguments = parser.parse_args(argv)
    if arguments.device:
        os.environ["CUDA_VISIBLE_DEVICES"] = arguments.device
    if arguments.rehearse:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    end_with_parent()
    channel = Channel(arguments.fd)
    bench = make_bench(arguments, channel)
    for entry in arguments.probes:
        name, _, module = entry.partition("=")
        run_probe(name, module, bench, channel)
    channel.send("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
