"""The steps of a scaled local fleet, and what its report says of them."""

from tonnage_cli.fleet.scaling import Event, Stage, Step, TargetChange, document, steps

SERVING, STARTING, DRAINING = Stage.SERVING, Stage.STARTING, Stage.DRAINING


def test_engines_are_added_in_the_lowest_free_places() -> None:
    assert steps(4, {0: SERVING, 2: SERVING}, 8) == [(Step.START, 1), (Step.START, 3)]


def test_engines_on_their_way_count_so_that_nothing_is_asked_for_twice() -> None:
    assert steps(2, {0: SERVING, 1: STARTING}, 8) == []


def test_no_more_engines_than_there_is_room_for() -> None:
    assert steps(9, {0: SERVING, 1: SERVING}, 3) == [(Step.START, 2)]


def test_the_newest_go_first() -> None:
    assert steps(1, {0: SERVING, 1: SERVING, 2: STARTING}, 8) == [(Step.DRAIN, 2), (Step.DRAIN, 1)]


def test_engines_that_drain_do_not_count_and_are_taken_back_first() -> None:
    engines = {0: SERVING, 1: DRAINING, 2: DRAINING}
    assert steps(1, engines, 8) == []
    assert steps(2, engines, 8) == [(Step.RECALL, 1)]
    assert steps(4, engines, 8) == [(Step.RECALL, 1), (Step.RECALL, 2), (Step.START, 3)]


def test_the_report_counts_engine_hours_the_peak_and_what_was_cut() -> None:
    events = [
        Event(100.0, Step.START, 1),
        Event(150.0, Step.SERVE, 1),
        Event(3700.0, Step.DRAIN, 1),
        Event(3700.0, Step.END, 1, left=2),
    ]
    found = document(events, [TargetChange(99.0, 1, 2, "demand", "more")], first=1, most=4, now_s=7200.0)
    assert (found["peak_replicas"], found["final_replicas"], found["cut_streams"]) == (2, 1, 2)
    assert found["replica_hours"] == 3.0
    assert found["targets"] == [{"at_s": 99.0, "before": 1, "after": 2, "moved_by": "demand", "reason": "more"}]
