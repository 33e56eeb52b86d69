{{- define "tonnage.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of every name, a DNS label of at most 48 characters: a longer one is cut and told apart by a digest. */}}
{{- define "tonnage.fullname" -}}
{{- $name := include "tonnage.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $full = .Values.fullnameOverride | default $full | replace "." "-" -}}
{{- if gt (len $full) 48 -}}
{{- printf "%s-%s" ($full | trunc 39 | trimSuffix "-") (sha256sum $full | trunc 8) -}}
{{- else -}}
{{- $full -}}
{{- end -}}
{{- end -}}

{{/* Labels that never change over a release's life: dict "root" $ "component" "router". */}}
{{- define "tonnage.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tonnage.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Every label once: the chart's own first, then the object's ("extra"), then those of every object. */}}
{{- define "tonnage.labels" -}}
{{- $own := include "tonnage.selectorLabels" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/part-of" "tonnage" -}}
{{- $_ := set $own "app.kubernetes.io/version" .root.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- toYaml (merge $own (.extra | default dict) (.root.Values.commonLabels | default dict)) -}}
{{- end -}}

{{- define "tonnage.componentName" -}}
{{ include "tonnage.fullname" .root }}-{{ .component }}
{{- end -}}
