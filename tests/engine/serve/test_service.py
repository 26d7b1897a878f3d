"""A whole endpoint with keys, webhooks and batches, as its callers meet it; secrets stay secret."""

from __future__ import annotations

import base64
import io
import json
import logging
import zipfile
from collections.abc import Iterator

import httpx
import pytest
import yaml
from live import Live, serving
from local_pools import make_pools
from test_webhooks import SECRET, Receiver, receiver  # noqa: F401 - a fixture

from hymotion_ray.client import Client
from hymotion_ray.config.fields import to_mapping
from hymotion_ray.config.serve import (
    HttpConfig,
    JobsConfig,
    PoolConfig,
    ServeConfig,
    ServedModel,
    WebhookConfig,
)
from hymotion_ray.engine.serve.keys import new_key
from hymotion_ray.engine.serve.log import JsonFormatter, logger
from hymotion_ray.engine.serve.usage import Ledger
from hymotion_ray.engine.serve.webhooks import read_secret
from hymotion_ray.errors import ServiceError
from hymotion_ray.formats.atomic import open_store
from hymotion_ray.formats.motions import decode_motion, load_motion

KEYS = {name: new_key() for name in ("studio", "hasty", "small", "spent", "off", "lite")}
LIMITS = {
    "hasty": {"requests_per_minute": 2},
    "small": {"queued_clip_seconds": 3},
    "spent": {"gpu_seconds_per_day": 1e-6},
    "off": {"enabled": False},
    "lite": {"models": ["lite"]},
}


@pytest.fixture(scope="module")
def live(random_model, tmp_path_factory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("service")
    keys = [{"name": n, "sha256": key[1], **LIMITS.get(n, {})} for n, key in KEYS.items()]
    (folder / "keys.yaml").write_text(yaml.safe_dump({"schema": 1, "keys": keys}))
    config = ServeConfig(
        models=(ServedModel(model="unused", pools=(PoolConfig(rows=2),)),),
        jobs=JobsConfig(folder=str(folder / "jobs")),
        http=HttpConfig(keys_file=str(folder / "keys.yaml")),
        webhooks=WebhookConfig(allowed_hosts=("127.0.0.1",), secret_env="TEST_WEBHOOK_SECRET"),
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TEST_WEBHOOK_SECRET", SECRET)
        made = make_pools(str(random_model), config)
        with serving(config, made) as running:
            yield running
        for pool in made[1].values():
            pool.core.stop()


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(level)


def as_key(live: Live, name: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {KEYS[name][0]}"}
    return httpx.Client(base_url=f"{live.url}/v1", headers=headers, timeout=60)


def client(live: Live, name: str = "studio", **options: float) -> Client:
    return Client(live.url, KEYS[name][0], **options)


def test_the_client_makes_what_the_readme_says(live, tmp_path):
    with client(live) as one:
        job = one.motion("a person walks", duration=1, seeds=[7])
        (path,) = job.save(tmp_path / "walk.glb")
        assert load_motion(path).num_frames == 30
        kept = decode_motion(job.result("npz"), "npz")
        assert kept.meta["seed"] == 7
        assert kept.meta["prompt"] == "a person walks"
        assert next(one.jobs()).id == job.id
        assert one.models()[0]["max_frames"] == 360
        again = one.submit("a person walks", duration=1, seeds=[7], id=job.id)
        assert again.view == one.job(job.id).view
        with pytest.raises(ServiceError, match="409"):
            one.submit("a person runs", id=job.id)
        with pytest.raises(ServiceError, match="text"):
            one.submit("")
        long = one.submit("a person walks", duration=12, num_steps=900)
        assert long.cancel().state == "canceled"
        with pytest.raises(ServiceError, match="canceled"):
            long.wait()


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "key_missing"),
        ({"Authorization": "Bearer hmr_wrong"}, 401, "key_unknown"),
        ({"Authorization": f"Bearer {KEYS['off'][0]}"}, 403, "key_disabled"),
    ],
)
def test_without_a_good_key_nothing_is_told(live, headers, status, code):
    paths = ["models", "motions", "motions/x", "motions/x/result", "motions/x/events"]
    for path in [*paths, "batches", "files", "files/file-000000000000/content"]:
        answer = httpx.get(f"{live.url}/v1/{path}", headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), path
        if status == 401:
            assert answer.headers["WWW-Authenticate"] == "Bearer"
    for path in ("/livez", "/readyz", "/"):
        assert httpx.get(live.url + path, timeout=60).status_code == 200


