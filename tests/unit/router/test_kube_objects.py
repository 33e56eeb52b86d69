"""Endpoints out of pods and EndpointSlices."""

from typing import Any

from tonnage_router.adapters.kube_objects import (
    NOT_READY,
    TERMINATING,
    Found,
    Row,
    Unreadable,
    of_pods,
    of_pool,
    of_slices,
)

Object = dict[str, Any]


def pod(name: str = "a", ip: str | None = "10.0.0.1", *, ready: bool = True, uid: str = "", **marks: str) -> Object:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {
            "name": name,
            "uid": uid or f"uid-{name}",
            "creationTimestamp": "2026-11-29T10:00:00Z",
            "labels": {"tonnage.dev/model": "m"},
            "annotations": {f"tonnage.dev/{key.replace('_', '-')}": value for key, value in marks.items()},
        },
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8000}, {"containerPort": 9}]}]},
        "status": {"phase": "Running", "podIP": ip, "conditions": conditions},
    }


def going(item: Object) -> Object:
    item["metadata"]["deletionTimestamp"] = "2026-11-29T11:00:00Z"
    return item


def only(rows: list[Row]) -> Found:
    (row,) = rows
    assert isinstance(row, Found)
    return row


def test_a_ready_pod_is_an_endpoint_under_its_name_with_its_uid_as_identity() -> None:
    row = only(of_pods([pod()], "http"))
    assert (row.spec.id, row.spec.url, row.spec.model, row.spec.uid) == ("a", "http://10.0.0.1:8000", "m", "uid-a")
    assert row.causes == frozenset()


def test_annotations_win_over_labels_and_give_every_field() -> None:
    marks: dict[str, Any] = {
        "model": "org/m",
        "served_model": "m",
        "role": "prefill",
        "length_class": "long",
        "gpu_profile": "n1/0",
        "gpu_speed": "0.5",
        "cost": "2.5",
        "adapter_slots": "4",
    }
    spec = only(of_pods([pod(**marks)], "http")).spec
    assert (spec.model, spec.served_model, spec.role, spec.length_class) == ("org/m", "m", "prefill", "long")
    assert (spec.gpu_profile, spec.gpu_speed, spec.cost, spec.adapter_slots) == ("n1/0", 0.5, 2.5, 4)


def test_a_pod_without_an_address_or_that_has_ended_is_none() -> None:
    ended = pod("c")
    ended["status"]["phase"] = "Failed"
    assert of_pods([pod("a", None), pod("b", ""), ended], "http") == []


def test_a_terminating_or_unready_pod_is_kept_and_says_why_it_takes_nothing_new() -> None:
    pods = [going(pod("a")), pod("b", "10.0.0.2", ready=False), going(pod("c", "10.0.0.3", ready=False))]
    causes = {row.spec.id: row.causes for row in of_pods(pods, "http") if isinstance(row, Found)}
    assert causes == {"a": {TERMINATING}, "b": {NOT_READY}, "c": {TERMINATING, NOT_READY}}


def test_of_a_dying_pod_and_a_new_one_at_its_address_the_new_one_is_meant() -> None:
    for pods in ([going(pod("old")), pod("new")], [pod("new"), going(pod("old"))]):
        assert only(of_pods(pods, "http")).spec.uid == "uid-new"


def test_pods_of_the_host_network_share_an_address_and_differ_by_port() -> None:
    rows = of_pods([pod("a", port="8001"), pod("b", port="8002")], "http")
    assert {row.spec.url for row in rows if isinstance(row, Found)} == {"http://10.0.0.1:8001", "http://10.0.0.1:8002"}


def test_the_port_is_found_by_name_by_number_or_as_the_only_one() -> None:
    single = pod()
    single["spec"]["containers"] = [{"ports": [{"containerPort": 7000}]}]
    assert only(of_pods([single], "http")).spec.url == "http://10.0.0.1:7000"
    assert only(of_pods([pod()], "9001")).spec.url == "http://10.0.0.1:9001"
    (row,) = of_pods([pod()], "grpc")
    assert isinstance(row, Unreadable) and "no container port is named 'grpc'" in row.why


def test_a_pod_whose_port_is_none_is_left_out_and_said() -> None:
    odd, good = of_pods([pod("a", port="70000"), pod("b", ip="10.0.0.2")], "http")
    assert isinstance(odd, Unreadable) and "a port is a number from 1 to 65535" in odd.why
    assert isinstance(good, Found)


def test_an_unreadable_cost_is_unknown_and_an_unreadable_role_leaves_the_pod_out() -> None:
    rows = of_pods([pod(cost="cheap")], "http")
    assert [type(row) for row in rows] == [Unreadable, Found]
    assert only([row for row in rows if isinstance(row, Found)]).spec.cost is None
    (left_out,) = of_pods([pod(role="both-ish")], "http")
    assert isinstance(left_out, Unreadable) and left_out.why.startswith("tonnage.dev/role: ")


def test_ipv6_addresses_stand_in_brackets() -> None:
    assert only(of_pods([pod("a", "fd00::1")], "http")).spec.url == "http://[fd00::1]:8000"


def piece(*endpoints: Object, family: str = "IPv4", name: str = "s", **meta: Any) -> Object:
    return {
        "metadata": {"name": name, **meta},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9000}],
    }


def address(name: str = "a", ip: str = "10.0.0.1", **conditions: bool | None) -> Object:
    target = {"kind": "Pod", "name": name, "uid": f"uid-{name}"}
    return {"addresses": [ip], "conditions": conditions, "targetRef": target}


