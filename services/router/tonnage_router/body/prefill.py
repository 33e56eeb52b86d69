"""The two bodies of disaggregated serving: the client's, changed for the prefill engine, and for the decode engine.

The protocol is vLLM's (https://docs.vllm.ai, disaggregated prefilling): the first call asks for one token and
`do_remote_decode`; the `kv_transfer_params` of its answer go into the second call as they came.
"""

import orjson

from tonnage_router.body.splice import Edit, apply, insert, spans
from tonnage_router.errors import BadBodyError

PATHS = frozenset({b"/v1/chat/completions", b"/v1/completions"})
PARAMS = "kv_transfer_params"
ASK = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)
_ALWAYS = {PARAMS: ASK, "stream": b"false", "max_tokens": b"1"}
_IF_THERE = {"max_completion_tokens": b"1", "min_tokens": b"0", "stream_options": b"null"}
_EXCLUDING = frozenset({PARAMS, "prompt_logprobs", "echo", "use_beam_search", "prompt"})
_SAMPLES = frozenset({"n", "best_of"})


def suits(body: bytes, path: bytes) -> bool:
    """Whether one prompt's KV can be computed elsewhere and moved: not for batches of prompts, not for several samples
    (each would fetch the one copy that is handed over), not where logits of the prompt are asked for, and not over
    parameters of the client's own."""
    if path not in PATHS:
        return False
    found = spans(body, 0, _EXCLUDING | _SAMPLES)
    counts = [body[span.start : span.end] for name in _SAMPLES for span in found.pop(name, [])]
    if any(count not in (b"1", b"null") for count in counts):
        return False
    prompts = [body[span.start : span.end] for span in found.pop("prompt", [])]
    return not found and not any(prompt[:1] == b"[" and _is_batch(prompt[1:]) for prompt in prompts)


def _is_batch(items: bytes) -> bool:
    return items.lstrip(b" \t\r\n")[:1] in (b'"', b"[")


def for_prefill(body: bytes, served_model: bytes | None) -> bytes:
    """The body of the first call; `served_model` is the JSON text of the prefill engine's own name for the model."""
    wanted = dict(_ALWAYS) if served_model is None else {**_ALWAYS, "model": served_model}
    found = spans(body, 0, frozenset({*wanted, *_IF_THERE}))
    edits: list[Edit] = []
    for name, new in {**wanted, **_IF_THERE}.items():
        if name in found:
            edits += [Edit(s.start, s.end, new) for s in found[name]]
        elif name in wanted:
            edits.append(insert(body, 0, b'"%b":%b' % (name.encode(), new)))
    return apply(body, edits)


def params_of(answer: bytes) -> bytes | None:
    """The raw `kv_transfer_params` of a prefill engine's answer; None where it gives none, or what is no JSON: a decode
    engine would refuse the client's request for it."""
    try:
        found = spans(answer, 0, frozenset({PARAMS})).get(PARAMS)
    except BadBodyError:
        return None
    raw = answer[found[-1].start : found[-1].end] if found else b""
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return raw if given and type(given) is dict else None


def for_decode(body: bytes, params: bytes) -> bytes:
    """The client's body with the parameters as a new first member; every other byte is the client's."""
    return apply(body, [insert(body, 0, b'"%b":%b' % (PARAMS.encode(), params))])
