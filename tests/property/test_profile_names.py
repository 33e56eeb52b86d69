"""Names and labels of GpuProfiles are ones that Kubernetes takes, whatever a node or a product is called."""

import re

from hypothesis import given
from hypothesis import strategies as st

from tonnage_gpu_agent.profile_object import profile_labels, profile_name

NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
nodes = st.text(max_size=300) | st.from_regex(NAME, fullmatch=True)
indexes = st.integers(0, 1023)


@given(nodes, indexes)
def test_a_name_is_dns_safe_and_ends_with_the_index(node: str, index: int) -> None:
    name = profile_name(node, index)
    assert len(name) <= 253
    assert NAME.fullmatch(name)
    assert name.endswith(f"-{index}")


@given(nodes, nodes, indexes, indexes)
def test_two_gpus_never_share_a_name(one: str, other: str, i: int, j: int) -> None:
    assert (profile_name(one, i) == profile_name(other, j)) == ((one, i) == (other, j))


@given(nodes, st.text(max_size=100))
def test_labels_are_ones_and_tell_nodes_apart(node: str, product: str) -> None:
    for value in profile_labels(node, product).values():
        assert len(value) <= 63
        assert LABEL.fullmatch(value)


def test_a_plain_node_keeps_its_name() -> None:
    assert profile_name("gpu-7.eu.example.com", 3) == "gpu-7.eu.example.com-3"
    assert profile_labels("gpu-7", "NVIDIA H200")["tonnage.dev/node"] == "gpu-7"
