"""USD: a skinned, animated figure as text (.usda) by way of UsdSkel.

Knows the UsdSkel schema: metres, Y up, time codes as frames, quaternions real part first. Needs
usd-core, which comes with the extra [export]. Is only written.

Shape letters: L frames, J joints.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.errors import MissingDependencyError
from hymotion_ray.formats.figures.figure import TONE_COLOURS, Figure
from hymotion_ray.formats.figures.mannequin import figure_of
from hymotion_ray.formats.figures.tracks import rotation_tracks
from hymotion_ray.motion.body import BodyMesh
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import JOINT_NAMES, NUM_BODY_JOINTS, PARENTS, PELVIS, Skeleton


def write_usda(motion: Motion, *, mesh: BodyMesh | None = None) -> bytes:
    """The file's bytes; `MissingDependencyError` without usd-core.

    mesh: the model's body; without it a mannequin is built on the motion's skeleton.
    """
    usd = _usd()
    stage = usd.Usd.Stage.CreateInMemory()
    usd.UsdGeom.SetStageUpAxis(stage, usd.UsdGeom.Tokens.y)
    usd.UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    stage.SetTimeCodesPerSecond(motion.fps)
    stage.SetFramesPerSecond(motion.fps)
    stage.SetStartTimeCode(0)
    stage.SetEndTimeCode(motion.num_frames - 1)
    root = usd.UsdSkel.Root.Define(stage, "/Motion")
    stage.SetDefaultPrim(root.GetPrim())
    for key, value in motion.meta.items():
        # Seeds beyond 32 bits overflow an int of USD.
        is_wide = isinstance(value, int) and not -(2**31) <= value < 2**31
        root.GetPrim().SetCustomDataByKey(key.replace(":", "_"), str(value) if is_wide else value)
    _skeleton(usd, stage, motion.skeleton)
    _animation(usd, stage, motion)
    _mesh(usd, stage, figure_of(motion.skeleton, mesh))
    text: str = stage.GetRootLayer().ExportToString()
    return text.encode("utf-8")


def joint_paths() -> list[str]:
    """The 22 joints as UsdSkel names them: each with all its parents, slashes between."""
    paths: list[str] = []
    for joint, name in enumerate(JOINT_NAMES[:NUM_BODY_JOINTS]):
        paths.append(name if joint == PELVIS else f"{paths[PARENTS[joint]]}/{name}")
    return paths


def _usd() -> Any:
    """A namespace with usd-core's modules that are used here."""
    try:
        from pxr import Gf, Sdf, Usd, UsdGeom, UsdSkel, Vt
    except ImportError as cause:
        raise MissingDependencyError(
            "USD files need usd-core, which is not installed; run"
            " `pip install 'hymotion-ray[export]'`"
        ) from cause
    modules = ModuleType("usd")
    modules.__dict__.update(Gf=Gf, Sdf=Sdf, Usd=Usd, UsdGeom=UsdGeom, UsdSkel=UsdSkel, Vt=Vt)
    return modules


def _skeleton(usd: Any, stage: Any, skeleton: Skeleton) -> None:
    prim = usd.UsdSkel.Skeleton.Define(stage, "/Motion/Skeleton")
    prim.CreateJointsAttr(joint_paths())
    prim.CreateBindTransformsAttr(_translations(usd, skeleton.rest[:NUM_BODY_JOINTS]))
    prim.CreateRestTransformsAttr(_translations(usd, skeleton.offsets[:NUM_BODY_JOINTS]))
    binding = usd.UsdSkel.BindingAPI.Apply(prim.GetPrim())
    binding.CreateAnimationSourceRel().SetTargets([usd.Sdf.Path("/Motion/Animation")])


def _translations(usd: Any, places: NDArray[np.float32]) -> Any:
    moves = [usd.Gf.Matrix4d().SetTranslate(usd.Gf.Vec3d(*place)) for place in places.tolist()]
    return usd.Vt.Matrix4dArray(moves)


def _animation(usd: Any, stage: Any, motion: Motion) -> None:
    prim = usd.UsdSkel.Animation.Define(stage, "/Motion/Animation")
    prim.CreateJointsAttr(joint_paths())
    quats = rotation_tracks(motion)
    real_first = np.concatenate([quats[..., 3:], quats[..., :3]], axis=-1).tolist()
    places = np.repeat(motion.skeleton.offsets[None, :NUM_BODY_JOINTS], motion.num_frames, axis=0)
    places = places.copy()
    places[:, PELVIS] = motion.joints[:, PELVIS].numpy()
    rotations, translations = prim.CreateRotationsAttr(), prim.CreateTranslationsAttr()
    ones = usd.Vt.Vec3hArray([usd.Gf.Vec3h(1, 1, 1)] * NUM_BODY_JOINTS)
    prim.CreateScalesAttr(ones)
    for frame in range(motion.num_frames):
        rotations.Set(usd.Vt.QuatfArray([usd.Gf.Quatf(*q) for q in real_first[frame]]), frame)
        translations.Set(usd.Vt.Vec3fArray.FromNumpy(np.ascontiguousarray(places[frame])), frame)


def _mesh(usd: Any, stage: Any, figure: Figure) -> None:
    prim = usd.UsdGeom.Mesh.Define(stage, "/Motion/Figure")
    prim.CreatePointsAttr(usd.Vt.Vec3fArray.FromNumpy(figure.vertices))
    prim.CreateNormalsAttr(usd.Vt.Vec3fArray.FromNumpy(figure.normals))
    prim.SetNormalsInterpolation(usd.UsdGeom.Tokens.vertex)
    prim.CreateSubdivisionSchemeAttr(usd.UsdGeom.Tokens.none)
    prim.CreateFaceVertexCountsAttr([3] * len(figure.faces))
    prim.CreateFaceVertexIndicesAttr(usd.Vt.IntArray.FromNumpy(figure.faces.reshape(-1)))
    box = np.stack([figure.vertices.min(axis=0), figure.vertices.max(axis=0)])
    prim.CreateExtentAttr(usd.Vt.Vec3fArray.FromNumpy(box))
    colours = ((np.array(TONE_COLOURS) / 255) ** 2.2).astype(np.float32)[figure.tones]
    shown = prim.CreateDisplayColorPrimvar(usd.UsdGeom.Tokens.vertex)
    shown.Set(usd.Vt.Vec3fArray.FromNumpy(colours))
    binding = usd.UsdSkel.BindingAPI.Apply(prim.GetPrim())
    binding.CreateSkeletonRel().SetTargets([usd.Sdf.Path("/Motion/Skeleton")])
    indices = usd.Vt.IntArray.FromNumpy(figure.skin_indices.astype(np.int32).reshape(-1))
    weights = usd.Vt.FloatArray.FromNumpy(figure.skin_weights.reshape(-1))
    binding.CreateJointIndicesPrimvar(False, 4).Set(indices)
    binding.CreateJointWeightsPrimvar(False, 4).Set(weights)
