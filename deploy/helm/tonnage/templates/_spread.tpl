{{/* Spread of a component's pods: dict "root" $ "component" "router" "of" .Values.router. */}}
{{- define "tonnage.spread" -}}
{{- with .of.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
  -
    {{- toYaml (merge (dict) . (dict "labelSelector" (dict "matchLabels" (include "tonnage.selectorLabels" $ | fromYaml)))) | nindent 4 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A PodDisruptionBudget: dict "root" $ "component" "router" "of" .Values.router. */}}
{{- define "tonnage.budget" -}}
{{- if and .of.enabled .of.podDisruptionBudget.enabled }}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "tonnage.componentName" . }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- include "tonnage.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .of.podDisruptionBudget.maxUnavailable }}
  # A pod that is not ready serves nobody: it never holds a drain up.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "tonnage.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end -}}
