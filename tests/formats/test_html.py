"""The page as text: complete in itself, safe against any prompt, its data the motion itself."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser

import numpy as np
import pytest
from sample_motions import META, WITHIN_MM, body_mesh, crooked_skeleton, stand, tumble
from scipy.spatial.transform import Rotation

from hymotion_ray.formats.html import html_page, viewer_data, write_html
from hymotion_ray.motion.skeleton import PARENTS, generic_skeleton

EVIL = [
    "</script><img src=x onerror=\"document.title='broken'\">",
    "<!--<script>",
    "]]>&lt;/script&gt;&amp;",
    "<!--slot:bundle--> \u2028\u2029 \\u003c \\",
    "\"'`${1+1}{{7*7}}",
    "名前 مرحبا 🕺\x00\x1b",
]


class Page(HTMLParser):
    """Collects tags, attributes and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.title = ""
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open == "script":
            self.scripts[-1] += data
        elif self._open == "title":
            self.title += data


def test_nothing_is_fetched():
    page = Page(html_page(viewer_data([tumble()]), title="A page"))
    fetching = ("src", "href", "srcset", "poster", "action", "ping", "background")
    values = [attrs[name] for _, attrs in page.tags for name in fetching if name in attrs]
    assert values == ["data:,"]  # the empty icon
    assert {tag for tag, _ in page.tags}.isdisjoint({"iframe", "object", "embed", "base", "audio"})
    policy = next(
        a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "connect-src 'self'" in html_page({}, title="", connect=True)


def test_the_licence_of_three_js_stands_in_the_page():
    text = html_page(viewer_data([]), title="")
    assert "three.js authors" in text
    assert "Permission is hereby granted, free of charge" in text


@pytest.mark.parametrize("prompt", EVIL)
def test_text_cannot_break_out(prompt):
    plain = Page(html_page(viewer_data([tumble(meta={**META, "prompt": "x"})]), title="x"))
    meta = {**META, "prompt": prompt, "licence": prompt, prompt: "key"}
    page = Page(html_page(viewer_data([tumble(meta=meta)]), title=prompt))
    assert page.tags == plain.tags
    assert page.title == prompt.replace("\x00", "\ufffd") or page.title == prompt
    assert json.loads(page.scripts[0])["clips"][0]["meta"] == meta
    assert page.scripts[1:] == plain.scripts[1:]


def test_the_data_are_the_motion():
    motions = [tumble(), tumble(seed=2, skeleton=crooked_skeleton(), fps=24.0), stand(1)]
    data = json.loads(json.dumps(viewer_data(motions)))
    assert len(data["figures"]) == 2  # the first and the third share a body
    for motion, clip in zip(motions, data["clips"], strict=True):
        quats = decoded(clip["quats"], "<i2").reshape(-1, 22, 4) / 32767
        root = decoded(clip["root"], "<f4").reshape(-1, 3)
        rest = decoded(data["figures"][clip["figure"]]["rest"], "<f4").reshape(22, 3)
        assert (clip["num_frames"], clip["fps"]) == (motion.num_frames, motion.fps)
        places, turns = [root], [Rotation.from_quat(quats[:, 0])]
        for joint in range(1, 22):
            parent = PARENTS[joint]
            places.append(places[parent] + turns[parent].apply(rest[joint] - rest[parent]))
            turns.append(turns[parent] * Rotation.from_quat(quats[:, joint]))
        error = np.stack(places, axis=1) - motion.joints[:, :22].numpy()
        assert np.abs(error).max() < WITHIN_MM


def decoded(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=dtype)


def test_a_body_mesh_takes_the_mannequins_place():
    mesh = body_mesh(generic_skeleton())
    figure = viewer_data([tumble()], mesh=mesh)["figures"][0]
    vertices = decoded(figure["vertices"], "<i2").reshape(-1, 3) * figure["unit"]
    assert np.abs(vertices - mesh.vertices).max() <= figure["unit"] / 2 + 1e-9


def test_pages_stay_small(tmp_path):
    """The same 16 clips that a grid shows, 5 s each."""
    write_html([tumble(num_frames=150, seed=k) for k in range(16)], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 1_500_000


def test_same_motions_same_page():
    pages = {html_page(viewer_data([tumble()]), title="a") for _ in range(2)}
    assert len(pages) == 1


def test_numbers_that_javascript_does_not_know_become_text():
    meta = {"seed": 2**64 - 1, "small": 2**53 - 1, "share": 0.5}
    page = Page(html_page(viewer_data([stand(1, meta=meta)]), title=""))
    shown = {"seed": str(2**64 - 1), "small": 2**53 - 1, "share": 0.5}
    assert json.loads(page.scripts[0])["clips"][0]["meta"] == shown
