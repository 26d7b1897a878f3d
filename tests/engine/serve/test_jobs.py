"""Jobs outlive the process that took them on, and end once."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time

import pytest

from hymotion_ray.config.serve import JobsConfig, PoolConfig, ServedModel
from hymotion_ray.engine.serve import keeper
from hymotion_ray.engine.serve.jobs import Job, JobStore, file_name, new_id
from hymotion_ray.errors import InputError
from hymotion_ray.formats.atomic import open_store

ASK = {"text": "a person walks", "num_frames": 30, "num_steps": 6}
ASYNC = {"Prefer": "respond-async"}


def run(coroutine) -> None:
    asyncio.run(asyncio.wait_for(coroutine, timeout=120))


def make_job(job_id: str = "", **fields) -> Job:
    values = {
        "id": job_id or new_id(),
        "key": "studio",
        "model": "random",
        "text": "a person walks",
        "num_frames": 30,
        "num_steps": 4,
        "guidance_scale": 2.0,
        "seeds": (0, 2**63 - 1),
        "created": time.time(),
        "deadline": time.time() + 100,
    }
    return Job(**values | fields)


@pytest.fixture
def store(tmp_path) -> JobStore:
    return JobStore(open_store(tmp_path / "jobs"))


def test_a_record_comes_back_as_it_was(store):
    job = make_job(text="日本語 \U0001f3be", warnings=["clamped"])
    store.save(job)
    assert store.find("studio", job.id) == job
    assert store.find("other", job.id) is None
    assert store.find("studio", "none") is None


@pytest.mark.parametrize("job_id", ["A", "a", "x" * 128, "a.b:c", "CON", "x-y", "..", "a/../b"])
def test_ids_make_names_that_stay_apart_and_inside(store, job_id):
    others = ["a", "b", "x-y"]
    name = file_name(job_id)
    assert "/" not in name
    assert ".." not in name
    assert len(name) <= 64
    assert name == name.lower()
    assert all(file_name(other) != name for other in others if other != job_id)


def test_ids_made_later_sort_after(store):
    first = new_id()
    time.sleep(0.002)
    assert first < new_id()


def test_damaged_records_are_told_from_missing_ones(store, tmp_path):
    job = make_job("one")
    store.save(job)
    path = tmp_path / "jobs" / "jobs" / "studio" / "one.json"
    path.write_text("{")
    with pytest.raises(InputError, match="no job record"):
        store.find("studio", "one")
    path.write_text('{"schema": 99}')
    with pytest.raises(InputError, match="another version"):
        store.find("studio", "one")


def test_open_marks_follow_the_job(store):
    job = make_job("one")
    store.save(job)
    store.mark_open(job)
    assert store.open_jobs() == [("studio", "one")]
    job.state, job.ended = "succeeded", time.time()
    store.save(job)
    assert store.open_jobs() == []


def test_sweeping_removes_what_ended_long_ago_with_its_clips(store):
    old = make_job("old", state="succeeded", ended=time.time() - 100)
    new = make_job("new", state="succeeded", ended=time.time())
    going = make_job("going")
    for job in (old, new, going):
        store.write_clip(job, 0, b"clip")
        store.save(job)
    assert store.sweep(50.0, time.time()) == 1
    assert store.find("studio", "old") is None
    assert store.read_clip(old, 0) is None
    assert store.find("studio", "new") is not None
    assert store.find("studio", "going") is not None


def test_signs_of_life_age(store):
    store.beat("me")
    assert store.living(5.0) == {"me"}
    store.store.write_bytes("owners/late", repr(time.time() - 60).encode())
    assert store.living(5.0) == {"me"}
    store.leave("me")
    assert store.living(5.0) == set()


def slow(**fields) -> tuple[ServedModel, ...]:
    pool = dataclasses.replace(PoolConfig(), rows=1, least_step_s=0.05)
    return (ServedModel(model="unused", pools=(pool,)),)


def test_jobs_of_a_process_that_died_go_on_in_another(endpoint, monkeypatch):
    """The first process is stopped without any goodbye, in the midst of its second clip."""
    monkeypatch.setattr(keeper, "DEAD_S", 0.5)
    monkeypatch.setattr(keeper, "_LOOK_S", 0.2)
    monkeypatch.setattr(keeper, "BEAT_S", 0.1)

    async def check() -> None:
        jobs = {}
        async with endpoint(models=slow()) as (client, office, _):
            for number in range(3):
                body = ASK | {"seeds": [2 * number, 2 * number + 1]}
                answer = await client.post("/v1/motions", json=body, headers=ASYNC)
                jobs[answer.json()["id"]] = body["seeds"]
            while not any(c.state == "succeeded" for c in office.desk.open_tickets()[0].job.clips):
                await asyncio.sleep(0.02)

            async def no_goodbye(within_s: float) -> None:
                for ticket in office.desk.open_tickets():
                    office.desk.draining = True
                    if ticket.task is not None:
                        ticket.task.cancel()
                        await asyncio.wait([ticket.task])

            monkeypatch.setattr(office.desk, "drain", no_goodbye)
        async with endpoint(models=slow()) as (client, office, _):
            for job_id, seeds in jobs.items():
                while (job := (await client.get(f"/v1/motions/{job_id}")).json()) and (
                    job["state"] != "succeeded"
                ):
                    assert job["state"] in ("queued", "running"), job
                    await asyncio.sleep(0.05)
                assert job["seeds"] == seeds
                for seed in seeds:
                    answer = await client.get(job["result_url"], params={"seed": seed})
                    assert answer.status_code == 200
            # The clip that was finished before was not made again.
            made = office.metrics.value("clips", {"pool": "default", "key": "anonymous"})
            assert made >= 5
        assert office.desk.store.open_jobs() == []

    run(check())


def test_draining_finishes_what_is_waited_for_and_leaves_the_rest(endpoint):
    async def check() -> None:
        async with endpoint(models=slow()) as (client, office, _):
            waited = asyncio.create_task(client.post("/v1/motions", json=ASK))
            await asyncio.sleep(0.1)
            later = [
                (await client.post("/v1/motions", json=ASK | {"seeds": [n]}, headers=ASYNC)).json()
                for n in range(30)
            ]
            draining = asyncio.create_task(office.desk.drain(0.5))
            await asyncio.sleep(0)
            assert (await client.get("/readyz")).status_code == 503
            refused = await client.post("/v1/motions", json=ASK | {"seeds": [99]})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            answer = await waited
            assert answer.json()["state"] == "succeeded"
            await draining
            left = {job_id for _, job_id in office.desk.store.open_jobs()}
            ended = [j["id"] for j in later if j["id"] not in left]
            assert left
            for job_id in ended:
                assert (await client.get(f"/v1/motions/{job_id}")).json()["state"] == "succeeded"
            assert office.desk.store.living(10.0) == set()

    run(check())


def test_a_job_that_does_not_end_in_time_has_expired(endpoint, tmp_path):
    async def check() -> None:
        jobs = JobsConfig(folder=str(tmp_path / "own"), deadline_s=0.4)
        async with endpoint(models=slow(), jobs=jobs) as (client, _, pools):
            body = ASK | {"num_steps": 400}
            job = (await client.post("/v1/motions", json=body, headers=ASYNC)).json()
            await asyncio.sleep(0.7)
            while (job := (await client.get(f"/v1/motions/{job['id']}")).json())["state"] in (
                "queued",
                "running",
            ):
                await asyncio.sleep(0.05)
            assert job["state"] == "expired"
            assert (await client.get(f"/v1/motions/{job['id']}/result")).status_code == 410
            assert pools["default"].core.batcher.counts()[0] == 0

    run(check())


def test_results_survive_a_restart_and_memory_does_not_hold_them(endpoint):
    async def check() -> None:
        async with endpoint() as (client, office, _):
            job = (await client.post("/v1/motions", json=ASK)).json()
            first = (await client.get(job["result_url"])).content
        async with endpoint() as (client, office, _):
            assert office.desk.find_here("anonymous", job["id"]) is None
            again = await client.get(job["result_url"])
            assert again.content == first
            names = office.store.list_files("results")
            assert all(os.sep not in name.removeprefix("results/anonymous/")[:5] for name in names)

    run(check())
