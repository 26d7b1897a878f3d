"""Files of formats whose real ones are not free, made from the formats' key tables."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

Z_UP = np.array([[1.0, 0, 0], [0, 0, 1.0], [0, -1.0, 0]])  # Z-up data to Y up
NEUTRAL_PELVIS = np.array([-0.001795, -0.223333, 0.028219])


def smpl_walk(num_frames: int = 60, joints: int = 52) -> tuple[np.ndarray, np.ndarray]:
    """Poses (L, 3 x joints) and translation (L,3), Y up: a turning walk in metres, floor at 0."""
    phase = np.arange(num_frames) / 30 * 2 * np.pi
    poses = np.zeros((num_frames, joints, 3))
    poses[:, 0, 1] = 0.4 + 0.2 * np.sin(phase / 3)
    poses[:, 1, 0], poses[:, 2, 0] = -0.4 * np.sin(phase), 0.4 * np.sin(phase)
    poses[:, 4, 0], poses[:, 5, 0] = 0.5 + 0.3 * np.cos(phase), 0.5 - 0.3 * np.cos(phase)
    poses[:, 16, 2], poses[:, 17, 2] = -1.2, 1.2
    transl = np.stack([0.02 * np.sin(phase), 1.13 + 0 * phase, 0.03 * np.arange(num_frames)], 1)
    return poses.reshape(num_frames, -1), transl


def to_z_up(poses: np.ndarray, trans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same motion in AMASS's axes: the pelvis, not the translation, is what turns."""
    poses = poses.copy()
    root = Rotation.from_matrix(Z_UP.T) * Rotation.from_rotvec(poses[:, :3])
    poses[:, :3] = root.as_rotvec()
    return poses, (trans + NEUTRAL_PELVIS) @ Z_UP - NEUTRAL_PELVIS


def amass_arrays(num_frames: int = 60, width: int = 156, key: str = "mocap_framerate") -> dict:
    """What a file of SMPL+H G (156) or SMPL-X G (165, other rate key) holds."""
    poses, trans = to_z_up(*smpl_walk(num_frames, width // 3))
    arrays = {
        "poses": poses,
        "trans": trans,
        "betas": np.zeros(16),
        "gender": np.array("female"),
        key: np.array(120.0),
    }
    if width == 165:
        arrays |= {
            "root_orient": poses[:, :3],
            "pose_body": poses[:, 3:66],
            "surface_model_type": np.array("smplx"),
            "markers_latent_vids": np.array({"a": 1}, dtype=object),
        }
    else:
        arrays["dmpls"] = np.zeros((num_frames, 8))
    return arrays


def save_npz(path: Path, arrays: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


def motionx_rows(num_frames: int = 60) -> np.ndarray:
    """(L,322): poses 0:156, jaw, face and shape, translation at 309, betas."""
    poses, trans = smpl_walk(num_frames)
    rows = np.zeros((num_frames, 322), dtype=np.float32)
    rows[:, :156], rows[:, 309:312] = poses, trans
    return rows


def npy_with_header(header: str, data: bytes = b"") -> bytes:
    """A .npy file whose header says what it is told to say."""
    text = header.encode("latin-1")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def npz_with(members: dict[str, bytes], *, packed: bool = False) -> bytes:
    """An archive of raw members."""
    buffer = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


# A small Acclaim skeleton: direction, length and degrees of freedom of each bone.
BONES = {
    "lowerback": ("0 1 0", 2, "rx ry rz"), "thorax": ("0 1 0", 2, "rx ry rz"),
    "head": ("0 1 0", 2, "rx ry rz"),
    **{f"{s}{bone}": spec for s, x in (("l", 1), ("r", -1)) for bone, spec in {
        "hipjoint": (f"{x} 0 0", 1, ""), "femur": ("0 -1 0", 7, "rx ry rz"),
        "tibia": ("0 -1 0", 7, "rx"), "foot": ("0 0 1", 2, "rx rz"), "toes": ("0 0 1", 1, "rx"),
        "clavicle": (f"{x} 0 0", 3, "ry rz"), "humerus": (f"{x} 0 0", 5, "rx ry rz"),
        "radius": (f"{x} 0 0", 4, "rx"), "hand": (f"{x} 0 0", 1, "rx rz"),
    }.items()},
}  # fmt: skip
TREE = {
    "root": ["lowerback", "lhipjoint", "rhipjoint"],
    "lowerback": ["thorax"],
    "thorax": ["head", "lclavicle", "rclavicle"],
    **{f"{s}{a}": [f"{s}{b}"] for s in "lr" for a, b in (
        ("hipjoint", "femur"), ("femur", "tibia"), ("tibia", "foot"), ("foot", "toes"),
        ("clavicle", "humerus"), ("humerus", "radius"), ("radius", "hand"),
    )},
}  # fmt: skip


def asf_text() -> str:
    """The skeleton as an .asf file."""
    lines = [":version 1.10", ":name test", ":units", " length 0.45", " angle deg", ":root"]
    lines += [" order TX TY TZ RX RY RZ", " axis XYZ", " position 0 0 0", " orientation 0 0 0"]
    lines += [":bonedata"]
    for number, (name, (direction, length, dofs)) in enumerate(BONES.items()):
        lines += ["begin", f"id {number}", f"name {name}", f"direction {direction}"]
        lines += [f"length {length}", "axis 0 0 0 XYZ", *([f"dof {dofs}"] if dofs else []), "end"]
    lines += [":hierarchy", "begin", *(f"{a} {' '.join(b)}" for a, b in TREE.items()), "end"]
    return "\n".join(lines)


def amc_text(num_frames: int = 30) -> str:
    """Every angle of frame k is k degrees."""
    lines = ["#!OML:ASF", ":FULLY-SPECIFIED", ":DEGREES"]
    for frame in range(num_frames):
        lines += [str(frame + 1), f"root 0 {17 + 0.1 * frame} 0 0 {frame} 0"]
        for name, (_, _, dofs) in BONES.items():
            if dofs:
                lines.append(f"{name} {' '.join(str(frame) for _ in dofs.split())}")
    return "\n".join(lines)
