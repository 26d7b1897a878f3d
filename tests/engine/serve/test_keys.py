"""Keys: who may ask, for how much, and that nothing ever shows a secret."""

from __future__ import annotations

import datetime
import logging

import pytest
import yaml

from hymotion_ray.engine.serve.keys import Caller, KeyLimits, Refusal, new_key, read_keys
from hymotion_ray.engine.serve.usage import Ledger, Pace, admit_clip_seconds
from hymotion_ray.errors import ConfigError, InputError, OutputError
from hymotion_ray.formats.atomic import open_store

DAY_S = 86_400


def write_keys(folder, rows, schema=1):
    path = folder / "keys.yaml"
    path.write_text(yaml.safe_dump({"schema": schema, "keys": rows}))
    return str(path)


def refusal(call, *args):
    with pytest.raises(Refusal) as caught:
        call(*args)
    return caught.value


def test_without_a_file_everyone_may_ask():
    assert read_keys(None).identify(None).name == "anonymous"
    assert read_keys(None).identify("Bearer whatever").limits == KeyLimits()


def test_a_key_is_known_by_its_hash_alone(tmp_path):
    mine, my_hash = new_key()
    other, other_hash = new_key()
    path = write_keys(
        tmp_path,
        [
            {"name": "studio", "sha256": my_hash, "requests_per_minute": 60},
            {"name": "intern", "sha256": other_hash.upper(), "models": ["lite"]},
        ],
    )
    assert mine not in (tmp_path / "keys.yaml").read_text()
    ring = read_keys(path)
    assert ring.identify(f"Bearer {mine}").limits.requests_per_minute == 60
    intern = ring.identify(f"bearer  {other} ")
    assert intern.name == "intern"
    intern.require_model("lite")
    answer = refusal(intern.require_model, "1.0")
    assert (answer.status, answer.code) == (403, "model_not_allowed")


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "key_missing"),
        ("", "key_missing"),
        ("Bearer", "key_malformed"),
        ("Basic aGVsbG8=", "key_malformed"),
        ("Bearer hmr_unknown", "key_unknown"),
        ("Bearer \udcff\u00e9", "key_unknown"),
    ],
)
def test_no_good_key_is_401_with_its_reason(tmp_path, header, code):
    ring = read_keys(write_keys(tmp_path, [{"name": "studio", "sha256": new_key()[1]}]))
    answer = refusal(ring.identify, header)
    assert (answer.status, answer.code) == (401, code)
    assert "hmr_unknown" not in answer.message


def test_a_known_key_that_is_off_or_over_is_403(tmp_path):
    off, over = new_key(), new_key()
    ring = read_keys(
        write_keys(
            tmp_path,
            [
                {"name": "off", "sha256": off[1], "enabled": False},
                {"name": "over", "sha256": over[1], "expires": datetime.date(2026, 12, 31)},
            ],
        )
    )
    assert refusal(ring.identify, f"Bearer {off[0]}").code == "key_disabled"
    assert ring.identify(f"Bearer {over[0]}", datetime.date(2026, 12, 31)).name == "over"
    late = refusal(ring.identify, f"Bearer {over[0]}", datetime.date(2027, 1, 1))
    assert (late.status, late.code) == (403, "key_expired")


GOOD = {"name": "studio", "sha256": "ab" * 32}


@pytest.mark.parametrize(
    "rows",
    [
        [],
        ["studio"],
        [{"name": "studio"}],
        [{**GOOD, "sha256": "hmr_put-the-key-itself-here"}],
        [{**GOOD, "hmr_put-the-key-itself-here": 1}],
        [{**GOOD, "enabled": "hmr_put-the-key-itself-here"}],
        [{**GOOD, "requests_per_minute": 0}],
        [{**GOOD, "requests_per_minute": True}],
        [{**GOOD, "gpu_seconds_per_day": float("nan")}],
        [{**GOOD, "models": []}],
        [{**GOOD, "expires": "soon"}],
        [{**GOOD, "name": "../../etc"}],
        [{**GOOD, "name": "anonymous"}],
        [GOOD, {**GOOD, "sha256": "cd" * 32}],
        [GOOD, {**GOOD, "name": "twin"}],
    ],
)
def test_a_bad_entry_is_named_and_never_quoted(tmp_path, rows):
    with pytest.raises(ConfigError) as caught:
        read_keys(write_keys(tmp_path, rows))
    assert "put-the-key" not in str(caught.value)
    assert "ab" * 32 not in str(caught.value)


