"""The JSON Schema of `job.yaml` for editors: it accepts what the product accepts, and describes each field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from typer.testing import CliRunner

from clonos.cli.job import app

ROOT = Path(__file__).parents[3]
HEAD = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "words"}}


def schema_of(*arguments: str) -> dict[str, Any]:
    printed = CliRunner().invoke(app, ["schema", *arguments])
    assert printed.exit_code == 0, printed.output
    schema: dict[str, Any] = json.loads(printed.output)
    return schema


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/*/job.yaml")), ids=lambda file: file.parent.name)
def test_the_examples_are_valid(file: Path) -> None:
    jsonschema_rs.validate(schema_of(), yaml.safe_load(file.read_text()))


def test_the_cluster_of_the_manifests_is_valid() -> None:
    jsonschema_rs.validate(
        schema_of("--cluster"), yaml.safe_load((ROOT / "docker/kubernetes/cluster.yaml").read_text())
    )


@pytest.mark.parametrize(
    "spec", [{"standbys": 1}, {"trigger": {"interval": "5 minutes"}}, {"standby": {"replicas": "x"}}], ids=str
)
def test_wrong_fields_are_marked(spec: dict[str, Any]) -> None:
    assert not jsonschema_rs.is_valid(schema_of(), {**HEAD, "spec": spec})
    assert jsonschema_rs.is_valid(schema_of(), {**HEAD, "spec": {"trigger": {"interval": "1h30m"}}})


def test_each_field_has_its_meaning() -> None:
    for schema in (schema_of(), schema_of("--cluster")):
        for part in (schema, *schema["$defs"].values()):
            for name, field in part.get("properties", {}).items():
                assert field.get("description"), name
