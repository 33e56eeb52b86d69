"""The GPUs and Cold start dashboards."""

from grafana import Board, Panel, Row

PRODUCT = "* on (cluster, uuid) group_left (product) max by (cluster, uuid, product) (tonnage_gpu_device_info{<G>})"


def of_product(series: str) -> str:
    """The readings of the chosen products' GPUs; only the identity series carries the product."""
    return f"{series} {PRODUCT}"


GPUS = Board(
    "gpus",
    "GPUs",
    variables=("cluster", "product"),
    about="What every GPU can do against its data sheet and its peers, and how it is.",
    rows=(
        Row(
            "Verdicts",
            (
                Panel(
                    "GPUs by verdict",
                    {"sum by (status) (" + of_product("tonnage_gpu_verdict{<C>}") + ")": "{{status}}"},
                    about="Reasons: `/v1/profiles/{gpu}` of the node's agent, or `kubectl get gpuprofiles`.",
                    stack=True,
                ),
                Panel(
                    "GPUs by state",
                    {"sum by (state) (" + of_product("tonnage_gpu_state{<C>}") + ")": "{{state}}"},
                    about="lost: reset or replace. hung: the driver does not return, reboot the node.",
                    stack=True,
                ),
                Panel(
                    "XIDs in the shown time",
                    {"sum by (xid, class) (increase(tonnage_gpu_xids_total{<C>}[<T>]))": "{{xid}} {{class}}"},
                    about="application: look at the pod. hardware: the GPU is FAIL.",
                ),
                Panel(
                    "The GPUs",
                    {"tonnage_gpu_device_info{<G>}": ""},
                    about="Driver, VBIOS, PCI address and MIG mode of each.",
                    kind="table",
                    width=24,
                ),
            ),
        ),
        Row(
            "Ceilings",
            (
                Panel(
                    "Against the data sheet",
                    {of_product("tonnage_gpu_ceiling_spec_ratio{<C>}"): "{{gpu}} {{what}}"},
                    "percentunit",
                    "Measured over the sheet's figure. A healthy H200: 0.88 for copies, 0.78 for bf16.",
                    width=12,
                ),
                Panel(
                    "Against the fleet's median",
                    {"tonnage:gpu_ceiling:fleet_ratio{<G>}": "{{gpu}} {{what}}"},
                    "percentunit",
                    "Measured over the median of all GPUs of the product.",
                    width=12,
                ),
                Panel(
                    "Bandwidths",
                    {of_product("tonnage_gpu_ceiling_bytes_per_second{<C>}"): "{{gpu}} {{what}}"},
                    "Bps",
                ),
                Panel("Matrix products", {of_product("tonnage_gpu_ceiling_flops{<C>}"): "{{gpu}} {{what}}"}, "flops"),
                Panel("Launch costs", {of_product("tonnage_gpu_ceiling_seconds{<C>}"): "{{gpu}} {{what}}"}, "s"),
            ),
        ),
        Row(
            "Load",
            (
                Panel(
                    "Busy",
                    {of_product("tonnage_gpu_utilization_ratio{<C>}"): "{{gpu}} {{unit}}"},
                    "percentunit",
                    "Near 1 says only that some kernel ran.",
                    top=1,
                ),
                Panel(
                    "Memory in use",
                    {
                        of_product('tonnage_gpu_memory_bytes{<C>,state="used"}')
                        + ' / on (cluster, uuid) tonnage_gpu_memory_bytes{<C>,state="total"}': "{{gpu}}"
                    },
                    "percentunit",
                    top=1,
                ),
                Panel(
                    "Power",
                    {
                        of_product("tonnage_gpu_power_watts{<C>}"): "{{gpu}}",
                        of_product("tonnage_gpu_power_limit_watts{<C>}"): "{{gpu}} limit",
                    },
                    "watt",
                ),
                Panel("Clocks", {of_product("tonnage_gpu_clock_hertz{<C>}"): "{{gpu}} {{domain}}"}, "hertz"),
                Panel(
                    "Temperature", {of_product("tonnage_gpu_temperature_celsius{<C>}"): "{{gpu}} {{sensor}}"}, "celsius"
                ),
                Panel(
                    "Clock events",
                    {of_product("tonnage_gpu_clock_event_active{<C>}"): "{{gpu}} {{reason}}"},
                    about="`sw_power_cap` and `gpu_idle` are normal; `hw_*` slowdowns are a WARN.",
                ),
            ),
        ),
        Row(
            "Wear",
            (
                Panel(
                    "ECC errors", {"sum by (gpu, severity) (tonnage_gpu_ecc_errors_total{<C>})": "{{gpu}} {{severity}}"}
                ),
                Panel("Remapped rows", {"sum by (gpu, cause) (tonnage_gpu_remapped_rows{<C>})": "{{gpu}} {{cause}}"}),
                Panel(
                    "Link errors",
                    {
                        "rate(tonnage_gpu_pcie_replays_total{<C>}[<I>])": "{{gpu}} PCIe replays",
                        "rate(tonnage_gpu_nvlink_errors_total{<C>}[<I>])": "{{gpu}} NVLink {{kind}}",
                    },
                    "ops",
                ),
                Panel(
                    "Probe runs",
                    {
                        "sum by (suite, outcome) (tonnage_gpu_probe_runs_total{<C>})": "{{suite}} {{outcome}}",
                        "sum by (reason) (tonnage_gpu_probe_skipped_total{<C>})": "skipped: {{reason}}",
                    },
                ),
                Panel(
                    "Days since a GPU was last probed",
                    {
                        "(time() - "
                        + of_product("tonnage_gpu_verdict_evidence_timestamp_seconds{<C>}")
                        + ") / 86400": "{{gpu}}"
                    },
                    "d",
                    "Verdicts expire after 14 days.",
                ),
                Panel(
                    "PCIe traffic",
                    {"sum by (gpu, direction) (tonnage_gpu_pcie_bytes_per_second{<C>})": "{{gpu}} {{direction}}"},
                    "Bps",
                ),
            ),
        ),
    ),
)

