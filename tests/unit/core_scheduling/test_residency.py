from tonnage_core.scheduling.residency import Residency

ALL = frozenset({"a", "b", "c", "gone", "kept", "new"})


def loaded(*names: str) -> Residency:
    residency = Residency()
    for name in names:
        residency.begin_load(name)
        residency.end_load(name, True)
    return residency


def test_the_least_recently_used_adapter_leaves_first() -> None:
    residency = loaded("a", "b", "c")
    residency.begin_use("a")
    residency.end_use("a")
    assert residency.victim(3, ALL) == "b"
    assert residency.victim(4, ALL) is None
    assert residency.victim(None, ALL) is None


def test_an_adapter_in_use_never_leaves() -> None:
    residency = loaded("a", "b")
    residency.begin_use("a")
    residency.begin_use("a")
    residency.end_use("a")
    assert residency.victim(2, ALL) == "b"
    residency.begin_use("b")
    assert residency.victim(2, ALL) is None


def test_a_load_under_way_takes_a_slot_and_a_failed_one_gives_it_back() -> None:
    residency = loaded("a")
    residency.begin_load("b")
    assert residency.names == {"a", "b"} and not residency.holds("b")
    assert residency.victim(2, ALL) == "a"
    residency.end_load("b", False)
    assert residency.victim(2, ALL) is None


def test_the_engines_list_corrects_ours() -> None:
    residency = loaded("gone", "kept")
    residency.listed(["kept", "new"])
    assert residency.names == {"kept", "new"}
    assert residency.victim(2, ALL) == "new"


def test_what_could_not_be_loaded_again_stays() -> None:
    residency = loaded("a", "b")
    assert residency.victim(2, {"b"}) == "b"
    assert residency.victim(2, {"c"}) is None
