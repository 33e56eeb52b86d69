"""A killable child that sends JSON lines over a pipe, watched ten times a second."""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

LOOK_S = 0.1
TERM_GRACE_S = 0.5
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How it ended. `stopped` is why it was killed, `timed_out` whether the clock did it; else `exit_code` counts."""

    exit_code: int | None
    stopped: str = ""
    timed_out: bool = False
    errors: str = ""
    stop_took_s: float = 0.0


class Child:
    """A process in a session of its own, so that whatever it starts is ended with it."""

    def __init__(self, command: Sequence[str]) -> None:
        reading, writing = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child has ended
        self._process = subprocess.Popen(
            [*command, "--fd", str(writing)],
            pass_fds=(writing,),
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            start_new_session=True,
        )
        os.close(writing)
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The child's process id, which is its session's id as well."""
        return self._process.pid

    def _read(self, fd: int) -> None:
        with os.fdopen(fd, "r", encoding="utf-8") as lines:
            for line in lines:
                try:
                    self._messages.put(json.loads(line))
                except ValueError:  # a line that the child's death cut short
                    continue

    def run(
        self, on_message: Callable[[Message], None], stop_reason: Callable[[], str | None], timeout_s: float
    ) -> ChildEnd:
        """Wait for the end; kill on `stop_reason` (asked every 0.1 s) or after `timeout_s`, and when the wait itself
        ends by an exception, such as an interrupt from the keyboard."""
        try:
            return self._wait(on_message, stop_reason, timeout_s)
        except BaseException:
            self._end()
            self._errors.close()
            raise

    def _wait(
        self, on_message: Callable[[Message], None], stop_reason: Callable[[], str | None], timeout_s: float
    ) -> ChildEnd:
        deadline = time.monotonic() + timeout_s
        stopped, timed_out = "", False
        began_stop = 0.0
        while self._process.poll() is None:
            self._drain(on_message)
            stopped = stop_reason() or ""
            timed_out = time.monotonic() > deadline
            if stopped or timed_out:
                began_stop = time.monotonic()
                self._end()
                break
            time.sleep(LOOK_S)
        took = time.monotonic() - began_stop if began_stop else 0.0
        self._reader.join(timeout=2.0)
        self._drain(on_message)
        return ChildEnd(self._process.poll(), stopped, timed_out, self._tail(), took)

    def _drain(self, on_message: Callable[[Message], None]) -> None:
        while True:
            try:
                on_message(self._messages.get_nowait())
            except queue.Empty:
                return

    def _end(self) -> None:
        """TERM, then KILL. A process stuck in the kernel may survive both: it is left, and reported as it is."""
        for number, patience in ((signal.SIGTERM, TERM_GRACE_S), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(self.pid, number)
                self._process.wait(timeout=patience)
                return
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue

    def _tail(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 4000))
        text = self._errors.read().decode(errors="replace")
        self._errors.close()
        return text
