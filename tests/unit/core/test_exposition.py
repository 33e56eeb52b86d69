"""The bounded reader of Prometheus text."""

import math

import pytest

from tonnage_core.autoscaling.exposition import UnparsableError, parse

BODY = """\
# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \\"quoted\\" \\\\ name"} 3.0
vllm:num_requests_running{engine="1",} 4 1700000000000
other_metric 1
bad-looking{line without any value
plain 7e-1
"""


def test_reads_wanted_series_with_labels_and_timestamps() -> None:
    found = parse(BODY, {"vllm:num_requests_running", "plain"})
    running = found.samples["vllm:num_requests_running"]
    assert [sample.value for sample in running] == [3.0, 4.0]
    assert running[0].label("model_name") == 'a "quoted" \\ name'
    assert running[1].label("model_name") is None
    assert found.samples["plain"][0].value == pytest.approx(0.7)
    assert found.families == {"vllm:num_requests_running"}
    assert found.series == 5


@pytest.mark.parametrize("text", ["NaN", "nan", "+Inf", "-Inf"])
def test_keeps_values_that_are_not_finite(text: str) -> None:
    value = parse(f"x {text}\n", {"x"}).samples["x"][0].value
    assert not math.isfinite(value)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param("x 1", "cut", id="no newline at the end"),
        pytest.param("x\n", "without a value", id="no value"),
        pytest.param("x one\n", "value is expected", id="not a number"),
        pytest.param("x 1_0\n", "value is expected", id="python-only number"),
        pytest.param("x 1 2 3\n", "value is expected", id="too many fields"),
        pytest.param("x 1 soon\n", "timestamp", id="not a timestamp"),
        pytest.param('x{a="b} 1\n', "labels", id="open quote"),
        pytest.param('x{a="b"\n', "labels", id="open brace"),
    ],
)
def test_refuses_a_wanted_line_that_is_not_well_formed(body: str, why: str) -> None:
    with pytest.raises(UnparsableError, match=why):
        parse(body, {"x"})


def test_an_empty_body_holds_nothing() -> None:
    assert parse("", {"x"}).samples == {}


def test_an_exemplar_after_the_value_is_left_out() -> None:
    assert parse('x 2 # {trace="1"} 0.3\n', {"x"}).samples["x"][0].value == 2.0
