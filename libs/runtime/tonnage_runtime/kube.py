"""The Kubernetes API: the only module that imports its client.

Calls block and are bounded in time: run them in threads. Nothing is retried here, since only the caller knows what may
be done twice; `kube_reflector` alone tries again, with a growing pause.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import urllib3
import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException

from tonnage_core.errors import BadInputError, TonnageError

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
PAGE = 250
CONNECT_S = 5.0
Object = Mapping[str, Any]


class KubeError(TonnageError):
    """The API did not do what was asked. `retry_after_s`: the server's own wish, when it had one."""

    outcome = "error"

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class KubeNotFoundError(KubeError):
    """No such object, or its resource is not installed."""

    outcome = "not_found"


class KubeConflictError(KubeError):
    """The object exists already, or changed meanwhile."""

    outcome = "conflict"


class KubeForbiddenError(KubeError):
    """The token is missing, expired or has no right to do this."""

    outcome = "forbidden"


class KubeGoneError(KubeError):
    """The resource version is too old to watch from: list again."""

    outcome = "gone"


class KubeThrottledError(KubeError):
    """The server asks for fewer requests."""

    outcome = "throttled"


class KubeRejectedError(KubeError):
    """The server understood the request and refuses the document."""

    outcome = "rejected"


class KubeUnreachableError(KubeError):
    """No answer in time, a broken connection, or an answer that is none."""

    outcome = "unreachable"


class KubeConfigError(BadInputError):
    """There is no usable way to a cluster."""


_BY_STATUS: Mapping[int, type[KubeError]] = {
    400: KubeRejectedError,
    401: KubeForbiddenError,
    403: KubeForbiddenError,
    404: KubeNotFoundError,
    409: KubeConflictError,
    410: KubeGoneError,
    422: KubeRejectedError,
    429: KubeThrottledError,
}


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object: cluster-scoped, or that of one namespace. The core group has the empty name."""

    group: str
    version: str
    plural: str
    kind: str
    namespace: str = ""

    @property
    def api_version(self) -> str:
        """`group/version`; the core group's version alone."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str = "", subresource: str = "") -> str:
        """The API's path of the collection, an object or its subresource."""
        root = "apis" if self.group else "api"
        scope = ["namespaces", self.namespace] if self.namespace else []
        parts = [part for part in (self.plural, name, subresource) if part]
        return "/".join([f"/{root}/{self.api_version}", *scope, *parts])


def configuration(kubeconfig: str = "") -> Configuration:
    """The pod's service account, or the file named (with `~` for the user's own); `KubeConfigError` for neither.

    Tokens of a service account are read again every minute: the kubelet rotates them.
    """
    found = Configuration()
    from_file: Callable[..., None] = config.load_kube_config
    from_pod: Callable[..., None] = config.load_incluster_config
    try:
        if kubeconfig:
            path = None if kubeconfig == "~" else kubeconfig
            from_file(config_file=path, client_configuration=found, persist_config=False)
        else:
            from_pod(client_configuration=found)
    except (
        config.ConfigException,
        OSError,
        yaml.YAMLError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
    ) as error:
        # The client reads a kubeconfig as it comes: one that is no YAML, or of another shape, is any of these.
        where = f"kubeconfig {kubeconfig}" if kubeconfig else "service account of the pod"
        told = " ".join(str(error).split())
        raise KubeConfigError(f"{where}: {told}: run in a pod with a token, or name a kubeconfig") from error
    return found


