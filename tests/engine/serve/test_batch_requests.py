"""Batches: a line's fault is its own, a kill loses and repeats nothing, states as documented."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from hymotion_ray.engine.serve.batch_files import Batch, BatchStore
from hymotion_ray.engine.serve.batches import BATCH_ENDED, BatchRunner, read_lines
from hymotion_ray.engine.serve.jobs import Job
from hymotion_ray.engine.serve.keys import Refusal
from hymotion_ray.formats.atomic import open_store


class Queue:
    """Jobs that end when they are told to; as durable as the test wants."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.accepted: list[str] = []
        self.hold = False
        self.refusals: list[Refusal] = []
        self.alive: set[str] = set()

    async def accept_line(self, key, job_id, body, batch):
        if self.refusals:
            raise self.refusals.pop()
        if "impossible" in body.text:
            raise Refusal(413, "clip_too_long", "too long")
        self.accepted.append(job_id)
        self.jobs[job_id] = Job(
            id=job_id, key=key, model="tiny", text=body.text, num_frames=30, num_steps=2,
            guidance_scale=1.0, seeds=(0,), created=0.0, deadline=1e12, batch=batch,
        )  # fmt: skip
        if not self.hold:
            self.end(job_id)

    def end(self, job_id: str) -> None:
        job = self.jobs[job_id]
        job.state = "failed" if "fails" in job.text else "succeeded"
        if job.state == "failed":
            job.error = {"code": "not_finite", "message": "no finite motion"}

    async def find(self, key, job_id):
        return self.jobs.get(job_id)

    async def wait(self, key, job_id, within_s):
        await asyncio.sleep(0.01)

    async def change(self, key, job_id, verb):
        assert verb == "cancel"
        self.jobs[job_id].state = "canceled"

    async def living(self):
        return self.alive


@pytest.fixture
def store(tmp_path) -> BatchStore:
    return BatchStore(open_store(tmp_path))


@contextlib.asynccontextmanager
async def running(store, jobs, owner="one", window_s=3600.0):
    runner = BatchRunner(store, jobs, owner, window_s=window_s, ttl_s=3600.0)
    task = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def ended(store: BatchStore, batch: Batch) -> Batch:
    async with asyncio.timeout(60):
        while (now := store.batch(batch.key, batch.id)).status not in BATCH_ENDED:
            await asyncio.sleep(0.02)
    return now


def rows_of(store: BatchStore, batch: Batch, file_id: str | None) -> list[dict]:
    if file_id is None:
        return []
    return [json.loads(line) for line in store.content(batch.key, file_id).splitlines()]


def upload(store: BatchStore, *lines: object) -> str:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    content = "\n".join(texts).encode()
    return store.add_file("studio", "in.jsonl", content, "batch").id


def openai(custom_id: str, **body: object) -> dict:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/motions", "body": body}


def test_lines_are_read_in_both_forms_and_bad_ones_say_why():
    content = "\n".join(
        [
            json.dumps(openai("a", text="a person walks")),
            "",
            json.dumps({"text": "a person runs", "id": "b", "duration": 2.5}),
            "{broken",
            "[1]",
            json.dumps(openai("a", text="again")),
            json.dumps(openai("c", text="x", colour="red")),
            json.dumps({"custom_id": "d", "url": "/v1/chat/completions", "body": {"text": "x"}}),
            json.dumps(openai("e", text="x", webhook="https://example.com")),
            json.dumps({"custom_id": 5, "text": "x"}),
            "[" * 100_000,
        ]
    ).encode()
    lines = list(read_lines(b"\xef\xbb\xbf" + content + b"\r\n"))
    assert [(line.number, line.custom_id) for line in lines[:2]] == [(1, "a"), (3, "b")]
    assert lines[1].body.duration == 2.5
    codes = {line.number: line.error[0] for line in lines if line.error}
    assert codes == {
        4: "invalid_json_line", 5: "invalid_json_line", 6: "duplicate_custom_id",
        7: "invalid_request", 8: "bad_url", 9: "no_webhooks", 10: "bad_custom_id",
        11: "invalid_json_line",
    }  # fmt: skip
    assert "colour" in next(line.error[1] for line in lines if line.number == 7)


def test_a_batch_ends_with_every_line_once_and_faults_apart(store):
    async def life() -> None:
        async with running(store, Queue()) as runner:
            lines = [openai(f"id-{k}", text=f"a person walks {k}") for k in range(40)]
            lines[3]["body"]["text"] = "this fails"
            lines[5]["body"]["text"] = "impossible"
            file_id = upload(store, *lines, "{broken")
            batch = await ended(store, await runner.create("studio", file_id, {"shot": "12"}))
            async with asyncio.timeout(60):
                while store.parts(batch) or runner.num_running:
                    await asyncio.sleep(0.02)
        assert batch.status == "completed"
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (41, 38, 3)
        good = rows_of(store, batch, batch.output_file_id)
        bad = rows_of(store, batch, batch.error_file_id)
        assert {row["custom_id"] for row in good} == {f"id-{k}" for k in range(40)} - {
            "id-3", "id-5",
        }  # fmt: skip
        assert good[0]["response"]["status_code"] == 200
        assert good[0]["response"]["body"]["text"] == "a person walks 0"
        assert {row["line"]: row["error"]["code"] for row in bad} == {
            4: "not_finite", 6: "clip_too_long", 41: "invalid_json_line",
        }  # fmt: skip
        assert batch.document()["metadata"] == {"shot": "12"}
        assert "key" not in batch.document()

    asyncio.run(life())


