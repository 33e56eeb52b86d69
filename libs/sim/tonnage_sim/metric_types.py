"""Metric cells cheap enough for the token path: no locks, many equal observations in one call.

They render through prometheus_client's exposition as a collector; label order and number format are the library's.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeVar

from prometheus_client.core import Metric

Labels = tuple[tuple[str, str], ...]


class Cell:
    """One counter or gauge series."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`."""
        self.value += amount


class HistogramCell:
    """One histogram series; `counts` per bucket, not cumulative, the last one for +Inf."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Record `value` `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class SummaryCell:
    """Count and sum."""

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Record `value`."""
        self.count += 1
        self.total += value


class ScalarFamily:
    """Counters or gauges of one name. A counter's name ends in `_total`."""

    def __init__(self, name: str, documentation: str, kind: Literal["counter", "gauge"]) -> None:
        self.name = name
        self.kind = kind
        self._documentation = documentation
        self._cells: dict[Labels, Cell] = {}

    def cell(self, labels: Iterable[tuple[str, str]]) -> Cell:
        """The series with these labels, made at its first use."""
        return self._cells.setdefault(tuple(sorted(labels)), Cell())

    def forget(self, labels: Iterable[tuple[str, str]]) -> None:
        """Drop a series."""
        self._cells.pop(tuple(sorted(labels)), None)

    def collect(self) -> Metric:
        """The family for the exposition."""
        metric = Metric(self.name.removesuffix("_total"), self._documentation, self.kind)
        for labels, cell in self._cells.items():
            metric.add_sample(self.name, dict(labels), cell.value)
        return metric


class HistogramFamily:
    """Histograms of one name and one set of bounds (without +Inf)."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.bounds = tuple(float(b) for b in bounds)
        self._documentation = documentation
        self._cells: dict[Labels, HistogramCell] = {}

    def cell(self, labels: Iterable[tuple[str, str]]) -> HistogramCell:
        """The series with these labels, made at its first use."""
        key = tuple(sorted(labels))
        found = self._cells.get(key)
        if found is None:
            found = self._cells[key] = HistogramCell(self.bounds)
        return found

    def collect(self) -> Metric:
        """The family for the exposition."""
        metric = Metric(self.name, self._documentation, "histogram")
        edges = [_edge(b) for b in self.bounds] + ["+Inf"]
        for labels, cell in self._cells.items():
            plain = dict(labels)
            below = 0
            for edge, count in zip(edges, cell.counts, strict=True):
                below += count
                metric.add_sample(f"{self.name}_bucket", {**plain, "le": edge}, below)
            metric.add_sample(f"{self.name}_count", plain, below)
            metric.add_sample(f"{self.name}_sum", plain, cell.total)
        return metric


def _edge(bound: float) -> str:
    """As Go prints a float: plain below a million, an exponent from there on."""
    return repr(bound) if bound < 1e6 else f"{bound:.0e}"


class SummaryFamily:
    """Summaries (count and sum) of one name."""

    def __init__(self, name: str, documentation: str) -> None:
        self.name = name
        self._documentation = documentation
        self._cells: dict[Labels, SummaryCell] = {}

    def cell(self, labels: Iterable[tuple[str, str]]) -> SummaryCell:
        """The series with these labels, made at its first use."""
        return self._cells.setdefault(tuple(sorted(labels)), SummaryCell())

    def collect(self) -> Metric:
        """The family for the exposition."""
        metric = Metric(self.name, self._documentation, "summary")
        for labels, cell in self._cells.items():
            metric.add_sample(f"{self.name}_count", dict(labels), cell.count)
            metric.add_sample(f"{self.name}_sum", dict(labels), cell.total)
        return metric


Family = ScalarFamily | HistogramFamily | SummaryFamily
F = TypeVar("F", ScalarFamily, HistogramFamily, SummaryFamily)


class Families:
    """Families in exposition order, as one collector of a registry."""

    def __init__(self) -> None:
        self._families: list[Family] = []

    def counter(self, name: str, documentation: str) -> ScalarFamily:
        """Declare a counter."""
        return self._add(ScalarFamily(name, documentation, "counter"))

    def gauge(self, name: str, documentation: str) -> ScalarFamily:
        """Declare a gauge."""
        return self._add(ScalarFamily(name, documentation, "gauge"))

    def histogram(self, name: str, documentation: str, bounds: Sequence[float]) -> HistogramFamily:
        """Declare a histogram."""
        return self._add(HistogramFamily(name, documentation, bounds))

    def summary(self, name: str, documentation: str) -> SummaryFamily:
        """Declare a summary."""
        return self._add(SummaryFamily(name, documentation))

    def collect(self) -> Iterator[Metric]:
        """Every family (prometheus_client's collector protocol)."""
        for family in self._families:
            yield family.collect()

    def _add(self, family: F) -> F:
        self._families.append(family)
        return family
