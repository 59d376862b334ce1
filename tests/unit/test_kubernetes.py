"""The manifests of deploy/kubernetes, base and components: valid, closed, consistent, and settings that load."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from service import __version__
from service.settings.load import load
from tests.certificates import Certificates
from tests.image import DOCKERFILE, instructions

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VARIANTS = {"base": [], "secured": ["secured"], "cert-manager": ["cert-manager", "tls"], "example": None}
"""The components that a variant adds to the base; the example has all of them."""
KUBERNETES = "1.34"
"""The oldest maintained release that takes these documents."""

pytestmark = pytest.mark.nightly


FOREIGN = {"ServiceMonitor", "PrometheusRule", "Certificate"}
"""Kinds of operators, for which Kubernetes has no schema."""


@pytest.fixture(scope="session", params=VARIANTS)
def documents(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The documents of a variant."""
    components = VARIANTS[request.param]
    folder = FOLDER / "example"
    if components is not None:
        folder = tmp_path_factory.mktemp("kustomize")

        def path(name: str) -> str:
            return os.path.relpath(FOLDER / name, folder.resolve())

        file = {"resources": [path("base")], "components": [path(f"components/{name}") for name in components]}
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(file))
    program = Path(sys.executable).parent / "kubectl"
    result = subprocess.run([program, "kustomize", folder], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return list(yaml.safe_load_all(result.stdout))


def test_kubernetes_accepts_the_documents(documents: list[Any]) -> None:
    for document in documents:
        if document["kind"] not in FOREIGN:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)


def _by_name(documents: list[Any], kind: str) -> dict[str, Any]:
    return {document["metadata"]["name"]: document for document in documents if document["kind"] == kind}


def _deployments(documents: list[Any], labels: dict[str, str]) -> set[str]:
    """The Deployments whose pods have these labels."""
    return {
        name.removeprefix("perceptron-")
        for name, deployment in _by_name(documents, "Deployment").items()
        if labels.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    }


def test_selectors_select_the_intended_pods(documents: list[Any]) -> None:
    for name, service in _by_name(documents, "Service").items():
        roles = {"learner", "replica"} if name == "perceptron-metrics" else {"replica"}
        assert _deployments(documents, service["spec"]["selector"]) == roles
        assert {port["targetPort"] for port in service["spec"]["ports"]} == {"http"}
    for kind, field in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        selecting = _by_name(documents, kind)
        assert len(selecting) == 2
        for name, document in selecting.items():
            roles = _deployments(documents, document["spec"][field]["matchLabels"])
            assert {f"perceptron-{role}" for role in roles} == {name}
    for name, deployment in _by_name(documents, "Deployment").items():
        spread = [c["labelSelector"] for c in deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]]
        for selector in (deployment["spec"]["selector"], *spread):
            assert {f"perceptron-{role}" for role in _deployments(documents, selector["matchLabels"])} == {name}
    for monitor in _by_name(documents, "ServiceMonitor").values():
        (service,) = [
            service for service in _by_name(documents, "Service").values()
            if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        ]  # fmt: skip
        assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


def test_pods_have_no_more_rights_than_the_restricted_standard_gives(documents: list[Any]) -> None:
    for deployment in _by_name(documents, "Deployment").values():
        pod = deployment["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"] == {
            "runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        }  # fmt: skip
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert container["image"].split("/")[-1] == f"perceptron-service:{__version__}"
        scheme = "HTTPS" if "PERCEPTRON_HTTP__SSL_CERTFILE" in str(container["env"]) else "HTTP"
        for probe, path in (("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/readyz")):
            get = container[f"{probe}Probe"]["httpGet"]
            assert (get["path"], get["port"], get.get("scheme", "HTTP")) == (path, "http", scheme)
    assert _by_name(documents, "Deployment")["perceptron-learner"]["spec"]["replicas"] == 2
    assert not _by_name(documents, "Secret"), "secrets are made in the cluster, never kept here"


def test_every_pod_starts_with_settings_that_load(
    documents: list[Any], certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings are the pod's variables, and the files that the kubelet makes of ConfigMaps and Secrets."""
    maps = {name: document["data"] for name, document in _by_name(documents, "ConfigMap").items()}
    image = [step.rest for step in instructions(DOCKERFILE.read_text()) if step.name == "ENV"][-1]
    for name in [name for name in os.environ if name.startswith("PERCEPTRON_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    for role, deployment in _by_name(documents, "Deployment").items():
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "settings"]
        (volume,) = [v for v in pod["volumes"] if v["name"] == "settings"]
        for name, text in _files_of(volume, maps, certificates).items():
            (file := tmp_path / role / name).parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace(mount["mountPath"], str(tmp_path / role)))
        env = dict(re.findall(r"(PERCEPTRON_\w+)=(\S+)", image))
        for source in container.get("envFrom", []):
            env |= maps[source["configMapRef"]["name"]]
        env |= {variable["name"]: variable["value"] for variable in container["env"]}
        with monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value.replace(mount["mountPath"], str(tmp_path / role)))
            assert container["args"] == (["run"] if role == "perceptron-learner" else ["run", "--no-learn"])
            settings = load(None, {"learn": False} if "--no-learn" in container["args"] else {})
            settings.check_work()
            # Without the component for TLS the settings warn of tokens in the clear.
            clear = [] if settings.http.ssl_certfile else ["tokens cross the network unencrypted"]
            assert [line.partition(": ")[2].partition(";")[0] for line in settings.warnings] == clear
        assert settings.learn is (role == "perceptron-learner")
        assert (settings.http.host, settings.http.port) == ("0.0.0.0", container["ports"][0]["containerPort"])  # noqa: S104
        assert settings.log == "json"


def _files_of(volume: Any, maps: dict[str, dict[str, str]], certificates: Certificates) -> dict[str, str]:
    """The files of a volume by path, with values for the Secrets."""
    chain, key = certificates.parts(certificates.server)
    secrets = {"tls.key": Path(key).read_text(), "tls.crt": Path(chain).read_text()}
    secrets["ca.crt"] = Path(certificates.ca).read_text()
    files: dict[str, str] = {}
    for source in volume["projected"]["sources"]:
        if "configMap" in source:
            files |= maps[source["configMap"]["name"]]
        else:
            items = source["secret"]["items"]
            files |= {item["path"]: secrets.get(item["key"], "0123456789abcdef\n") for item in items}
    return files


def test_the_prometheusrule_has_the_same_rules() -> None:
    rules: Any = yaml.safe_load((FOLDER.parent / "prometheus" / "rules.yml").read_text())
    resource: Any = yaml.safe_load((FOLDER / "components" / "monitoring" / "rules.yaml").read_text())
    assert resource["spec"] == rules, "stale: make rules"
