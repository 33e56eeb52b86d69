"""The console in a real browser over staged worlds: empty, at a thousand endpoints, a part down, hostile names."""

import base64
import functools
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import trustme
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.console.conftest import ROUTER, TOKEN, WAIT_MS, Served, Stage, World, engine_metrics, routed
from tonnage_planner.settings import EndpointSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def serious(page: Page) -> list[str]:
    """What axe finds that keeps people out: id, and the first place."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:160]}" for one in found if one["impact"] in ("serious", "critical")
    ]


def opened(page: Page, served: Served, path: str) -> Page:
    page.goto(f"{served.url}/console/{path}")
    page.wait_for_selector(".page", timeout=WAIT_MS)
    return page


def decision(number: int, candidates: int = 3, **more: Any) -> dict[str, Any]:
    rows = [
        {
            "endpoint": f"e{i}:1",
            "scores": {"uncached_prefix": -100.0 * i, "token_load": -50.0, "adapter": None},
            "parts": {"uncached_prefix": 4.0 / (i + 1), "token_load": 0.5},
            "total": 0.5 + 4.0 / (i + 1),
        }
        for i in range(candidates)
    ]
    return {
        "number": number, "request_id": f"r{number}", "at": f"2026-11-29T12:00:{number % 60:02d}+00:00",
        "model": "org/model", "tenant": None, "prompt_tokens": 400, "hit_tokens": 100, "considered": candidates,
        "chosen": "e0:1", "reason": "prefix", "disaggregation": None, "policy": "prefix",
        "weights": {"uncached_prefix": 4.0, "token_load": 1.0, "adapter": 0.5}, "candidates": rows,
    } | more  # fmt: skip


def big_world(engines: int) -> tuple[World, list[EndpointSettings]]:
    """`engines` of them in two pools: most serve, some drain, some are down, the last is never heard of."""
    world, listed, rows = World(), [], []
    for number in range(engines):
        url = f"http://10.0.{number // 250}.{number % 250}:8000"
        listed.append(
            EndpointSettings(url=url, model="org/model", pool=f"pool-{number % 2}", gpu_profile=f"n1/{number % 8}")
        )
        if number < engines - 1:
            world.answers[f"{url}/metrics"] = functools.partial(engine_metrics, number)
        down = number % 100 == 42
        rows.append(routed(url, number, draining=number % 50 == 7, healthy=not down, problem="503" if down else None))
    rows[-1] |= {"healthy": None, "requests": None, "requests_total": None, "failures_total": None, "load_tokens": None}
    world.answers[f"{ROUTER}/admin/endpoints"] = {"policy": "prefix", "endpoints": rows}
    world.answers[f"{ROUTER}/admin/queue"] = {"pools": []}
    world.answers[f"{ROUTER}/metrics"] = ""
    kept = [decision(number) for number in range(200, 0, -1)]
    world.answers[f"{ROUTER}/admin/decisions"] = {"decisions": kept}
    world.answers[f"{ROUTER}/admin/decisions/200"] = {"decision": decision(200, candidates=engines)}
    return world, listed


def test_each_page_says_what_is_missing_when_nothing_is_there(page: Page, stage: Stage) -> None:
    served = stage(World())
    opened(page, served, "fleet")
    expect(page.get_by_text("No pool yet")).to_be_visible()
    expect(page.get_by_text("No endpoint matches.")).to_be_visible()
    expect(page.get_by_text("No agent is configured")).to_be_visible()
    expect(page.locator(".tile", has_text="KV cache in use")).to_contain_text("unknown")
    assert serious(page) == []
    page.get_by_role("link", name="Decisions").click()
    expect(page.get_by_text("No router is configured")).to_be_visible()
    assert serious(page) == []
    page.get_by_role("link", name="Plan").click()
    expect(page.get_by_role("heading", name="From traffic to GPUs")).to_be_visible()
    page.locator("[data-named]").wait_for()
    assert serious(page) == []
    page.go_back()
    expect(page).to_have_url(re.compile("/console/decisions$"))


def test_a_thousand_endpoints_are_drawn_as_the_few_in_view(page: Page, stage: Stage) -> None:
    world, listed = big_world(1000)
    served = stage(world, listed, router_url=ROUTER)
    opened(page, served, "fleet")
    expect(page.locator(".toolbar .num").first).to_have_text("1,000 of 1,000")
    expect(page.locator(".pool")).to_have_count(2)
    rows = page.locator(".grid-row:visible")
    assert 10 < rows.count() < 60
    grid = page.get_by_role("grid", name="Endpoints")
    expect(grid).to_have_attribute("aria-rowcount", "1001")
    expect(rows.first).to_contain_text("down")  # what asks to be looked at comes first
    last = page.locator(".grid-row:visible", has_text=listed[-1].url.removeprefix("http://"))
    grid.focus()
    page.keyboard.press("End")
    expect(last).to_contain_text("unknown")  # never heard of: unknown, and no number stands for it
    assert not re.search(r"\b0\b", re.sub(r"10\.0\.\S+", "", last.inner_text()))
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("endpoint="))
    expect(page.get_by_role("complementary", name="Endpoint")).to_contain_text("Requests ended")
    assert serious(page) == []
    page.get_by_label("State", exact=True).select_option("down")
    expect(page.locator(".toolbar .num").first).to_have_text("10 of 1,000")
    page.get_by_role("button", name="KV").click()
    expect(page.get_by_role("columnheader", name="KV")).to_have_attribute("aria-sort", "descending")
    page.reload()  # the address keeps all of it
    expect(page.locator(".toolbar .num").first).to_have_text("10 of 1,000")
    expect(page.get_by_role("columnheader", name="KV")).to_have_attribute("aria-sort", "descending")
    page.get_by_label("State", exact=True).select_option("")
    page.get_by_role("button", name="Map").click()
    expect(page.locator("canvas.map")).to_have_attribute(
        "aria-label", re.compile("1000 endpoints by KV in use; 999 known")
    )
    assert serious(page) == []


def test_a_decision_over_a_thousand_candidates_can_be_read(page: Page, stage: Stage) -> None:
    world, listed = big_world(1000)
    served = stage(world, listed[:1], router_url=ROUTER)
    opened(page, served, f"decisions?number=200&router={ROUTER}")
    expect(page.get_by_role("heading", name=re.compile("Sent to e0:1 for cached prefix"))).to_be_visible()
    expect(page.locator(".why")).to_contain_text("100 of 400 prompt tokens (25%)")
    expect(page.locator(".why")).to_contain_text("leads e1:1 by 2, most of all by uncached prompt")
    expect(page.locator(".board tbody tr")).to_have_count(24)
    expect(page.locator(".board tbody tr").first).to_contain_text("no opinion")
    page.get_by_role("button", name="Show all 1000").click()
    expect(page.locator(".board tbody tr")).to_have_count(1000)
    page.get_by_role("button", name="Show the best 24").click()
    page.get_by_label("Filter decisions").fill("r199")
    expect(page.locator(".drow")).to_have_count(1)
    assert serious(page) == []


def test_a_part_that_is_down_is_shown_as_down_and_what_it_said_as_unknown(page: Page, stage: Stage) -> None:
    world, listed = big_world(3)
    served = stage(world, listed, router_url=ROUTER)
    opened(page, served, "fleet")
    router = page.locator(".part", has_text="router")
    expect(router).to_contain_text("up")
    world.answers.clear()
    expect(router).to_contain_text(re.compile(r"down, last answered .+ ago"), timeout=WAIT_MS)
    expect(page.locator(".grid-row:visible").first).to_contain_text("stale", timeout=WAIT_MS)
    running = page.locator(".tile", has_text="Requests running").locator(".figure")
    expect(running).to_have_text("unknown", timeout=WAIT_MS)
    page.get_by_role("link", name="Decisions").click()
    expect(page.get_by_role("status").filter(has_text="is down")).to_contain_text("connection refused")
    expect(page.get_by_text("No router answers, so its decisions are unknown.")).to_be_visible()
    page.route("**/v1/**", lambda route: route.abort())
    expect(page.get_by_role("alert").filter(has_text="the planner does not answer")).to_be_visible()
    assert serious(page) == []


def test_names_that_are_markup_stay_text(page: Page, stage: Stage) -> None:
    evil = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'
    world = World()
    row = routed("http://e0:1", 1, models=[evil], id=evil, problem=evil, healthy=False, breaker=evil)
    world.answers[f"{ROUTER}/admin/endpoints"] = {"policy": evil, "endpoints": [row]}
    world.answers[f"{ROUTER}/admin/decisions"] = {"decisions": [decision(1, chosen=evil, request_id=evil, model=evil)]}
    world.answers[f"{ROUTER}/admin/decisions/1"] = {"decision": decision(1, chosen=evil, request_id=evil, reason=evil)}
    served = stage(world, [EndpointSettings(url="http://e0:1", model=evil)], router_url=ROUTER)
    opened(page, served, "fleet")
    page.locator(".grid-row:visible").first.click()
    expect(page.get_by_role("complementary")).to_contain_text("<img src=x")
    page.get_by_role("link", name="Decisions").first.click()
    expect(page.locator(".decision")).to_contain_text("<script>window.pwned=1</script>")
    assert page.evaluate("window.pwned") is None
    assert page.locator("main img, main script").count() == 0


def test_forged_links_leave_a_page_that_works(page: Page, stage: Stage) -> None:
    world, listed = big_world(3)
    world.answers[f"{ROUTER}/admin/decisions/199"] = {"decision": {"number": 199, "chosen": "e0:1", "at": 4}}
    served = stage(world, listed, router_url=ROUTER)
    opened(page, served, "fleet?sort=constructor&view=map&by=toString&state=__proto__#token=%E6%97%A5")
    expect(page.locator("canvas.map")).to_have_attribute("aria-label", re.compile("^0 endpoints by KV in use"))
    page.locator("canvas.map").press("ArrowRight")  # where no cell is
    page.get_by_label("State", exact=True).select_option("")
    page.get_by_role("button", name="Table").click()
    page.get_by_role("grid", name="Endpoints").press("Enter")
    expect(page.get_by_role("complementary", name="Endpoint")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("complementary", name="Endpoint")).to_be_hidden()
    expect(page.get_by_role("grid", name="Endpoints")).to_be_focused()
    opened(page, served, "decisions?request=nobodys")
    expect(page.get_by_text("No decision of request nobodys is among the latest 200.")).to_be_visible()
    opened(page, served, "decisions?number=199")
    expect(page.get_by_role("heading", name=re.compile("Sent to e0:1"))).to_be_visible()
    spec = base64.urlsafe_b64encode(json.dumps({"model": [], "offers": [None, 3, {"gpu": "L40S"}]}).encode()).decode()
    for job in ("x" * 65, ".", "gone"):
        opened(page, served, f"plan?spec={spec}&plan={job}")
        expect(page.get_by_role("alert").filter(has_text=re.compile("no plan|no longer"))).to_be_visible()
        expect(page.get_by_role("button", name="Plan", exact=True)).to_be_enabled()
    expect(page.get_by_label("GPU", exact=True)).to_have_value("L40S")


def test_a_page_that_could_not_be_loaded_comes_once_the_planner_answers(page: Page, stage: Stage) -> None:
    served = stage(World())
    opened(page, served, "fleet")
    page.route("**/*", lambda route: route.abort())
    page.get_by_role("link", name="Decisions").first.click()
    expect(page.get_by_role("alert").filter(has_text="could not be loaded")).to_be_visible()
    page.unroute_all(behavior="ignoreErrors")
    expect(page.get_by_text("No router is configured")).to_be_visible()


def test_acting_needs_the_token_and_reading_does_not_and_all_of_it_goes_by_https(
    page: Page, stage: Stage, tmp_path: Path
) -> None:
    world, listed = big_world(3)
    sha256 = hashlib.sha256(TOKEN.encode()).hexdigest()
    shown = trustme.CA().issue_cert("127.0.0.1")
    shown.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.crt"))
    shown.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    pair = {"tls_cert_file": tmp_path / "tls.crt", "tls_key_file": tmp_path / "tls.key"}
    served = stage(world, listed, router_url=ROUTER, action_token_sha256=sha256, **pair)
    asked: set[str] = set()
    page.on("request", lambda request: asked.add("/".join(request.url.split("/")[:3])))
    opened(page, served, "fleet?endpoint=10.0.0.0:8000")
    page.get_by_role("button", name="Drain").click()  # without a token it asks for one
    dialog = page.get_by_role("dialog", name="Actions")
    dialog.get_by_label("Token").fill("wrong")
    dialog.get_by_role("button", name="Use this token").click()
    expect(dialog.get_by_role("alert")).to_have_text("This is not the planner's token.")
    assert serious(page) == []
    dialog.get_by_label("Token").fill(TOKEN)
    dialog.get_by_role("button", name="Use this token").click()
    expect(page.get_by_role("button", name="Actions on")).to_be_visible()
    assert world.posts == []
    page.get_by_role("button", name="Drain").click()
    expect(page.get_by_role("complementary", name="Endpoint")).to_contain_text("Drains: 1 router told.")
    assert world.posts == [f"{ROUTER}/admin/endpoints/10.0.0.0%3A8000/drain"]
    assert served.url.startswith("https://")
    assert asked == {served.url}
    assert page.context.cookies() == []
    assert TOKEN not in page.content() + page.url
    page.context.close()  # its connections end before the planner, which waits for the last word of each


def test_a_plan_behind_an_access_file_asks_for_a_token_and_goes_on_with_it(
    page: Page, stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "access").write_text(hashlib.sha256(TOKEN.encode()).hexdigest() + " people")
    served = stage(World(), access_file=tmp_path / "access")
    opened(page, served, "plan?plan=gone")
    expect(page.get_by_role("alert").filter(has_text="enter it at the top right")).to_be_visible()
    expect(page.get_by_role("button", name="Plan", exact=True)).to_be_enabled()
    page.get_by_role("button", name="Read-only").click()
    dialog = page.get_by_role("dialog", name="Actions")
    dialog.get_by_label("Token").fill(TOKEN)
    dialog.get_by_role("button", name="Use this token").click()
    expect(page.get_by_text("This plan is kept no longer.")).to_be_visible()


def test_light_and_dark_follow_the_system_until_one_is_chosen(page: Page, stage: Stage) -> None:
    served = stage(World())
    opened(page, served, "plan")
    html = page.locator("html")
    expect(html).to_have_attribute("data-theme", "dark")
    page.emulate_media(color_scheme="light")
    expect(html).to_have_attribute("data-theme", "light")
    assert serious(page) == []
    page.get_by_role("button", name=re.compile("^Theme: system")).click()
    page.get_by_role("button", name=re.compile("^Theme: light")).click()
    page.reload()
    expect(html).to_have_attribute("data-theme", "dark")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()
