"""Whatever stands in a config.json, reading it ends in a shape or in one named error, and quickly."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_core.errors import BadInputError
from tonnage_core.memory import MemoryRequest, plan_memory
from tonnage_core.models import shape_from_config
from tonnage_runtime.catalogue import catalogue, model_names

FILES = sorted({file for file in model_names().values()})
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**18), 10**18),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-3, 9), max_size=6),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


def _config(file: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((catalogue() / file).read_text(encoding="utf-8"))
    return loaded


@settings(max_examples=120)
@given(st.sampled_from(FILES), st.data())
def test_a_changed_field_never_raises_anything_but_bad_input(file: str, data: st.DataObject) -> None:
    config = _config(file)
    section = data.draw(st.sampled_from([config, *(part for part in config.values() if isinstance(part, dict))]))
    if not section:
        return
    section[data.draw(st.sampled_from(sorted(section)))] = data.draw(ODD)
    try:
        plan_memory(MemoryRequest(shape_from_config(config, "m"), pool_gib=4.0))
    except BadInputError as error:
        assert "\n" not in str(error) and len(str(error)) < 500
