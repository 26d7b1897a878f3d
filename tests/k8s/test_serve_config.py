"""The Serve config of each RayService: by Ray's schema, by what that leaves unread, by our own."""

from __future__ import annotations

import copy
import typing
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from k8s_autoscaler import serve_config
from k8s_objects import ENTRIES, build, one
from pydantic import BaseModel
from ray._common.utils import import_attr
from ray.serve.schema import ServeDeploySchema

from hymotion_ray.engine.serve import app
from hymotion_ray.errors import ConfigError

SERVICES = [entry for entry in ENTRIES if entry.endswith("/service")]


def config(entry: str) -> dict[str, Any]:
    return yaml.safe_load(one(build(entry), "RayService")["spec"]["serveConfigV2"])


def unknown(values: Any, model: type[BaseModel], where: str = "") -> Iterator[str]:
    """Keys that Ray's schema does not know; it drops them without a word."""
    for key, value in values.items():
        field = model.model_fields.get(key)
        if field is None:
            yield f"{where}{key}"
            continue
        for inner in _models(field.annotation):
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, dict):
                    yield from unknown(each, inner, f"{where}{key}.")


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models(part)]


@pytest.mark.parametrize("entry", SERVICES)
def test_serve_takes_the_config_and_reads_all_of_it(entry: str) -> None:
    values = config(entry)
    (application,) = ServeDeploySchema(**values).applications
    assert list(unknown(values, ServeDeploySchema)) == []
    assert import_attr(application.import_path) is app.build
    assert application.route_prefix == "/"


@pytest.mark.parametrize("entry", SERVICES)
def test_the_endpoint_takes_its_arguments(entry: str) -> None:
    parsed = serve_config(one(build(entry), "RayService"))
    if not entry.startswith("overlays/dev"):
        assert parsed.http.keys_file == "/keys/keys.yaml", "an open endpoint"
        assert parsed.http.replicas >= 2
    seconds = config(entry)["http_options"]["request_timeout_s"]
    assert seconds > parsed.limits.wait_s, "Serve would cut off what is answered with 202"
    assert config(entry)["http_options"]["host"] == "0.0.0.0"


def test_what_ray_would_drop_is_found() -> None:
    values = config("overlays/mixed/service")
    values["http_options"]["prot"] = 8000
    values["applications"][0]["deployment"] = []
    assert set(unknown(values, ServeDeploySchema)) == {
        "http_options.prot",
        "applications.deployment",
    }


def test_a_misspelt_argument_names_its_neighbour() -> None:
    values = copy.deepcopy(config("overlays/mixed/service"))
    values["applications"][0]["args"]["models"][0]["pool"] = []
    with pytest.raises(ConfigError, match="pools"):
        app.build(values["applications"][0]["args"])
