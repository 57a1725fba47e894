"""Validates custom resources as an API server does that refuses unknown fields.

Their definitions are in `tests/data/custom_resources`: of the oldest release of a project that
docs/kubernetes.md names, and of the newest when they were stored. `python -m
tests.scale.custom_resources FOLDER` stores them again, from clones of the projects' repositories
(FOLDER/kubernetes-sigs/lws).
"""

import json
import lzma
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.gateway_process import ROOT

FILE = ROOT / "tests" / "data" / "custom_resources" / "definitions.json.xz"
# Repository on GitHub, file, and releases
SOURCES = (
    (
        "kubernetes-sigs/lws",
        "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
        ("v0.7.0", "v0.10.0"),
    ),
    (
        "kubernetes-sigs/lws",
        "config/crd/bases/disaggregatedset.x-k8s.io_disaggregatedsets.yaml",
        ("v0.9.0", "v0.10.0"),
    ),
    (
        "ray-project/kuberay",
        "ray-operator/config/crd/bases/ray.io_rayservices.yaml",
        ("v1.5.1", "v1.7.0"),
    ),
    (
        "kubernetes-sigs/gateway-api",
        "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
        ("v1.2.0", "v1.6.1"),
    ),
    (
        "kubernetes-sigs/gateway-api-inference-extension",
        "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
        ("v1.0.0", "v1.6.0"),
    ),
    ("kedacore/keda", "config/crd/bases/keda.sh_scaledobjects.yaml", ("v2.14.0", "v2.20.2")),
    (
        "prometheus-operator/prometheus-operator",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
        ("v0.74.0", "v0.93.0"),
    ),
)

Schema = dict[str, Any]


def errors(document: Mapping[str, Any]) -> list[str]:
    """What each release rejects: its name, the path of the field, and why."""
    releases = definitions()[f"{document['apiVersion']} {document['kind']}"]
    return [
        f"{release} {error.json_path}: {error.message}"
        for release, schema in releases.items()
        for error in _Validator(schema).iter_errors(document)
    ]


@cache
def definitions() -> Mapping[str, Mapping[str, Schema]]:
    """The schemas by `apiVersion kind` and release."""
    stored = json.loads(lzma.decompress(FILE.read_bytes()))
    return {
        kind: {release: _without_unknown_fields(schema) for release, schema in releases.items()}
        for kind, releases in stored.items()
    }


def _without_unknown_fields(definition: Schema) -> Schema:
    """Kubernetes knows the fields of `metadata`, which definitions leave out."""
    schema = _closed(definition)
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def _closed(schema: Schema) -> Schema:
    """The JSON schema of a structural schema, in which an object has only fields that it names."""
    result = dict(schema)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            result[name] = _closed(schema[name])
    if "properties" in schema:
        result["properties"] = {name: _closed(each) for name, each in schema["properties"].items()}
    if schema.get("x-kubernetes-int-or-string"):
        result.setdefault("type", ["integer", "string"])
    elif schema["type"] == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    if schema.get("nullable"):
        result["type"] = [schema["type"], "null"]
    return result


def _distinct(
    _: Any, kind: str, items: list[Any], schema: Schema
) -> Iterator[jsonschema.ValidationError]:
    """Of the items of a `set` or a `map`, no two are the same or have the same keys."""
    if kind == "atomic":
        return
    keys = schema.get("x-kubernetes-list-map-keys", ())
    names = Counter(str([item.get(key) for key in keys] if keys else item) for item in items)
    for name, count in names.items():
        if count > 1:
            yield jsonschema.ValidationError(f"{name} is there {count} times")


_Validator = jsonschema.validators.extend(
    jsonschema.Draft7Validator, {"x-kubernetes-list-type": _distinct}
)


def main() -> None:
    [folder] = map(Path, sys.argv[1:])
    found: dict[str, dict[str, Schema]] = defaultdict(dict)
    for repository, path, releases in SOURCES:
        for release in releases:
            command: list[Path | str] = ["git", "-C", folder / repository]
            command += ["show", f"{release}:{path}"]
            text = subprocess.check_output(command, text=True)
            definition = yaml.load(text, yaml.CSafeLoader)["spec"]
            [version] = [each for each in definition["versions"] if each["storage"]]
            kind = f"{definition['group']}/{version['name']} {definition['names']['kind']}"
            found[kind][release] = _without_descriptions(version["schema"]["openAPIV3Schema"])
    FILE.write_bytes(lzma.compress(json.dumps(found, separators=(",", ":")).encode(), preset=9))


def _without_descriptions(value: Any) -> Any:
    """A property may have that name; its value is a schema."""
    if isinstance(value, list):
        return [_without_descriptions(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_descriptions(each)
        for key, each in value.items()
        if key != "description" or not isinstance(each, str)
    }


if __name__ == "__main__":
    main()