def test_a_file_that_is_none_or_newer_is_refused_without_quoting_it(tmp_path):
    with pytest.raises(ConfigError, match="schema"):
        read_keys(write_keys(tmp_path, [GOOD], schema=2))
    bad = tmp_path / "bad.yaml"
    bad.write_text("keys: [hmr_secret: {")
    with pytest.raises(ConfigError) as caught:
        read_keys(str(bad))
    assert "hmr_secret" not in str(caught.value)
    assert caught.value.__suppress_context__
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(str(tmp_path / "none.yaml"))


def test_no_text_of_a_ring_or_caller_shows_a_hash(tmp_path, caplog):
    key, digest = new_key()
    ring = read_keys(write_keys(tmp_path, [{"name": "studio", "sha256": digest}]))
    caller = ring.identify(f"Bearer {key}")
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("%r %s %r", ring, ring, caller)
    shown = caplog.text + repr(ring) + repr(ring._entries) + repr(caller)
    assert digest not in shown
    assert repr(bytes.fromhex(digest)) not in shown
    assert key not in shown


def caller(**limits):
    return Caller(name="studio", limits=KeyLimits(**limits))


def test_pace_admits_the_limit_in_any_minute_and_says_when_to_come_back():
    pace, studio = Pace(), caller(requests_per_minute=6)
    for _ in range(6):
        pace.admit(studio, now=100.0)
    answer = refusal(pace.admit, studio, 100.0)
    assert (answer.status, answer.code) == (429, "too_many_requests")
    assert answer.retry_after_s == pytest.approx(10.0)
    assert refusal(pace.admit, studio, 109.9).retry_after_s == pytest.approx(0.1)
    pace.admit(studio, now=110.0)
    refusal(pace.admit, studio, 110.0)
    for _ in range(6):  # a long rest fills the bucket once, not more
        pace.admit(studio, now=1000.0)
    refusal(pace.admit, studio, 1000.0)
    pace.admit(Caller(name="other", limits=KeyLimits(requests_per_minute=6)), now=1000.0)


def test_waiting_clip_seconds_are_limited_and_a_request_over_the_limit_is_never_retried():
    studio = caller(queued_clip_seconds=20)
    admit_clip_seconds(studio, 10, 10, pace=2.0)
    answer = refusal(admit_clip_seconds, studio, 10, 16, 2.0)
    assert (answer.status, answer.retry_after_s) == (429, pytest.approx(3.0))
    assert refusal(admit_clip_seconds, studio, 21, 0, 2.0).status == 422
    admit_clip_seconds(caller(), 1e6, 1e6, None)


def test_gpu_seconds_survive_a_restart_and_add_up_over_processes(tmp_path):
    store, now = open_store(tmp_path), [10 * DAY_S + 3600.0]
    first, second = Ledger(store, lambda: now[0]), Ledger(store, lambda: now[0])
    first.add("studio", 2.5)
    first.add("studio", 1.0)
    first.flush()
    second.add("studio", 4.0)
    second.flush()
    first.refresh()
    assert first.spent("studio") == 7.5
    again = Ledger(store, lambda: now[0])
    assert again.spent("studio") == 7.5
    answer = refusal(again.admit, caller(gpu_seconds_per_day=7.5))
    assert (answer.status, answer.code) == (429, "gpu_seconds_spent")
    assert answer.retry_after_s == pytest.approx(DAY_S - 3600)
    again.admit(caller(gpu_seconds_per_day=8))
    now[0] += DAY_S
    again.admit(caller(gpu_seconds_per_day=7.5))


def test_a_write_that_fails_forgets_nothing(tmp_path):
    folder = tmp_path / "jobs"
    folder.mkdir()
    ledger = Ledger(open_store(folder))
    ledger.add("studio", 3.0)
    (folder / "usage").write_text("a file where a folder must stand")
    with pytest.raises(OutputError):
        ledger.flush()
    (folder / "usage").unlink()
    ledger.flush()
    assert Ledger(open_store(folder)).spent("studio") == 3.0


def test_a_damaged_page_is_an_error_and_not_a_free_day(tmp_path):
    ledger = Ledger(open_store(tmp_path))
    ledger.add("studio", 3.0)
    ledger.flush()
    page = next((tmp_path / "usage").rglob("*.json"))
    page.write_text(page.read_text()[:-5])
    with pytest.raises(InputError, match="GPU-seconds"):
        Ledger(open_store(tmp_path))
