"""What docker/ has for Kubernetes: KServe's manifests and the Helm chart, against their schemas.

Nothing of Kubernetes runs here. The chart is rendered by Go's templates with sprig (render.go), which is what
Helm renders with; KServe's schemas are trimmed copies (kserve-crds.json).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgecompile.image.parts import BUNDLE
from edgecompile.server.__main__ import make_parser
from tests.needs import lack, need, provide

REPOSITORY = Path(__file__).resolve().parents[2]
KSERVE = REPOSITORY / "docker" / "kserve"
CHART = REPOSITORY / "docker" / "helm" / "edgecompile"
RUNTIME, SERVICE = (
    yaml.safe_load((KSERVE / f"{n}.yaml").read_text()) for n in ("runtime", "service")
)
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def need_validators() -> tuple[Any, Any]:
    """jsonschema and kubernetes-validate."""
    try:
        import jsonschema
        import kubernetes_validate
    except ImportError:
        if not provide("kubernetes"):
            lack(
                "jsonschema and kubernetes-validate aren't installed (scripts/environment kubernetes)"
            )
        import jsonschema
        import kubernetes_validate
    return jsonschema, kubernetes_validate


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    return found


def parse(words: list[str]) -> Any:
    return make_parser().parse_args(words)


class TestKserve:
    def test_the_server_takes_its_options(self) -> None:
        asked = parse(
            [word.replace("{{.Name}}", "m") for word in container(RUNTIME["spec"])["args"]]
        )
        assert asked.bundles == ["m=/mnt/models"]
        assert (asked.host, asked.port, asked.grpc_port) == ("0.0.0.0", 8080, 8081)

    def test_the_service_asks_for_what_the_runtime_has(self) -> None:
        asked = SERVICE["spec"]["predictor"]["model"]
        (known,) = RUNTIME["spec"]["supportedModelFormats"]
        assert asked["modelFormat"] == {key: known[key] for key in ("name", "version")}
        assert asked["protocolVersion"] in RUNTIME["spec"]["protocolVersions"]

    @pytest.mark.slow
    @pytest.mark.parametrize("manifest", [RUNTIME, SERVICE], ids=["runtime", "service"])
    def test_its_schema_takes_it(self, manifest: dict[str, Any]) -> None:
        jsonschema, _ = need_validators()
        schemas = json.loads((Path(__file__).parent / "kserve-crds.json").read_text())
        schema = schemas[manifest["kind"]]
        jsonschema.validate(manifest, schema)
        broken = json.loads(json.dumps(manifest).replace('"spec"', '"specs"', 1))
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema)


class TestImageVolume:
    MANIFEST = yaml.safe_load((KSERVE.parent / "kubernetes" / "minilm.yaml").read_text())

    def test_the_server_serves_what_is_mounted(self) -> None:
        pod = self.MANIFEST["spec"]["template"]["spec"]
        asked = parse(container(pod)["args"])
        (mount,), (volume,) = container(pod)["volumeMounts"], pod["volumes"]
        assert asked.bundles == ["minilm=" + mount["mountPath"]]
        assert (mount["subPath"], mount["name"]) == (BUNDLE, volume["name"])
        grace = pod["terminationGracePeriodSeconds"]
        assert grace > asked.drain_delay + asked.drain_timeout + 5

    @pytest.mark.slow
    def test_its_schema_takes_it(self) -> None:
        _, kubernetes_validate = need_validators()
        kubernetes_validate.validate(self.MANIFEST, "1.34", strict=True)
        broken = json.loads(json.dumps(self.MANIFEST).replace('"reference"', '"ref"'))
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, "1.34", strict=True)


@pytest.fixture(scope="module")
def render(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, dict[str, Any]]]:
    """Renders the chart with other values; manifests by their kind."""
    go = need("go", "golang-go")
    if not Path("/usr/share/gocode/src/github.com/Masterminds/sprig").is_dir():
        provide("packages", "golang-github-masterminds-sprig-dev")
    folder = tmp_path_factory.mktemp("render")
    variables = {
        **os.environ, "GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOCACHE": str(folder)
    }  # fmt: skip
    program = folder / "render"
    command = [go, "build", "-o", str(program), str(Path(__file__).parent / "render.go")]
    subprocess.run(command, env=variables, check=True)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    def run(**more: Any) -> dict[str, dict[str, Any]]:
        values = {name: {**value, **more.pop(name, {})} if isinstance(value, dict) else value for name, value in VALUES.items()}  # fmt: skip
        data = {
            "Values": {**values, **more},
            "Release": {"Name": "minilm", "Service": "Helm"},
            "Chart": {"Name": chart["name"], "Version": chart["version"]},
        }
        done = subprocess.run(
            [program, CHART], input=json.dumps(data), text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        found = [item for item in yaml.safe_load_all(done.stdout) if item]
        return {item["kind"]: item for item in found}

    return run


FULL: dict[str, Any] = {
    "autoscaling": {"enabled": True},
    "apiKeysSecret": "keys",
    "args": ["--slo=100"],
    "image": {"digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "nodeSelector": {"kubernetes.io/arch": "arm64"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
}


@pytest.mark.slow
class TestChart:
    @pytest.mark.parametrize("more", [{}, FULL], ids=["default", "full"])
    def test_kubernetes_schemas_take_it(self, render: Any, more: dict[str, Any]) -> None:
        _, kubernetes_validate = need_validators()
        found = render(**more)
        assert {*found} == {"Deployment", "Service", "PodDisruptionBudget"} | (
            {"HorizontalPodAutoscaler"} if more else set()
        )
        for manifest in found.values():
            kubernetes_validate.validate(manifest, "1.34", strict=True)
        del found["Deployment"]["spec"]["selector"]
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(found["Deployment"], "1.34", strict=True)

    def test_the_values_schema_takes_the_values(self) -> None:
        jsonschema, _ = need_validators()
        schema = json.loads((CHART / "values.schema.json").read_text())
        jsonschema.validate(VALUES, schema)
        for wrong in ({"replica": 1}, {"image": {}}, {"drainSeconds": "5"}):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({**VALUES, **wrong}, schema)

    @pytest.mark.parametrize("more", [{}, FULL], ids=["default", "full"])
    def test_the_server_takes_its_options_and_ends_in_time(self, render: Any, more: Any) -> None:
        pod = render(**more)["Deployment"]["spec"]["template"]["spec"]
        asked = parse(container(pod)["args"])
        assert asked.bundles == ["/models"] and bool(asked.api_keys) == bool(more)
        announced = container(pod)["lifecycle"]["preStop"]["sleep"]["seconds"]
        least = announced + asked.drain_delay + asked.drain_timeout
        assert pod["terminationGracePeriodSeconds"] >= least

    def test_it_selects_its_own_pods_and_scales_by_a_metric_of_the_server(
        self, render: Any
    ) -> None:
        found = render(**FULL)
        labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
        for selector in (
            found["Deployment"]["spec"]["selector"]["matchLabels"],
            found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
            found["Service"]["spec"]["selector"],
        ):
            assert selector.items() <= labels.items()
        ports = {
            p["name"] for p in container(found["Deployment"]["spec"]["template"]["spec"])["ports"]
        }
        assert {port["targetPort"] for port in found["Service"]["spec"]["ports"]} == ports
        assert "replicas" not in found["Deployment"]["spec"]
        metric = found["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
        source = (REPOSITORY / "edgecompile/server/http/metrics.py").read_text()
        assert f'"{metric.removeprefix("edgecompile_")}"' in source

    def test_nothing_may_be_written_and_nobody_is_root(self, render: Any) -> None:
        pod = render()["Deployment"]["spec"]["template"]["spec"]
        assert (
            pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
        )
        assert container(pod)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }

    def test_a_digest_comes_before_a_tag(self, render: Any) -> None:
        pods = [render(**more)["Deployment"]["spec"]["template"]["spec"] for more in ({}, FULL)]
        images = [container(pod)["image"] for pod in pods]
        assert images[0] == "registry.example/minilm:1"
        assert re.fullmatch(r"registry\.example/minilm@sha256:0{64}", images[1])
