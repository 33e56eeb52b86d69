{{/* Files of the tokens between parts; a change of the Secret is followed without a restart. */}}
{{- define "tonnage.accessMount" -}}
{{- if .Values.access.secretName }}
- {name: access, mountPath: /etc/tonnage/access, readOnly: true}
{{- end }}
{{- end -}}

{{/* dict "root" $ "keys" (list "hashes" "token"): a part is given what it needs, its callers' token or the hashes. */}}
{{- define "tonnage.accessVolume" -}}
{{- $access := .root.Values.access -}}
{{- if $access.secretName }}
- name: access
  secret:
    secretName: {{ $access.secretName | quote }}
    items:
      {{- range .keys }}
      - {key: {{ ternary $access.hashesKey $access.tokenKey (eq . "hashes") | quote }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- end -}}
