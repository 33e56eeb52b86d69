{{/* The queue's URL, when runs are made by workers: dict "root" $ "name" "TONNAGE_BENCH_QUEUE_URL". */}}
{{- define "tonnage.benchQueue" -}}
{{- if .root.Values.bench.workers.enabled }}
{{- include "tonnage.storeEnv" . }}
{{- end }}
{{- end -}}

{{/* The bench's tokens as files, followed when they change: dict "root" $ "files" (dict "token" KEY). */}}
{{- define "tonnage.benchTokensMount" -}}
- {name: tokens, mountPath: /etc/tonnage/bench-tokens, readOnly: true}
{{- end -}}
{{- define "tonnage.benchTokensVolume" -}}
- name: tokens
  secret:
    secretName: {{ .root.Values.bench.tokenSecret.name | quote }}
    items:
      {{- range $path, $key := .files }}
      - {key: {{ $key | quote }}, path: {{ $path }}}
      {{- end }}
{{- end -}}
