"""The shared list of nodes that have a snapshot."""

from random import Random

from tonnage_core.coldstart.peers import Peer, announced, nearest, parse_peers, shared_levels, withdrawn


def peer(node: str, place: str = "", until_s: float = 100.0) -> Peer:
    return Peer(node, f"http://{node}:1", place, until_s)


def test_the_nearest_come_first_and_the_dead_and_oneself_not_at_all() -> None:
    known = [peer("a", "z1/r1"), peer("b", "z2/r1"), peer("c", "z1/r2"), peer("own", "z1/r1"), peer("dead", "z1/r1", 5)]
    found = nearest(known, "own", "z1/r1", now_s=10.0, rng=Random(0))
    assert [one.node for one in found] == ["a", "c", "b"]


def test_equally_near_nodes_are_asked_in_turns() -> None:
    known = [peer(str(number)) for number in range(8)]
    assert {nearest(known, "own", "", 0.0, Random(seed))[0].node for seed in range(60)} == {str(n) for n in range(8)}


def test_a_node_stands_once_is_renewed_and_leaves() -> None:
    raw = announced(announced(None, peer("a"), 0.0), peer("b", until_s=7.0), 0.0)
    raw = announced(raw, peer("a", until_s=200.0), 0.0)
    assert {one.node: one.until_s for one in parse_peers(raw)} == {"a": 200.0, "b": 7.0}
    assert [one.node for one in parse_peers(announced(raw, peer("c"), 8.0))] == ["a", "c"]
    assert [one.node for one in parse_peers(withdrawn(raw, "a", 0.0))] == ["b"]


def test_what_is_no_list_of_nodes_is_nobody() -> None:
    for raw in (b"{", b"7", b'[{"node": 1}]', b'[{"node":"a","url":"file:///x","place":"","until_s":1}]', b'["x"]'):
        assert parse_peers(raw) == ()


def test_an_unknown_place_is_near_to_nothing() -> None:
    assert [shared_levels(*pair) for pair in (("", ""), ("a", "a"), ("a/b", "a/b"), ("a/b", "a/c"))] == [0, 1, 2, 1]
