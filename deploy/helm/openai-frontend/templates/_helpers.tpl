{{/* Of a service at most 63 characters. KubeRay refuses more than 47, and `-prefill` is added to that of roles. */}}
{{- define "openai-frontend.name" -}}
{{- $longest := .Values.rayService.enabled | ternary 47 (.Values.roles | empty | ternary 63 55) -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc $longest | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc $longest | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Where clients connect. KubeRay makes the service of a RayService, which selects the cluster in use, under this name. */}}
{{- define "openai-frontend.service" -}}
{{- include "openai-frontend.name" . }}{{ .Values.rayService.enabled | ternary "-serve-svc" "" }}
{{- end -}}

{{/* KubeRay's service has the port of the pods. */}}
{{- define "openai-frontend.servicePort" -}}
{{- .Values.rayService.enabled | ternary 9000 (int .Values.service.port) -}}
{{- end -}}

{{/* How many of Ray's pods must stay: evictions are counted from the least number, that of all groups and the head. */}}
{{- define "openai-frontend.rayMinAvailable" -}}
{{- if kindIs "string" .Values.podDisruptionBudget.maxUnavailable -}}
{{- fail "podDisruptionBudget.maxUnavailable: it must be a number with rayService, because Kubernetes cannot count the pods of a RayCluster" -}}
{{- end -}}
{{- $least := include "openai-frontend.minReplicas" . | int | add 1 -}}
{{- with .Values.roles -}}
{{- $least = int (default 1 .prefill.replicas) | add $least -}}
{{- end -}}
{{- sub $least (int .Values.podDisruptionBudget.maxUnavailable) | max 0 -}}
{{- end -}}

