"""The launcher files: Ray's own checks, each cloud's own schema, and what would be started."""

from __future__ import annotations

import copy
import functools
import json
import re
from pathlib import Path
from typing import Any

import botocore.session
import botocore.validate
import googleapiclient
import jsonschema
import pytest
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray_autoscaler import demand, launched

FOLDER = Path(__file__).resolve().parents[2] / "cluster"
CLOUDS = {"aws": ("a10", 8, 2), "gcp": ("l4", 8, 4), "azure": ("a10", 8, 4)}
"""Cloud: its group of 24 GB cards, and how many nodes of those and of A100 it may have."""
SMALL = {"ray.io/accelerator-type": "in(A10,A10G,L4)"}
A100 = {"ray.io/accelerator-type": "A100"}


def read(cloud: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / f"{cloud}.yaml").read_text())


def groups(cloud: str) -> dict[str, dict[str, Any]]:
    return read(cloud)["available_node_types"]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_ray_takes_the_file(cloud: str) -> None:
    validate_config(prepare_config(read(cloud)))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_ray_refuses_what_is_misspelt(cloud: str) -> None:
    for change in (
        lambda c: c.update(max_worker=3),
        lambda c: c["available_node_types"]["cpu"].update(min_worker=1),
        lambda c: c["docker"].update(imge="x"),
        lambda c: c["available_node_types"]["a100"]["resources"].update(sampler_slot=0.5),
    ):
        broken = read(cloud)
        change(broken)
        with pytest.raises(jsonschema.ValidationError):
            validate_config(prepare_config(broken))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_head_cpu_nodes_and_two_kinds_of_gpu(cloud: str) -> None:
    small, *_ = CLOUDS[cloud]
    types = groups(cloud)
    assert list(types) == ["head", "cpu", small, "a100"]
    assert types["head"]["resources"] == {"CPU": 0}
    for name in (small, "a100"):
        resources = types[name]["resources"]
        per_gpu = {"a100": 2}.get(name, 1)
        assert resources["sampler_slot"] == per_gpu * resources["GPU"]
        assert types[name]["labels"]["hymotion-pool"] == name
        assert types[name]["min_workers"] == 0


