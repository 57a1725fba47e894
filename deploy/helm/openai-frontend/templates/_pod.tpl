{{/* The template of a gateway's pod: of the Deployment, of a role, or the leader of a group. */}}
{{- define "openai-frontend.pod" -}}
metadata:
  labels:
    {{- if eq (default "" .Values.role) "prefill" }}
    {{- include "openai-frontend.prefillSelector" . | nindent 4 }}
    {{- else }}
    {{- include "openai-frontend.labels" . | nindent 4 }}
    {{- end }}
    llm-d.ai/engine-type: openai-frontend
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # A change of the settings replaces the pods: the gateway reads them once
    checksum/settings: {{ include "openai-frontend.settings" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "openai-frontend.podPlacement" . | nindent 2 }}
  automountServiceAccountToken: false
  containers:
    - name: gateway
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- if gt (int .Values.group.size) 1 }}
      # `exec`: the gateway gets the signals of the pod
      command: [sh, -c]
      args:
        - >-
          ray start --head --port=6379 --object-store-memory=268435456 &&
          exec openai-frontend serve --config /etc/openai-frontend/gateway.yaml
      {{- else }}
      args: [serve, --config, /etc/openai-frontend/gateway.yaml]
      {{- end }}
      env:
        - name: OPENAI_FRONTEND_REPLICA_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        {{- include "openai-frontend.rayEnv" . | nindent 8 }}
        {{- include "openai-frontend.roleEnv" . | nindent 8 }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - name: http
          containerPort: 9000
        - name: metrics
          containerPort: 9002
        {{- if .Values.service.grpcPort }}
        - name: grpc
          containerPort: 8001
        {{- end }}
        {{- if eq (default "" .Values.role) "prefill" }}
        - name: transfer
          containerPort: 9100
        {{- end }}
      # The process is live while models load, however long that takes
      startupProbe:
        httpGet:
          path: /health/live
          port: http
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 60
      livenessProbe:
        httpGet:
          path: /health/live
          port: http
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet:
          path: /health/ready
          port: http
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      resources: {{- toYaml .Values.resources | nindent 8 }}
      securityContext: {{- include "openai-frontend.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - name: settings
          mountPath: /etc/openai-frontend/gateway.yaml
          subPath: gateway.yaml
          readOnly: true
        {{- include "openai-frontend.keysMount" . | nindent 8 }}
        {{- include "openai-frontend.mounts" . | nindent 8 }}
  volumes:
    - name: settings
      configMap:
        name: {{ include "openai-frontend.name" . }}
    {{- include "openai-frontend.keysVolume" . | nindent 4 }}
    {{- include "openai-frontend.volumes" . | nindent 4 }}
{{- end -}}

{{/* The template of the other pods of a group: they run only Ray, which starts the engine's workers. */}}
{{- define "openai-frontend.workerPod" -}}
metadata:
  labels:
    {{- include "openai-frontend.workerSelector" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "openai-frontend.podPlacement" . | nindent 2 }}
  automountServiceAccountToken: false
  containers:
    - name: worker
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      # It waits for the leader, because a restart of one container recreates the whole group
      command: [sh, -c]
      args:
        - >-
          until ray health-check --address "$LWS_LEADER_ADDRESS:6379"; do sleep 2; done;
          exec ray start --address="$LWS_LEADER_ADDRESS:6379" --object-store-memory=268435456 --block
      env:
        {{- include "openai-frontend.rayEnv" . | nindent 8 }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      # Running answers of the leader need the workers until their end
      lifecycle:
        preStop:
          exec:
            command: [sh, -c, 'while ray health-check --address "$LWS_LEADER_ADDRESS:6379"; do sleep 2; done']
      resources: {{- toYaml .Values.resources | nindent 8 }}
      securityContext: {{- include "openai-frontend.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "openai-frontend.mounts" . | nindent 8 }}
  volumes:
    {{- include "openai-frontend.volumes" . | nindent 4 }}
{{- end -}}

{{/* Where pods run, with which rights, and how long they may take to end. */}}
{{- define "openai-frontend.podPlacement" -}}
serviceAccountName: {{ include "openai-frontend.name" . }}
# Otherwise a service named openai-frontend would set OPENAI_FRONTEND_PORT
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "openai-frontend.gracePeriod" . }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "openai-frontend.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Ray starts any code that its clients send, so the cluster of a group needs a token. */}}
{{- define "openai-frontend.rayEnv" -}}
{{- if gt (int .Values.group.size) 1 -}}
- name: RAY_AUTH_MODE
  value: token
- name: RAY_AUTH_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ required "group.rayToken.existingSecret: without a token, everyone in the cluster could run code in the pods" .Values.group.rayToken.existingSecret }}
      key: {{ .Values.group.rayToken.key }}
- name: RAY_ADDRESS
  value: auto
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
{{- end -}}
{{- end -}}

{{/* The settings in which the servers of the two roles differ. Their engines connect to each other. */}}
{{- define "openai-frontend.roleEnv" -}}
{{- with .Values.role -}}
- name: OPENAI_FRONTEND_ROLE
  value: {{ . }}
- name: VLLM_NIXL_SIDE_CHANNEL_HOST
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- if eq . "prefill" }}
- name: OPENAI_FRONTEND_TRANSFER_HOST
  value: 0.0.0.0
{{- else }}
- name: OPENAI_FRONTEND_PREFILL_PEERS
  value: http://{{ include "openai-frontend.name" $ }}-prefill:9100
{{ include "openai-frontend.transferKey" $ }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "openai-frontend.transferKey" -}}
- name: OPENAI_FRONTEND_TRANSFER_KEY
  valueFrom:
    secretKeyRef:
      name: {{ required "transferKey.existingSecret: decode servers need an API key of the scope `transfer`" .Values.transferKey.existingSecret }}
      key: {{ .Values.transferKey.key }}
{{- end -}}

