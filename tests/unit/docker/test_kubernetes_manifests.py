"""``docker/kubernetes``: schemas of Kubernetes, and names that must be the same in several files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from clonos.jobs.cluster import read_cluster
from clonos_api.settings import ApiSettings
from support.reporting import program

FOLDER: Final = Path(__file__).parents[3] / "docker" / "kubernetes"
BASE: Final = FOLDER / "base"
OVERLAY: Final = FOLDER / "overlays" / "example"
VERSION: Final = "1.37"
KUSTOMIZATION: Final[dict[str, Any]] = yaml.safe_load((BASE / "kustomization.yaml").read_text())
TEMPLATE: Final = "executor-pod.yaml"
PODS: Final = frozenset({"Deployment", "StatefulSet"})
JOBS: Final = "clonos-jobs"
CLUSTER_WIDE: Final = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in [*KUSTOMIZATION["resources"], TEMPLATE]:
        for manifest in yaml.safe_load_all((BASE / file).read_text()):
            yield f"{file} {manifest['kind']} {manifest['metadata'].get('name', '')}".strip(), manifest


def the(kind: str, name: str) -> dict[str, Any]:
    (manifest,) = [each for _, each in manifests() if (each["kind"], each["metadata"].get("name")) == (kind, name)]
    return manifest


AGENT: Final = the("StatefulSet", "clonos-agent")["spec"]
POD: Final = AGENT["template"]["spec"]
CONTROL_PLANE: Final = the("Deployment", "clonos-control-plane")["spec"]


@pytest.mark.parametrize("manifest", [pytest.param(each, id=title) for title, each in manifests()])
def test_a_manifest_follows_the_schema(manifest: dict[str, Any]) -> None:
    assert kubernetes_validate.validate(manifest, VERSION, strict=True) == VERSION


def test_a_wrong_field_is_noticed() -> None:
    wrong = the("PodDisruptionBudget", "clonos-agents")
    wrong["spec"]["maxUnavailible"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="maxUnavailible"):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_the_namespaces_separate_jobs_from_the_control_plane() -> None:
    others = {"kustomization.yaml", TEMPLATE}
    assert {path.name for path in BASE.glob("*.yaml")} == {*KUSTOMIZATION["resources"], *others}
    namespaces: dict[str, set[str]] = {}
    for _, each in manifests():
        if each["kind"] not in {"Namespace", "Pod", *CLUSTER_WIDE}:
            namespaces.setdefault(each["metadata"]["namespace"], set()).add(each["metadata"]["name"])
    assert namespaces == {
        "clonos": {"clonos-control-plane"},
        JOBS: {"clonos-agent", "clonos-agents", "clonos-executor", "clonos-executors", "clonos-driver"},
    }
    for name in namespaces:
        the("Namespace", name)
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    assert generated["namespace"] == JOBS, "kubectl would put it into the namespace default"
    secrets = {each["secret"]["secretName"] for each in POD["volumes"] if "secret" in each}
    assert secrets == {"clonos-agent-tokens"}


def test_an_agent_mounts_its_own_token_only() -> None:
    (container,) = POD["containers"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "tokens"]
    assert mount["subPathExpr"] == "$(POD_NAME)"
    assert f"--token-file={mount['mountPath']}" in container["args"]


def test_no_other_pod_reads_the_volume_of_an_agent() -> None:
    """It has the agent's renewed token."""
    assert POD["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch", "files keep their modes"
    (volumes,) = [
        each["expression"]
        for each in the("ValidatingAdmissionPolicy", "clonos-driver")["spec"]["validations"]
        if "persistentVolumeClaim)" in each["expression"]
    ]
    refused = [f"{claim['metadata']['name']}-" for claim in AGENT["volumeClaimTemplates"]]
    assert volumes.count("has(volume.persistentVolumeClaim)") == len(refused) == 1
    for start in refused:
        guard = f"!volume.persistentVolumeClaim.claimName.startsWith('{start}')"
        assert f"(has(volume.persistentVolumeClaim) && {guard})" in volumes


def test_a_policy_limits_what_drivers_start() -> None:
    policy, binding = (the(kind, "clonos-driver") for kind in CLUSTER_WIDE)
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    (granted,) = [set().union(*(rule["resources"] for rule in the("Role", "clonos-driver")["rules"]))]
    assert set(rule["resources"]) == granted, "all that the role grants"
    (condition,) = policy["spec"]["matchConditions"]
    assert f"'system:serviceaccount:{JOBS}:{POD['serviceAccountName']}'" in condition["expression"]
    assert binding["spec"]["validationActions"] == ["Deny"]
    assert binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": JOBS
    }


