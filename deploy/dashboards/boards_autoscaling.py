"""The Autoscaling dashboard."""

from grafana import Board, Panel, Row

AUTOSCALING = Board(
    "autoscaling",
    "Autoscaling",
    variables=("cluster", "pool"),
    about="What moves the replica counts, and whether it works.",
    rows=(
        Row(
            "Target",
            (
                Panel(
                    "Wanted, serving, on their way",
                    {
                        "sum by (pool) (tonnage_planner_desired_replicas{<P>})": "{{pool}} wanted",
                        'sum by (pool) (tonnage_planner_endpoint_state{<P>,state="fresh"})': "{{pool}} serving",
                        'sum by (pool) (tonnage_planner_endpoint_state{<P>,state="pending"})': "{{pool}} starting",
                    },
                    width=12,
                ),
                Panel(
                    "Demand and forecast",
                    {
                        "max by (pool) (tonnage_planner_demand_replicas{<P>})": "{{pool}} arriving",
                        "max by (pool) (tonnage_planner_forecast_replicas{<P>})": "{{pool}} when a start would be over",
                    },
                    about="In replicas kept full. Forecast far above demand for long: the load is bursty.",
                    width=12,
                ),
                Panel(
                    "What each signal asks for",
                    {"max by (pool, signal) (tonnage_planner_signal_replicas{<P>})": "{{pool}} {{signal}}"},
                ),
                Panel(
                    "Changes",
                    {
                        "sum by (pool, direction) (increase(tonnage_planner_target_changes_total{<P>}[<T>]))": (
                            "{{pool}} {{direction}}"
                        )
                    },
                    about="Many in both directions: lengthen `scale_down_after_s`.",
                ),
                Panel(
                    "Late requests",
                    {"max by (pool) (tonnage_planner_late_requests_ratio{<P>})": "{{pool}}"},
                    "percentunit",
                    "Past the policy's TTFT limit, as the engines count.",
                ),
            ),
        ),
        Row(
            "Load",
            (
                Panel(
                    "Requests in the engines",
                    {"sum by (pool, state) (tonnage_planner_pool_requests{<P>})": "{{pool}} {{state}}"},
                ),
                Panel("Full caches", {"max by (pool) (tonnage_planner_pool_kv_full_endpoints{<P>})": "{{pool}}"}),
                Panel("Cost", {"tonnage:cost:usd_per_hour{<P>}": "{{pool}}"}, "currencyUSD"),
            ),
        ),
        Row(
            "Is the scaler well",
            (
                Panel(
                    "Decisions by reason",
                    {"sum by (code) (rate(tonnage_planner_decisions_total{<P>}[<I>]))": "{{code}}"},
                    "ops",
                    stack=True,
                ),
                Panel(
                    "Blind decisions",
                    {"tonnage:planner_blind:ratio_rate5m{<P>}": "{{pool}}"},
                    "percentunit",
                    "Share of decisions held for want of what replicas carry. The alert begins at one half.",
                    top=1,
                ),
                Panel(
                    "Calls of the scaling hooks",
                    {
                        "sum by (hook, call, outcome) (rate(tonnage_planner_hook_calls_total{<C>}[<I>]))": (
                            "{{hook}} {{call}} {{outcome}}"
                        )
                    },
                    "ops",
                ),
                Panel(
                    "Age of the decision",
                    {"max by (pool) (tonnage_planner_decision_age_seconds{<P>})": "{{pool}}"},
                    "s",
                ),
                Panel(
                    "Replicas by what is known of them",
                    {"sum by (pool, state) (tonnage_planner_endpoint_state{<P>})": "{{pool}} {{state}}"},
                ),
                Panel(
                    "Time a start takes",
                    {"max by (pool) (tonnage_planner_start_horizon_seconds{<P>})": "{{pool}}"},
                    "s",
                ),
            ),
        ),
        Row(
            "The operator",
            (
                Panel(
                    "Who else writes replica counts",
                    {"max by (writer) (tonnage_operator_scale_conflict_servers{<C>})": "{{writer}}"},
                    about="ModelServers whose number another writer sets; the ScaleConflict condition names it.",
                ),
                Panel(
                    "Looks at resources",
                    {
                        "sum by (kind, outcome) (rate(tonnage_operator_reconciles_total{<C>}[<I>]))": (
                            "{{kind}} {{outcome}}"
                        )
                    },
                    "ops",
                ),
                Panel(
                    "Lists and watches",
                    {
                        "sum by (call, outcome) (rate(tonnage_operator_watch_calls_total{<C>}[<I>]))": (
                            "{{call}} {{outcome}}"
                        )
                    },
                    "ops",
                    "`forbidden`: the ClusterRole is not the chart's.",
                ),
                Panel("Leading", {"sum(tonnage_operator_leading{<C>})": "processes"}, about="0: nobody acts."),
                Panel("Waiting for a look", {"sum(tonnage_operator_queue_resources{<C>})": "resources"}),
                Panel(
                    "Nodes with failed GPUs",
                    {
                        "max(tonnage_operator_failed_nodes{<C>})": "failed",
                        "max(tonnage_operator_marked_nodes{<C>})": "marked",
                        "max(tonnage_operator_refused_nodes{<C>})": "left alone: too many",
                    },
                ),
            ),
        ),
    ),
)
