{{/* host:port of the KEDA scaler that the operator's ScaledObjects ask; empty without one. */}}
{{- define "tonnage.scalerAddress" -}}
{{- if .Values.operator.scalerAddress -}}
{{- .Values.operator.scalerAddress -}}
{{- else if and .Values.planner.enabled .Values.planner.keda.enabled -}}
{{- include "tonnage.plannerScaler" . -}}
{{- end -}}
{{- end -}}

{{- define "tonnage.plannerScaler" -}}
{{- printf "%s-planner.%s.svc:%d" (include "tonnage.fullname" .) .Release.Namespace (int .Values.planner.keda.port) -}}
{{- end -}}

{{/* Secret with the certificate of the external metrics API. */}}
{{- define "tonnage.externalMetricsSecret" -}}
{{- $certificate := .Values.planner.externalMetrics.certificate -}}
{{- if eq $certificate.from "secret" -}}
{{- $certificate.secretName -}}
{{- else -}}
{{- printf "%s-planner-external-metrics" (include "tonnage.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* Every step at once in both directions: how fast and how long to wait is the planner's to say. */}}
{{- define "tonnage.scalingBehaviour" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  selectPolicy: Max
  policies:
    - {type: Percent, value: 900, periodSeconds: 15}
    - {type: Pods, value: 64, periodSeconds: 15}
  {{- if .Values.planner.scaling.toleranceServed }}
  tolerance: "0"
  {{- end }}
scaleDown:
  stabilizationWindowSeconds: 0
  selectPolicy: Max
  policies:
    - {type: Percent, value: 100, periodSeconds: 15}
  {{- if .Values.planner.scaling.toleranceServed }}
  tolerance: "0"
  {{- end }}
{{- end -}}