@pytest.mark.parametrize(
    ("lines", "code"), [([], "empty_file"), (["{broken", "[]"], "invalid_json_line")]
)
def test_a_file_without_one_good_line_fails(store, lines, code):
    async def life() -> None:
        async with running(store, Queue()) as runner:
            batch = await ended(store, await runner.create("studio", upload(store, *lines), None))
        assert batch.status == "failed"
        assert batch.errors["data"][0]["code"] == code
        assert batch.output_file_id is None

    asyncio.run(life())


def test_a_full_queue_is_waited_for(store):
    async def life() -> None:
        queue = Queue()
        queue.refusals = [Refusal(429, "queue_full", "full", 0.05) for _ in range(3)]
        async with running(store, queue) as runner:
            file_id = upload(store, openai("a", text="x"), openai("b", text="y"))
            batch = await ended(store, await runner.create("studio", file_id, None))
        assert batch.request_counts.completed == 2

    asyncio.run(life())


def test_a_killed_process_loses_and_repeats_nothing(store):
    lines = [openai(f"id-{k}", text=f"walk {k}") for k in range(60)]

    async def first_life(queue: Queue) -> Batch:
        async with running(store, queue) as runner:
            batch = await runner.create("studio", upload(store, *lines), None)
            async with asyncio.timeout(60):
                while len(queue.accepted) < 32:
                    await asyncio.sleep(0.01)
            for job_id in queue.accepted[:10]:
                queue.end(job_id)
            await asyncio.sleep(0.05)
            for task in list(runner._tasks.values()):
                task.cancel()  # no goodbye: the record says that "one" runs it
        assert store.batch("studio", batch.id).status == "in_progress"
        return batch

    async def second_life(queue: Queue, batch: Batch) -> Batch:
        queue.hold = False
        for job_id in queue.accepted:
            queue.end(job_id)
        async with running(store, queue, owner="two"):
            return await ended(store, batch)

    async def life() -> None:
        queue = Queue()
        queue.hold = True
        batch = await second_life(queue, await first_life(queue))
        rows = rows_of(store, batch, batch.output_file_id)
        assert sorted(row["custom_id"] for row in rows) == sorted(f"id-{k}" for k in range(60))
        assert len(queue.accepted) == len(set(queue.accepted)) == 60
        assert batch.status == "completed"

    asyncio.run(life())


def test_a_batch_of_a_living_process_is_left_to_it(store):
    async def life() -> None:
        queue = Queue()
        queue.hold = True
        async with running(store, queue) as runner:
            batch = await runner.create("studio", upload(store, openai("a", text="x")), None)
            queue.alive = {"one"}
            async with running(store, queue, owner="two") as other:
                await asyncio.sleep(0.1)
                assert other.num_running == 0
            queue.hold = False
            for job_id in queue.accepted:
                queue.end(job_id)
            assert (await ended(store, batch)).owner == "one"

    asyncio.run(life())


@pytest.mark.parametrize("through", ["cancel", "expire"])
def test_an_early_end_keeps_what_is_finished_and_says_what_is_not(store, through):
    async def life() -> None:
        queue = Queue()
        queue.hold = True
        window = 3600.0 if through == "cancel" else 1.0
        async with running(store, queue, window_s=window) as runner:
            lines = [openai(f"id-{k}", text=f"walk {k}") for k in range(50)]
            batch = await runner.create("studio", upload(store, *lines), None)
            async with asyncio.timeout(60):
                while len(queue.accepted) < 32:
                    await asyncio.sleep(0.01)
            for job_id in queue.accepted[:7]:
                queue.end(job_id)
            if through == "cancel":
                told = await runner.cancel(store.batch("studio", batch.id))
                assert told.status == "cancelling"
                assert store.batch("studio", batch.id).status == "cancelling"
            batch = await ended(store, batch)
            again = await runner.cancel(batch)
        assert again.status == batch.status == {"cancel": "cancelled", "expire": "expired"}[through]
        good = rows_of(store, batch, batch.output_file_id)
        bad = rows_of(store, batch, batch.error_file_id)
        assert len(good) >= 7
        assert len(good) + len(bad) == 50
        code = {"cancel": "batch_cancelled", "expire": "batch_expired"}[through]
        assert {row["error"]["code"] for row in bad} == {code}

    asyncio.run(life())


def test_old_batches_and_files_are_swept_and_others_stay(store):
    async def life() -> Batch:
        async with running(store, Queue()) as runner:
            file_id = upload(store, openai("a", text="x"))
            return await ended(store, await runner.create("studio", file_id, None))

    batch = asyncio.run(life())
    assert store.sweep(3600.0, batch.completed_at + 10) == 0
    assert store.batch("studio", batch.id) is not None
    assert store.sweep(3600.0, batch.completed_at + 3700) == 2
    assert store.batches() == []
    assert store.files("studio") == []


def test_a_key_sees_its_own_files_and_batches_alone(store):
    file_id = upload(store, openai("a", text="x"))
    assert store.file("studio", file_id).filename == "in.jsonl"
    assert store.file("intern", file_id) is None
    assert store.content("intern", file_id) is None
    kept = store.add_file("studio", "../../etc/<x>\r\n", b"", "batch")
    assert not set(kept.filename) & set("/<>\r\n")
    store.remove_file("studio", file_id)
    assert [one.id for one in store.files("studio")] == [kept.id]
