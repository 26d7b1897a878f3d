"""The render pipeline as a literal list of stages; read this first.

prompts -> (rewrite) -> plan | encode -> sample -> decode -> export

What stands left of the bar is settled on the driver before any GPU work (plan.py); the right side
runs in pools of processes (`dispatch.py`), a chunk of clips in one grid cell at a time.
"""

from __future__ import annotations

from hymotion_ray.config.render import ResourceConfig
from hymotion_ray.engine.cluster import ClusterInfo
from hymotion_ray.engine.lease import LeaseCheck
from hymotion_ray.engine.pool import Step
from hymotion_ray.engine.render.decode import DecodeStage
from hymotion_ray.engine.render.encode import EncodeStage
from hymotion_ray.engine.render.export import ExportStage
from hymotion_ray.engine.render.extend import ExtendStage
from hymotion_ray.engine.render.placement import Placement, plain_processes
from hymotion_ray.engine.render.sample import SampleStage
from hymotion_ray.engine.render.settings import StageSettings
from hymotion_ray.motion.decode import Decoder


def render_steps(
    settings: StageSettings, decoder: Decoder, lease: LeaseCheck, place: Placement
) -> list[Step]:
    """The steps of a render job: which stages share a process, and what each process takes.

    On GPUs the network has processes of its own, so that no GPU waits for a file to be written. On
    CPUs alone one process takes a chunk all the way, so that nothing travels; a large encoder still
    has its own, so that it is loaded once and not by every sampler.
    """
    encode, sample = EncodeStage(settings), SampleStage(settings)
    num_followers = 0 if settings.split is None else settings.split.size - 1
    decode, export = DecodeStage(decoder), ExportStage(settings, lease)
    encoding = Step(
        name="encode",
        stages=(encode,),
        size=place.encoders,
        num_cpus=place.num_cpus,
        num_gpus=place.encoder_gpus,
        avoids_gpu_nodes=not place.encoder_gpus,
    )
    if place.uses_gpus:
        return [
            encoding,
            Step(
                name="sample",
                stages=(sample,),
                size=place.samplers,
                num_cpus=place.num_cpus,
                num_gpus=place.sampler_gpus,
                beside=place.beside,
                num_followers=num_followers,
                resources=place.sampler_resources,
            ),
            Step(
                name="finish",
                stages=(decode, export),
                size=place.finishers,
                num_cpus=place.num_cpus,
                avoids_gpu_nodes=True,
            ),
        ]
    if place.encoder_is_large:
        rest = Step(
            name="sample",
            stages=(sample, decode, export),
            size=place.samplers,
            num_cpus=place.num_cpus,
            num_followers=num_followers,
        )
        return [encoding, rest]
    whole = (encode, sample, decode, export)
    # One chunk at a time: a process that dies then takes no more than that one with it.
    return [
        Step(
            name="render",
            stages=whole,
            size=place.samplers,
            num_cpus=place.num_cpus,
            num_followers=num_followers,
            depth=1,
        )
    ]


def extend_step(
    settings: StageSettings, lease: LeaseCheck, resources: ResourceConfig, cluster: ClusterInfo
) -> Step:
    """The one step of a job that gives finished clips more formats: read, write, on CPUs alone."""
    return Step(
        name="extend",
        stages=(ExtendStage(settings, lease),),
        size=plain_processes(resources, cluster),
        avoids_gpu_nodes=True,
    )
