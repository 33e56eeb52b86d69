{{/*
Every connection that pods of the release make or take, by name. `from` and `to` are components of the release, or
`peers` outside of it (none: everywhere). An empty list of ports is every port.
*/}}
{{- define "tonnage.flows" -}}
{{- $net := .Values.networkPolicy -}}
{{- $v := .Values -}}
{{- $on := dict -}}
{{- range list "router" "planner" "agent" "coldstart" "operator" "redis" "bench" -}}
{{- $_ := set $on . (index $v .).enabled -}}
{{- end -}}
{{- $metrics := dict "router" $v.router.adminPort "planner" $v.planner.port "agent" $v.agent.port "coldstart" $v.coldstart.port "operator" $v.operator.port "bench" $v.bench.port -}}
{{- $api := list -}}
{{- if and $on.router $v.router.discovery.kubernetes.enabled }}{{ $api = append $api "router" }}{{ end -}}
{{- if and $on.agent $v.agent.profiles.enabled }}{{ $api = append $api "agent" }}{{ end -}}
{{- if $on.operator }}{{ $api = append $api "operator" }}{{ end -}}
{{- if and $on.operator $v.operator.releaseOnUninstall }}{{ $api = append $api "operator-release" }}{{ end -}}
{{- $store := list -}}
{{- if $on.router }}{{ $store = append $store "router" }}{{ end -}}
{{- if $on.planner }}{{ $store = append $store "planner" }}{{ end -}}
{{- if and $on.coldstart $v.coldstart.peers.enabled }}{{ $store = append $store "coldstart" }}{{ end -}}
{{- $loads := list -}}
{{- if $on.bench -}}
{{- $loads = list (ternary "bench-worker" "bench" $v.bench.workers.enabled) -}}
{{- if $v.bench.workers.enabled }}{{ $store = concat $store (list "bench" "bench-worker") }}{{ end -}}
{{- end -}}
{{- $engines := list -}}
{{- range list "router" "planner" "operator" }}{{ if index $on . }}{{ $engines = append $engines . }}{{ end }}{{ end -}}
{{- $out := list -}}
{{- if $on.router -}}
{{- $out = append $out (dict "name" "clients-to-router" "peers" $net.clients "to" "router" "ports" (list $v.router.port)) -}}
{{- end -}}
{{- range $part, $port := $metrics -}}
{{- if index $on $part -}}
{{- $out = append $out (dict "name" (printf "monitoring-to-%s" $part) "peers" $net.monitoring "to" $part "ports" (list $port)) -}}
{{- end -}}
{{- end -}}
{{- range $loads -}}
{{- if $on.router -}}
{{- $out = append $out (dict "name" (printf "%s-to-router" .) "from" . "to" "router" "ports" (list $v.router.port)) -}}
{{- end -}}
{{- end -}}
{{- if and $on.bench $on.planner -}}
{{- $out = append $out (dict "name" "bench-to-planner" "from" "bench" "to" "planner" "ports" (list $v.planner.port)) -}}
{{- end -}}
{{- if and $on.bench $v.bench.workers.enabled -}}
{{- $out = append $out (dict "name" "bench-worker-to-bench" "from" "bench-worker" "to" "bench" "ports" (list $v.bench.port)) -}}
{{- end -}}
{{- range concat $engines $loads -}}
{{- $out = append $out (dict "name" (printf "%s-to-engines" .) "from" . "peers" $net.engines "ports" $net.enginePorts) -}}
{{- end -}}
{{- if and $on.planner $on.router -}}
{{- $out = append $out (dict "name" "planner-to-router" "from" "planner" "to" "router" "ports" (list $v.router.adminPort)) -}}
{{- end -}}
{{- range $part := list "agent" "coldstart" -}}
{{- if and $on.planner (index $on $part) -}}
{{- $out = append $out (dict "name" (printf "planner-to-%s" $part) "from" "planner" "to" $part "ports" (list (index $v $part).port)) -}}
{{- end -}}
{{- end -}}
{{- if and $on.operator $on.planner -}}
{{- $out = append $out (dict "name" "operator-to-planner" "from" "operator" "to" "planner" "ports" (list $v.planner.port)) -}}
{{- end -}}
{{- if and $on.operator $on.coldstart -}}
{{- $out = append $out (dict "name" "operator-to-coldstart" "from" "operator" "to" "coldstart" "ports" (list $v.coldstart.port)) -}}
{{- end -}}
{{- if $on.coldstart -}}
{{- $out = append $out (dict "name" "coldstart-to-sources" "from" "coldstart" "peers" $net.sources "ports" $net.sourcePorts) -}}
{{- if $v.coldstart.peers.enabled -}}
{{- $out = append $out (dict "name" "coldstart-to-coldstart" "from" "coldstart" "to" "coldstart" "ports" (list $v.coldstart.port)) -}}
{{- end -}}
{{- end -}}
{{- range $store -}}
{{- if or $v.redis.external.url $v.redis.external.urlSecret.name -}}
{{- $out = append $out (dict "name" (printf "%s-to-store" .) "from" . "peers" $net.redis "ports" (list $net.redisPort)) -}}
{{- else if $on.redis -}}
{{- $out = append $out (dict "name" (printf "%s-to-store" .) "from" . "to" "redis" "ports" (list $v.redis.port)) -}}
{{- end -}}
{{- end -}}
{{- $collector := ($v.router.tracing | default dict).endpoint -}}
{{- if and $on.router $collector -}}
{{- $url := urlParse $collector -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (ternary "443" "80" (eq $url.scheme "https")) -}}
{{- $out = append $out (dict "name" "router-to-collector" "from" "router" "peers" $net.collector "ports" (list (int $port))) -}}
{{- end -}}
{{- range $api -}}
{{- $out = append $out (dict "name" (printf "%s-to-kubernetes" .) "from" . "peers" $net.apiServer "ports" $net.apiServerPorts) -}}
{{- end -}}
{{- if and $on.planner $v.planner.keda.enabled -}}
{{- $out = append $out (dict "name" "keda-to-planner" "peers" $net.keda "to" "planner" "ports" (list $v.planner.keda.port)) -}}
{{- end -}}
{{- if and $on.planner $v.planner.externalMetrics.enabled -}}
{{- $out = append $out (dict "name" "kubernetes-to-planner" "peers" $net.apiServer "to" "planner" "ports" (list $v.planner.externalMetrics.port)) -}}
{{- end -}}
{{- if $v.helmTest.enabled -}}
{{- range list "router" "planner" "operator" "bench" -}}
{{- if index $on . -}}
{{- $out = append $out (dict "name" (printf "test-to-%s" .) "from" "test" "to" . "ports" (list (index $metrics .))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $out = append $out (dict "name" "all-to-dns" "from" "" "peers" $net.dns "ports" $net.dnsPorts "protocols" (list "UDP" "TCP")) -}}
{{- toYaml $out -}}
{{- end -}}

{{/* Pods of a component as a selector; of the whole release for an empty name. */}}
{{- define "tonnage.podsOf" -}}
{{- $labels := include "tonnage.selectorLabels" . | fromYaml -}}
{{- if not .component }}{{ $labels = omit $labels "app.kubernetes.io/component" }}{{ end -}}
podSelector:
  matchLabels:
    {{- toYaml $labels | nindent 4 }}
{{- end -}}

{{- define "tonnage.flowPorts" -}}
{{- with .ports }}
ports:
{{- range $port := . }}
{{- range ($.protocols | default (list "TCP")) }}
  - {protocol: {{ . }}, port: {{ $port }}}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
