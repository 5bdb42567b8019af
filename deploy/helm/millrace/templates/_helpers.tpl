{{- define "millrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* Names have at most 52 characters: LeaderWorkerSet and the autoscaler append to them. */}}
{{- define "millrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "millrace.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "millrace.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "millrace.selector" -}}
app.kubernetes.io/name: {{ include "millrace.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Pods that serve HTTP: in a group, only the leader does. */}}
{{- define "millrace.servers" -}}
{{ include "millrace.selector" . }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "millrace.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "millrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "millrace.workload" -}}
{{- if gt (int .Values.nodes) 1 -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
{{- else -}}
apiVersion: apps/v1
kind: Deployment
{{- end }}
name: {{ include "millrace.fullname" . }}
{{- end -}}

{{/* The number of shards on all machines together; empty if the server decides. */}}
{{- define "millrace.numShard" -}}
{{- $nodes := int .Values.nodes -}}
{{- if .Values.numShard -}}
{{- if mod (int .Values.numShard) $nodes -}}
{{- fail (printf "numShard %d is not a multiple of nodes %d" (int .Values.numShard) $nodes) -}}
{{- end -}}
{{- int .Values.numShard -}}
{{- else if gt $nodes 1 -}}
{{- mul $nodes (max 1 (int .Values.gpu.count)) -}}
{{- end -}}
{{- end -}}

{{- define "millrace.checks" -}}
{{- if and (gt (int .Values.nodes) 1) (not .Values.groupSecret.existingSecret) -}}
{{- fail "groupSecret.existingSecret is required if nodes is more than 1" -}}
{{- end -}}
{{- if and (eq .Values.autoscaling.kind "keda") (not .Values.autoscaling.keda.prometheusAddress) -}}
{{- fail "autoscaling.keda.prometheusAddress is required for keda" -}}
{{- end -}}
{{- if and (ne .Values.autoscaling.kind "none") (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas is more than autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker.name) -}}
{{- fail "inferencePool.endpointPicker.name is required for an InferencePool" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.gateway) -}}
{{- fail "httpRoute.gateway is required for a HTTPRoute" -}}
{{- end -}}
{{- if eq (int .Values.server.port) (int .Values.server.healthPort) -}}
{{- fail "server.port and server.healthPort are the same" -}}
{{- end -}}
{{- if and .Values.modelCache.packedWeights (not .Values.modelCache.enabled) -}}
{{- fail "modelCache.packedWeights needs modelCache.enabled" -}}
{{- end -}}
{{- end -}}
