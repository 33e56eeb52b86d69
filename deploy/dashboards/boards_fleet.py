"""The Fleet dashboard."""

from grafana import Board, Panel, Row

UP = "tonnage_router_slo_requests_total"
SHARE_GOOD = ((None, "red"), (0.95, "orange"), (0.99, "green"))

FLEET = Board(
    "fleet",
    "Fleet",
    about="Is the fleet keeping its word, what does it cost, and why has it as many replicas as it has.",
    rows=(
        Row(
            "What clients get",
            (
                Panel(
                    "In SLO",
                    {f'sum(increase({UP}{{<M>,verdict="met"}}[<T>])) / sum(increase({UP}{{<M>}}[<T>]))': "in SLO"},
                    "percentunit",
                    "Share of the requests of the shown time that met both limits of their model.",
                    "stat",
                    4,
                    4,
                    thresholds=SHARE_GOOD,
                ),
                Panel(
                    "Goodput",
                    {"sum(tonnage:goodput:rate5m{<M>})": "in SLO"},
                    "reqps",
                    "Requests a second that met their SLO.",
                    "stat",
                    4,
                    4,
                ),
                Panel(
                    "$ per million tokens",
                    {"sum(tonnage:cost:usd_per_hour{<P>}) / (sum(tonnage:tokens:rate5m{<M>}) * 0.0036)": "$ / Mtok"},
                    "currencyUSD",
                    "Price of the replicas over prompt and output tokens; needs `usd_per_replica_hour`.",
                    "stat",
                    4,
                    4,
                ),
                Panel(
                    "Replicas serving",
                    {'sum(tonnage_planner_endpoint_state{<P>,state="fresh"})': "serving"},
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Replicas wanted",
                    {"sum(tonnage_planner_desired_replicas{<P>})": "wanted"},
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Waiting in the router",
                    {"sum(tonnage_router_queue_requests{<M>})": "waiting"},
                    kind="stat",
                    width=4,
                    height=4,
                    thresholds=((None, "green"), (1, "orange"), (100, "red")),
                ),
                Panel(
                    "Share in SLO",
                    {"1 - tonnage:slo_missed:ratio_rate5m{<M>}": "{{pool}}"},
                    "percentunit",
                    "Five-minute means by model.",
                    top=1,
                ),
                Panel(
                    "Requests by verdict",
                    {f"sum by (verdict) (rate({UP}{{<M>}}[<I>]))": "{{verdict}}"},
                    "reqps",
                    "late: the first token over its limit. slow: the later ones. failed: no whole answer.",
                    stack=True,
                ),
                Panel(
                    "Error budget: how many times too fast",
                    {
                        "tonnage:slo_missed:ratio_rate1h{<M>} / 0.01": "{{pool}} 1 h",
                        "tonnage:slo_missed:ratio_rate6h{<M>} / 0.01": "{{pool}} 6 h",
                    },
                    "short",
                    "1 spends exactly the month's 1 %. Alerts: 14.4 over an hour, 6 over six hours.",
                ),
                Panel(
                    "Time to the first byte",
                    {
                        f"histogram_quantile({share}, sum by (le, pool) "
                        "(rate(tonnage_router_first_byte_seconds_bucket{<M>}[<I>])))": "{{pool}} " + name
                        for share, name in (("0.5", "p50"), ("0.99", "p99"))
                    },
                    "s",
                    "From the request's last byte read, waiting in the router included.",
                ),
                Panel(
                    "Time between tokens",
                    {
                        f"histogram_quantile({share}, sum by (le, model_name) "
                        "(rate(vllm:inter_token_latency_seconds_bucket{<E>}[<I>])))": "{{model_name}} " + name
                        for share, name in (("0.5", "p50"), ("0.99", "p99"))
                    },
                    "s",
                    "As the engines count it.",
                ),
                Panel(
                    "Tokens",
                    {"sum by (kind) (rate(tonnage_router_tokens_total{<M>}[<I>]))": "{{kind}}"},
                    "short",
                    "Tokens a second that engines reported; `cached` is part of `prompt`.",
                ),
            ),
        ),
        Row(
            "Replicas: how many, and why",
            (
                Panel(
                    "Wanted and serving",
                    {
                        "sum by (pool) (tonnage_planner_desired_replicas{<P>})": "{{pool}} wanted",
                        'sum by (pool) (tonnage_planner_endpoint_state{<P>,state="fresh"})': "{{pool}} serving",
                    },
                    about="Wanted above serving for long: pods that do not start.",
                ),
                Panel(
                    "What each signal asks for",
                    {"max by (pool, signal) (tonnage_planner_signal_replicas{<P>})": "{{pool}} {{signal}}"},
                    about="The highest line decides. A line that is missing is an unknown signal, not zero.",
                ),
                Panel(
                    "Decisions by reason",
                    {"sum by (code) (rate(tonnage_planner_decisions_total{<P>}[<I>]))": "{{code}}"},
                    "ops",
                    "`endpoints_unknown`, `signal_missing`, `all_unknown_*`: the planner is blind in part.",
                    stack=True,
                ),
                Panel(
                    "Replicas by what is known of them",
                    {"sum by (state) (tonnage_planner_endpoint_state{<P>})": "{{state}}"},
                    about="stale and unknown ones block a scale-down; stuck ones do not start.",
                    stack=True,
                ),
                Panel(
                    "Cost",
                    {"tonnage:cost:usd_per_hour{<P>}": "{{pool}}"},
                    "currencyUSD",
                    "$ an hour, replicas that start included.",
                ),
                Panel(
                    "KV cache in use",
                    {"avg by (pool) (tonnage_router_endpoint_kv_utilisation_ratio{<M>})": "{{pool}}"},
                    "percentunit",
                    top=1,
                ),
            ),
        ),
    ),
)
