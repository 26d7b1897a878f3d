"""The endpoint's page in headless Chromium against the real app with the built-in model.

Faults that a healthy server does not have (a full queue, a lost connection) are put between the
page and the server.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests" / "engine" / "serve"), str(REPO / "tests" / "formats")]

from live import Live, serving, tiny_pools  # noqa: E402
from test_html_browser import SOFTWARE_GL, launch  # noqa: E402

from hymotion_ray.config.serve import (  # noqa: E402
    HttpConfig,
    JobsConfig,
    PoolConfig,
    ServeConfig,
    ServedModel,
)
from hymotion_ray.engine.serve.keys import new_key  # noqa: E402
from hymotion_ray.formats.motions import decode_motion  # noqa: E402

pytestmark = pytest.mark.browser
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
WAIT_MS = 60_000


def config(folder: Path, keys_file: str | None = None) -> ServeConfig:
    return ServeConfig(
        models=(ServedModel(model="tiny", pools=(PoolConfig(rows=2),)),),
        jobs=JobsConfig(folder=str(folder)),
        http=HttpConfig(keys_file=keys_file),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny_pools(config(tmp_path_factory.mktemp("unused")))


@pytest.fixture(scope="module")
def live(made: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(config(tmp_path_factory.mktemp("jobs")), made) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        running = launch(playwright, SOFTWARE_GL)
        yield running
        running.close()


@pytest.fixture
def visit(browser: Any, live: Live) -> Iterator[Any]:
    """Open the page in a browser without a past; fails the test on any script error."""
    contexts, errors = [], []

    def open_page(url: str = live.url, prepare: Any = None, **options: Any) -> Any:
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", **options}
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        if prepare is not None:
            prepare(page)
        page.goto(f"{url}/")
        return page

    asked: list[str] = []
    yield open_page
    for context in contexts:
        context.close()
    assert errors == []
    assert [
        url for url in asked if not url.startswith(("http://127.0.0.1:", "blob:", "data:"))
    ] == []


def ask(page: Any, text: str, seconds: str = "0.7") -> None:
    page.locator("#text").fill(text)
    page.locator("#length").fill(seconds)
    page.locator("#go").click()


def pixels(page: Any, index: int) -> np.ndarray:
    image = pytest.importorskip("PIL.Image")
    shot = page.locator("#clips canvas").nth(index).screenshot()
    return np.asarray(image.open(io.BytesIO(shot)).convert("RGB"), dtype=float)


def test_a_sentence_becomes_motion_to_watch_and_to_keep(visit, tmp_path):
    page = visit()
    page.wait_for_selector("#status[data-state=ready]")
    ask(page, "a person walks <b>fast</b>", "1")
    page.wait_for_selector("#progress:not(.hidden)")
    page.wait_for_selector("#clips .card >> nth=1")
    page.wait_for_selector("html[data-drawn=true]")
    assert page.locator("#clips .card").count() == 2
    assert "2 takes" in page.locator("#job-state").inner_text()
    assert page.locator("#job-text").inner_text() == "a person walks <b>fast</b>"
    page.evaluate(
        "async () => { hymotionViewer.seek(0.5);"
        " for (let k = 0; k < 3; k++) await new Promise(requestAnimationFrame); }"
    )
    for index in (0, 1):
        assert np.ptp(pixels(page, index), axis=(0, 1)).min() > 60
    with page.expect_download() as started:
        page.locator("#clips .card").nth(1).get_by_role("button", name="as NPZ").click()
    file = tmp_path / started.value.suggested_filename
    started.value.save_as(file)
    motion = decode_motion(file.read_bytes(), "npz")
    assert motion.num_frames == 30
    assert file.name.endswith(f"_s{motion.meta['seed']}.npz")
    with page.expect_download() as started:
        page.locator("#downloads").get_by_role("button", name="Download all as GLB").click()
    assert started.value.suggested_filename.endswith(".glb.zip")
    # The past is there after a reload, and opens again.
    page.reload()
    page.locator("#history .open").first.click()
    page.wait_for_selector("#clips .card >> nth=1")


def test_it_goes_by_keyboard_alone_and_typing_moves_no_clip(visit):
    page = visit()
    page.wait_for_selector("#status[data-state=ready]")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("a person jumps? g l f b t")
    assert page.evaluate("hymotionViewer.view.grid && hymotionViewer.state.loop")
    assert not page.evaluate("document.getElementById('keys').open")
    page.locator("#length").fill("0.7")
    page.locator("#more").focus()
    page.keyboard.press("Tab")
    page.locator("#text").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#clips .card")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    assert not page.evaluate("hymotionViewer.view.grid")


def test_on_a_phone_nothing_is_cut_off_and_fingers_hit(visit):
    page = visit(**PHONE)
    page.wait_for_selector("#status[data-state=ready]")
    ask(page, "a person waves")
    page.wait_for_selector("#clips .card")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    small = page.evaluate(
        "[...document.querySelectorAll('.layout button, header button')]"
        ".filter((b) => b.offsetParent && b.getBoundingClientRect().height < 34)"
        ".map((b) => b.textContent)"
    )
    assert small == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_themes(visit, scheme):
    page = visit(color_scheme=scheme)
    ratio = page.evaluate(
        """(names) => names.map((name) => {
          const style = getComputedStyle(document.querySelector(name));
          const light = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
            .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
            .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
          const ground = getComputedStyle(document.querySelector('.panel')).backgroundColor;
          const [a, b] = [light(style.color), light(ground)];
          return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        })""",
        ["label[for=text]", "#length-shown", "#options summary", ".message p"],
    )
    assert min(ratio) > 4.5


def answer(route: Any, status: int, code: str, message: str, **more: Any) -> None:
    headers = more.pop("headers", {})
    body = {"error": {"code": code, "message": message, **more}, "request_id": "r"}
    route.fulfill(
        status=status, headers=headers, content_type="application/json", body=json.dumps(body)
    )


def in_the_way(page: Any, answers: list[Any]) -> None:
    """Answer the first PUTs from a list; then the server does."""

    def handle(route: Any) -> None:
        if route.request.method == "PUT" and answers:
            answers.pop(0)(route)
        else:
            route.continue_()

    page.route("**/v1/motions/*", handle)


def test_a_full_queue_counts_down_and_then_goes_through(visit):
    full = [
        lambda r: answer(r, 429, "queue_full", "the queue is full", headers={"Retry-After": "2"})
    ]
    page = visit(prepare=lambda page: in_the_way(page, full))
    ask(page, "a person walks")
    notice = page.locator("#notice")
    notice.get_by_text("The queue is full. Trying again in 2 s.").wait_for()
    notice.get_by_text("Trying again in 1 s.").wait_for()
    page.wait_for_selector("#clips .card")
    assert notice.is_hidden()


def test_waiting_can_be_stopped(visit):
    away = [lambda r: answer(r, 503, "not_ready", "no sampler has taken a step yet")] * 9
    page = visit(prepare=lambda page: in_the_way(page, away))
    ask(page, "a person walks")
    page.get_by_text("No sampler has taken a step yet. Trying again in").wait_for()
    page.locator("#notice-stop").click()
    page.wait_for_selector("#go:enabled")
    assert page.locator("#notice").is_hidden()
    assert page.locator("#history li").count() == 0


def test_what_the_server_refuses_is_said_at_its_field(visit):
    page = visit()
    page.locator("#go").click()
    assert "Write what should happen" in page.locator("#text-error").inner_text()
    assert page.locator("#text").get_attribute("aria-invalid") == "true"
    page.locator("#options summary").click()
    page.locator("#guidance").fill("101")
    ask(page, "a person walks")
    page.get_by_text("less than or equal to 100").wait_for()
    assert page.locator("#guidance").get_attribute("aria-invalid") == "true"
    assert page.evaluate("document.activeElement.id") == "guidance"
    page.locator("#guidance").fill("")
    page.evaluate("document.getElementById('text').removeAttribute('maxlength')")
    ask(page, "walk " * 500)
    page.get_by_text("allowed: 2000").wait_for()
    assert "characters" in page.locator("#text-error").inner_text()


def test_a_server_that_is_not_ready_says_why(visit):
    reason = "the text encoder is loading"

    def prepare(page: Any) -> None:
        body = json.dumps({"ready": False, "reason": reason, "reasons": [reason]})
        page.route("**/readyz", lambda r: r.fulfill(status=503, body=body), times=1)

    page = visit(prepare=prepare)
    page.get_by_text(f"starting: {reason}").wait_for()
    page.wait_for_selector("#status[data-state=ready]")


def test_a_lost_connection_is_said_and_taken_up_again(visit):
    def prepare(page: Any) -> None:
        page.route("**/events", lambda route: route.abort(), times=1)

    page = visit(prepare=prepare)
    ask(page, "a person walks", "4")
    page.locator("#lost").get_by_text("looking again in").wait_for()
    page.wait_for_selector("#clips .card")
    assert page.locator("#lost").is_hidden()


def test_cancel_ends_it_and_a_job_that_is_gone_says_so(visit, live):
    page = visit()
    page.locator("#options summary").click()
    page.locator("#steps").fill("1000")
    ask(page, "a person walks", "12")
    page.locator("#cancel").click()
    page.get_by_text("Nothing more is computed").wait_for()
    assert page.locator("#job-state").inner_text() == "Cancelled"
    page.evaluate(
        "localStorage.setItem('hymotion.history', JSON.stringify("
        "[{ id: 'gone-1', text: 'long ago', seconds: 5, takes: 1, at: 0, state: 'succeeded' }]))"
    )
    page.reload()
    page.locator("#history .open").click()
    page.get_by_text("The server keeps clips for a limited time").wait_for()
    page.get_by_role("button", name="Edit and send again").click()
    assert page.locator("#text").input_value() == "long ago"


def test_a_server_with_keys_asks_for_one_and_keeps_it_out_of_sight(visit, made, tmp_path):
    key, digest = new_key()
    file = tmp_path / "keys.yaml"
    file.write_text(json.dumps({"schema": 1, "keys": [{"name": "studio", "sha256": digest}]}))
    with serving(config(tmp_path / "jobs", str(file)), made) as locked:
        page = visit(locked.url)
        page.wait_for_selector("#key-dialog[open]")
        page.locator("#key").fill(key)
        page.get_by_role("button", name="Use this key").click()
        page.wait_for_selector("#key-dialog:not([open])", state="attached")
        ask(page, "a person walks")
        page.wait_for_selector("#clips .card")
        with page.expect_download() as started:
            page.locator("#clips .card").first.get_by_role("button", name="as GLB").click()
        assert started.value.suggested_filename.endswith(".glb")
        assert key not in page.content()
        assert page.evaluate("localStorage.getItem('hymotion.key')") is None
