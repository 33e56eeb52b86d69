"""docs/simulator.md lists what there is."""

import re
from pathlib import Path
from typing import get_args

from tonnage_router.body.shapes import PROMPTS
from tonnage_sim.faults import Kind
from tonnage_sim.settings import SimSettings

from .conftest import Sim

PAGE = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()


def test_every_setting_is_listed_with_what_it_means() -> None:
    listed = dict(re.findall(r"^\| `([A-Z_]+)` \|[^|]*\| (.*) \|$", PAGE, re.M))
    assert listed == {name.upper(): field.description for name, field in SimSettings.model_fields.items()}


def test_every_fault_is_listed() -> None:
    assert re.findall(r"^\| `([a-z_]+)` \|", PAGE, re.M) == list(get_args(Kind))


async def test_every_path_that_a_router_takes_and_a_simulator_does_not_is_named(sim: Sim) -> None:
    missing = PAGE[PAGE.index("## Not there") : PAGE.index("## Time")]
    answers = {path.decode(): (await sim.http.post(path.decode(), json={})).status_code for path in PROMPTS}
    assert set(re.findall(r"`(/[\w/]+)`", missing)) == {path for path, status in answers.items() if status == 404}
