"""Print probe reports as short tables, one point a line: `python benchmarks/gpu_agent/summary.py REPORT.json ...`."""

import json
import sys
from pathlib import Path
from typing import Any


def lines(report: dict[str, Any]) -> list[str]:
    out = []
    for gpu in report["gpus"]:
        out.append(f"{gpu['product']} {gpu['outcome']} {gpu['suite_s']} s  verdict {gpu['verdict']['status']}")
        for point in gpu["probes"]:
            shown = {k: v for k, v in point.get("params", {}).items() if k not in ("us", "spread", "width", "model")}
            us, value = point.get("params", {}).get("us"), point.get("value")
            figures = f"{value:10.4g} {point.get('unit', '')}" if value is not None else ""
            figures += f" {us:.1f}us" if us is not None else ""
            bad = "" if point["status"] == "ok" else f" {point['status']} {point.get('detail', '')}"
            small = ",".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in shown.items())
            out.append(f"{point['name']:16}{small:32}{figures} e={point.get('relative_error')}{bad}")
        out.append(json.dumps(gpu["context"].get("probe_s")))
        out += [f"  {reason}" for reason in gpu["verdict"]["reasons"]]
    return out


def main() -> None:
    for path in sys.argv[1:]:
        sys.stdout.write("\n".join(lines(json.loads(Path(path).read_text()))) + "\n")


if __name__ == "__main__":
    main()
