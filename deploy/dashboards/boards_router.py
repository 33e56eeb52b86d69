"""The Router dashboard."""

from grafana import Board, Panel, Row

OF_ROUTERS = " and on (job, instance) tonnage_router_active_requests{<C>}"
"""Keeps the series of processes that are routers, whatever their scrape job is called."""

ROUTER = Board(
    "router",
    "Router",
    variables=("cluster", "model"),
    about="Where requests go and why, what fails, and what the router itself costs.",
    rows=(
        Row(
            "Requests",
            (
                Panel(
                    "Requests by status",
                    {"sum by (status) (rate(tonnage_router_requests_total{<C>}[<I>]))": "{{status}}"},
                    "reqps",
                    "Status 0: the client left before an answer.",
                    stack=True,
                ),
                Panel(
                    "How requests ended",
                    {"sum by (outcome) (rate(tonnage_router_outcomes_total{<C>}[<I>]))": "{{outcome}}"},
                    "reqps",
                    stack=True,
                ),
                Panel(
                    "Refused before routing",
                    {"sum by (status) (rate(tonnage_router_refused_requests_total{<C>}[<I>]))": "{{status}}"},
                    "reqps",
                    "400: a broken client. 404: an unknown model or path. 401: no valid key.",
                ),
                Panel(
                    "Duration",
                    {
                        f"histogram_quantile({share}, sum by (le, pool) "
                        "(rate(tonnage_router_request_duration_seconds_bucket{<M>}[<I>])))": "{{pool}} " + name
                        for share, name in (("0.5", "p50"), ("0.99", "p99"))
                    },
                    "s",
                ),
                Panel(
                    "Held for answers, share of time to first byte",
                    {
                        "sum by (pool) (rate(tonnage_router_held_seconds_total{<M>}[<I>]))"
                        " / sum by (pool) (rate(tonnage_router_first_byte_seconds_sum{<M>}[<I>]))": "{{pool}}"
                    },
                    "percentunit",
                    "Prompts wait for answers they would make too slow. High: give long ones engines of their own.",
                ),
                Panel("Waiting, by pool", {"sum by (pool) (tonnage_router_queue_requests{<M>})": "{{pool}}"}),
                Panel(
                    "In flight",
                    {
                        "sum(tonnage_router_active_requests{<C>})": "requests",
                        "sum(tonnage_router_client_connections{<C>})": "client connections",
                    },
                ),
            ),
        ),
        Row(
            "Choice",
            (
                Panel(
                    "Decided by",
                    {"sum by (reason) (rate(tonnage_router_decisions_total{<C>}[<I>]))": "{{reason}}"},
                    "reqps",
                    "`prefix` low with chats: prompts do not share beginnings, or the index is too small.",
                    stack=True,
                ),
                Panel(
                    "Prompt tokens from caches",
                    {
                        'sum(rate(tonnage_router_predicted_tokens_total{<C>,kind="hit"}[<I>]))'
                        ' / sum(rate(tonnage_router_predicted_tokens_total{<C>,kind="prompt"}[<I>]))': "expected",
                        'sum(rate(tonnage_router_tokens_total{<M>,kind="cached"}[<I>]))'
                        ' / sum(rate(tonnage_router_tokens_total{<M>,kind="prompt"}[<I>]))': "reported by engines",
                    },
                    "percentunit",
                    "Expected far above reported: engines evict earlier than the index believes.",
                ),
                Panel(
                    "Time to decide",
                    {
                        f"histogram_quantile({share}, sum by (le) "
                        "(rate(tonnage_router_decision_seconds_bucket{<C>}[<I>])))": name
                        for share, name in (("0.5", "p50"), ("0.99", "p99"))
                    },
                    "s",
                ),
                Panel(
                    "Prompts by how they were matched",
                    {"sum by (how) (rate(tonnage_router_prompt_keys_total{<C>}[<I>]))": "{{how}}"},
                    "reqps",
                    "Where engines publish KV events.",
                ),
                Panel(
                    "KV events",
                    {"sum by (outcome) (rate(tonnage_router_kv_events_total{<C>}[<I>]))": "{{outcome}}"},
                    "ops",
                    "`lost` or `orphan` rising: set `kv_events_replay_port`, raise the engine's buffer.",
                ),
                Panel(
                    "Prefix blocks believed cached",
                    {"sum by (endpoint) (tonnage_router_endpoint_index_blocks{<M>})": "{{endpoint}}"},
                ),
                Panel(
                    "Computed apart (prefill and decode)",
                    {"sum by (outcome) (rate(tonnage_router_handovers_total{<C>}[<I>]))": "{{outcome}}"},
                    "reqps",
                ),
                Panel(
                    "Adapter loads",
                    {"sum by (outcome) (rate(tonnage_router_adapter_loads_total{<C>}[<I>]))": "{{outcome}}"},
                    "ops",
                ),
                Panel(
                    "Replicas of the router sharing",
                    {
                        "sum by (outcome) (rate(tonnage_router_share_rounds_total{<C>}[<I>]))": "{{outcome}}",
                        "max(tonnage_router_share_peers{<C>})": "peers",
                    },
                ),
            ),
        ),
        Row(
            "Endpoints",
            (
                Panel(
                    "Taking requests",
                    {
                        "max by (endpoint) (tonnage_router_endpoint_up{<M>})": "{{endpoint}}",
                        "max by (endpoint) (tonnage_router_endpoint_draining{<M>})": "{{endpoint}} draining",
                    },
                    top=1,
                ),
                Panel(
                    "Requests in flight", {"sum by (endpoint) (tonnage_router_endpoint_requests{<M>})": "{{endpoint}}"}
                ),
                Panel(
                    "Work in flight",
                    {"sum by (endpoint) (tonnage_router_endpoint_load_tokens{<M>})": "{{endpoint}}"},
                    about="In prefill tokens. Uneven for long: compare `gpu_speed`.",
                ),
                Panel(
                    "KV cache in use",
                    {"max by (endpoint) (tonnage_router_endpoint_kv_utilisation_ratio{<M>})": "{{endpoint}}"},
                    "percentunit",
                    top=1,
                ),
                Panel(
                    "Failed attempts",
                    {
                        "sum by (endpoint, kind) (rate(tonnage_router_endpoint_failures_total{<C>}[<I>]))": (
                            "{{endpoint}} {{kind}}"
                        )
                    },
                    "ops",
                    "`backpressure` on all: add replicas.",
                ),
                Panel(
                    "Retries",
                    {"sum by (kind) (rate(tonnage_router_retries_total{<C>}[<I>]))": "{{kind}}"},
                    "ops",
                ),
            ),
        ),
        Row(
            "Tenants, and the router itself",
            (
                Panel(
                    "Tokens by tenant",
                    {"topk(10, sum by (tenant) (rate(tonnage_router_tenant_tokens_total{<C>}[<I>])))": "{{tenant}}"},
                    about="The ten largest.",
                ),
                Panel(
                    "Requests by tenant",
                    {
                        "topk(10, sum by (tenant) (rate(tonnage_router_tenant_requests_total{<C>}[<I>])))": (
                            "{{tenant}}"
                        )
                    },
                    "reqps",
                ),
                Panel(
                    "Over a limit",
                    {
                        "topk(10, sum by (tenant, limit) "
                        "(rate(tonnage_router_tenant_refused_requests_total{<C>}[<I>])))": "{{tenant}} {{limit}}"
                    },
                    "reqps",
                ),
                Panel(
                    "Memory",
                    {
                        "sum(tonnage_router_buffered_bytes{<C>})": "request bytes held",
                        "sum(tonnage_router_index_bytes{<C>})": "prefix index",
                        "process_resident_memory_bytes{<C>}" + OF_ROUTERS: "RSS {{instance}}",
                    },
                    "bytes",
                ),
                Panel(
                    "CPU",
                    {
                        "rate(process_cpu_seconds_total{<C>}[<I>])" + OF_ROUTERS: "{{instance}}",
                    },
                    "percentunit",
                    "1 is one core: a worker process cannot use more.",
                ),
                Panel(
                    "Time to encode prompts",
                    {
                        "sum(rate(tonnage_router_encoding_seconds_sum{<C>}[<I>]))": "seconds a second",
                    },
                    "percentunit",
                    "Where prompts are tokenized here (`tokenizers`).",
                ),
                Panel(
                    "Trace spans",
                    {"sum by (outcome) (rate(tonnage_router_trace_spans_total{<C>}[<I>]))": "{{outcome}}"},
                    "ops",
                    "Where traces are sent (`otlp_endpoint`). Dropped: no room was left. Failed: the log says why.",
                ),
            ),
        ),
    ),
)
