"""Minimal schemas of the custom kinds that the chart renders.

They were written by hand from the published API references and hold only the fields that the chart
uses; every other field is refused. They replace neither the full definitions nor an API server.
"""

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TEXT = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
LABELS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "maxLength": 63}}
# Pod templates are checked by kubernetes-validate.
POD_TEMPLATE = {"type": "object", "required": ["metadata", "spec"]}


def record(required, **optional):
    """Returns a schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def listing(items):
    """Returns a schema of a list that is not empty."""
    return {"type": "array", "items": items, "minItems": 1}


def kind(api_version, name, spec):
    """Returns the key of a kind and the schema of its objects."""
    fields = {
        "apiVersion": {"const": api_version},
        "kind": {"const": name},
        "metadata": record({"name": TEXT, "namespace": TEXT, "labels": LABELS}),
        "spec": spec,
    }
    return (api_version, name), {"$schema": DRAFT, **record(fields)}


SELECTOR = record({"matchLabels": LABELS})
TRIGGER = record(
    {
        "type": {"const": "prometheus"},
        # KEDA's metadata are strings.
        "metadata": record({"serverAddress": TEXT, "query": TEXT, "threshold": TEXT}),
    },
    metricType={"enum": ["AverageValue", "Value"]},
)
SCALE_DOWN = record({"scaleDown": record({"stabilizationWindowSeconds": COUNT})})
BACKEND = {
    "oneOf": [
        record({"name": TEXT, "port": PORT}),
        record({"group": {"const": "inference.networking.k8s.io"}, "kind": {"const": "InferencePool"}, "name": TEXT}),
    ]
}
RULE = record(
    {
        "matches": listing(record({"path": record({"type": {"const": "PathPrefix"}, "value": TEXT})})),
        "backendRefs": listing(BACKEND),
    },
    timeouts=record({"request": {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}}),
)

SCHEMAS = dict(
    [
        kind(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            record(
                {
                    "leaderWorkerTemplate": record(
                        {"size": {"type": "integer", "minimum": 1}, "workerTemplate": POD_TEMPLATE},
                        leaderTemplate=POD_TEMPLATE,
                        restartPolicy={"enum": ["RecreateGroupOnPodRestart", "None"]},
                    )
                },
                replicas=COUNT,
            ),
        ),
        kind(
            "monitoring.coreos.com/v1",
            "ServiceMonitor",
            record(
                {
                    "selector": SELECTOR,
                    "endpoints": listing(record({"port": TEXT, "path": TEXT, "interval": TEXT})),
                }
            ),
        ),
        kind(
            "keda.sh/v1alpha1",
            "ScaledObject",
            record(
                {
                    "scaleTargetRef": record({"apiVersion": TEXT, "kind": TEXT, "name": TEXT}),
                    "triggers": listing(TRIGGER),
                },
                minReplicaCount=COUNT,
                maxReplicaCount=COUNT,
                pollingInterval=COUNT,
                advanced=record({"horizontalPodAutoscalerConfig": record({"behavior": SCALE_DOWN})}),
            ),
        ),
        kind(
            "inference.networking.k8s.io/v1",
            "InferencePool",
            record(
                {
                    "selector": SELECTOR,
                    "targetPorts": {**listing(record({"number": PORT})), "maxItems": 8},
                    "endpointPickerRef": record(
                        {"name": TEXT, "port": record({"number": PORT})},
                        failureMode={"enum": ["FailOpen", "FailClose"]},
                    ),
                }
            ),
        ),
        kind(
            "gateway.networking.k8s.io/v1",
            "HTTPRoute",
            record(
                {"parentRefs": listing(record({"name": TEXT}, namespace=TEXT)), "rules": listing(RULE)},
                hostnames=listing(TEXT),
            ),
        ),
    ]
)
