"""The layout of the local fleet: ports, URLs, environments."""

import json
import socket

import pytest

from tonnage_cli.fleet import layout
from tonnage_runtime.errors import PortInUseError


def allocated_near(base: int) -> tuple[int, dict[str, int]]:
    """Ports counted from the first base at which nobody holds any of them."""
    for candidate in range(base, base + 4000, 40):
        try:
            return candidate, layout.allocate_ports(layout.FleetOptions(engines=2, port_base=candidate))
        except PortInUseError:
            continue
    raise AssertionError("no free range of ports")


def test_ports_count_up_from_the_base_and_engines_from_base_plus_ten() -> None:
    base, ports = allocated_near(21000)
    assert [ports["router"], ports["admin"], ports["planner"]] == [base, base + 1, base + 2]
    assert [ports["engine-0"], ports["engine-1"]] == [base + 10, base + 11]


def test_a_taken_port_is_named_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=rf"port {port} on 127.0.0.1 is in use.* --port-base \(0: free ones\)"):
            layout.allocate_ports(layout.FleetOptions(engines=1, port_base=port))


def test_base_zero_takes_free_ports_that_differ() -> None:
    ports = layout.allocate_ports(layout.FleetOptions(engines=3, port_base=0))
    assert len(set(ports.values())) == len(ports)
    assert 0 not in ports.values()


def test_given_engines_are_not_started_and_are_behind_the_router() -> None:
    options = layout.FleetOptions(engine_urls=("http://127.0.0.1:9001/",), port_base=0)
    ports = layout.allocate_ports(options)
    assert layout.engine_specs(options, ports) == []
    router = layout.router_spec(options, ports, "tiny", policy="prefix")
    assert json.loads(router.env["TONNAGE_ROUTER_ENDPOINTS"]) == [{"url": "http://127.0.0.1:9001", "model": "tiny"}]


def test_simulated_engines_run_at_the_speed_of_the_arrivals() -> None:
    options = layout.FleetOptions(engines=2, speed=4.0, seed=7, port_base=0)
    specs = layout.engine_specs(options, layout.allocate_ports(options))
    assert [spec.env["TONNAGE_SIM_TIME_SCALE"] for spec in specs] == ["4.0", "4.0"]
    assert [spec.env["TONNAGE_SIM_SEED"] for spec in specs] == ["7", "8"]


@pytest.mark.parametrize(
    ("given", "ttft_ms", "tpot_ms"),
    [((), 400.0, 10.0), (("http://127.0.0.1:9001",), 2000.0, 50.0)],
    ids=["simulated engines, five times as fast", "given engines"],
)
def test_the_router_judges_requests_on_its_own_clock(given: tuple[str, ...], ttft_ms: float, tpot_ms: float) -> None:
    options = layout.FleetOptions(engine_urls=given, speed=5.0, port_base=0)
    router = layout.router_spec(options, layout.allocate_ports(options), "tiny", policy="prefix")
    assert json.loads(router.env["TONNAGE_ROUTER_SLO"]) == {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms}


def test_engines_that_publish_kv_events_tell_the_router_where() -> None:
    options = layout.FleetOptions(engines=2, port_base=0, kv_events=True)
    ports = layout.allocate_ports(options)
    assert len(set(ports.values())) == len(ports)
    configs = [json.loads(s.env["TONNAGE_SIM_KV_EVENTS_CONFIG"]) for s in layout.engine_specs(options, ports)]
    rows = json.loads(layout.router_spec(options, ports, "m", policy="prefix").env["TONNAGE_ROUTER_ENDPOINTS"])
    assert [config["endpoint"] for config in configs] == [f"tcp://127.0.0.1:{row['kv_events_port']}" for row in rows]
    assert [config["replay_endpoint"] for config in configs] == [
        f"tcp://127.0.0.1:{row['kv_events_replay_port']}" for row in rows
    ]
    planner = next(s for s in layout.service_specs(options, ports, "m") if s.name == "planner")
    assert "kv_events_port" not in planner.env["TONNAGE_PLANNER_ENDPOINTS"]
