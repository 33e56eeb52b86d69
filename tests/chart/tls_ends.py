"""For tests of TLS: asyncio leaves a socket to the collector whose caller was gone before the loop ended."""

import gc
import warnings
from collections.abc import Iterator

import pytest


def _collect() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def tls_ends_of_the_last() -> Iterator[None]:
    """After the module's last test."""
    yield
    _collect()


@pytest.fixture(autouse=True)
def tls_ends() -> None:
    """Before each test, when the loop of the one before is closed."""
    _collect()
