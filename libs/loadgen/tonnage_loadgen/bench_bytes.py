"""Whole HTTP requests of the bench: completions, chat, embeddings; model, key and tenant can differ by request."""

import orjson

from tonnage_core.benchmarking.workload import Planned
from tonnage_loadgen.answers import APIS
from tonnage_loadgen.prompt_bytes import PromptWriter, RequestFields
from tonnage_loadgen.target import Target

TENANT_HEADER = "x-tenant-id"
_STREAM = b'"temperature":0,"stream":true,"stream_options":{"include_usage":true}'


class BenchTemplate:
    """Requests from planned ones. `keys` holds tenants' bearer tokens; a tenant without one is named in a header."""

    def __init__(
        self, target: Target, api: str, prompt: PromptWriter, fields: RequestFields, keys: dict[str, str]
    ) -> None:
        self._api = api
        self._prompt = prompt
        self._fields = fields
        self._keys = keys
        lines = [
            f"POST {target.prefix}{APIS[api][0]} HTTP/1.1",
            f"host: {target.authority}",
            "content-type: application/json",
        ]
        self._head = "\r\n".join(lines).encode("latin-1")
        self._heads: dict[str, bytes] = {}
        more = b',"ignore_eos":true' if fields.ignore_eos else b""
        more += b"" if fields.cache_salt is None else b',"cache_salt":' + orjson.dumps(fields.cache_salt)
        self._after = b"}" if api == "embeddings" else b"," + _STREAM + more + b"}"

    def write(self, planned: Planned) -> bytes:
        """Head and body of one request."""
        body = self._body(planned)
        name = f"{self._fields.request_id_prefix}-{planned.request.index}".encode("latin-1")
        rest = b"\r\nx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (name, len(body))
        return b"".join((self._head, self._tenant_head(planned.tenant), rest, body))

    def _body(self, planned: Planned) -> bytes:
        model = b'{"model":' + orjson.dumps(planned.adapter or self._fields.model)
        prompt, limit = self._prompt(planned.request), planned.request.output_length
        if self._api == "embeddings":
            return b"".join((model, b',"input":', prompt, self._after))
        if self._api == "chat":
            head = b',"messages":[{"role":"user","content":'
            return b"".join((model, head, prompt, b'}],"max_tokens":%d' % limit, self._after))
        return b"".join((model, b',"prompt":', prompt, b',"max_tokens":%d' % limit, self._after))

    def _tenant_head(self, tenant: str) -> bytes:
        found = self._heads.get(tenant)
        if found is None:
            headers = dict(self._fields.headers)
            if tenant in self._keys:
                headers["authorization"] = f"Bearer {self._keys[tenant]}"
            elif tenant:
                headers[TENANT_HEADER] = tenant
            found = "".join(f"\r\n{name}: {value}" for name, value in headers.items()).encode("latin-1")
            self._heads[tenant] = found
        return found
