{{/* The queue's URL, when runs are made by workers: dict "root" $ "name" "TONNAGE_BENCH_QUEUE_URL". */}}
{{- define "tonnage.benchQueue" -}}
{{- if .root.Values.bench.workers.enabled }}
{{- include "tonnage.storeEnv" . }}
{{- end }}
{{- end -}}

{{/* A token of the bench as a variable: dict "root" $ "name" "TONNAGE_BENCH_TOKEN" "key" "token". */}}
{{- define "tonnage.benchToken" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef: {name: {{ .root.Values.bench.tokenSecret.name | quote }}, key: {{ .key | quote }}}
{{- end -}}