{{- define "openai-frontend.keysMount" -}}
{{- if .Values.keys.existingSecret -}}
- name: keys
  mountPath: /etc/openai-frontend/keys
  readOnly: true
{{- end -}}
{{- end -}}

{{- define "openai-frontend.keysVolume" -}}
{{- with .Values.keys.existingSecret -}}
- name: keys
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end -}}
{{- end -}}

{{- define "openai-frontend.mounts" -}}
- name: tmp
  mountPath: /tmp
- name: shared-memory
  mountPath: /dev/shm
{{- if .Values.models.existingClaim }}
- name: models
  mountPath: /models
  readOnly: true
  {{- with .Values.models.subPath }}
  subPath: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "openai-frontend.volumes" -}}
- name: tmp
  emptyDir: {}
- name: shared-memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.sharedMemory }}
{{- with .Values.models.existingClaim }}
- name: models
  persistentVolumeClaim:
    claimName: {{ . }}
    readOnly: true
{{- end }}
{{- end -}}

{{/* What a replica reserves in Ray: the list has the root and the group of its pods. */}}
{{- define "openai-frontend.rayReplica" -}}
{{- $group := index . 1 -}}
num_cpus: 1
num_gpus: {{ int (index ($group.resources.limits | default dict) "nvidia.com/gpu" | default 0) }}
{{- if (index . 0).Values.roles }}
resources: {{ printf "{%s: 1}" $group.name }}
{{- end }}
{{- end -}}

