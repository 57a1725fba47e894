{{- define "openai-frontend.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "openai-frontend.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "openai-frontend.labels" -}}
{{ include "openai-frontend.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* The settings file. What the chart sets itself cannot be given: the image's environment would win. */}}
{{- define "openai-frontend.settings" -}}
{{- range $key, $instead := dict "host" "service" "port" "service.port" "metrics_port" "serviceMonitor" "model_repository" "models" "keys_file" "keys" "replica_name" "the pod's name" -}}
{{- if hasKey $.Values.settings $key -}}
{{- fail (printf "settings.%s: the chart sets it; see %s" $key $instead) -}}
{{- end -}}
{{- end -}}
{{- if or (hasKey .Values.settings "tls_certificate") (hasKey .Values.settings "unix_socket") -}}
{{- fail "settings.tls_certificate, settings.unix_socket: probes and the service use HTTP; end TLS in the Gateway or a proxy" -}}
{{- end -}}
{{- $own := dict "port" 9000 "metrics_port" 9002 -}}
{{- if .Values.keys.existingSecret -}}
{{- $_ := set $own "keys_file" (printf "/etc/openai-frontend/keys/%s" .Values.keys.key) -}}
{{- end -}}
{{- toYaml (merge $own .Values.settings) -}}
{{- end -}}

{{/* With API keys, /metrics needs one too, unless it is public. */}}
{{- define "openai-frontend.metricsNeedKey" -}}
{{- if and .Values.keys.existingSecret (not .Values.settings.public_metrics) -}}
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
{{- add $least 30 -}}
{{- else if le (int64 $given) $least -}}
{{- fail (printf "terminationGracePeriodSeconds: %d would cut answers; it must exceed settings.drain_delay_s + settings.graceful_shutdown_timeout_s + 10 = %d" (int64 $given) $least) -}}
{{- else -}}
{{- int64 $given -}}
{{- end -}}
{{- end -}}

{{- define "openai-frontend.minReplicas" -}}
{{- if .Values.autoscaling.enabled -}}
{{- int .Values.autoscaling.minReplicas -}}
{{- else -}}
{{- int .Values.replicas -}}
{{- end -}}
{{- end -}}
