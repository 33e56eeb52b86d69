"""What is said of an endpoint that cannot be taken: what to write in its place, without what may be a key."""

import json

import pytest

from tonnage_router.main import settings_from
from tonnage_runtime.errors import SettingsError


def refused(endpoints: object) -> str:
    with pytest.raises(SettingsError) as caught:
        settings_from({"TONNAGE_ROUTER_ENDPOINTS": endpoints if isinstance(endpoints, str) else json.dumps(endpoints)})
    return str(caught.value).removeprefix("TONNAGE_ROUTER_ENDPOINTS: ")


def test_an_address_alone_is_shown_the_list_it_belongs_in() -> None:
    assert refused("http://127.0.0.1:8101") == 'endpoints: a list is expected, such as [{"url": ...}]'


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:8101", "an http://host:port URL is expected: write http://127.0.0.1:8101"),
        ("localhost:8101/", "an http://host:port URL is expected: write http://localhost:8101"),
        ("https://x:1", "endpoint https://x:1: engines are spoken to in plain HTTP: write http://x:1"),
        ("http://127.0.0.1:8101/v1", "endpoint 127.0.0.1:8101: only http://host:port is read: leave /v1 out"),
        ("http://::1:8000", "an IPv6 address stands in brackets: write http://[::1]:8000"),
        ("http://[::1:8000", "an IPv6 address stands in brackets: write http://[::1]:8000"),
        ("", "endpoint : an http://host:port URL is expected"),
    ],
)
def test_a_wrong_url_is_told_what_to_write(url: str, words: str) -> None:
    said = refused([{"url": url}])
    assert said.startswith("endpoints.0.url: ")
    assert words in said and "Value error" not in said and "None" not in said


@pytest.mark.parametrize(
    ("url", "surplus"),
    [
        ("http://me:hidden@x:1", "user and password"),
        ("http://x:1?key=hidden", "the query"),
        ("http://x:1#hidden", "the fragment"),
        ("https://me:hidden@x:1", None),
        ("x:1?key=hidden", None),
    ],
)
def test_what_may_be_a_key_is_not_shown(url: str, surplus: str | None) -> None:
    said = refused([{"url": url}])
    assert "hidden" not in said
    assert surplus is None or said.endswith(f"endpoint x:1: only http://host:port is read: leave {surplus} out")


def test_a_wrong_name_is_named_with_those_there_are() -> None:
    assert "endpoints.0.uri: no such setting; is url meant? known: adapter_slots, " in refused([{"uri": "http://x:1"}])
