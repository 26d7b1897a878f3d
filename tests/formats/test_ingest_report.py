"""The report's page: numbers, plots and pictures, nothing from outside, no text that escapes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from sample_motions import tumble

from hymotion_ray.formats.ingest_report import ReportData, Shown, report_page
from hymotion_ray.formats.svg_plots import Histogram, bars_svg, histogram_svg


def counts(**changes) -> dict:
    return {
        "clips": 1234,
        "frames": 30 * 5400,
        "captions": 7,
        "rejected": 3,
        "skipped": 0,
        "rejected_by_reason": {"static": 2, "<b>odd</b>": 1},
        "by_split": {"train": {"clips": 1234, "frames": 162_000}},
        "by_licence": {"MIT & co": {"clips": 1234, "frames": 162_000}},
    } | changes


def page(**changes) -> str:
    data = {
        "title": "Ingest report",
        "mark": "abc",
        "counts": counts(),
        "fps": 30.0,
        "histograms": [],
        "feature_std": [0.1] * 201,
    }
    return report_page(ReportData(**(data | changes)))


def test_the_page_tells_counts_hours_reasons_and_licences():
    text = page()
    for words in ("1,234", "1.5 h", "static", "Nothing moves.", "MIT &amp; co"):
        assert words in text
    assert "<b>odd" not in text


def test_the_page_asks_no_network_and_shows_pictures():
    shown = Shown(name="<img src=x>", text="walks & waves", motion=tumble())
    rows = [{"name": "a", "code": "static", "message": "<script>"}]
    text = page(accepted=[shown], rejected={"static": [shown]}, first_rejects=rows, player="p.html")
    assert text.count("data:image/png;base64,") == 2
    assert "default-src 'none'" in text
    assert re.search(r"(src|href)=[\"']?https?:", text) is None
    assert "<script" not in text
    assert "<img src=x>" not in text
    assert 'href="p.html"' in text


def test_histograms_count_every_finite_number_once():
    histogram = Histogram.empty("speed", 0, 10, num_bins=5, limits=[4.0])
    histogram.add(np.array([-1.0, 0.0, 3.0, 9.99, 10.0, 50.0, np.nan, np.inf]))
    assert histogram.counts.tolist() == [2, 1, 0, 0, 3]
    svg = ElementTree.fromstring(histogram_svg(histogram))
    assert len(svg.findall("rect")) == 5
    (limit,) = [line for line in svg.findall("line") if line.get("stroke-dasharray")]
    left, right = 46, 420 - 14
    assert float(limit.get("x1")) == pytest.approx(left + 0.4 * (right - left), abs=0.1)


def test_bars_are_as_long_as_their_numbers():
    svg = ElementTree.fromstring(bars_svg("reasons", [("a & b", 10), ("c", 5)]))
    widths = [float(bar.get("width")) for bar in svg.findall("rect")]
    assert widths[1] == pytest.approx(widths[0] / 2, abs=0.1)


def test_an_empty_dataset_has_a_page_too():
    empty = counts(clips=0, frames=0, rejected=0, rejected_by_reason={}, by_licence={})
    assert "None." in page(counts=empty, feature_std=[])
