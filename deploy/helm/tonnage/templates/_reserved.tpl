{{/* Settings the chart itself writes: in `settings` they would contradict a value, so each names the value to set. */}}
{{- define "tonnage.refuseReserved" -}}
{{- $values := dict
  "router" (dict "host" "" "port" "router.port" "admin_port" "router.adminPort" "policy" "router.policy" "log_level" "logLevel" "drain_timeout_s" "router.drainSeconds" "endpoints" "endpoints" "endpoints_file" "endpoints" "workers" "router.replicas")
  "planner" (dict "host" "" "port" "planner.port" "log_level" "logLevel" "endpoints" "endpoints" "endpoints_file" "endpoints" "policy" "planner.policy" "pools" "planner.pools")
  "agent" (dict "host" "" "port" "agent.port" "log_level" "logLevel" "node" "" "state_dir" "agent.stateHostPath" "lease_path" "" "kubernetes" "agent.profiles.enabled")
  "coldstart" (dict "host" "" "port" "coldstart.port" "log_level" "logLevel" "cache_dir" "coldstart.cache.hostPath")
-}}
{{- range $part, $reserved := $values }}
{{- range $name, $_ := (index $.Values $part).settings }}
{{- if hasKey $reserved $name }}
{{- $instead := index $reserved $name }}
{{- fail (printf "%s.settings.%s is written by the chart: %s" $part $name (ternary "remove it" (printf "set %s instead" $instead) (empty $instead))) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
