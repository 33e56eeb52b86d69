{{/* Files of the tokens between parts; a change of the Secret is followed without a restart. */}}
{{- define "tonnage.accessMount" -}}
{{- if .Values.access.secretName }}
- {name: access, mountPath: /etc/tonnage/access, readOnly: true}
{{- end }}
{{- include "tonnage.tlsMount" . }}
{{- end -}}

{{- define "tonnage.tlsMount" -}}
{{- if .Values.access.tlsSecretName }}
- {name: parts-tls, mountPath: /etc/tonnage/parts-tls, readOnly: true}
{{- end }}
{{- end -}}

{{/* The parts' certificate; a renewed one is followed without a restart. Callers alone need no key. */}}
{{- define "tonnage.tlsVolume" -}}
{{- if .root.Values.access.tlsSecretName }}
- name: parts-tls
  secret:
    secretName: {{ .root.Values.access.tlsSecretName | quote }}
    items:
      {{- range .files }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- end -}}

{{- define "tonnage.scheme" -}}
{{- ternary "http" "https" (empty .Values.access.tlsSecretName) -}}
{{- end -}}

{{/* The authority of the parts' certificate, and the name in it by which a part is known at a pod's address. */}}
{{- define "tonnage.caFile" -}}/etc/tonnage/parts-tls/ca.crt{{- end -}}
{{- define "tonnage.serviceHost" -}}
{{- printf "%s-%s.%s.svc" (include "tonnage.fullname" .root) .component .root.Release.Namespace -}}
{{- end -}}

{{/* Settings of a port that speaks HTTPS: dict "root" $ "own" (the settings so far) "prefix" "admin_". */}}
{{- define "tonnage.listenTls" -}}
{{- if .root.Values.access.tlsSecretName }}
{{- $_ := set .own (printf "%stls_cert_file" (.prefix | default "")) "/etc/tonnage/parts-tls/tls.crt" }}
{{- $_ := set .own (printf "%stls_key_file" (.prefix | default "")) "/etc/tonnage/parts-tls/tls.key" }}
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
{{- include "tonnage.tlsVolume" (dict "root" .root "files" (list "tls.crt" "tls.key" "ca.crt")) }}
{{- end -}}
