"""Write the chart's dashboards from their descriptions: `python deploy/dashboards/write.py`."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from boards_autoscaling import AUTOSCALING
from boards_fleet import FLEET
from boards_nodes import COLDSTART, GPUS
from boards_planner import PLANNER
from boards_router import ROUTER
from grafana import document

BOARDS = (FLEET, ROUTER, PLANNER, GPUS, COLDSTART, AUTOSCALING)
FOLDER = Path(__file__).resolve().parents[1] / "helm" / "tonnage" / "files" / "dashboards"


def texts() -> dict[str, str]:
    """Each file's name and text."""
    return {f"{board.name}.json": json.dumps(document(board), indent=1) + "\n" for board in BOARDS}


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
