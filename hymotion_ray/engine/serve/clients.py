"""Encoders and samplers of a Ray Serve application, as the runner calls them.

Translates Ray's errors: a replica that is gone is `ReplicaLostError`, whatever Ray calls it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from hymotion_ray.engine.serve.runner import Facts, ReplicaLostError
from hymotion_ray.engine.serve.work import ClipDone, Condition, Load, Progress, Work
from hymotion_ray.errors import HyMotionError

_TRIES = 3
_PAUSE_S = 0.3
_LOST = (RayError, RayServeException, ConnectionError)


class RayEncoder:
    """The encoder deployment of a model."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def encode(self, text: str) -> Condition:
        """Features of one prompt; tried again when a replica dies."""
        for last in (False,) * (_TRIES - 1) + (True,):
            try:
                condition: Condition = await self._handle.encode.remote(text)
                return condition
            except RayTaskError as error:
                raise _own(error) from error
            except _LOST as error:
                if last:
                    raise HyMotionError(f"no text encoder answers: {error}"[:300]) from error
                await asyncio.sleep(_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    async def facts(self) -> Facts:
        """What the model is."""
        facts: Facts = await self._handle.facts.remote()
        return facts


class RayPool:
    """A sampler deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._streams = handle.options(stream=True)

    async def render(self, work: Work) -> AsyncIterator[Progress | ClipDone]:
        """What a replica sends; closing this cancels the work there."""
        messages = cast("DeploymentResponseGenerator[Any]", self._streams.render.remote(work))
        ended = False
        try:
            async for message in messages:
                yield message
            ended = True
        except RayTaskError as error:
            raise _own(error) from error
        except _LOST as error:
            raise ReplicaLostError(f"{type(error).__name__}: {error}"[:300]) from error
        finally:
            if not ended:
                messages.cancel()

    async def loads(self, teller: str, waiting_s: float) -> list[Load]:
        """What every replica that answers has to do."""
        try:
            answer = self._handle.broadcast("load", teller, waiting_s)
            found = await answer.results_async(timeout_s=4.0, return_exceptions=True)
            return [load for load in found if isinstance(load, Load)]
        except _LOST as error:
            raise ReplicaLostError(str(error)) from error


def _own(error: RayTaskError) -> Exception:
    """The error that was raised over there, when it is one of ours."""
    cause = error.cause if hasattr(error, "cause") else None
    if isinstance(cause, HyMotionError):
        return cause
    return ReplicaLostError(f"{error}".strip().splitlines()[-1][:300])
