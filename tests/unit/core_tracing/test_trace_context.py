"""Which `traceparent` is followed, and which requests are then recorded."""

import pytest

from tonnage_core.tracing.context import TraceContext, header, read_context
from tonnage_core.tracing.sampling import Rule, Sampler

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{PARENT}-01"
CALLER = TraceContext(int(TRACE, 16), int(PARENT, 16), 1)


def read(*parents: str, states: tuple[bytes, ...] = ()) -> TraceContext | None:
    return read_context([parent.encode("latin-1") for parent in parents], states)


def test_a_context_is_read_and_named_again() -> None:
    assert read(GOOD) == CALLER
    assert read(f" {GOOD}\t") == CALLER
    assert header(CALLER.trace_id, CALLER.parent_id, CALLER.flags) == GOOD.encode()


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert read(f"01-{TRACE}-{PARENT}-01") == CALLER
    assert read(f"cc-{TRACE}-{PARENT}-01-what-the-future-will-be") == CALLER


@pytest.mark.parametrize(
    "parents",
    [
        (),
        ("",),
        (GOOD, GOOD),
        (f"{GOOD}, {GOOD}",),
        (f"{GOOD}-00",),
        (f"{GOOD}x",),
        (f"01-{TRACE}-{PARENT}-01.later",),
        (f"ff-{TRACE}-{PARENT}-01",),
        (f"0-{TRACE}-{PARENT}-01",),
        (GOOD.upper(),),
        (f"00-{'0' * 32}-{PARENT}-01",),
        (f"00-{TRACE}-{'0' * 16}-01",),
        (f"00-{TRACE[:-1]}-{PARENT}-01",),
        (f"00-{TRACE}-{PARENT}-1",),
        (f"00-{TRACE}-{PARENT}",),
        (f"00_{TRACE}_{PARENT}_01",),
        (f"00-{TRACE[:-1]}\u00e9-{PARENT}-01",),
        (GOOD + "\n",),
        ("00-" + "a" * 60000,),
    ],
)
def test_what_is_no_context_is_not_followed(parents: tuple[str, ...]) -> None:
    assert read(*parents) is None


def test_lines_of_tracestate_are_one_list_and_one_too_long_is_not_kept() -> None:
    found = read(GOOD, states=(b"a=1", b"b=2"))
    assert found is not None and found.state == b"a=1,b=2"
    found = read(GOOD, states=(b"a=" + b"x" * 600,))
    assert found is not None and found.state == b""


@pytest.mark.parametrize("flags", [0, 1, 2, 3, 255])
def test_the_first_flag_says_whether_the_caller_records(flags: int) -> None:
    found = read(f"00-{TRACE}-{PARENT}-{flags:02x}")
    assert found is not None and found.flags == flags and found.sampled is bool(flags % 2)


RECORDS = TraceContext(1, 1, 1)
DOES_NOT = TraceContext(1, 1, 0)


@pytest.mark.parametrize(
    ("rule", "first", "after_one_that_records", "after_one_that_does_not"),
    [
        (Rule.ALWAYS_ON, True, True, True),
        (Rule.ALWAYS_OFF, False, False, False),
        (Rule.PARENTBASED_ALWAYS_ON, True, True, False),
        (Rule.PARENTBASED_ALWAYS_OFF, False, True, False),
    ],
)
def test_a_rule_says_what_is_recorded(
    rule: Rule, first: bool, after_one_that_records: bool, after_one_that_does_not: bool
) -> None:
    sampler = Sampler(rule)
    found = (sampler.samples(1, None), sampler.samples(1, RECORDS), sampler.samples(1, DOES_NOT))
    assert found == (first, after_one_that_records, after_one_that_does_not)


def test_a_ratio_keeps_its_share_by_the_trace_id_whoever_asks() -> None:
    ids = [(n << 64) + (2 * n + 1) * (1 << 64) // 2000 for n in range(1000)]
    for ratio in (0.0, 0.1, 0.5, 1.0):
        kept = [Sampler(Rule.TRACEIDRATIO, ratio).samples(one, None) for one in ids]
        assert kept.count(True) == 1000 * ratio
        assert kept == sorted(kept, reverse=True)
        assert kept == [Sampler(Rule.TRACEIDRATIO, ratio).samples(one, RECORDS) for one in ids]
        assert kept == [Sampler(Rule.PARENTBASED_TRACEIDRATIO, ratio).samples(one, None) for one in ids]
    assert Sampler(Rule.PARENTBASED_TRACEIDRATIO, 0.0).samples(1, RECORDS)
    assert not Sampler(Rule.PARENTBASED_TRACEIDRATIO, 1.0).samples(1, DOES_NOT)
