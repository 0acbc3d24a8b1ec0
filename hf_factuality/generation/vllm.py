"""vLLM in this process, behind the same protocol as a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_factuality.generation.base import ChatAnswer, ChatRequest


class VLLMChat:
    """Chat requests answered by an engine of vLLM in this process. Choices and log-probabilities are not asked for.

    Args:
        model (`vllm.LLM` or `str`):
            The engine, or what to load into one.
        revision (`str`, *optional*):
            Revision of a name on the Hub.
        **kwargs:
            Further arguments of `vllm.LLM`, for example `tensor_parallel_size=4`.

    Raises:
        `ImportError`: vLLM is not installed.
    """

    def __init__(self, model: Any, revision: str | None = None, **kwargs: Any):
        if isinstance(model, (str, Path)):
            try:
                from vllm import LLM
            except ImportError as error:
                raise ImportError(f"sampling with vLLM needs it installed: pip install vllm ({error})") from error
            model = LLM(str(model), revision=revision, **kwargs)
        self.engine, self.revision = model, revision

    @property
    def model(self) -> str:
        """Name of the model, or of its folder."""
        name = self.engine.llm_engine.model_config.model
        return Path(name).name if Path(name).exists() else name

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatAnswer]:
        """One [`ChatAnswer`] per request, in order."""
        from vllm import SamplingParams

        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            how = {"prefilled": request.prefilled, "template": dict(request.chat_template_kwargs)}
            groups.setdefault(json.dumps(how, sort_keys=True), []).append(number)
        answers: dict[int, ChatAnswer] = {}
        for how, numbers in groups.items():
            chosen, said = [requests[number] for number in numbers], json.loads(how)
            found = self.engine.chat(
                [[{"role": role, "content": text} for role, text in it.messages] for it in chosen],
                [
                    SamplingParams(
                        temperature=it.temperature,
                        top_p=it.top_p,
                        top_k=it.top_k or -1,
                        min_p=it.min_p,
                        max_tokens=it.max_new_tokens,
                        seed=it.seed,
                        stop=list(it.stop) or None,
                    )
                    for it in chosen
                ],
                use_tqdm=False,
                add_generation_prompt=not said["prefilled"],
                continue_final_message=said["prefilled"],
                chat_template_kwargs=said["template"] or None,
            )
            for number, output in zip(numbers, found, strict=True):
                answers[number] = ChatAnswer(output.outputs[0].text, output.outputs[0].finish_reason)
        return [answers[number] for number in range(len(requests))]
