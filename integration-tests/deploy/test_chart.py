"""The Helm chart, rendered by Helm's own engine."""

import re

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import yaml
from conftest import DEPLOY, flag_names, free_port, running, status, wait_until_ready, with_ports
from custom_kinds import SCHEMAS

CHART = DEPLOY / "helm" / "millrace"
# The oldest version that the chart allows, and a newer one.
KUBERNETES = ["1.30", "1.34"]

GROUP = {"nodes": 2, "groupSecret": {"existingSecret": "group"}}
EVERYTHING = {
    "image": {"repository": "registry.example/millrace", "tag": "1", "pullPolicy": "Always"},
    "imagePullSecrets": ["registry"],
    "model": {"id": "org/name", "revision": "v1", "servedName": "name"},
    "resources": {"requests": {"cpu": 4}, "limits": {"memory": "8Gi"}},
    "extraArgs": ["--max-queue-requests=64"],
    "extraEnv": [{"name": "LOG_LEVEL", "value": "debug"}],
    "service": {"type": "LoadBalancer", "annotations": {"a/b": "c"}},
    "apiKeys": {"existingSecret": "keys"},
    "huggingFace": {"existingSecret": "hub"},
    "modelCache": {"enabled": True, "storageClassName": "fast", "packedWeights": True},
    "autoscaling": {"kind": "hpa"},
    "kvEvents": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}},
    "httpRoute": {"enabled": True, "gateway": "gw", "gatewayNamespace": "net", "hostnames": ["llm.example"]},
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"podAntiAffinity": {}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "llm"},
}
KEDA = {"autoscaling": {"kind": "keda", "keda": {"prometheusAddress": "http://prometheus:9090"}}}
GPU = {"gpu": {"count": 4, "runtimeClassName": "nvidia"}, "image": {"tag": "cuda"}}
SETS = {
    "defaults": {},
    "everything": EVERYTHING,
    "everything, in groups": {**EVERYTHING, **GROUP},
    "keda": KEDA,
    "keda, in groups": {**KEDA, **GROUP},
    "gpu": GPU,
    "gpu, in groups": {**GPU, **GROUP},
    "route to the service": {"httpRoute": {"enabled": True, "gateway": "gw"}},
    "own claim": {"modelCache": {"enabled": True, "existingClaim": "mine"}, "podDisruptionBudget": {"enabled": False}},
}


@pytest.fixture(scope="session")
def chart():
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


def render(chart, values, name="demo"):
    """Returns the rendered objects by kind, of which there is one each."""
    texts = chart.render(values, name=name, namespace="llm").values()
    objects = [document for text in texts for document in yaml.safe_load_all(text) if document]
    by_kind = {document["kind"]: document for document in objects}
    assert len(by_kind) == len(objects)
    return by_kind


def pod_templates(objects):
    """Returns the templates of the pods: that of a server, and that of a worker if there is one."""
    if "Deployment" in objects:
        return [objects["Deployment"]["spec"]["template"]]
    group = objects["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    return [group["leaderTemplate"], group["workerTemplate"]]


def container(template):
    (only,) = template["spec"]["containers"]
    return only


def matches(selector, labels):
    return selector.items() <= labels.items()


def test_lint_finds_nothing_but_the_missing_icon():
    report = helm_python.lint(CHART, strict=True)
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]
    assert report["errors"] == []


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_every_object_is_valid(chart, values, version):
    objects = render(chart, values)
    for document in objects.values():
        schema = SCHEMAS.get((document["apiVersion"], document["kind"]))
        if schema is None:
            kubernetes_validate.validate(document, version, strict=True)
        else:
            jsonschema.validate(document, schema)
    for template in pod_templates(objects):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "p"}, "template": template}
        kubernetes_validate.validate(pod, version, strict=True)