class KubeClient:
    """Requests to one cluster. `timeout_s` bounds the wait for each read of an answer."""

    def __init__(self, found: Configuration, *, timeout_s: float = 10.0, agent: str = "tonnage") -> None:
        # urllib3 would wait as long as a Retry-After says, and repeat requests on its own.
        found.retries = False
        self._api = ApiClient(found)
        self._api.user_agent = agent
        self._timeout_s = timeout_s

    def close(self) -> None:
        """Give the connections back."""
        self._api.rest_client.close()

    def get(self, resource: Resource, name: str) -> Object:
        """One object; `KubeNotFoundError` when there is none."""
        return self._call("GET", resource.path(name))

    def list(self, resource: Resource, selector: str = "", limit: int | None = None) -> tuple[list[Object], str]:
        """The objects that `selector` takes, at most `limit`, and the version to watch from; page by page."""
        items: list[Object] = []
        token = ""
        while True:
            query = {"limit": str(min(PAGE, limit or PAGE)), "labelSelector": selector, "continue": token}
            page = self._call("GET", resource.path(), query)
            # An API server leaves kind and version of its own kinds out of a list's items.
            said = {"apiVersion": resource.api_version, "kind": resource.kind}
            items += [{**said, **one} for one in page.get("items") or []]
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token or (limit is not None and len(items) >= limit):
                return items[:limit], metadata.get("resourceVersion") or ""

    def create(self, resource: Resource, body: Object, *, manager: str) -> Object:
        """A new object; `KubeConflictError` when its name is taken."""
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return self._call("POST", resource.path(), {"fieldManager": manager}, full)

    def apply_status(self, resource: Resource, name: str, status: Object, *, manager: str) -> Object:
        """Make `status` what `manager` says of the object, by server-side apply; other managers' fields stay.

        What the manager said before and does not say now is removed. Never creates: `KubeNotFoundError`.
        """
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name},
            "status": status,
        }
        query = {"fieldManager": manager, "force": "true"}
        return self._call("PATCH", resource.path(name, "status"), query, body, APPLY)

    def apply(self, resource: Resource, name: str, body: Object, *, manager: str) -> Object:
        """Make `body` what `manager` says of the object, creating it if it is not there, by server-side apply.

        Fields of other managers stay; those that both set are taken. With `metadata.resourceVersion` in `body` an
        object that changed meanwhile is a `KubeConflictError`.
        """
        metadata = {**(body.get("metadata") or {}), "name": name}
        full = {**body, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
        query = {"fieldManager": manager, "force": "true"}
        return self._call("PATCH", resource.path(name), query, full, APPLY)

    def merge(self, resource: Resource, name: str, body: Object, *, manager: str, subresource: str = "") -> Object:
        """A JSON merge patch: for what apply cannot say, such as lists that have one owner as a whole, and `scale`."""
        return self._call("PATCH", resource.path(name, subresource), {"fieldManager": manager}, body, MERGE)

    def replace(self, resource: Resource, name: str, body: Object, *, manager: str) -> Object:
        """The whole object; `KubeConflictError` when its `metadata.resourceVersion` is no longer the present one."""
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return self._call("PUT", resource.path(name), {"fieldManager": manager}, full)

    def delete(self, resource: Resource, name: str, *, uid: str = "") -> Object:
        """Delete, in the background; with `uid` only that object, else `KubeConflictError`."""
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        return self._call("DELETE", resource.path(name), None, body)

    def watch(self, resource: Resource, selector: str, version: str, seconds: float) -> "Watching":
        """Events from `version` on, for at most `seconds`."""
        query = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        return Watching(self._open("GET", resource.path(), query, read_s=seconds + self._timeout_s))

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        response = self._open(method, path, query or {}, body, content_type)
        with _translated(), contextlib.closing(response):
            return _document(response.data)

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | None = None,
        content_type: str = "application/json",
        read_s: float | None = None,
    ) -> urllib3.HTTPResponse:
        headers = {"Accept": "application/json"} | ({"Content-Type": content_type} if body is not None else {})
        given = [(key, value) for key, value in query.items() if value]
        with _translated():
            request = self._api.param_serialize(
                method, path, query_params=given, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            timeout = (CONNECT_S, read_s or self._timeout_s)
            response: urllib3.HTTPResponse = self._api.call_api(*request, _request_timeout=timeout).response
            if not 200 <= response.status <= 299:
                with contextlib.closing(response):
                    raise _refusal(response.status, response.data, response.headers, f"{method} {path}")
        return response


class Watching:
    """Events of a watch; ends when the server ends it. `close` ends it from another thread."""

    def __init__(self, response: urllib3.HTTPResponse) -> None:
        self._response = response
        self._closed = False

    def __iter__(self) -> Iterator[tuple[str, Object]]:
        """(type, object) of each event; a refusal among them is raised as an error, an old version as `KubeGoneError`.

        A line that is cut off by the end of the stream is none.
        """
        pending = b""
        try:
            with _translated():
                for chunk in self._response.stream(None):
                    *lines, pending = (pending + chunk).split(b"\n")
                    yield from (_event(line) for line in lines if line.strip())
        except KubeUnreachableError:
            if not self._closed:
                raise
        finally:
            self._response.close()

    def close(self) -> None:
        """Wake the reader: closing a response that another thread reads from would wait for it."""
        self._closed = True
        with contextlib.suppress(OSError, ValueError):
            self._response.shutdown()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Errors of the client, its transport and its token file as ours."""
    try:
        yield
    except urllib3.exceptions.TimeoutError as error:
        raise KubeUnreachableError(f"Kubernetes API: no answer in time: {error}") from error
    except (urllib3.exceptions.HTTPError, ApiException, config.ConfigException, OSError) as error:
        raise KubeUnreachableError(f"Kubernetes API: {' '.join(str(error).split())}") from error


def object_name(item: Object) -> str:
    """The object's name; `KubeUnreachableError` when the answer has none."""
    name = (item.get("metadata") or {}).get("name")
    if not isinstance(name, str):
        raise KubeUnreachableError(f"Kubernetes API: an object without a name: {str(item)[:80]}")
    return name


def object_version(item: Object) -> str | None:
    """The object's resource version; None when it has none."""
    found = (item.get("metadata") or {}).get("resourceVersion")
    return found if isinstance(found, str) and found else None


def _document(data: bytes) -> Object:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise KubeUnreachableError(f"Kubernetes API: not an answer of it: {data[:80]!r}") from error
    if not isinstance(found, dict):
        raise KubeUnreachableError(f"Kubernetes API: not an answer of it: {data[:80]!r}")
    return found


def _event(line: bytes) -> tuple[str, Object]:
    event = _document(line)
    kind, found = event.get("type"), event.get("object")
    if not isinstance(kind, str) or not isinstance(found, dict):
        raise KubeUnreachableError(f"Kubernetes API: not an event: {line[:80]!r}")
    if kind == "ERROR":
        code = found.get("code")
        raise _error(code if isinstance(code, int) else 500, str(found.get("message", "")), "watch", None)
    return kind, found


def _refusal(status: int, data: bytes, headers: Mapping[str, str], what: str) -> KubeError:
    try:
        message = str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        message = data[:200].decode(errors="replace")
    after = headers.get("Retry-After", "")
    return _error(status, message, what, float(after) if after.isdecimal() else None)


def _error(status: int, message: str, what: str, retry_after_s: float | None) -> KubeError:
    kind = _BY_STATUS.get(status, KubeUnreachableError if status >= 500 else KubeError)
    return kind(f"Kubernetes API: {what}: {status} {' '.join(message.split())[:300]}", retry_after_s)
