{{/* Schema of status conditions: one item a type, each with its manager. */}}
{{- define "tonnage.crdConditions" -}}
type: array
x-kubernetes-list-type: map
x-kubernetes-list-map-keys: [type]
items:
  type: object
  required: [type, status, reason, lastTransitionTime]
  properties:
    type: {type: string, minLength: 1}
    status: {type: string, enum: ["True", "False", Unknown]}
    reason: {type: string}
    message: {type: string}
    lastTransitionTime: {type: string, format: date-time}
    observedGeneration: {type: integer, format: int64}
{{- end -}}
