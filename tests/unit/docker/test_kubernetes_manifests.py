"""``docker/kubernetes``: schemas of Kubernetes, and names that must be the same in several files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from clonos.jobs.cluster import read_cluster

FOLDER: Final = Path(__file__).parents[3] / "docker" / "kubernetes"
VERSION: Final = "1.37"
KUSTOMIZATION: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
TEMPLATE: Final = "executor-pod.yaml"


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in [*KUSTOMIZATION["resources"], TEMPLATE]:
        for manifest in yaml.safe_load_all((FOLDER / file).read_text()):
            yield f"{file} {manifest['kind']} {manifest['metadata'].get('name', '')}".strip(), manifest


def the(kind: str, name: str) -> dict[str, Any]:
    (manifest,) = [each for _, each in manifests() if (each["kind"], each["metadata"].get("name")) == (kind, name)]
    return manifest


AGENT: Final = the("StatefulSet", "clonos-agent")["spec"]
POD: Final = AGENT["template"]["spec"]


@pytest.mark.parametrize("manifest", [pytest.param(each, id=title) for title, each in manifests()])
def test_a_manifest_follows_the_schema(manifest: dict[str, Any]) -> None:
    assert kubernetes_validate.validate(manifest, VERSION, strict=True) == VERSION


def test_a_wrong_field_is_noticed() -> None:
    wrong = the("PodDisruptionBudget", "clonos-agents")
    wrong["spec"]["maxUnavailible"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="maxUnavailible"):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_all_manifests_are_applied_in_one_namespace() -> None:
    others = {"kustomization.yaml", "cluster.yaml", TEMPLATE}
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*KUSTOMIZATION["resources"], *others}
    namespaces = {
        each["metadata"].get("namespace") for _, each in manifests() if each["kind"] not in {"Namespace", "Pod"}
    }
    assert namespaces == {"clonos"}
    the("Namespace", "clonos")


def test_the_cluster_file_fits_the_manifests() -> None:
    cluster = read_cluster(FOLDER / "cluster.yaml").spec
    assert cluster.kubernetes is not None
    the("ServiceAccount", cluster.kubernetes.service_account)
    assert cluster.kubernetes.namespace == "clonos", "drivers own executors of their namespace only"
    template = Path(cluster.kubernetes.pod_template)
    (mount,) = [each for each in POD["containers"][0]["volumeMounts"] if each["mountPath"] == str(template.parent)]
    (volume,) = [each for each in POD["volumes"] if each["name"] == mount["name"]]
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    assert volume["configMap"]["name"] == generated["name"]
    assert generated["files"] == [f"{template.name}={TEMPLATE}"]
    assert list(cluster.hosts) == [f"clonos-agent-{number}" for number in range(AGENT["replicas"])]


def test_selectors_match_the_pods() -> None:
    labels = AGENT["template"]["metadata"]["labels"]
    assert AGENT["selector"]["matchLabels"] == labels
    assert the("Service", AGENT["serviceName"])["spec"]["selector"] == labels
    assert the("Service", AGENT["serviceName"])["spec"]["clusterIP"] == "None"
    assert the("PodDisruptionBudget", "clonos-agents")["spec"]["selector"]["matchLabels"] == labels
    assert POD["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"] == labels
    assert the("NetworkPolicy", "clonos-agents")["spec"]["podSelector"]["matchLabels"] == labels


def test_only_drivers_may_start_pods() -> None:
    binding = the("RoleBinding", "clonos-driver")
    assert [subject["name"] for subject in binding["subjects"]] == [POD["serviceAccountName"]]
    rules = {
        resource: set(rule["verbs"])
        for rule in the("Role", binding["roleRef"]["name"])["rules"]
        for resource in rule["resources"]
    }
    assert rules.keys() == {"pods", "configmaps", "persistentvolumeclaims"}
    assert rules["pods"] >= {"create", "get", "list", "watch", "delete"}
    assert the("ServiceAccount", "clonos-executor")["automountServiceAccountToken"] is False
