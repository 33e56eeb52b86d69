{{/* Values that are right alone and wrong together. */}}
{{- define "tonnage.refuseContradictions" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "tonnage.fullname" .)) }}
{{- fail (printf "resources cannot be called %s: Services need a lower-case letter first, then letters, digits and dashes; set fullnameOverride" (include "tonnage.fullname" .)) }}
{{- end }}
{{- if and .Values.router.enabled (eq (int .Values.router.port) (int .Values.router.adminPort)) }}
{{- fail (printf "router.port and router.adminPort are both %d: give them different ports" (int .Values.router.port)) }}
{{- end }}
{{- if and .Values.planner.keda.enabled (eq (int .Values.planner.port) (int .Values.planner.keda.port)) }}
{{- fail (printf "planner.port and planner.keda.port are both %d: give them different ports" (int .Values.planner.port)) }}
{{- end }}
{{- $policy := .Values.planner.policy | default dict }}
{{- range $pool, $own := merge (dict "" (dict)) (.Values.planner.pools | default dict) }}
{{- $merged := merge (dict) ($own | default dict) $policy }}
{{- if and (hasKey $merged "min_replicas") (hasKey $merged "max_replicas") (gt (int $merged.min_replicas) (int $merged.max_replicas)) }}
{{- $of := ternary "planner.policy" (printf "planner.pools.%s" $pool) (empty $pool) }}
{{- fail (printf "%s: min_replicas %d is more than max_replicas %d" $of (int $merged.min_replicas) (int $merged.max_replicas)) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Settings the chart itself writes: in `settings` they would contradict a value, so each names the value to set. */}}
{{- define "tonnage.refuseReserved" -}}
{{- $values := dict
  "router" (dict "host" "" "port" "router.port" "admin_port" "router.adminPort" "policy" "router.policy" "log_level" "logLevel" "drain_timeout_s" "router.drainSeconds" "endpoints" "endpoints" "endpoints_file" "endpoints" "workers" "router.replicas" "discovery" "router.discovery" "kubernetes_namespace" "router.discovery.kubernetes.namespace" "kubernetes_selector" "router.discovery.kubernetes.selector" "kubernetes_service" "router.discovery.kubernetes.service" "kubernetes_port" "router.discovery.kubernetes.port" "kubeconfig" "")
  "planner" (dict "host" "" "port" "planner.port" "keda_port" "planner.keda.port" "log_level" "logLevel" "endpoints" "endpoints" "endpoints_file" "endpoints" "policy" "planner.policy" "pools" "planner.pools")
  "agent" (dict "host" "" "port" "agent.port" "log_level" "logLevel" "node" "" "state_dir" "agent.stateHostPath" "lease_path" "" "kubernetes" "agent.profiles.enabled")
  "operator" (dict "host" "" "port" "operator.port" "log_level" "logLevel" "namespace" "" "lease_name" "" "leader_election" "" "kubeconfig" "" "node_mode" "operator.nodes.mode" "node_share" "operator.nodes.share" "stage_image" "image" "coldstart_port" "coldstart.port" "coldstart_selector" "" "cache_host_path" "coldstart.cache.hostPath" "planner_url" "planner.enabled" "pod_monitors" "operator.podMonitors" "tolerance_served" "operator.toleranceServed" "pull_secrets" "image.pullSecrets" "scaler_address" "operator.scalerAddress" "keda" "operator.scalerAddress" "placeholder_class" "operator.placeholders.create")
  "coldstart" (dict "host" "" "port" "coldstart.port" "log_level" "logLevel" "cache_dir" "coldstart.cache.hostPath")
-}}
{{- range $part, $reserved := $values }}
{{- range $name, $_ := (index $.Values $part).settings | default dict }}
{{- if hasKey $reserved $name }}
{{- $instead := index $reserved $name }}
{{- fail (printf "%s.settings.%s is written by the chart: %s" $part $name (ternary "remove it" (printf "set %s instead" $instead) (empty $instead))) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