{{/* A pod of Ray's: the list has the root, the container's name and its resources. */}}
{{- define "openai-frontend.rayPod" -}}
{{- $container := index . 1 -}}
{{- $resources := index . 2 -}}
{{- with index . 0 -}}
{{- $longest := int (add (int64 (default 3600 .Values.settings.request_timeout_s)) 60) -}}
metadata:
  labels:
    {{- include "openai-frontend.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "openai-frontend.podPlacement" . | nindent 2 }}
  # Ray's autoscaler, which KubeRay adds to the head, asks the cluster for pods
  automountServiceAccountToken: {{ eq $container "ray-head" }}
  containers:
    - name: {{ $container }}
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      env:
        - name: RAY_SERVE_ENABLE_HA_PROXY
          value: "1"
        - name: RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD
          value: "0"
        # A change of replicas must not cut streams, and a stream may be silent
        - name: RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S
          value: {{ $longest | quote }}
        - name: RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S
          value: {{ add 300 (int64 (default 600 .Values.settings.first_token_timeout_s)) | quote }}
        - name: RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S
          value: {{ $longest | quote }}
        # A request that was not started tries each replica of an update, old and new, and then Ray's own proxy
        - name: RAY_SERVE_HAPROXY_RETRY_ON
          value: conn-failure empty-response 503
        - name: RAY_SERVE_HAPROXY_RETRIES
          value: {{ include "openai-frontend.maxReplicas" . | int | mul 2 | add 1 | quote }}
        # Lines of HAProxy's configuration, as `openai-frontend ray init --routing` writes them
        - name: RAY_SERVE_HAPROXY_BALANCE_ALGORITHM
          value: |-
            {{- if eq .Values.rayService.routing "least" }}
            leastconn
            {{- else if eq .Values.rayService.routing "session" }}
            hash var(txn.session)
                unique-id-format %[req.body,json_query('$.prompt_cache_key'),set-var(txn.session)]%[req.hdr(x-claude-code-session-id),set-var(txn.session)]%[req.hdr(thread-id),set-var(txn.session)]%[req.hdr(session-id),set-var(txn.session)]%[req.hdr(session_id),set-var(txn.session)]%[req.hdr(x-session-affinity),set-var(txn.session)]%[req.hdr(x-session-id),set-var(txn.session)]
                unique-id-header x-ray-session
            {{- else }}
            hash "req.body,regsub(', ?\"cache_control\": ?\{[^\}]*\}','',g),regsub('(?s)(\}\]|\}, ?\{\"role\": ?\"assistant\"|\"assistant\").*',''),word(1,\x01)"
            {{- end }}
            {{- if ne .Values.rayService.routing "least" }}
                hash-type consistent
                hash-balance-factor 200
            {{- end }}
                option http-buffer-request
        - name: RAY_SERVE_HAPROXY_TUNE_BUFSIZE
          value: "131072"
        - name: RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT
          value: "1"
        - name: RAY_USAGE_STATS_ENABLED
          value: "0"
        {{- if .Values.roles }}
        {{- include "openai-frontend.transferKey" . | nindent 8 }}
        {{- end }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - name: serve
          containerPort: 9000
      # KubeRay adds its own where one is missing, and they run wget, which the image need not have. Ray's agent on each node answers
      # for the raylet, and on the head for the store of the cluster.
      livenessProbe:
        httpGet:
          path: /api/healthz
          port: 52365
        initialDelaySeconds: 30
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 120
      readinessProbe:
        httpGet:
          {{- if eq $container "ray-head" }}
          path: /api/healthz
          port: 52365
          {{- else }}
          # HAProxy knows a replica that is up. KubeRay asks that of the head itself.
          path: /-/healthz
          port: serve
          {{- end }}
        initialDelaySeconds: 10
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ eq $container "ray-head" | ternary 10 1 }}
      resources: {{- toYaml $resources | nindent 8 }}
      securityContext: {{- include "openai-frontend.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "openai-frontend.keysMount" . | nindent 8 }}
        {{- include "openai-frontend.mounts" . | nindent 8 }}
  volumes:
    {{- include "openai-frontend.keysVolume" . | nindent 4 }}
    {{- include "openai-frontend.volumes" . | nindent 4 }}
{{- end -}}
{{- end -}}