def test_the_cluster_file_fits_the_manifests() -> None:
    cluster = read_cluster(FOLDER / "cluster.yaml").spec
    assert cluster.kubernetes is not None
    the("ServiceAccount", cluster.kubernetes.service_account)
    assert cluster.kubernetes.namespace == JOBS, "drivers own executors of their namespace only"
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


def test_agents_and_probes_reach_the_control_plane() -> None:
    service, labels = the("Service", "clonos-control-plane"), CONTROL_PLANE["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels == CONTROL_PLANE["selector"]["matchLabels"]
    assert the("PodDisruptionBudget", "clonos-control-plane")["spec"]["selector"]["matchLabels"] == labels
    policy = the("NetworkPolicy", "clonos-control-plane")["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    agents = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": JOBS}},
        "podSelector": {"matchLabels": AGENT["template"]["metadata"]["labels"]},
    }
    assert agents in policy["ingress"][0]["from"]
    (address,) = [argument for argument in POD["containers"][0]["args"] if argument.startswith("--api=")]
    (container,) = CONTROL_PLANE["template"]["spec"]["containers"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    port = container["ports"][0]["containerPort"]
    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert address == f"--api=https://{name}:{service['spec']['ports'][0]['port']}"
    assert port == ApiSettings.model_fields["port"].default
    fields = {f"CLONOS_API__{name.upper()}" for name in ApiSettings.model_fields}
    assert {name for name in variables if name.startswith("CLONOS_API__")} <= fields
    allowed = json.loads(variables["CLONOS_API__ALLOWED_HOSTS"])
    assert name in allowed
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[kind]["httpGet"]["httpHeaders"] == [{"name": "Host", "value": "localhost"}]
        assert container[kind]["httpGet"]["scheme"] == "HTTPS"


def test_all_containers_are_confined() -> None:
    for kind, pod in (("agent", POD), ("control plane", CONTROL_PLANE["template"]["spec"])):
        assert pod["securityContext"]["runAsNonRoot"] is True, kind
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_patches_and_images_of_the_overlay_name_what_the_base_has() -> None:
    overlay = yaml.safe_load((OVERLAY / "kustomization.yaml").read_text())
    assert [(OVERLAY / path).resolve() for path in overlay["resources"]] == [BASE]
    for patch in overlay["patches"]:
        changed = yaml.safe_load((OVERLAY / patch["path"]).read_text())
        target = the(changed["kind"], changed["metadata"]["name"])
        names = {container["name"] for container in target["spec"]["template"]["spec"]["containers"]}
        assert {container["name"] for container in changed["spec"]["template"]["spec"]["containers"]} <= names
    used = {
        container["image"].partition(":")[0]
        for pod in (POD, CONTROL_PLANE["template"]["spec"])
        for container in [*pod["containers"], *pod.get("initContainers", [])]
    }
    assert {image["name"] for image in overlay["images"]} == used
    for replicas in overlay["replicas"]:
        the("StatefulSet", replicas["name"])


def test_kustomize_builds_the_overlay(pytestconfig: pytest.Config) -> None:
    built = subprocess.run(
        [program(pytestconfig, "kubectl"), "kustomize", str(OVERLAY)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    resources = list(yaml.safe_load_all(built.stdout))
    for resource in resources:
        kubernetes_validate.validate(resource, VERSION, strict=True)
    pods = [resource["spec"]["template"]["spec"] for resource in resources if resource["kind"] in PODS]
    images = {container["image"] for pod in pods for container in [*pod["containers"], *pod.get("initContainers", [])]}
    assert all(image.startswith("registry.example.org/") for image in images)
    (agents,) = [resource["spec"] for resource in resources if resource["kind"] == "StatefulSet"]
    assert agents["replicas"] == AGENT["replicas"], "as cluster.yaml names them"
    (settings,) = [resource["metadata"] for resource in resources if resource["kind"] == "ConfigMap"]
    assert settings["namespace"] == JOBS
    variables = {each["name"] for each in agents["template"]["spec"]["containers"][0]["env"]}
    assert variables >= {"POD_NAME", "CLONOS_KAFKA__SECURITY_PROTOCOL"}, "the patch adds to the base"