COLDSTART = Board(
    "coldstart",
    "Cold start",
    variables=("cluster",),
    about="How fast weights get to nodes, and whether the caches hold what is needed.",
    rows=(
        Row(
            "Staging",
            (
                Panel(
                    "Jobs by outcome",
                    {"sum by (outcome) (increase(tonnage_coldstart_stages_total{<C>}[<T>]))": "{{outcome}}"},
                    about="Not staged or hit: the job's `error` in `/v1/stage` says what to do.",
                ),
                Panel("Jobs now", {"sum by (state) (tonnage_coldstart_jobs{<C>})": "{{state}}"}, stack=True),
                Panel(
                    "Mean time of a phase",
                    {
                        "sum by (phase) (increase(tonnage_coldstart_phase_duration_seconds_sum{<C>}[<T>])) / "
                        "sum by (phase) (increase(tonnage_coldstart_phase_duration_seconds_count{<C>}[<T>]))": (
                            "{{phase}}"
                        )
                    },
                    "s",
                    "Of transfers that were no cache hits.",
                ),
                Panel(
                    "Bytes from sources",
                    {"sum by (source) (rate(tonnage_coldstart_source_bytes_total{<C>}[<I>]))": "{{source}}"},
                    "Bps",
                ),
                Panel(
                    "Repeated, alone, for others",
                    {
                        "sum(rate(tonnage_coldstart_range_retries_total{<C>}[<I>]))": "ranges asked for again",
                        "sum(rate(tonnage_coldstart_fleet_store_failures_total{<C>}[<I>]))": "without the store",
                    },
                    "ops",
                ),
                Panel(
                    "Bytes served to other nodes",
                    {"sum by (instance) (rate(tonnage_coldstart_peer_served_bytes_total{<C>}[<I>]))": "{{instance}}"},
                    "Bps",
                ),
            ),
        ),
        Row(
            "The nodes' caches",
            (
                Panel(
                    "Full",
                    {"tonnage:coldstart_cache:used_ratio{<C>}": "{{instance}}"},
                    "percentunit",
                    "Of the quota. Full is normal: the least used snapshot makes room, unless it is pinned.",
                    top=1,
                ),
                Panel(
                    "Snapshots",
                    {
                        "sum by (instance) (tonnage_coldstart_cache_entries{<C>})": "{{instance}}",
                        "sum by (instance) (tonnage_coldstart_cache_pinned_entries{<C>})": "{{instance}} pinned",
                    },
                ),
                Panel("Free on the disk", {"tonnage_coldstart_cache_free_bytes{<C>}": "{{instance}}"}, "bytes"),
                Panel(
                    "Evicted",
                    {"sum by (instance) (increase(tonnage_coldstart_cache_evictions_total{<C>}[<T>]))": "{{instance}}"},
                    about="Steady growth: the quota is too small for the models in turn.",
                ),
                Panel(
                    "Scrubbed snapshots",
                    {"sum by (result) (tonnage_coldstart_scrubbed_snapshots_total{<C>})": "{{result}}"},
                    about="damaged: the disk loses bits.",
                ),
                Panel(
                    "Scrubbing",
                    {"sum(rate(tonnage_coldstart_scrubbed_bytes_total{<C>}[<I>]))": "read again"},
                    "Bps",
                ),
            ),
        ),
        Row(
            "What starts wait for",
            (
                Panel(
                    "Mean time of a start's phase",
                    {
                        "sum by (phase) (increase(tonnage_coldstart_start_phase_duration_seconds_sum{<C>}[<T>])) / "
                        "sum by (phase) (increase(tonnage_coldstart_start_phase_duration_seconds_count{<C>}[<T>]))": (
                            "{{phase}}"
                        )
                    },
                    "s",
                    "Of the starts that `tonnage timeline --report` told of.",
                    stack=True,
                ),
                Panel(
                    "Whole starts",
                    {
                        "histogram_quantile(0.5, sum by (le) "
                        "(increase(tonnage_coldstart_start_duration_seconds_bucket{<C>}[<T>])))": "median",
                        "histogram_quantile(0.9, sum by (le) "
                        "(increase(tonnage_coldstart_start_duration_seconds_bucket{<C>}[<T>])))": "p90",
                    },
                    "s",
                ),
                Panel(
                    "Replicas that start, or do not",
                    {'sum by (state) (tonnage_planner_endpoint_state{<C>,state=~"pending|stuck"})': "{{state}}"},
                    width=12,
                ),
                Panel(
                    "How long a start takes",
                    {"max by (pool) (tonnage_planner_start_horizon_seconds{<C>})": "{{pool}}"},
                    "s",
                    "Nine of ten starts seen were over by then; the forecast looks this far.",
                    width=12,
                ),
            ),
        ),
    ),
)