{{- define "openai-frontend.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Workers of a group serve no requests, so the service and the pool must not select them. */}}
{{- define "openai-frontend.workerSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-worker
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Prefill servers answer only decode servers. */}}
{{- define "openai-frontend.prefillSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-prefill
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "openai-frontend.labels" -}}
{{ include "openai-frontend.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Settings that are secret, and where the chart takes them from instead. */}}
{{- define "openai-frontend.secrets" -}}
api_key: keys.existingSecret
cache_salt_secret: env with valueFrom.secretKeyRef
engine_arg: env with valueFrom.secretKeyRef
rate_limit_storage: env with valueFrom.secretKeyRef
transfer_key: transferKey.existingSecret
{{- end -}}

{{/* Whether there are network policies: as the value says, else with roles, whose internal ports have no authentication. */}}
{{- define "openai-frontend.networkPolicy" -}}
{{- if kindIs "invalid" .Values.networkPolicy.enabled -}}
{{- if and .Values.roles (not .Values.rayService.enabled) -}}
true
{{- end -}}
{{- else if .Values.networkPolicy.enabled -}}
true
{{- end -}}
{{- end -}}

{{/* The settings file. What the chart sets itself cannot be given: the image's environment would win. */}}
{{- define "openai-frontend.settings" -}}
{{- range $key, $instead := dict "host" "service" "port" "service.port" "metrics_port" "serviceMonitor" "model_repository" "models" "keys_file" "keys" "replica_name" "the pod's name" -}}
{{- if hasKey $.Values.settings $key -}}
{{- fail (printf "settings.%s: the chart sets it; see %s" $key $instead) -}}
{{- end -}}
{{- end -}}
{{- $triton := default dict .Values.settings.triton_option -}}
{{- if and (kindIs "map" $triton) (hasKey $triton "grpc-port") -}}
{{- fail "settings.triton_option: the chart sets grpc-port; see service.grpcPort" -}}
{{- end -}}
{{- if or (hasKey .Values.settings "tls_certificate") (hasKey .Values.settings "unix_socket") -}}
{{- fail "settings.tls_certificate, settings.unix_socket: probes and the service use HTTP; end TLS in the Gateway or a proxy" -}}
{{- end -}}
{{- range $key, $instead := include "openai-frontend.secrets" $ | fromYaml -}}
{{- if hasKey $.Values.settings $key -}}
{{- fail (printf "settings.%s: a ConfigMap is not secret; use %s" $key $instead) -}}
{{- end -}}
{{- end -}}
{{- if eq (toString .Values.settings.public_health) "false" -}}
{{- fail "settings.public_health: probes have no key, so it cannot be false" -}}
{{- end -}}
{{- if and .Values.settings.allowed_hosts (or .Values.serviceMonitor.enabled .Values.inferencePool.enabled) -}}
{{- fail "settings.allowed_hosts: Prometheus and the endpoint picker use the addresses of pods; limit names with httpRoute.hostnames" -}}
{{- end -}}
{{- $secret := list -}}
{{- range $key, $_ := include "openai-frontend.secrets" $ | fromYaml }}{{- $secret = append $secret (printf "OPENAI_FRONTEND_%s" (upper $key)) }}{{- end -}}
{{- range .Values.env -}}
{{- if and (hasPrefix "OPENAI_FRONTEND_" .name) (not (has .name $secret)) -}}
{{- fail (printf "env: %s would win over the settings file; use settings" .name) -}}
{{- end -}}
{{- if and (has .name $secret) .value -}}
{{- fail (printf "env: the value of %s is secret; use valueFrom.secretKeyRef" .name) -}}
{{- end -}}
{{- end -}}
{{- $own := dict "port" 9000 "metrics_port" 9002 -}}
{{- if .Values.rayService.enabled -}}
{{- $own = dict "model_repository" "/models" -}}
{{- end -}}
{{- if .Values.service.grpcPort -}}
{{- if not (kindIs "map" $triton) -}}
{{- fail "settings.triton_option: with service.grpcPort, write a map, such as {log-verbose: 1}" -}}
{{- end -}}
{{- if eq (int .Values.service.grpcPort) (int .Values.service.port) -}}
{{- fail "service.grpcPort: it must differ from service.port" -}}
{{- end -}}
{{- $_ := set $own "triton_option" (merge (dict "grpc-port" 8001) $triton) -}}
{{- end -}}
{{- if .Values.keys.existingSecret -}}
{{- $_ := set $own "keys_file" (printf "/etc/openai-frontend/keys/%s" .Values.keys.key) -}}
{{- end -}}
{{- toYaml (merge $own .Values.settings) -}}
{{- end -}}

{{/* Whether clients need a key or a token. */}}
{{- define "openai-frontend.authenticated" -}}
{{- $names := list -}}
{{- range .Values.env }}{{- $names = append $names .name }}{{- end -}}
{{- if or .Values.keys.existingSecret .Values.settings.jwks (has "OPENAI_FRONTEND_API_KEY" $names) -}}
true
{{- end -}}
{{- end -}}

{{/* With authentication, /metrics needs a key too, unless it is public. */}}
{{- define "openai-frontend.metricsNeedKey" -}}
{{- if and (include "openai-frontend.authenticated" .) (not .Values.settings.public_metrics) -}}
true
{{- end -}}
{{- end -}}

{{/* The longest time in seconds that a shutdown takes before the engines end (docs/lifecycle.md). */}}
{{- define "openai-frontend.shutdownSeconds" -}}
{{- add (int64 .Values.settings.drain_delay_s) (int64 .Values.settings.graceful_shutdown_timeout_s) 10 -}}
{{- end -}}

{{- define "openai-frontend.gracePeriod" -}}
{{- $least := include "openai-frontend.shutdownSeconds" . | int64 -}}
{{- $given := .Values.terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $given -}}
{{- add $least (int64 (default 30 .Values.settings.exit_timeout_s)) 10 -}}
{{- else if le (int64 $given) $least -}}
{{- fail (printf "terminationGracePeriodSeconds: %d would cut answers; it must exceed settings.drain_delay_s + settings.graceful_shutdown_timeout_s + 10 = %d" (int64 $given) $least) -}}
{{- else -}}
{{- int64 $given -}}
{{- end -}}
{{- end -}}

{{- define "openai-frontend.minReplicas" -}}
{{- if .Values.autoscaling.enabled -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas: it must not exceed autoscaling.maxReplicas" -}}
{{- end -}}
{{- int .Values.autoscaling.minReplicas -}}
{{- else if .Values.roles -}}
{{- int (default 1 .Values.roles.decode.replicas) -}}
{{- else -}}
{{- int .Values.replicas -}}
{{- end -}}
{{- end -}}

{{- define "openai-frontend.maxReplicas" -}}
{{- .Values.autoscaling.enabled | ternary (int .Values.autoscaling.maxReplicas) (include "openai-frontend.minReplicas" . | int) -}}
{{- end -}}

{{- define "openai-frontend.update" -}}
{{- if and (eq (toString .Values.maxSurge | trimSuffix "%") "0") (eq (toString .Values.maxUnavailable | trimSuffix "%") "0") -}}
{{- fail "maxSurge, maxUnavailable: both are 0, so no pod could ever be replaced" -}}
{{- end -}}
{{- toYaml (dict "maxSurge" .Values.maxSurge "maxUnavailable" .Values.maxUnavailable) -}}
{{- end -}}

{{/* Deployment, DisaggregatedSet, LeaderWorkerSet or RayService: what makes the pods. */}}
{{- define "openai-frontend.workload" -}}
{{- if and .Values.roles (not (and (hasKey .Values.roles "prefill") (hasKey .Values.roles "decode"))) -}}
{{- fail "roles: prefill and decode are both needed" -}}
{{- end -}}
{{- if .Values.rayService.enabled -}}
{{- range $name, $part := dict "inferencePool" .Values.inferencePool "serviceMonitor" .Values.serviceMonitor "networkPolicy" .Values.networkPolicy -}}
{{- if $part.enabled -}}
{{- fail (printf "%s.enabled: cannot be combined with rayService; see docs/kubernetes.md" $name) -}}
{{- end -}}
{{- end -}}
{{- if gt (int .Values.group.size) 1 -}}
{{- fail "group.size: cannot be combined with rayService" -}}
{{- end -}}
{{- if .Values.service.grpcPort -}}
{{- fail "service.grpcPort: cannot be combined with rayService, whose proxy forwards only HTTP" -}}
{{- end -}}
{{- if not (has (int .Values.service.port) (list 80 9000)) -}}
{{- fail "service.port: it is 9000 with rayService, because KubeRay makes the service" -}}
{{- end -}}
RayService
{{- else if .Values.roles -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.group.size) 1) -}}
{{- fail "roles: cannot be combined with group.size, nor with autoscaling unless rayService is enabled" -}}
{{- end -}}
DisaggregatedSet
{{- else if gt (int .Values.group.size) 1 -}}
LeaderWorkerSet
{{- else -}}
Deployment
{{- end -}}
{{- end -}}
