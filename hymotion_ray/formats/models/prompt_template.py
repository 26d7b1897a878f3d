"""The system message that the released text encoder was trained with.

It is not ours to ship: it is read from the user's own checkout of the released repository, as a
literal of the syntax tree, so that nothing of the checkout runs; and it is known by its hash.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

from hymotion_ray.config.text import RELEASED_TEMPLATE_SHA256
from hymotion_ray.errors import InputError
from hymotion_ray.formats.local_file import is_named, require_file

TEMPLATE_FILE = "prompt_template.txt"
"""Name of the file in a model folder that holds the message, UTF-8, without a final newline."""
CONSTANT = "PROMPT_TEMPLATE_ENCODE_HUMAN_MOTION"
CHECKOUT_FILE = Path("hymotion/network/text_encoders/model_constants.py")


def read_template(folder: Path, error: type[InputError] = InputError) -> str | None:
    """The message in a model folder, or None where the folder has none."""
    path = folder / TEMPLATE_FILE
    if not is_named(path):
        return None
    try:
        return require_file(path, error).read_bytes().decode()
    except UnicodeDecodeError as cause:
        raise error(f"{path} is not UTF-8 text: {cause}") from cause


def template_of_checkout(checkout: Path) -> str | None:
    """The message in a checkout of the released repository, or None where its file is not there.

    The constant may be a string or a structure of messages; its string with the known hash is
    taken. Raises `InputError` when the file is not Python, lacks the constant, or holds no string
    of that hash.
    """
    path = checkout / CHECKOUT_FILE
    if not is_named(path):
        return None
    try:
        tree = ast.parse(require_file(path).read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as cause:
        raise InputError(f"{path} is not Python: {cause}") from cause
    value = _assigned(tree, CONSTANT)
    if value is None:
        raise InputError(f"{path} does not assign {CONSTANT}; is it the released repository?")
    texts = [
        node.value
        for node in ast.walk(value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    for text in texts:
        if _sha256(text) == RELEASED_TEMPLATE_SHA256:
            return text
    longest = max(texts, key=len, default="")
    raise InputError(
        f"{CONSTANT} in {path} holds no text with the sha256 {RELEASED_TEMPLATE_SHA256} that the "
        f"released models were trained with; its longest text has {len(longest)} characters and "
        f"the sha256 {_sha256(longest)}. Take the checkout at the release of the weights"
    )


def _assigned(tree: ast.Module, name: str) -> ast.expr | None:
    """The expression that a module assigns to `name` at its top level, the last one."""
    found = None
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            found = node.value
    return found


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
