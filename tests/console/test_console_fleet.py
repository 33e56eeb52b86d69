"""The console over the running local fleet: real engines' load, decisions that were made, a plan from form to flags."""

import re
import urllib.request

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.console.conftest import WAIT_MS, LocalFleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def serious(page: Page) -> list[str]:
    found = [one for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {one['nodes'][0]['html'][:160]}" for one in found]


def test_the_printed_address_opens_the_fleet_and_may_drain(page: Page, fleet: LocalFleet) -> None:
    assert fleet.urls["console"] == f"{fleet.urls['planner']}/console/fleet"
    page.goto(fleet.console_with_token)
    expect(page.get_by_role("button", name="Actions on")).to_be_visible()
    assert "token" not in page.url  # taken, and gone from the address
    expect(page.locator(".grid-row:visible")).to_have_count(2)
    expect(page.locator(".grid-row:visible").first).to_contain_text("serving")
    for part in ("planner", "router", "GPU agent", "cold start", "supervisor"):
        expect(page.locator(".part", has_text=part)).to_contain_text("up")
    expect(page.locator(".replay")).to_contain_text("30 of 30 ended")
    expect(page.locator(".pool")).to_contain_text("replicas")
    expect(page.locator(".pool .reasons li").first).not_to_be_empty()
    page.locator(".grid-row:visible").first.click()
    detail = page.get_by_role("complementary", name="Endpoint")
    detail.get_by_role("button", name="Drain").click()
    expect(detail).to_contain_text("Drains: 1 router told.")
    expect(page.locator(".grid-row[aria-selected=true]")).to_contain_text("draining")
    detail.get_by_role("button", name="Take requests again").click()
    expect(page.locator(".grid-row[aria-selected=true]")).to_contain_text("serving")
    assert serious(page) == []


def test_a_routed_request_is_found_with_its_candidates_and_leads_to_its_endpoint(page: Page, fleet: LocalFleet) -> None:
    page.goto(f"{fleet.urls['planner']}/console/decisions")
    page.locator(".drow").nth(2).click()
    expect(page).to_have_url(re.compile("number="))
    expect(page.locator(".board tbody tr")).to_have_count(2)
    expect(page.locator(".board tr.won")).to_have_count(1)
    link = page.url
    page.goto("about:blank")
    page.goto(link)  # a link that somebody was sent
    expect(page.locator(".board tr.won")).to_have_count(1)
    assert serious(page) == []
    chosen = page.locator(".decision h2 a").inner_text()
    page.locator(".decision h2 a").click()
    expect(page.get_by_role("complementary", name="Endpoint")).to_contain_text(chosen)


def test_a_router_that_stands_still_is_down_and_comes_back(page: Page, fleet: LocalFleet) -> None:
    page.goto(f"{fleet.urls['planner']}/console/fleet")
    router = page.locator(".part", has_text="router")
    expect(router).to_contain_text("up")
    with fleet.frozen("router"):
        expect(router).to_contain_text("down, last answered")
        expect(page.locator(".part", has_text="cold start")).to_contain_text("up")
        expect(page.get_by_role("banner")).to_be_visible()  # the page itself goes on
    expect(router).to_contain_text(re.compile(r"router\s*up"))


def test_a_plan_goes_from_the_form_to_what_can_be_copied(page: Page, fleet: LocalFleet) -> None:
    profile = (
        b'{"schema": "tonnage.gpu_profile/1", "node": "n1", "index": 0, "name": "L40S", "memory_bytes": 47674490880,'
        b' "measured_at": "2026-11-29T12:00:00Z",'
        b' "ceilings": {"hbm_read_gbps": 790, "bf16_tflops": 330, "fp8_tflops": 600},'
        b' "probes": [{"name": "gemm_bf16", "status": "ok", "flops": 134217728, "bytes": 134250496,'
        b' "params": {"batch": 1, "us": 180.0}}]}'
    )
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{fleet.urls['planner']}/v1/profiles", profile, headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 201
    page.goto(f"{fleet.urls['planner']}/console/plan")
    page.get_by_label("Model").fill("no/such-model")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="no model 'no/such-model'")).to_be_visible()
    page.get_by_label("Model").fill("meta-llama/Llama-3.1-8B")
    page.get_by_label("Requests a second").fill("2")
    for _ in range(2):
        page.get_by_role("button", name=re.compile("^Remove")).first.click()  # L40S stays
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator(".verdict")).to_contain_text("L40S", timeout=2 * WAIT_MS)
    link = page.url
    assert "plan=" in link and "spec=" in link
    for title in ("Cost against speed", "Time to first token of one replica", "Memory of one L40S", "Roofline of L40S"):
        expect(page.locator("figure", has_text=title)).to_be_visible()
    roofline = page.locator("figure", has_text="Roofline of L40S")
    expect(roofline).to_contain_text("Measured on n1/0")
    expect(roofline.get_by_role("img", name=re.compile("bf16 product, batch 1: "))).to_be_visible()
    expect(page.get_by_role("region", name="Command").locator("pre")).to_contain_text(
        "vllm serve meta-llama/Llama-3.1-8B"
    )
    expect(page.get_by_role("region", name="ModelServer").locator("pre")).to_contain_text("kind: ModelServer")
    assert serious(page) == []
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_label("Requests a second")).to_have_value("2")
    expect(page.locator(".verdict")).to_contain_text("L40S")
