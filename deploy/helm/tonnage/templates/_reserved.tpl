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
{{- include "tonnage.refuseStores" . }}
{{- include "tonnage.refuseRoutes" . }}
{{- include "tonnage.refuseBench" . }}
{{- include "tonnage.refuseScalers" . }}
{{- end -}}

{{- define "tonnage.refuseStores" -}}
{{- $external := .Values.redis.external }}
{{- if and $external.url $external.urlSecret.name }}
{{- fail "redis.external.url and redis.external.urlSecret.name are both set: keep one" }}
{{- end }}
{{- if and .Values.redis.enabled (or $external.url $external.urlSecret.name) }}
{{- fail "redis.enabled deploys a server and redis.external names another: keep one" }}
{{- end }}
{{- $port := regexFind ":[0-9]+$" (get (urlParse ($external.url | default "")) "host") | trimPrefix ":" | default "6379" }}
{{- if and .Values.networkPolicy.enabled $external.url (ne (int $port) (int .Values.networkPolicy.redisPort)) }}
{{- fail (printf "redis.external.url is on port %s and networkPolicy.redisPort is %d: set networkPolicy.redisPort" $port (int .Values.networkPolicy.redisPort)) }}
{{- end }}
{{- if and .Values.coldstart.enabled .Values.coldstart.peers.enabled }}
{{- if not (include "tonnage.hasStore" .) }}
{{- fail "coldstart.peers.enabled needs a store: set redis.enabled, redis.external.url or redis.external.urlSecret.name" }}
{{- end }}
{{- if not .Values.coldstart.peers.tokenSecret.name }}
{{- fail "coldstart.peers.enabled needs the nodes' token: set coldstart.peers.tokenSecret.name" }}
{{- end }}
{{- range list "node" "place" "advertise_url" "peer_token" "store_url" }}
{{- if hasKey ($.Values.coldstart.settings | default dict) . }}
{{- fail (printf "coldstart.settings.%s is written by the chart when coldstart.peers.enabled: remove it" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tonnage.refuseBench" -}}
{{- if .Values.bench.enabled }}
{{- if not .Values.bench.tokenSecret.name }}
{{- fail "bench.enabled needs the tokens of its API: set bench.tokenSecret.name" }}
{{- end }}
{{- if and .Values.bench.workers.enabled (not (include "tonnage.hasStore" .)) }}
{{- fail "bench.workers.enabled needs a queue: set redis.enabled, redis.external.url or redis.external.urlSecret.name" }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tonnage.refuseRoutes" -}}
{{- $router := .Values.router }}
{{- range $place, $endpoint := .Values.endpoints | default list }}
{{- if and $router.enabled (not (regexMatch "^http://[^/]+/?$" $endpoint.url)) }}
{{- fail (printf "endpoints[%d].url %s: the router reads http://host:port alone: leave a path out, and speak plain HTTP to engines" $place $endpoint.url) }}
{{- end }}
{{- end }}
{{- $policies := list "prefix" "round_robin" "least_load" "power_of_two" "session" "consistent_hash" }}
{{- if not (has $router.policy (concat $policies (dig "profiles" dict ($router.settings | default dict) | keys))) }}
{{- fail (printf "router.policy %s is none: take %s, or a name of router.settings.profiles" $router.policy (join ", " $policies)) }}
{{- end }}
{{- if and $router.httpRoute.enabled (not $router.httpRoute.parentRefs) }}
{{- fail "router.httpRoute.enabled needs a gateway: set router.httpRoute.parentRefs" }}
{{- end }}
{{- if $router.autoscaling.enabled }}
{{- if gt (int $router.autoscaling.minReplicas) (int $router.autoscaling.maxReplicas) }}
{{- fail (printf "router.autoscaling: minReplicas %d is more than maxReplicas %d" (int $router.autoscaling.minReplicas) (int $router.autoscaling.maxReplicas)) }}
{{- end }}
{{- if not (dig "requests" "cpu" "" ($router.resources | default dict)) }}
{{- fail "router.autoscaling.enabled measures a share of the CPU asked for: set router.resources.requests.cpu" }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tonnage.refuseScalers" -}}
{{- $planner := .Values.planner }}
{{- $external := $planner.externalMetrics }}
{{- if and $external.enabled $planner.keda.enabled }}
{{- fail "planner.externalMetrics and planner.keda are both enabled: KEDA owns the cluster's external metrics API, keep one" }}
{{- end }}
{{- if and $planner.keda.enabled $planner.keda.tls (not .Values.access.tlsSecretName) }}
{{- fail "planner.keda.tls needs the parts' certificate: set access.tlsSecretName" }}
{{- end }}
{{- $certificate := $external.certificate }}
{{- if and $external.enabled (eq $certificate.from "secret") (not (and $certificate.secretName $certificate.caBundle)) }}
{{- fail "planner.externalMetrics.certificate.from is secret: set secretName and caBundle" }}
{{- end }}
{{- if and $external.enabled (has (int $external.port) (list (int $planner.port) (int $planner.keda.port))) }}
{{- fail (printf "planner.externalMetrics.port %d is another port of the planner: give it its own" (int $external.port)) }}
{{- end }}
{{- $scaled := dict }}
{{- range $planner.scaling.targets }}
{{- $of := printf "%s/%s" (default $.Release.Namespace .target.namespace) .target.name }}
{{- if hasKey $scaled $of }}
{{- fail (printf "planner.scaling.targets: %s is scaled twice: keep one entry" $of) }}
{{- end }}
{{- $_ := set $scaled $of true }}
{{- if and (eq .by "keda") (not $planner.keda.enabled) }}
{{- fail (printf "planner.scaling.targets: pool %s is scaled by keda: set planner.keda.enabled" .pool) }}
{{- end }}
{{- if and (eq .by "hpa") (not $external.enabled) }}
{{- fail (printf "planner.scaling.targets: pool %s is scaled by an HPA, which asks the external metrics API: set planner.externalMetrics.enabled" .pool) }}
{{- end }}
{{- if gt (int .min) (int .max) }}
{{- fail (printf "planner.scaling.targets: pool %s: min %d is more than max %d" .pool (int .min) (int .max)) }}
{{- end }}
{{- if and (ge (int .max) 10) (not $planner.scaling.toleranceServed) }}
{{- fail (printf "planner.scaling.targets: pool %s: of %d replicas a step of one is within an HPA's 10 %%, which swallows it: keep max below 10, set planner.scaling.toleranceServed where the cluster serves it, or use a ModelServer" .pool (int .max)) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Settings the chart itself writes: in `settings` they would contradict a value, so each names the value to set. */}}
{{- define "tonnage.refuseReserved" -}}
{{- $values := dict
  "router" (dict "host" "" "port" "router.port" "admin_port" "router.adminPort" "policy" "router.policy" "log_level" "logLevel" "drain_timeout_s" "router.drainSeconds" "endpoints" "endpoints" "endpoints_file" "endpoints" "workers" "router.replicas" "discovery" "router.discovery" "kubernetes_namespace" "router.discovery.kubernetes.namespace" "kubernetes_selector" "router.discovery.kubernetes.selector" "kubernetes_service" "router.discovery.kubernetes.service" "kubernetes_inference_pool" "router.discovery.kubernetes.inferencePool" "kubernetes_port" "router.discovery.kubernetes.port" "kubeconfig" "")
  "planner" (dict "host" "" "port" "planner.port" "keda_port" "planner.keda.port" "log_level" "logLevel" "endpoints" "endpoints" "endpoints_file" "endpoints" "policy" "planner.policy" "pools" "planner.pools" "agent_urls" "agent.enabled" "coldstart_urls" "coldstart.enabled" "external_metrics_port" "planner.externalMetrics.port" "external_metrics_cert" "planner.externalMetrics.certificate" "external_metrics_key" "planner.externalMetrics.certificate" "external_metrics_client_ca" "planner.externalMetrics.clientCa")
  "agent" (dict "host" "" "port" "agent.port" "log_level" "logLevel" "node" "" "state_dir" "agent.stateHostPath" "lease_path" "" "kubernetes" "agent.profiles.enabled")
  "operator" (dict "host" "" "port" "operator.port" "log_level" "logLevel" "namespace" "" "lease_name" "" "leader_election" "" "kubeconfig" "" "node_mode" "operator.nodes.mode" "node_share" "operator.nodes.share" "stage_image" "image" "coldstart_port" "coldstart.port" "coldstart_selector" "" "cache_host_path" "coldstart.cache.hostPath" "planner_url" "planner.enabled" "pod_monitors" "operator.podMonitors" "tolerance_served" "operator.toleranceServed" "pull_secrets" "image.pullSecrets" "scaler_address" "operator.scalerAddress" "keda" "operator.scalerAddress" "placeholder_class" "operator.placeholders.create")
  "bench" (dict "host" "" "port" "bench.port" "log_level" "logLevel" "database" "" "token" "bench.tokenSecret" "worker_token" "bench.tokenSecret" "targets" "bench.targets" "queue_url" "bench.workers" "planner_url" "planner.enabled")
  "coldstart" (dict "host" "" "port" "coldstart.port" "log_level" "logLevel" "cache_dir" "coldstart.cache.hostPath")
-}}
{{- range $part, $reserved := $values }}
{{- range $name, $_ := (index $.Values $part).settings | default dict }}
{{- $elsewhere := and (eq $part "planner") (hasSuffix "_urls" $name) (not (index $.Values (trimSuffix "_urls" $name)).enabled) }}
{{- if and (hasKey $reserved $name) (not $elsewhere) }}
{{- $instead := index $reserved $name }}
{{- fail (printf "%s.settings.%s is written by the chart: %s" $part $name (ternary "remove it" (printf "set %s instead" $instead) (empty $instead))) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
