"""The table of URLs that `tonnage up` prints."""

import pytest

from tonnage_cli.fleet import layout
from tonnage_cli.fleet.presentation import print_urls


@pytest.mark.parametrize("columns", [80, 60])
def test_every_url_can_be_copied_from_a_narrow_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    options = layout.FleetOptions(engines=2, port_base=18080)
    ports = {name: 18080 + place for place, name in enumerate((*layout.FIXED, "engine-0", "engine-1"))}
    urls = layout.urls(options, ports)
    print_urls(urls)
    said = capsys.readouterr().out.split()
    assert {url for found in urls.values() for url in ([found] if isinstance(found, str) else found)} <= set(said)
    assert "console" in said
