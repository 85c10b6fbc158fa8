"""The pods that a driver requests of Kubernetes, by a stand-in for its API server: no executor starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from clonos.testing.harness import eventually
from support.kubernetes import StubKubernetes

pytestmark = pytest.mark.turn(2)

MANIFESTS: Final = Path(__file__).parents[3] / "docker" / "kubernetes" / "base"
SCHEMAS: Final = "1.37"


def test_a_driver_requests_pods_with_the_rights_of_its_role(tmp_path: Path) -> None:
    with StubKubernetes() as kubernetes:
        pods = {"image": "r/executor:1", "namespace": "clonos-jobs", "serviceAccount": "clonos-executor"}
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.kubernetes.driver.pod.name": "clonos-agent-0",
            "spark.log.level": "INFO",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "1s",
        }
        settings = {
            "master": kubernetes.master,
            "kubernetes": {**pods, "podTemplate": str(MANIFESTS / "executor-pod.yaml")},
            "python": "/opt/clonos/bin/python",
            "sparkConf": conf,
        }
        log_file = tmp_path / "log"

        def log_text() -> str:
            return log_file.read_text()

        with log_file.open("w") as log:
            check = subprocess.Popen(
                [sys.executable, "-m", "clonos.driver.cluster_check"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )
        assert check.stdin is not None
        check.stdin.write(json.dumps({"metadata": {"name": "pods"}, "spec": settings}))
        check.stdin.close()
        try:
            eventually(
                lambda: len(kubernetes.pods()) == 2,
                "two pods are requested",
                timeout_s=240,
                details=log_text,
            )
            # Spark requests pods, registers the hook that deletes them when its JVM exits, and then logs this.
            eventually(lambda: "SchedulerBackend is ready" in log_text(), "the hook is registered", details=log_text)
            check.terminate()
            check.wait(60)
            deleted = ("deletecollection", "pods")
            eventually(lambda: deleted in kubernetes.requests, "the pods are deleted", details=log_text)
        finally:
            check.kill()
            check.wait()
        for pod in kubernetes.pods():
            _check_pod(pod)
        for resource in kubernetes.created:
            kubernetes_validate.validate(resource, SCHEMAS, strict=True)
            _check_policy(resource)
        assert kubernetes.requests <= _allowed()


def _check_pod(pod: dict[str, Any]) -> None:
    assert pod["metadata"]["labels"]["spark-role"] == "executor", "a network policy selects it"
    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner["name"] == "clonos-agent-0"
    spec = pod["spec"]
    assert spec["serviceAccountName"] == "clonos-executor"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    assert container["image"] == "r/executor:1"
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    variables = {each["name"]: each.get("value", "") for each in container["env"]}
    assert variables["_SPARK_AUTH_SECRET"]
    assert "127.0.0.1" in variables["SPARK_DRIVER_URL"]


def _check_policy(resource: dict[str, Any]) -> None:
    """What the admission policy of `accounts.yaml` demands."""
    if resource["kind"] == "ConfigMap":
        assert resource["metadata"]["name"].startswith("spark-")
        return
    assert "spark-app-selector" in resource["metadata"]["labels"]
    for volume in resource["spec"].get("volumes", []):
        settings = volume.get("configMap", {"name": ""})["name"]
        assert settings.startswith("spark-") or "emptyDir" in volume, volume
    for container in (*resource["spec"]["containers"], *resource["spec"].get("initContainers", [])):
        assert "envFrom" not in container
        for variable in container["env"]:
            assert "valueFrom" not in variable or "fieldRef" in variable["valueFrom"], variable


def _allowed() -> set[tuple[str, str]]:
    accounts = yaml.safe_load_all((MANIFESTS / "accounts.yaml").read_text())
    (role,) = [each for each in accounts if each["kind"] == "Role"]
    return {(verb, kind) for rule in role["rules"] for kind in rule["resources"] for verb in rule["verbs"]}
