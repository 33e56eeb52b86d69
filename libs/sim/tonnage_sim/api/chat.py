"""POST /v1/chat/completions."""

from collections.abc import Sequence
from typing import Any

from tonnage_sim.api.bodies import read_json
from tonnage_sim.api.chat_chunks import ChatChunks, ChatLook
from tonnage_sim.api.chat_messages import Turn, read_messages
from tonnage_sim.api.chat_request import ChatRequest, chat_request
from tonnage_sim.api.chat_template import render
from tonnage_sim.api.collect import Collect
from tonnage_sim.api.generation import Ask
from tonnage_sim.api.logprobs import chat_logprobs, prompt_logprobs
from tonnage_sim.api.prompts import output_limit
from tonnage_sim.api.sampling import check_sampling, stop_rules
from tonnage_sim.api.service import Service
from tonnage_sim.api.stream import Stream
from tonnage_sim.api.usage import Usage, completion_tokens, created_tokens
from tonnage_sim.engine.sample import Sample
from tonnage_sim.http1.exchange import Exchange
from tonnage_sim.http1.message import Request, Response, json_response


class Chat:
    """The handler."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, request: Request, exchange: Exchange) -> Response | None:
        """Answer one request, whole or as a stream."""
        service = self._service
        body = chat_request(read_json(request), request)
        model, adapter = service.models.resolve(body.model)
        messages = read_messages(body.messages, service.models.base)
        prompt = self._prompt(body, messages)
        ask = self._ask(body, prompt, adapter.name if adapter else None, service.priority(request, body.priority))
        look = self._look(body, request, model, prompt, messages)
        await service.handover.bring(body.kv_transfer_params, [ask])
        if body.stream:
            self._stream(exchange, ask, look)
            return None
        collect = Collect(exchange, service.faults)
        prepared = service.generator.prepare([ask], collect)
        samples = [sample for _, sample in prepared]
        collect.start(samples, lambda: service.generator.abort(prepared))
        service.generator.submit(prepared)
        await collect.wait()
        top_prompt = body.top_logprobs if body.echo and body.prompt_logprobs is None else body.prompt_logprobs
        whole = self._whole(look, samples, collect, top_prompt)
        whole["kv_transfer_params"] = service.handover.offer(
            body.kv_transfer_params, samples, collect.reasons[samples[0]]
        )
        return json_response(whole)

    def _prompt(self, body: ChatRequest, messages: list[Turn]) -> Sequence[int]:
        reader = self._service.prompts
        truncate = body.truncate_prompt_tokens
        reader.check_request(body.output_limit, body.limit_name, truncate)
        for message in messages:
            reader.check_text(message.text, truncate)
        tokens = render(
            messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final=body.continue_final_message,
        )
        return reader.rendered(tokens, truncate, body.truncation_side)

    def _ask(self, body: ChatRequest, prompt: Sequence[int], adapter: str | None, priority: int) -> Ask:
        service = self._service
        limit = output_limit(service.prompts.max_model_len, body.output_limit, len(prompt))
        check_sampling(body, limit, body.top_logprobs)
        return Ask(
            prompt=prompt,
            rules=stop_rules(body, limit),
            n=1 if body.n is None else body.n,
            adapter=adapter,
            salt=service.new_id() if body.echo or body.prompt_logprobs is not None else body.cache_salt,
            seed=body.seed,
            priority=priority,
        )

    def _look(
        self, body: ChatRequest, request: Request, model: str, prompt: Sequence[int], messages: list[Turn]
    ) -> ChatLook:
        role = "assistant" if body.add_generation_prompt else messages[-1].role
        return ChatLook(
            request_id=self._service.request_id("chatcmpl", request, body.request_id),
            created=self._service.created(),
            model=model,
            fingerprint=self._service.fingerprint,
            prompt=prompt,
            n=1 if body.n is None else body.n,
            role=role,
            echo=messages[-1].text if body.echo and messages[-1].role == role else "",
            logprobs=body.top_logprobs if body.logprobs else None,
            token_ids=bool(body.return_token_ids),
            tokens_as_ids=bool(body.return_tokens_as_token_ids),
            prompt_text=bool(body.return_prompt_text),
            include_usage=body.include_usage,
            continuous_usage=body.continuous_usage,
        )

    def _stream(self, exchange: Exchange, ask: Ask, look: ChatLook) -> None:
        generator = self._service.generator

        def usage(samples: Sequence[Sample], cached: int | None) -> Usage:
            return self._usage(look, samples, cached)

        stream = Stream(
            exchange, self._service.loop.outbox, self._service.faults, usage if look.include_usage else None
        )
        prepared = generator.prepare([ask], stream)
        samples = [sample for _, sample in prepared]
        generator.submit(prepared)
        stream.start(samples, ChatChunks(look, exchange, samples), lambda: generator.abort(prepared))

    def _usage(self, look: ChatLook, samples: Sequence[Sample], cached: int | None) -> Usage:
        if not self._service.prompt_tokens_details:
            return Usage(len(look.prompt), completion_tokens(samples), None)
        created = created_tokens(samples[0], self._service.generator.block_size)
        return Usage(len(look.prompt), completion_tokens(samples), cached or 0, created)

    def _whole(self, look: ChatLook, samples: list[Sample], collect: Collect, top_prompt: int | None) -> dict[str, Any]:
        return {
            "id": look.request_id,
            "object": "chat.completion",
            "created": look.created,
            "model": look.model,
            "choices": [self._choice(look, sample, collect.reasons[sample]) for sample in samples],
            "service_tier": None,
            "system_fingerprint": look.fingerprint,
            "usage": self._usage(look, samples, samples[-1].cached_tokens).whole(),
            "prompt_logprobs": None if top_prompt is None else prompt_logprobs(look.prompt, top_prompt),
            "prompt_token_ids": list(look.prompt) if look.token_ids else None,
            "prompt_text": look.shown_prompt(),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    @staticmethod
    def _choice(look: ChatLook, sample: Sample, reason: str) -> dict[str, Any]:
        answer = list(sample.output.token_ids[: sample.produced])
        message = {
            "role": look.role,
            "content": look.echo + sample.output.text_until(sample.produced),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        return {
            "index": sample.index,
            "message": message,
            "logprobs": None
            if look.logprobs is None
            else chat_logprobs(answer, look.logprobs, as_ids=look.tokens_as_ids),
            "finish_reason": reason,
            "stop_reason": sample.output.stop_reason if reason == "stop" else None,
            "token_ids": answer if look.token_ids else None,
            "routed_experts": None,
        }
