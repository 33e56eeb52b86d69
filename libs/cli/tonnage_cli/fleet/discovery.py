"""What the engines serve: the model's name from `/v1/models`, so that given engines need no further option."""

import json

from tonnage_cli.fleet.errors import FleetError
from tonnage_cli.fleet.http_get import http_get


async def served_model(engine_url: str) -> str:
    """The base model an engine serves. `FleetError` says which URL did not answer as an OpenAI endpoint."""
    url = engine_url + "/v1/models"
    try:
        status, body = await http_get(url, timeout_s=10.0)
        models = json.loads(body)["data"] if status == 200 else []
        base = [m["id"] for m in models if not m.get("parent")]
    except (OSError, TimeoutError) as error:
        raise FleetError(
            f"{url} does not answer ({error or 'time-out'}): start the engine or correct --engine-url"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FleetError(f"{url} is not an OpenAI models list: point --engine-url at the engine's root") from error
    if not base:
        raise FleetError(f"{url} answered {status} without a model: point --engine-url at an engine that serves one")
    return str(base[0])