def test_a_key_sees_its_own_alone(live):
    with client(live) as one:
        job = one.motion("a person waves", duration=1)
    with as_key(live, "small") as other:
        assert other.get(f"motions/{job.id}").status_code == 404
        assert other.get(f"motions/{job.id}/result").status_code == 404
        assert other.post(f"motions/{job.id}/cancel").status_code == 404
        assert other.get("motions").json()["data"] == []
    with as_key(live, "lite") as other:
        answer = other.post("motions", json={"text": "a person walks"})
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "model_not_allowed"


def test_limits_are_429_with_the_time_to_come_back(live):
    body = {"text": "a person walks", "duration": 1}
    with as_key(live, "hasty") as hasty:
        assert [hasty.post("motions", json=body).status_code for _ in range(2)] == [200, 200]
        answer = hasty.post("motions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_requests")
        assert 25 <= int(answer.headers["Retry-After"]) <= 30
        assert hasty.get("motions").status_code == 200
    with as_key(live, "small") as small:
        slow = {**body, "duration": 3, "num_steps": 400}
        held = small.post("motions", json=slow, headers={"Prefer": "respond-async"}).json()
        answer = small.post("motions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_much_queued")
        assert "Retry-After" in answer.headers
        assert small.post("motions", json={**body, "duration": 4}).status_code == 422
        small.post(f"motions/{held['id']}/cancel")
        assert small.post("motions", json=body).status_code == 200


