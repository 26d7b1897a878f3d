"""What the OpenAPI document cannot say, kept out of the requests that Schemathesis makes."""

from __future__ import annotations

import re
from typing import Any

import schemathesis

from hymotion_ray.engine.serve.jobs import ID_PATTERN


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """Whether webhooks are sent, where to, and which models there are is the server's setting. Two
    ways to give the seeds, or the length, exclude each other, and an id in the body must be that of
    the path, which JSON Schema says in no form that clients understand. A sentence has a letter and
    no NUL. A form has no way to send a field without a value, so one too many does not arrive.
    """
    body = case.body
    if isinstance(body, dict) and case.media_type == "multipart/form-data":
        return all(value or name in ("file", "purpose") for name, value in body.items())
    if not isinstance(body, dict) or not case.path.startswith("/v1/motions"):
        return True
    both = [
        all(body.get(name) is not None for name in pair)
        for pair in (("seeds", "num_seeds"), ("duration", "num_frames"))
    ]
    path_id = (case.path_parameters or {}).get("job_id")
    is_same = path_id is None or body.get("id") in (None, path_id)
    text = body.get("text")
    is_sentence = not isinstance(text, str) or (
        any(sign.isalpha() for sign in text) and "\0" not in text
    )
    is_served = body.get("webhook") is None and body.get("model") in (None, "random")
    return is_served and not any(both) and is_same and is_sentence


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """In a chain of requests the path is an earlier answer's, put in after the case was chosen."""
    body, path_id = case.body, (case.path_parameters or {}).get("job_id")
    if not isinstance(body, dict) or path_id is None:
        return
    if isinstance(body.get("id"), str) and re.fullmatch(ID_PATTERN, body["id"]):
        body["id"] = path_id