def test_a_slice_gives_address_and_port_and_its_pod_the_labels() -> None:
    row = only(of_slices([piece(address(ready=True))], {"a": pod(ip="10.9.9.9", cost="3")}, "http"))
    assert (row.spec.url, row.spec.model, row.spec.cost, row.spec.uid) == ("http://10.0.0.1:8000", "m", 3.0, "uid-a")


def test_conditions_of_a_slice_unknown_is_ready() -> None:
    slices = [
        piece(
            address("a", ready=None),
            address("b", "10.0.0.2", ready=False, serving=True, terminating=True),
            address("c", "10.0.0.3", ready=False),
        )
    ]
    causes = [row.causes for row in of_slices(slices, {}, "http") if isinstance(row, Found)]
    assert causes == [frozenset(), {TERMINATING, NOT_READY}, {NOT_READY}]


def test_an_address_in_two_slices_and_in_both_families_counts_once() -> None:
    both = [piece(address(ip="fd00::1"), family="IPv6"), piece(address()), piece(address(), name="t")]
    assert only(of_slices(both, {}, "http")).spec.url == "http://10.0.0.1:8000"


def test_a_pod_of_the_same_name_and_another_uid_lends_no_labels() -> None:
    row = only(of_slices([piece(address())], {"a": pod(uid="other", cost="9")}, "http"))
    assert row.spec.model is None and row.spec.cost is None


def test_an_endpoint_without_a_pod_takes_the_slices_own_annotations() -> None:
    bare = {"addresses": ["192.0.2.7"]}
    row = only(of_slices([piece(bare, annotations={"tonnage.dev/model": "org/m"})], {}, "http"))
    assert (row.spec.id, row.spec.model, row.spec.uid) == ("192.0.2.7:8000", "org/m", None)


def test_slices_of_names_are_said_to_be_unusable() -> None:
    (row,) = of_slices([piece(address(ip="x.example"), family="FQDN")], {}, "http")
    assert isinstance(row, Unreadable)


def test_an_address_that_hands_out_credentials_is_no_engine() -> None:
    good, bad = pod("a"), pod("b", ip="169.254.169.254")
    rows = of_pods([good, bad], "http")
    assert [type(row) for row in rows] == [Found, Unreadable]
    assert isinstance(rows[1], Unreadable) and "169.254.169.254" in rows[1].why


def pool(app: str = "llama", *numbers: int, **more: Any) -> Object:
    ports = [{"number": number} for number in numbers or (8000,)]
    return {
        "metadata": {"name": "p"},
        "spec": {"selector": {"matchLabels": {"app": app}}, "targetPorts": ports, **more},
    }


def of_app(name: str, ip: str, app: str) -> Object:
    made = pod(name, ip)
    made["metadata"]["labels"] = {"app": app, "tonnage.dev/model": "m", "tonnage.dev/port": "1"}
    return made


def test_an_inference_pool_takes_the_pods_of_its_selector_at_its_ports() -> None:
    pods = [of_app("a", "10.0.0.1", "llama"), of_app("b", "10.0.0.2", "other"), pod("c", "10.0.0.3")]
    row = only(of_pool(pool(), "p", pods))
    assert (row.spec.id, row.spec.url, row.spec.model) == ("a", "http://10.0.0.1:8000", "m")
    both = [row.spec.id for row in of_pool(pool("other", 8000, 8001), "p", pods) if isinstance(row, Found)]
    assert both == ["b-8000", "b-8001"]
    assert only(of_pool(pool(), "p", [going(pods[0])])).causes == {TERMINATING}


def test_the_engines_at_an_inference_pools_ports_publish_at_ports_of_their_own() -> None:
    one = of_app("a", "10.0.0.1", "llama")
    one["metadata"]["annotations"] = {
        "tonnage.dev/kv-events-port": "5557",
        "tonnage.dev/kv-events-replay-port": "65533",
    }

    def ports(*numbers: int) -> list[tuple[int | None, int | None]]:
        rows = of_pool(pool("llama", *numbers), "p", [one])
        return [(r.spec.kv_events_port, r.spec.kv_events_replay_port) for r in rows if isinstance(r, Found)]

    assert ports(8000) == [(5557, 65533)]
    assert ports(8001, 8000) == [(5557, 65533), (5558, 65534)], "in the order of the pool, not of the numbers"
    assert ports(1, 2, 3, 4)[3] == (5560, None), "no port is over 65535"
    (told,) = [row for row in of_pool(pool("llama", 1, 2, 3, 4), "p", [one]) if isinstance(row, Unreadable)]
    assert "kv-events-replay-port" in told.why
    one["metadata"]["annotations"] = {"tonnage.dev/kv-events-port": "5557", "tonnage.dev/data-parallel-size": "4"}
    assert ports(8000, 8001) == [(5557, None), (5561, None)], "each with ranks of its own"


def test_what_is_no_usable_inference_pool_gives_no_endpoints_and_says_why() -> None:
    pods = [of_app("a", "10.0.0.1", "llama")]
    nothing: Object = {"spec": {"selector": {"matchLabels": {}}, "targetPorts": [{"number": 8000}]}}
    older: Object = {"spec": {"selector": {"app": "llama"}, "targetPortNumber": 8000}}
    for found in (None, nothing, older, pool(appProtocol="kubernetes.io/h2c")):
        (row,) = of_pool(found, "p", pods)
        assert isinstance(row, Unreadable)
        assert row.name == "p"