@pytest.mark.parametrize("cloud", CLOUDS)
def test_nothing_is_open_and_nothing_is_left_to_chance(cloud: str) -> None:
    config = read(cloud)
    text = (FOLDER / f"{cloud}.yaml").read_text()
    start = " ".join(config["head_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in start
    assert "0.0.0.0" not in text
    assert "RAY_enable_autoscaler_v2=1" in start  # labels and idle times exist in v2 only
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert "RAY_AUTH_MODE=token" in " ".join(config[commands])
    assert config["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    assert config["setup_commands"] == []
    images = [config["docker"]["image"], groups(cloud)["cpu"]["docker"]["worker_image"]]
    assert all(re.search(r":\d+\.\d+\.\d+-(cpu|cuda)$", image) for image in images)
    assert "nightly" not in text
    assert "latest" not in images


@pytest.mark.parametrize("cloud", CLOUDS)
def test_what_the_autoscaler_would_start(cloud: str, tmp_path: Path) -> None:
    small, most_small, most_large = CLOUDS[cloud]
    values = read(cloud)
    for name in [n for n in values["auth"] if n.endswith("_key")]:  # Ray reads the key itself
        values["auth"][name] = str(tmp_path / name)
        (tmp_path / name).write_text("key")
    config = AutoscalingConfig(values, skip_content_hash=True)
    gpus = groups(cloud)["a100"]["resources"]["GPU"]
    assert launched(config, []) == ({"cpu": 1}, 0)
    assert launched(config, [demand({"CPU": 1})] * 40)[0] == {"cpu": 3}
    first_a100 = demand({"CPU": 1, "GPU": 1}, [A100, SMALL])
    assert launched(config, [first_a100])[0] == {"cpu": 1, "a100": 1}
    many = most_large * gpus + 3
    assert launched(config, [first_a100] * many)[0] == {"cpu": 1, "a100": most_large, small: 3}
    full = demand({"CPU": 1, "GPU": 1}, [SMALL])
    assert launched(config, [full] * (most_small + 1))[0] == {"cpu": 1, small: most_small}
    assert launched(config, [full] * (most_small + 1))[1] == 1


# --- AWS: the parameters of RunInstances ----------------------------------------------------------


@functools.cache
def run_instances() -> Any:
    model = botocore.session.get_session().get_service_model("ec2")
    return model.operation_model("RunInstances").input_shape


def aws_errors(node_config: dict[str, Any]) -> str:
    shape = run_instances()
    values = {**node_config, "MinCount": 1, "MaxCount": 1}
    report = botocore.validate.ParamValidator().validate(values, shape)
    known = shape.members["InstanceType"].enum
    named = node_config["InstanceType"]
    return report.generate_report() + ("" if named in known else f"no instance type {named}")


def test_aws_takes_the_node_configs() -> None:
    for each in groups("aws").values():
        assert aws_errors(each["node_config"]) == ""


def test_what_aws_would_refuse_is_found() -> None:
    good = groups("aws")["a10"]["node_config"]
    for change in (
        {"InstanceTyp": "g5.2xlarge"},
        {"InstanceType": "g5.3xlarge"},
        {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": "200"}}]},
        {"MetadataOptions": {"HttpToken": "required"}},
    ):
        assert aws_errors({**good, **change}) != ""


# --- Google: the Instance of the compute API's discovery document ---------------------------------


def google_instance() -> dict[str, Any]:
    """The schema of an Instance, as JSON schema that refuses what it does not name."""
    folder = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
    schemas = json.loads((folder / "compute.v1.json").read_text())["schemas"]

    def strict(node: Any) -> Any:
        if isinstance(node, list):
            return [strict(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return {"$ref": f"#/schemas/{node['$ref']}"}
        kept = ("type", "enum", "items", "additionalProperties")
        made = {key: strict(node[key]) for key in kept if key in node}
        # 64-bit numbers travel as strings and may be written as numbers.
        if node.get("format") in ("int64", "uint64"):
            made.pop("type", None)
        if made.get("type") == "any":
            made.pop("type")
        if "properties" in node:
            made["properties"] = {name: strict(value) for name, value in node["properties"].items()}
            made.setdefault("additionalProperties", False)
        return made

    return {
        "$ref": "#/schemas/Instance",
        "schemas": {name: strict(schema) for name, schema in schemas.items()},
    }


def test_google_takes_the_node_configs() -> None:
    validator = jsonschema.Draft202012Validator(google_instance())
    types = groups("gcp")
    for each in types.values():
        validator.validate(each["node_config"])
    for name in ("l4", "a100"):
        # Machines with GPUs cannot be moved.
        assert types[name]["node_config"]["scheduling"]["onHostMaintenance"] == "TERMINATE"
    for change in (
        {"machinetype": "g2-standard-8"},
        {"disks": [{"boot": "true"}]},
        {"scheduling": {"onHostMaintenance": "STOP"}},
        {"serviceAccounts": [{"mail": "x"}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({**types["a100"]["node_config"], **change})


# --- Azure: the parameters of the template that Ray deploys ---------------------------------------


def azure_errors(parameters: dict[str, Any]) -> list[str]:
    path = Path(ray.__file__).parent / "autoscaler/_private/_azure/azure-vm-template.json"
    known = json.loads(path.read_text())["parameters"]
    types = {"string": str, "securestring": str, "int": int, "bool": bool, "object": dict}
    found = [f"unknown {name}" for name in parameters if name not in known]
    for name, value in parameters.items():
        wanted = types.get(known.get(name, {}).get("type", "").lower(), object)
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            found.append(f"{name} is {value!r}")
    return found


def test_azure_takes_the_node_configs() -> None:
    types = groups("azure")
    for each in types.values():
        assert set(each["node_config"]) == {"azure_arm_parameters"}
        parameters = each["node_config"]["azure_arm_parameters"]
        assert azure_errors(parameters) == []
        assert re.fullmatch(r"Standard_[A-Z]+\d+[a-z]*(_[A-Z]+\d+)*_v\d", parameters["vmSize"])
    good = types["a10"]["node_config"]["azure_arm_parameters"]
    for change in ({"vmsize": "x"}, {"osDiskSize": "200"}, {"provisionPublicIp": "no"}):
        assert azure_errors({**good, **change}) != []


def test_the_files_differ_only_where_the_clouds_do() -> None:
    """What is the same is said the same way: tokens, start commands, container."""
    first = read("aws")
    for cloud in ("gcp", "azure"):
        other = copy.deepcopy(read(cloud))
        for key in ("docker", "file_mounts", "setup_commands", "worker_start_ray_commands",
                    "head_start_ray_commands", "idle_timeout_minutes"):  # fmt: skip
            assert other[key] == first[key], (cloud, key)


@pytest.mark.slow
def test_aws_from_file_to_request_against_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's whole AWS bootstrap: keys, network, security group, roles and what a node gets."""
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        import boto3
        from ray.autoscaler._private.aws.config import bootstrap_aws

        iam = boto3.client("iam")
        for name in ("HYMOTION-HEAD", "HYMOTION-WORKER"):
            iam.create_instance_profile(InstanceProfileName=name)
        (image,) = boto3.client("ec2").describe_images(Owners=["amazon"])["Images"][:1]
        config = read("aws")
        for each in config["available_node_types"].values():
            each["node_config"]["ImageId"] = image["ImageId"]
        made = bootstrap_aws(prepare_config(config))
        types = made["available_node_types"]
        assert types["a10"]["resources"]["GPU"] == 1
        assert types["a100"]["resources"]["GPU"] == 8
        assert types["a10"]["resources"]["sampler_slot"] == 1
        for each in types.values():
            node = each["node_config"]
            assert node["SubnetIds"]
            assert node["SecurityGroupIds"]
            assert node["KeyName"]
            ready = {key: value for key, value in node.items() if key != "SubnetIds"}
            boto3.client("ec2").run_instances(
                **ready, SubnetId=node["SubnetIds"][0], MinCount=1, MaxCount=1
            )