def test_gpu_seconds_are_counted_to_the_key_and_kept(live):
    body = {"text": "a person walks", "duration": 1, "num_seeds": 3}
    with as_key(live, "spent") as spent:
        answer = spent.post("motions", json=body)
        assert answer.status_code == 200
        used = sum(clip["info"]["device_seconds"] for clip in answer.json()["clips"])
        assert used > 0
        refused = spent.post("motions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "gpu_seconds_spent")
    live.office.ledger.flush()
    kept = Ledger(open_store(live.office.config.jobs.folder))
    assert kept.spent("spent") == pytest.approx(used)
    with as_key(live, "spent") as spent:
        told = spent.get("usage").json()
    assert told["gpu_seconds_today"] == pytest.approx(used, abs=1e-3)
    assert told["limits"]["gpu_seconds_per_day"] == 1e-6
    tags = {"pool": "default", "key": "spent"}
    assert live.office.metrics.value("gpu_seconds", tags) == pytest.approx(used)


def test_the_end_of_a_job_is_told_with_a_signature(live, receiver):  # noqa: F811
    url = f"http://127.0.0.1:{receiver.server_port}/done"
    with client(live) as one:
        job = one.submit("a person walks", duration=1, webhook=url).wait()
    wait_for(lambda: receiver.seen)
    path, headers, body = receiver.seen[0]
    event = json.loads(body)
    assert (path, event["type"], event["data"]["id"]) == ("/done", "motion.succeeded", job.id)
    signer = read_secret(SECRET).for_caller("studio")
    assert signer.verify(headers, body, int(headers["webhook-timestamp"]))
    with as_key(live, "studio") as own:
        for bad in ("https://10.0.0.1/", "http://example.com/", "file:///etc/passwd"):
            answer = own.post("motions", json={"text": "a person walks", "webhook": bad})
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_webhook")


def test_a_key_learns_its_own_webhook_secret(live):
    with as_key(live, "studio") as own:
        answer = own.get("webhook-secret")
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.json()["secret"] == read_secret(SECRET).for_caller("studio").secret
    assert answer.json()["secret"] != SECRET


def test_a_batch_goes_in_by_form_and_comes_out_by_file(live):
    lines_ = [
        {"custom_id": "a", "method": "POST", "url": "/v1/motions",
         "body": {"text": "a person walks", "duration": 1}},
        {"custom_id": "b", "method": "POST", "url": "/v1/motions",
         "body": {"text": "a person walks", "duration": 99}},
        {"custom_id": "c", "text": "a person jumps", "num_frames": 30, "num_seeds": 2},
    ]  # fmt: skip
    content = "\n".join(json.dumps(line) for line in lines_).encode()
    with as_key(live, "studio") as own, as_key(live, "small") as other:
        form = {"file": ("in.jsonl", content)}
        file = own.post("files", files=form, data={"purpose": "batch"}).json()
        asked = {"input_file_id": file["id"], "endpoint": "/v1/motions", "completion_window": "24h"}
        assert other.post("batches", json=asked).status_code == 404
        batch = own.post("batches", json=asked).json()
        assert batch["status"] == "validating"
        wait_for(lambda: own.get(f"batches/{batch['id']}").json()["status"] == "completed")
        batch = own.get(f"batches/{batch['id']}").json()
        assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        rows = [
            json.loads(line)
            for name in ("output_file_id", "error_file_id")
            for line in own.get(f"files/{batch[name]}/content").text.splitlines()
        ]
        assert [row["custom_id"] for row in rows] == ["a", "c", "b"]
        assert rows[2]["error"]["code"] == "clip_too_long"
        result = own.get(f"{live.url}{rows[1]['response']['body']['result_url']}?format=bvh")
        assert len(zipfile.ZipFile(io.BytesIO(result.content)).namelist()) == 2
        assert other.get(f"batches/{batch['id']}").status_code == 404
        assert other.get(f"files/{file['id']}/content").status_code == 404
        assert own.delete(f"files/{file['id']}").json()["deleted"] is True
        assert own.get(f"files/{file['id']}").status_code == 404


def test_results_carry_a_tag_and_are_not_sent_twice(live):
    with client(live) as one, as_key(live, "studio") as own:
        job = one.motion("a person walks", duration=1, seeds=[7])
        first = own.get(f"motions/{job.id}/result", params={"format": "glb"})
        digest = first.headers["Repr-Digest"].removeprefix("sha-256=:").removesuffix(":")
        assert base64.b64decode(digest).hex() == first.headers["ETag"].strip('"')
        headers = {"If-None-Match": first.headers["ETag"]}
        again = own.get(f"motions/{job.id}/result", params={"format": "glb"}, headers=headers)
        assert (again.status_code, again.content) == (304, b"")


def test_no_secret_is_in_a_log_line_a_metric_or_a_config(live, lines):
    with client(live) as one:
        one.motion("a person walks", duration=1)
    for headers in ({"Authorization": f"Bearer {KEYS['off'][0]}"}, {"Authorization": "Bearer a b"}):
        httpx.get(f"{live.url}/v1/models", headers=headers, timeout=60)
    metrics = httpx.get(f"{live.url}/metrics", timeout=60).text
    document = httpx.get(f"{live.url}/openapi.json", timeout=60).text
    config = json.dumps(to_mapping(live.office.config)) + repr(live.office.config)
    shown = lines.getvalue() + metrics + document + config + repr(vars(live.office))
    assert "job ended" in shown
    secrets = [part for key in KEYS.values() for part in key]
    for secret in [*secrets, SECRET, read_secret(SECRET).for_caller("studio").secret]:
        assert secret not in shown
    for line in lines.getvalue().splitlines():
        row = json.loads(line)
        if "status" in row:
            assert row["request_id"]


def wait_for(holds, limit_s: float = 60.0) -> None:
    import time

    until = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)
