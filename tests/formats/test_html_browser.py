"""The page in headless Chromium: it draws, it moves, it asks the network for nothing."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_motions import META, WITHIN_MM, stand, tumble

from hymotion_ray.formats.html import viewer_data, write_html

pytestmark = pytest.mark.browser

ARGUMENTS = [
    "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
# WebGL without a graphics card: the processor draws.
SOFTWARE_GL = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
EVIL = "</script><img src=x onerror=\"document.title='broken'\">"


def launch(playwright: Any, extra: list[str]) -> Any:
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("Chromium is not installed")
    return playwright.chromium.launch(executable_path=program, args=ARGUMENTS + extra)


@pytest.fixture(scope="module")
def playwright() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as running:
        yield running


@pytest.fixture(scope="module")
def browser(playwright: Any) -> Iterator[Any]:
    running = launch(playwright, SOFTWARE_GL)
    yield running
    running.close()


class Opened:
    """A page, what it asked for and what it complained of."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        size = {"width": 900, "height": 620}
        self.page = browser.new_page(viewport=size, reduced_motion="reduce", **options)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type == "error" else None,
        )
        self.page.goto(path.as_uri())

    def drawn(self) -> Opened:
        self.page.wait_for_selector("html[data-drawn=true]", timeout=60_000)
        return self

    def pixels(self, index: int = 0) -> np.ndarray:
        """What a clip's own canvas shows, (H,W,3) as floats."""
        image = pytest.importorskip("PIL.Image")
        shot = self.page.locator(".stage canvas").nth(index).screenshot()
        return np.asarray(image.open(io.BytesIO(shot)).convert("RGB"), dtype=float)

    def seek(self, seconds: float) -> None:
        """Show a moment and wait until it is drawn."""
        self.page.evaluate(
            "async (t) => { hymotionViewer.seek(t);"
            " for (let k = 0; k < 3; k++) await new Promise(requestAnimationFrame); }",
            seconds,
        )


@pytest.fixture(scope="module")
def two_clips(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    path = tmp_path_factory.mktemp("page") / "page.html"
    motions = [stand(raised="L_Shoulder"), tumble(meta={**META, "prompt": EVIL, "seed": 2**53 - 1})]
    write_html(motions, path, title="Two clips")
    page = Opened(browser, path).drawn()
    yield page
    page.page.close()


@pytest.fixture
def opened(two_clips: Opened) -> Opened:
    """The page of two clips as it was when it opened (loading it takes seconds without a GPU)."""
    two_clips.page.keyboard.press("Escape")
    two_clips.page.evaluate(
        "hymotionViewer.pause(); Object.assign(hymotionViewer.view,"
        " { azimuth: 0.5, elevation: 0.2, zoom: 1, follow: true, grid: true, show: 'body' })"
    )
    two_clips.seek(0)
    return two_clips


def test_it_is_not_blank_and_it_moves(opened):
    opened.seek(0)
    first = opened.pixels()
    assert np.ptp(first, axis=(0, 1)).min() > 100
    opened.seek(0.25)
    moved = np.abs(opened.pixels() - first).max(axis=2) > 40
    assert moved.mean() > 0.004


def test_it_plays_and_stops(opened):
    page = opened.page
    page.locator("#play").click()
    page.wait_for_timeout(400)
    page.locator("#play").click()
    time = page.evaluate("hymotionViewer.state.time")
    assert time > 0
    page.wait_for_timeout(150)
    assert page.evaluate("hymotionViewer.state.time") == time


def test_nothing_is_asked_of_the_network_and_nothing_fails(opened):
    opened.seek(0.3)
    assert [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert opened.errors == []


def test_prompts_are_shown_as_they_are(opened):
    page = opened.page
    assert page.title() == "Two clips"
    assert page.locator(".prompt").all_inner_texts() == [META["prompt"], EVIL]
    assert page.locator("img").count() == 0
    facts = page.locator(".facts").nth(1).inner_text()
    assert str(2**53 - 1) in facts
    assert "40 frames" in facts


def test_joints_on_the_page_are_the_motions(opened):
    for index, motion in enumerate([stand(raised="L_Shoulder"), tumble()]):
        for frame in (0, 13, 29):
            opened.seek(frame / 30)
            joints = np.array(opened.page.evaluate("(i) => hymotionViewer.joints(i)", index))
            assert np.abs(joints - motion.joints[frame, :22].numpy()).max() < WITHIN_MM


def test_left_is_blue_and_on_the_viewers_right(opened):
    """Seen from the front, the left forearm and shin (blue) are to the right of the right ones."""
    opened.page.evaluate("hymotionViewer.view.azimuth = 0")
    opened.seek(0)
    red, _, blue = np.moveaxis(opened.pixels(), 2, 0)
    across = np.arange(red.shape[1])[None].repeat(red.shape[0], axis=0)
    left, right = across[blue - red > 50], across[red - blue > 50]
    assert min(len(left), len(right)) > 50
    assert left.mean() > red.shape[1] / 2 > right.mean()


def test_keys_scrub_and_look(opened):
    page = opened.page
    value = page.evaluate
    page.keyboard.press("End")
    assert value("hymotionViewer.state.time") == pytest.approx(39 / 30)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert value("hymotionViewer.state.time") == pytest.approx(1 / 30)
    page.keyboard.press("f")
    page.keyboard.press("b")
    page.keyboard.press("g")
    assert value("hymotionViewer.view.follow") is False
    assert value("hymotionViewer.view.show") == "both"
    assert value("hymotionViewer.view.grid") is False
    page.locator("#scrub").fill("0.5")
    assert value("hymotionViewer.state.time") == pytest.approx(0.5)
    box = page.locator(".stage").first.bounding_box()
    azimuth = value("hymotionViewer.view.azimuth")
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 100)
    page.mouse.up()
    assert value("hymotionViewer.view.azimuth") != azimuth


def test_one_clip_can_be_enlarged(opened):
    page = opened.page
    page.locator(".stage").nth(1).dblclick()
    assert page.locator(".card.focus").count() == 1
    assert page.locator(".stage").nth(1).bounding_box()["width"] == pytest.approx(900, abs=2)
    page.keyboard.press("Escape")
    assert page.locator(".card.focus").count() == 0


def test_no_clips_at_all_and_clips_that_come_later(browser, tmp_path):
    write_html([], tmp_path / "page.html", title="Empty")
    opened = Opened(browser, tmp_path / "page.html")
    assert opened.page.locator(".message h2").inner_text() == "No clips"
    opened.page.evaluate("(data) => hymotionViewer.add(data)", viewer_data([stand(2)]))
    opened.drawn()
    assert opened.page.locator(".message").count() == 0
    assert opened.page.locator("#count").inner_text() == "1 clip"
    assert opened.errors == []
    opened.page.close()


def test_phone(browser, tmp_path):
    write_html([stand(2)], tmp_path / "page.html")
    opened = Opened(browser, tmp_path / "page.html", device_scale_factor=2, has_touch=True)
    opened.page.set_viewport_size({"width": 360, "height": 640})
    opened.drawn()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
    opened.page.close()


def test_without_webgl_it_says_so_and_lists_the_clips(playwright, tmp_path):
    write_html([stand(2)], tmp_path / "page.html")
    browser = launch(playwright, ["--disable-gpu", "--disable-3d-apis"])
    opened = Opened(browser, tmp_path / "page.html")
    assert "WebGL" in opened.page.locator(".message").inner_text()
    assert opened.page.locator(".prompt").all_inner_texts() == [META["prompt"]]
    browser.close()
