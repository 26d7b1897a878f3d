"""How many replicas a pool wants: by seconds of work, also of what is held back elsewhere."""

from __future__ import annotations

import asyncio

from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.config import AutoscalingContext

from hymotion_ray.config.serve import PoolConfig, ServedModel
from hymotion_ray.engine.serve.pace import WaitingElsewhere
from hymotion_ray.engine.serve.scaling import replicas_for_queue

ID = DeploymentID("Sampler-default", "app")


def context(backlogs: list[float], *, requests: float = 0.0, least: int = 0) -> AutoscalingContext:
    replicas = [ReplicaID(f"r{n}", ID) for n in range(len(backlogs))]
    return AutoscalingContext(
        deployment_id=ID,
        deployment_name=ID.name,
        app_name=ID.app_name,
        current_num_replicas=len(backlogs),
        target_num_replicas=len(backlogs),
        running_replicas=replicas,
        total_num_requests=requests,
        total_queued_requests=0.0 if backlogs else requests,
        aggregated_metrics={"backlog_s": dict(zip(replicas, backlogs, strict=True))},
        raw_metrics={},
        capacity_adjusted_min_replicas=least,
        capacity_adjusted_max_replicas=8,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=0.0,
        config=None,
    )


def wanted(backlogs: list[float], **fields: float) -> int:
    return replicas_for_queue(context(backlogs, **fields), target_queue_s=5.0)[0]


def test_replicas_follow_seconds_of_work():
    assert wanted([]) == 0
    assert wanted([], requests=1) == 1
    assert wanted([0.0]) == 0
    assert wanted([0.1], requests=1) == 1
    assert wanted([12.0], requests=3) == 3
    assert wanted([12.0, 3.0], requests=3) == 3
    assert wanted([400.0], requests=9) == 8
    assert wanted([0.0, 0.0], least=2) == 2


def test_the_number_holds_still_while_the_work_does():
    """Twenty seconds of one sampler: what each sees of it shrinks as others join."""
    number = 1
    for _ in range(5):
        number = wanted([20.0 / number] * number, requests=1)
    assert number == 4


def test_what_was_told_long_ago_counts_no_more():
    waiting = WaitingElsewhere()
    waiting.hear("one", 5.0, 100.0)
    waiting.hear("two", 3.0, 105.0)
    assert waiting.seconds(106.0) == 8.0
    waiting.hear("one", 4.0, 107.0)
    assert waiting.seconds(108.0) == 7.0
    assert waiting.seconds(116.0) == 4.0
    assert waiting.seconds(130.0) == 0.0


def test_jobs_that_nobody_waits_for_count(endpoint):
    """The endpoint holds them back until there is room; more replicas are wanted all the same."""
    pool = PoolConfig(rows=1, least_step_s=0.05)
    body = {"text": "a person walks", "num_frames": 30, "num_steps": 100, "num_seeds": 2}

    async def check() -> None:
        async with endpoint(models=(ServedModel(model="unused", pools=(pool,)),)) as started:
            client, office, pools = started
            core = pools["default"].core
            ids = []
            for _ in range(6):
                headers = {"Prefer": "respond-async"}
                answer = await client.post("/v1/motions", json=body, headers=headers)
                ids.append(answer.json()["id"])
            while core.waiting.seconds(asyncio.get_running_loop().time()) == 0.0:
                await asyncio.sleep(0.05)
            held = sum(ticket.cost for ticket in office.desk.open_tickets())
            told = core.backlog_s() * core.load().speed
            assert told > 0.8 * held
            assert core.load().backlog < 0.6 * held
            for job_id in ids:
                await client.post(f"/v1/motions/{job_id}/cancel")

    asyncio.run(check())
