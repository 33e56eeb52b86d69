"""The entry point `vllm.general_plugins`: `vllm serve PATH --load-format tonnage`."""


def register() -> None:
    """Called by vLLM in each of its processes, before it reads its arguments; may be called several times."""
    from tonnage_coldstart.loader.vllm_format import register_format

    register_format()
