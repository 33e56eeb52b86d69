"""The HTML report stands alone and escapes what it shows."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tonnage_core.slo import RequestRecord, Slo
from tonnage_loadgen import html, report
from tonnage_loadgen.errors import ReportError
from tonnage_loadgen.svg import Axes, Series, line_chart


class Balanced(HTMLParser):
    """Fails on a tag closed out of turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def document(count: int = 50) -> dict[str, object]:
    records = [
        RequestRecord(n, 100 * n, n * 0.1, n * 0.1, n * 0.1, n * 0.1 + 0.2, n * 0.1 + 1, (0.1,), 9, 16)
        for n in range(count)
    ]
    return report.document_of(records, [], kind="up", seed=7, slo=Slo()) | {"notes": ["a <b> note"]}


def test_the_page_is_well_formed_and_needs_nothing_else() -> None:
    page = html.page({"prefix": document(), "round<robin>": document(3)})
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.seen.count("svg") == 6
    assert "round&lt;robin&gt;" in page
    assert "a &lt;b&gt; note" in page
    assert re.search(r"(src|href)=|<script|url\(|@import|https?:", page) is None


def test_unknown_figures_are_called_unknown() -> None:
    page = html.page({"prefix": document(0)})
    assert "unknown" in page
    assert "Nothing was measured." in page


def test_a_void_run_says_so_first() -> None:
    void = document() | {"client": {"bound": True, "reason": "too slow"}}
    page = html.page({"prefix": void})
    assert page.index("VOID (prefix): too slow") < page.index("<table")


def test_lines_stay_inside_their_chart() -> None:
    points = [(0.001, 0.0), (5.0, 50.0), (123_456.0, 100.0)]
    drawn = line_chart([Series("a", points, "s0")], Axes("ms", "%", log_x=True, y_top=100.0))
    for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", drawn):
        assert 0 <= float(x) <= 560
        assert 0 <= float(y) <= 250


@pytest.mark.parametrize("points", [[], [(1.0, None)], [(0.0, 5.0)]])
def test_a_chart_without_points_is_a_sentence(points: list[tuple[float, float | None]]) -> None:
    assert "<svg" not in line_chart([Series("a", points, "s0")], Axes("x", "y", log_x=True))


def test_a_report_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot be written"):
        html.render({"a": document()}, tmp_path / "no" / "r.html")
    with pytest.raises(ReportError, match="cannot be written"):
        report.write_json(document(), tmp_path)
