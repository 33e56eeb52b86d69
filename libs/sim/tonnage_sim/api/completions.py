"""POST /v1/completions."""

from collections.abc import Sequence
from typing import Any

from tonnage_core import engine_text
from tonnage_sim.api.bodies import read_json
from tonnage_sim.api.collect import Collect
from tonnage_sim.api.completion_chunks import CompletionChunks, CompletionLook
from tonnage_sim.api.completion_request import CompletionRequest, Prompt, completion_request
from tonnage_sim.api.generation import Ask
from tonnage_sim.api.logprobs import completion_logprobs, prompt_logprobs
from tonnage_sim.api.prompts import output_limit
from tonnage_sim.api.sampling import check_sampling, stop_rules
from tonnage_sim.api.service import Service
from tonnage_sim.api.stream import Stream
from tonnage_sim.api.usage import Usage, completion_tokens
from tonnage_sim.engine.sample import Sample
from tonnage_sim.errors import ApiError
from tonnage_sim.http1.exchange import Exchange
from tonnage_sim.http1.message import Request, Response, json_response


class Completions:
    """The handler."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, request: Request, exchange: Exchange) -> Response | None:
        """Answer one request, whole or as a stream."""
        service = self._service
        body, prompt = completion_request(read_json(request), request)
        if body.stream and body.use_beam_search:
            raise ApiError("Streaming is not currently supported with beam search")
        model, adapter = service.models.resolve(body.model)
        prompts = self._prompts(body, prompt)
        asks = [
            self._ask(body, tokens, adapter.name if adapter else None, service.priority(request, body.priority))
            for tokens in prompts
        ]
        look = self._look(body, request, model, prompts)
        await service.handover.bring(body.kv_transfer_params, asks)
        if body.stream:
            self._stream(exchange, asks, look)
            return None
        collect = Collect(exchange, service.faults)
        prepared = service.generator.prepare(asks, collect)
        samples = [sample for _, sample in prepared]
        collect.start(samples, lambda: service.generator.abort(prepared))
        service.generator.submit(prepared)
        await collect.wait()
        whole = self._whole(look, samples, collect, body.prompt_logprobs)
        whole["kv_transfer_params"] = service.handover.offer(
            body.kv_transfer_params, samples, collect.reasons[samples[0]]
        )
        return json_response(whole)

    def _prompts(self, body: CompletionRequest, prompt: Prompt) -> list[Sequence[int]]:
        reader = self._service.prompts
        truncate, side = body.truncate_prompt_tokens, body.truncation_side
        reader.check_request(body.max_tokens, "max_tokens", truncate)
        if body.suffix is not None:
            raise ApiError(
                "suffix is only supported for models with FIM completion rendering",
                parameter="suffix",
                show_parameter=False,
            )
        if not prompt:
            raise ApiError("You must pass at least one prompt")
        if isinstance(prompt, str):
            return [reader.text(prompt, truncate, side)]
        if isinstance(prompt[0], int):
            return [reader.ids(prompt, truncate, side)]
        return [
            reader.text(one, truncate, side) if isinstance(one, str) else reader.ids(list(one), truncate, side)
            for one in prompt
            if not isinstance(one, int)
        ]

    def _ask(self, body: CompletionRequest, tokens: Sequence[int], adapter: str | None, priority: int) -> Ask:
        service = self._service
        only_echo = bool(body.echo) and body.max_tokens == 0
        limit = output_limit(service.prompts.max_model_len, body.max_tokens, len(tokens))
        limit = 1 if only_echo else limit
        check_sampling(body, limit, body.logprobs)
        unread = body.prompt_logprobs is not None or (bool(body.echo) and body.logprobs is not None)
        return Ask(
            prompt=tokens,
            rules=stop_rules(body, limit),
            n=body.n,
            adapter=adapter,
            salt=service.new_id() if unread else body.cache_salt,
            seed=body.seed,
            priority=priority,
        )

    def _look(
        self, body: CompletionRequest, request: Request, model: str, prompts: list[Sequence[int]]
    ) -> CompletionLook:
        echo = ("only" if body.max_tokens == 0 else "prompt") if body.echo else None
        return CompletionLook(
            request_id=self._service.request_id("cmpl", request, body.request_id),
            created=self._service.created(),
            model=model,
            fingerprint=self._service.fingerprint,
            prompts=prompts,
            n=body.n,
            echo=echo,
            logprobs=body.logprobs,
            token_ids=bool(body.return_token_ids),
            tokens_as_ids=bool(body.return_tokens_as_token_ids),
            include_usage=body.include_usage,
            continuous_usage=body.continuous_usage,
        )

    def _stream(self, exchange: Exchange, asks: list[Ask], look: CompletionLook) -> None:
        generator = self._service.generator

        def usage(samples: Sequence[Sample], cached: int | None) -> Usage:
            return self._usage(look, samples, cached)

        stream = Stream(
            exchange, self._service.loop.outbox, self._service.faults, usage if look.include_usage else None
        )
        prepared = generator.prepare(asks, stream)
        samples = [sample for _, sample in prepared]
        generator.submit(prepared)
        stream.start(samples, CompletionChunks(look, exchange, samples), lambda: generator.abort(prepared))

    def _usage(self, look: CompletionLook, samples: Sequence[Sample], cached: int | None) -> Usage:
        details = (cached or 0) if self._service.prompt_tokens_details else None
        return Usage(sum(map(len, look.prompts)), completion_tokens(samples), details)

    def _whole(
        self, look: CompletionLook, samples: list[Sample], collect: Collect, top_prompt: int | None
    ) -> dict[str, Any]:
        cached = samples[-1].cached_tokens
        return {
            "id": look.request_id,
            "object": "text_completion",
            "created": look.created,
            "model": look.model,
            "choices": [self._choice(look, sample, collect.reasons[sample], top_prompt) for sample in samples],
            "service_tier": None,
            "system_fingerprint": look.fingerprint,
            "usage": self._usage(look, samples, cached).whole(),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    @staticmethod
    def _choice(look: CompletionLook, sample: Sample, reason: str, top_prompt: int | None) -> dict[str, Any]:
        prompt = look.prompt_of(sample)
        answer = list(sample.output.token_ids[: sample.produced])
        text, shown = sample.output.text_until(sample.produced), answer
        if look.echo == "only":
            text, shown = engine_text.decode(prompt), list(prompt)
        elif look.echo:
            text, shown = engine_text.decode(prompt) + text, [*prompt, *answer]
        if look.echo and look.logprobs is not None and top_prompt is None:
            top_prompt = look.logprobs
        return {
            "index": sample.index,
            "text": text,
            "logprobs": None
            if look.logprobs is None
            else completion_logprobs(shown, look.logprobs, unknown_first=bool(look.echo), as_ids=look.tokens_as_ids),
            "finish_reason": reason,
            "stop_reason": sample.output.stop_reason if reason == "stop" else None,
            "token_ids": answer if look.token_ids else None,
            "prompt_logprobs": None if top_prompt is None else prompt_logprobs(prompt, top_prompt),
            "prompt_token_ids": list(prompt) if look.token_ids else None,
            "routed_experts": None,
        }
