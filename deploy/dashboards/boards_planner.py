"""The Planner dashboard."""

from grafana import Board, Panel, Row

PLANNER = Board(
    "planner",
    "Planner",
    variables=("cluster", "pool"),
    about="Whether what the planner believes is what the fleet does.",
    rows=(
        Row(
            "Predicted against seen",
            (
                Panel(
                    "Time per output token",
                    {
                        "tonnage_planner_seen_token_seconds{<P>}": "{{pool}} seen",
                        "tonnage_planner_predicted_token_seconds{<P>}": "{{pool}} predicted",
                    },
                    "s",
                    "Predicted for the same lengths, cached prefix and requests in flight. Needs `gpu` in the policy.",
                ),
                Panel(
                    "Drift: seen over predicted",
                    {"tonnage_planner_prediction_drift_ratio{<P>}": "{{pool}}"},
                    about="1 is right; the alert begins at 1.5 and at 2/3.",
                ),
                Panel(
                    "Bench points: predicted over measured",
                    {
                        "sum by (metric) (increase(tonnage_planner_bench_drift_ratio_sum{<C>}[<T>])) / "
                        "sum by (metric) (increase(tonnage_planner_bench_drift_ratio_count{<C>}[<T>]))": "{{metric}}",
                        "sum by (outcome) (increase(tonnage_planner_bench_points_total{<C>}[<T>]))": "{{outcome}}",
                    },
                    about="Means over the points that came in the shown time, each predicted with those held before.",
                ),
            ),
        ),
        Row(
            "Targets",
            (
                Panel("Wanted", {"tonnage_planner_desired_replicas{<P>}": "{{pool}}"}),
                Panel(
                    "Requests in the engines",
                    {"sum by (pool, state) (tonnage_planner_pool_requests{<P>})": "{{pool}} {{state}}"},
                ),
                Panel(
                    "Full caches",
                    {"tonnage_planner_pool_kv_full_endpoints{<P>}": "{{pool}}"},
                    about="KV use summed over known replicas: 2 is two full caches.",
                ),
            ),
        ),
        Row(
            "What the planner sees",
            (
                Panel(
                    "Scrapes of engines",
                    {"sum by (outcome) (rate(tonnage_planner_scrapes_total{<C>}[<I>]))": "{{outcome}}"},
                    "ops",
                    stack=True,
                ),
                Panel(
                    "Scrapes of the router",
                    {"sum by (outcome) (rate(tonnage_planner_router_scrapes_total{<C>}[<I>]))": "{{outcome}}"},
                    "ops",
                    stack=True,
                ),
                Panel(
                    "Scrape duration",
                    {
                        "histogram_quantile(0.99, sum by (le) "
                        "(rate(tonnage_planner_scrape_duration_seconds_bucket{<C>}[<I>])))": "p99"
                    },
                    "s",
                ),
                Panel(
                    "Oldest reading",
                    {"max by (pool) (tonnage_planner_endpoint_reading_age_seconds{<P>})": "{{pool}}"},
                    "s",
                ),
                Panel(
                    "Age of the decision",
                    {"max by (pool) (tonnage_planner_decision_age_seconds{<P>})": "{{pool}}"},
                    "s",
                    "Grows: the planner's loop stands.",
                ),
                Panel(
                    "Endpoint list readable", {"min(tonnage_planner_endpoint_list_readable{<C>})": "readable"}, top=1
                ),
            ),
        ),
        Row(
            "Plans asked for",
            (
                Panel(
                    "Plans",
                    {"sum by (outcome) (rate(tonnage_planner_plans_total{<C>}[<I>]))": "{{outcome}}"},
                    "ops",
                ),
                Panel("Waiting", {"sum(tonnage_planner_plans_waiting{<C>})": "waiting"}),
                Panel(
                    "Time spent planning",
                    {"sum(rate(tonnage_planner_plan_duration_seconds_sum{<C>}[<I>]))": "seconds a second"},
                    "percentunit",
                ),
            ),
        ),
    ),
)
