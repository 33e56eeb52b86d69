{{/* Whether the release has a store that its pods share. */}}
{{- define "tonnage.hasStore" -}}
{{- $external := .Values.redis.external -}}
{{- if or .Values.redis.enabled $external.url $external.urlSecret.name -}}yes{{- end -}}
{{- end -}}

{{/* The store's URL as a variable: dict "root" $ "name" "TONNAGE_ROUTER_SHARED_STORE". Passwords come from Secrets. */}}
{{- define "tonnage.storeEnv" -}}
{{- $redis := .root.Values.redis -}}
{{- if $redis.external.urlSecret.name }}
- name: {{ .name }}
  valueFrom:
    secretKeyRef: {name: {{ $redis.external.urlSecret.name | quote }}, key: {{ $redis.external.urlSecret.key | quote }}}
{{- else if $redis.external.url }}
{{- $url := $redis.external.url }}
{{- if and $redis.external.caSecret.name (not (contains "ssl_ca_certs=" $url)) }}
{{- $url = printf "%s%sssl_ca_certs=/etc/tonnage/redis-ca/ca.crt" $url (ternary "&" "?" (contains "?" $url)) }}
{{- end }}
- name: {{ .name }}
  value: {{ $url | quote }}
{{- else if $redis.enabled }}
{{- if $redis.auth.secretName }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ $redis.auth.secretName | quote }}, key: {{ $redis.auth.key | quote }}}
{{- end }}
- name: {{ .name }}
  value: {{ printf "redis://%s%s:%d/0" (ternary ":$(REDIS_PASSWORD)@" "" (not (empty $redis.auth.secretName))) (include "tonnage.componentName" (dict "root" .root "component" "redis")) (int $redis.port) | quote }}
{{- end }}
{{- end -}}

{{/* The CA of an external store's certificate. */}}
{{- define "tonnage.storeMount" -}}
{{- with .Values.redis.external.caSecret.name }}
- {name: redis-ca, mountPath: /etc/tonnage/redis-ca, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tonnage.storeVolume" -}}
{{- with .Values.redis.external.caSecret }}
{{- if .name }}
- name: redis-ca
  secret:
    secretName: {{ .name | quote }}
    items: [{key: {{ .key | quote }}, path: ca.crt}]
{{- end }}
{{- end }}
{{- end -}}
