{{/* Image of a component: dict "root" $ "component" "agent" "variant" "cuda". */}}
{{- define "tonnage.image" -}}
{{- $image := .root.Values.image -}}
{{- $tag := default .root.Chart.AppVersion $image.tag -}}
{{- $suffix := ternary "" (printf "-%s" .variant) (empty .variant) -}}
{{- $name := printf "%s-%s%s:%s" $image.name .component $suffix $tag -}}
{{- ternary $name (printf "%s/%s" (trimSuffix "/" (default "" $image.registry)) $name) (empty $image.registry) -}}
{{- end -}}

{{- define "tonnage.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Where and how a component's pods are placed. */}}
{{- define "tonnage.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "tonnage.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tonnage.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Seconds until the kubelet kills: the part's drain, when its settings say one, and some more. */}}
{{- define "tonnage.grace" -}}
{{- $drain := index (.settings | default dict) "drain_timeout_s" | default 0 -}}
{{- max 30 (add (ceil (float64 $drain) | int64) 15) -}}
{{- end -}}

{{/* Settings as environment: dict "service" "ROUTER" "settings" {…}. Structures are written as JSON. */}}
{{- define "tonnage.settingsEnv" -}}
{{- range $name, $value := .settings }}
- name: TONNAGE_{{ $.service }}_{{ upper $name }}
  {{- if or (kindIs "map" $value) (kindIs "slice" $value) }}
  value: {{ toJson $value | quote }}
  {{- else if kindIs "float64" $value }}
  value: {{ ternary (int64 $value | toString) ($value | toString) (eq (floor $value) $value) | quote }}
  {{- else }}
  value: {{ $value | toString | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Health of a container: dict "root" $ "port" "http". */}}
{{- define "tonnage.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ .port }}{{ with .root.Values.access.tlsSecretName }}, scheme: HTTPS{{ end }}}
  periodSeconds: 2
  failureThreshold: 30
livenessProbe:
  httpGet: {path: /healthz, port: {{ .port }}{{ with .root.Values.access.tlsSecretName }}, scheme: HTTPS{{ end }}}
  periodSeconds: 10
  timeoutSeconds: 3
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}{{ with .root.Values.access.tlsSecretName }}, scheme: HTTPS{{ end }}}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end -}}
