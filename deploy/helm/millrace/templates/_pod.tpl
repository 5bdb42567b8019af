{{/* The template of a pod. Its argument has `root`, and `component`: server or worker. */}}
{{- define "millrace.pod" -}}
{{- $root := .root -}}
{{- $values := .root.Values -}}
{{- $serves := eq .component "server" -}}
metadata:
  labels:
    {{- include "millrace.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  # Links would set variables such as LEADER_PORT, which the server reads as flags, for a Service
  # named `leader`.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add (int $values.termination.drainSeconds) (int $values.termination.preStopSeconds) (int $values.termination.marginSeconds) }}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . | quote }}
    {{- end }}
  {{- end }}
  {{- with $values.gpu.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: millrace
      image: {{ printf "%s:%s" $values.image.repository $values.image.tag | quote }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      command: [millrace]
      args:
        {{- include "millrace.args" $root | nindent 8 }}
      {{- if or $values.huggingFace.existingSecret $values.extraEnv $values.kvEvents.enabled }}
      env:
        {{- if $values.kvEvents.enabled }}
        - name: POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        {{- end }}
        {{- if $values.huggingFace.existingSecret }}
        - name: HF_TOKEN
          valueFrom:
            secretKeyRef:
              name: {{ $values.huggingFace.existingSecret | quote }}
              key: {{ $values.huggingFace.key | quote }}
        {{- end }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- if $serves }}
      ports:
        - name: http
          containerPort: {{ $values.server.port }}
        - name: health
          containerPort: {{ $values.server.healthPort }}
        {{- if $values.kvEvents.enabled }}
        - name: kv-events
          containerPort: {{ $values.kvEvents.port }}
        - name: kv-replay
          containerPort: {{ $values.kvEvents.replayPort }}
        {{- end }}
        {{- if gt (int $values.nodes) 1 }}
        - name: leader
          containerPort: {{ $values.server.leaderPort }}
        {{- end }}
      startupProbe:
        httpGet: {path: /ready, port: health}
        {{- toYaml $values.probes.startup | nindent 8 }}
        timeoutSeconds: 2
      readinessProbe:
        httpGet: {path: /ready, port: health}
        {{- toYaml $values.probes.readiness | nindent 8 }}
        timeoutSeconds: 2
      livenessProbe:
        httpGet: {path: /health, port: health}
        {{- toYaml $values.probes.liveness | nindent 8 }}
        timeoutSeconds: 2
      {{- if gt (int $values.termination.preStopSeconds) 0 }}
      lifecycle:
        preStop:
          sleep:
            seconds: {{ $values.termination.preStopSeconds }}
      {{- end }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      resources:
        {{- include "millrace.resources" $root | nindent 8 }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        - name: shm
          mountPath: /dev/shm
        {{- if $values.modelCache.enabled }}
        - name: models
          mountPath: /var/cache/millrace
        {{- end }}
        {{- if $values.apiKeys.existingSecret }}
        - name: api-keys
          mountPath: /run/secrets/millrace/api-keys
          readOnly: true
        {{- end }}
        {{- if gt (int $values.nodes) 1 }}
        - name: group-secret
          mountPath: /run/secrets/millrace/group
          readOnly: true
        {{- end }}
  volumes:
    {{- include "millrace.volumes" $root | nindent 4 }}
{{- end -}}

{{/* Arguments of the container. In a group they are the same for all machines; LeaderWorkerSet sets
LWS_GROUP_SIZE, LWS_WORKER_INDEX and LWS_LEADER_ADDRESS, from which the server takes its role. */}}
{{- define "millrace.args" -}}
- serve
- {{ printf "--model-id=%s" .Values.model.id | quote }}
- {{ printf "--revision=%s" .Values.model.revision | quote }}
{{- with .Values.model.servedName }}
- {{ printf "--served-model-name=%s" . | quote }}
{{- end }}
- {{ printf "--device=%s" (ternary "cuda" "cpu" (gt (int .Values.gpu.count) 0)) }}
- --hostname=0.0.0.0
- --port={{ .Values.server.port }}
- --health-port={{ .Values.server.healthPort }}
- --graceful-termination-timeout={{ .Values.termination.drainSeconds }}
{{- if .Values.server.jsonLogs }}
- --json-output
{{- end }}
{{- with include "millrace.numShard" . }}
- --num-shard={{ . }}
{{- end }}
{{- if gt (int .Values.nodes) 1 }}
- --leader-port={{ .Values.server.leaderPort }}
- --group-secret-file=/run/secrets/millrace/group/secret
{{- end }}
{{- if .Values.kvEvents.enabled }}
- {{ printf "--kv-events-config=%s" (include "millrace.kvEvents" .) | quote }}
{{- end }}
{{- if .Values.apiKeys.existingSecret }}
- --api-key-file=/run/secrets/millrace/api-keys/keys
{{- end }}
{{- if .Values.modelCache.enabled }}
- --huggingface-hub-cache=/var/cache/millrace/hub
{{- if .Values.modelCache.packedWeights }}
- --packed-weights-cache=/var/cache/millrace/packed
{{- end }}
{{- else }}
- --huggingface-hub-cache=/tmp/hub
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* The configuration of the events. Kubernetes replaces $(POD_IP), and the router finds the pod by
the topic. */}}
{{- define "millrace.kvEvents" -}}
{{- $model := .Values.model.servedName | default .Values.model.id -}}
{{- dict "enable_kv_cache_events" true "publisher" "zmq"
    "endpoint" (printf "tcp://*:%d" (int .Values.kvEvents.port))
    "replay_endpoint" (printf "tcp://*:%d" (int .Values.kvEvents.replayPort))
    "topic" (printf "kv@$(POD_IP):%d@%s" (int .Values.server.port) $model) | toJson -}}
{{- end -}}

{{/* The resources of the values, with GPUs as a limit. */}}
{{- define "millrace.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if gt (int .Values.gpu.count) 0 -}}
{{- $limits := merge (dict .Values.gpu.resource (int .Values.gpu.count)) ($resources.limits | default dict) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "millrace.volumes" -}}
- name: tmp
  emptyDir: {}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.sharedMemory | quote }}
{{- if .Values.modelCache.enabled }}
- name: models
  persistentVolumeClaim:
    claimName: {{ .Values.modelCache.existingClaim | default (printf "%s-models" (include "millrace.fullname" .)) | quote }}
{{- end }}
{{- if .Values.apiKeys.existingSecret }}
- name: api-keys
  secret:
    secretName: {{ .Values.apiKeys.existingSecret | quote }}
    defaultMode: 0440
    items:
      - key: {{ .Values.apiKeys.key | quote }}
        path: keys
{{- end }}
{{- if gt (int .Values.nodes) 1 }}
- name: group-secret
  secret:
    secretName: {{ .Values.groupSecret.existingSecret | quote }}
    defaultMode: 0440
    items:
      - key: {{ .Values.groupSecret.key | quote }}
        path: secret
{{- end }}
{{- end -}}