def test_the_checks_refuse_mistakes(chart):
    deployment = render(chart, {})["Deployment"]
    container(deployment["spec"]["template"])["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES[0], strict=True)
    group = render(chart, GROUP)["LeaderWorkerSet"]
    group["spec"]["leaderWorkerTemplate"]["sise"] = 2
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(group, SCHEMAS[group["apiVersion"], group["kind"]])


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_every_flag_exists(chart, known_flags, values):
    for template in pod_templates(render(chart, values)):
        assert flag_names(container(template)["args"]) <= known_flags


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_selectors_find_servers_only(chart, values):
    objects = render(chart, values)
    server, *workers = (template["metadata"]["labels"] for template in pod_templates(objects))
    selectors = [objects["Service"]["spec"]["selector"]]
    others = [objects[kind] for kind in ("Deployment", "InferencePool") if kind in objects]
    selectors += [document["spec"]["selector"]["matchLabels"] for document in others]
    for selector in selectors:
        assert matches(selector, server)
        assert not any(matches(selector, worker) for worker in workers)
    if "PodDisruptionBudget" in objects:
        selector = objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
        assert all(matches(selector, labels) for labels in [server, *workers])
    if "ServiceMonitor" in objects:
        selector = objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
        assert matches(selector, objects["Service"]["metadata"]["labels"])


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_pods_are_confined(chart, values):
    for template in pod_templates(render(chart, values)):
        pod, only = template["spec"], container(template)
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False
        assert only["securityContext"]["readOnlyRootFilesystem"]
        assert only["securityContext"]["allowPrivilegeEscalation"] is False
        assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in only["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_a_pod_may_drain_before_it_is_killed(chart):
    (template,) = pod_templates(render(chart, {"termination": {"drainSeconds": 300}}))
    only = container(template)
    assert "--graceful-termination-timeout=300" in only["args"]
    assert template["spec"]["terminationGracePeriodSeconds"] > 300 + only["lifecycle"]["preStop"]["sleep"]["seconds"]


def test_probes_use_the_health_port(chart):
    (template,) = pod_templates(render(chart, {"server": {"healthPort": 4001}}))
    only = container(template)
    assert {"name": "health", "containerPort": 4001} in only["ports"] and "--health-port=4001" in only["args"]
    paths = {"startupProbe": "/ready", "readinessProbe": "/ready", "livenessProbe": "/health"}
    for probe, path in paths.items():
        assert only[probe]["httpGet"] == {"path": path, "port": "health"}


def test_a_group_has_a_leader_and_workers(chart):
    objects = render(chart, {**GPU, **GROUP, "nodes": 3})
    assert "Deployment" not in objects
    assert objects["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["size"] == 3
    leader, worker = map(container, pod_templates(objects))
    assert leader["args"] == worker["args"]
    assert {"--num-shard=12", "--leader-port=29500"} <= set(leader["args"])
    # Only the leader serves HTTP.
    assert "readinessProbe" in leader and not worker.keys() & {"ports", "readinessProbe", "livenessProbe"}
    # LeaderWorkerSet sets these; a flag would override them.
    assert not flag_names(leader["args"]) & {"--nnodes", "--node-rank", "--leader-address"}


def test_gpus_are_limits_beside_those_of_the_values(chart):
    (template,) = pod_templates(render(chart, {"gpu": {"count": 2}, "resources": {"limits": {"memory": "8Gi"}}}))
    assert container(template)["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": 2}
    assert "--device=cuda" in container(template)["args"]


@pytest.mark.parametrize("group", [{}, GROUP], ids=["deployment", "group"])
@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_the_autoscaler_owns_the_number_of_copies(chart, kind, group):
    objects = render(chart, {"autoscaling": {**KEDA["autoscaling"], "kind": kind}, **group})
    workload = objects["LeaderWorkerSet" if group else "Deployment"]
    assert "replicas" not in workload["spec"]
    scaler = objects["HorizontalPodAutoscaler" if kind == "hpa" else "ScaledObject"]
    target = {"apiVersion": workload["apiVersion"], "kind": workload["kind"], "name": workload["metadata"]["name"]}
    assert scaler["spec"]["scaleTargetRef"] == target


def test_secrets_are_referenced_and_never_contained(chart):
    objects = render(chart, {**EVERYTHING, **GROUP})
    assert "Secret" not in objects
    for template in pod_templates(objects):
        secrets = {volume["secret"]["secretName"] for volume in template["spec"]["volumes"] if "secret" in volume}
        assert secrets == {"keys", "group"}
        token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
        assert token in container(template)["env"]


@pytest.mark.parametrize("values", [{}, {"modelCache": {"enabled": True}}], ids=["no volume", "volume"])
def test_downloads_go_to_a_writable_volume(chart, values):
    (template,) = pod_templates(render(chart, {**values, "model": {"id": "org/name"}}))
    only = container(template)
    (cache,) = [arg.split("=")[1] for arg in only["args"] if arg.startswith("--huggingface-hub-cache=")]
    (mount,) = [mount for mount in only["volumeMounts"] if cache.startswith(mount["mountPath"] + "/")]
    assert not mount.get("readOnly")
    (volume,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == mount["name"]]
    assert ("persistentVolumeClaim" in volume) == bool(values)


def test_names_fit_whatever_the_release_is_called(chart):
    objects = render(chart, {"modelCache": {"enabled": True}}, name="r" * 53)
    assert all(len(document["metadata"]["name"]) <= 63 for document in objects.values())


REFUSED = {
    "unknown name": ({"replica": 2}, "replica"),
    "unknown name inside": ({"gpu": {"counts": 2}}, "counts"),
    "text for a number": ({"nodes": "2"}, "nodes"),
    "no machine": ({"nodes": 0}, "nodes"),
    "port": ({"server": {"port": 70000}}, "port"),
    "kind of autoscaler": ({"autoscaling": {"kind": "vpa"}}, "autoscaling"),
    "quantity": ({"modelCache": {"size": "a lot"}}, "size"),
    "argument that is no flag": ({"extraArgs": ["serve"]}, "extraArgs"),
    "share of pods": ({"podDisruptionBudget": {"maxUnavailable": "half"}}, "maxUnavailable"),
    "group without a secret": ({"nodes": 2}, "groupSecret.existingSecret"),
    "shards": ({**GROUP, "numShard": 3}, "numShard"),
    "keda without prometheus": ({"autoscaling": {"kind": "keda"}}, "prometheusAddress"),
    "minimum above maximum": ({"autoscaling": {"kind": "hpa", "minReplicas": 5}}, "minReplicas"),
    "pool without picker": ({"inferencePool": {"enabled": True}}, "endpointPicker"),
    "route without gateway": ({"httpRoute": {"enabled": True}}, "httpRoute.gateway"),
    "one port for both": ({"server": {"port": 3001}}, "server.healthPort"),
    "packed weights nowhere": ({"modelCache": {"packedWeights": True}}, "modelCache.enabled"),
}


@pytest.mark.parametrize("values, named", REFUSED.values(), ids=REFUSED)
def test_bad_values_are_refused_by_name(chart, values, named):
    with pytest.raises(helm_python.HelmError, match=re.escape(named)):
        chart.render(values, name="demo", namespace="llm")


def objects_in(schema):
    """Yields every object schema that lists properties."""
    for child in schema.get("properties", {}).values():
        yield from objects_in(child)
    if "properties" in schema:
        yield schema


def test_the_schema_names_every_value(chart):
    def names(tree, prefix=""):
        for key, value in tree.items():
            yield prefix + key
            if isinstance(value, dict):
                yield from names(value, f"{prefix}{key}.")

    def described(schema, prefix=""):
        for key, child in schema.get("properties", {}).items():
            yield prefix + key
            yield from described(child, f"{prefix}{key}.")

    assert all(schema["additionalProperties"] is False for schema in objects_in(chart.schema))
    values = set(names(yaml.safe_load((CHART / "values.yaml").read_text())))
    # Helm adds `global`; the other two have contents in the form of Kubernetes.
    open_ended = {"global", "resources.limits"}
    assert set(described(chart.schema)) - open_ended == {
        name for name in values if not name.startswith("resources.requests.")
    }


def test_the_server_runs_with_the_arguments_of_the_default_pod(chart, binary, tmp_path):
    (template,) = pod_templates(render(chart, {}))
    port, health, log = free_port(), free_port(), tmp_path / "log"
    arguments = with_ports(container(template)["args"], port=port, health_port=health)
    with running([binary, *arguments], log) as process:
        wait_until_ready(process, health, log)
        assert [status(health, "/health"), status(port, "/metrics")] == [200, 200]


def test_a_group_forms_with_the_variables_of_leader_worker_set(chart, binary, tmp_path):
    leader, _ = pod_templates(render(chart, GROUP))
    (tmp_path / "secret").write_text("a secret of the group for this test")
    port, health, log = free_port(), free_port(), tmp_path / "leader.log"
    ports = {"port": port, "health_port": health, "leader_port": free_port()}
    arguments = with_ports(container(leader)["args"], group_secret_file=tmp_path / "secret", **ports)
    # The two pods would have network namespaces of their own.
    others = with_ports(arguments, port=free_port(), health_port=free_port())
    variables = {"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "127.0.0.1"}
    with running([binary, *others], tmp_path / "worker.log", LWS_WORKER_INDEX="1", **variables):
        with running([binary, *arguments], log, LWS_WORKER_INDEX="0", **variables) as process:
            wait_until_ready(process, health, log)
            assert status(port, "/info") == 200
