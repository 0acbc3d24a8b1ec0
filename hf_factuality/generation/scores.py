"""Client of classifiers and reward models on a server."""

from __future__ import annotations

import json
import math
from typing import Any

from hf_factuality.generation.base import ChatAnswer, ChatRequest
from hf_factuality.generation.client import ChatClient


class ScoreClient(ChatClient):
    """A [`ChatClient`] whose answers are the numbers of a classifier or a reward model, one per class, as JSON.

    Asks `/classify`, as `vllm serve MODEL --runner pooling` has it. A message without a role is a text that is sent as it is;
    others are put into the chat template by the server.

    Args:
        base_url (`str`):
            Address of the API, with or without `/v1`.
        model (`str`):
            Name of the model on the server.
        activation (`bool`, *optional*, defaults to `False`):
            Whether the numbers are probabilities instead of logits.
        **kwargs:
            The other arguments of [`ChatClient`].
    """

    _path = "/classify"
    _models_path = "/v1/models"
    _hello = ChatRequest((("", "Hello."),))

    def __init__(self, base_url: str, model: str, *, activation: bool = False, **kwargs: Any):
        super().__init__(base_url.rstrip("/").removesuffix("/v1"), model, **kwargs)
        self.extra_body = {"use_activation": activation, **self.extra_body}

    def _body(self, request: ChatRequest, *_: Any) -> dict[str, Any]:
        whole = super()._body(request)
        body = {name: whole[name] for name in ("model", "messages", *self.extra_body) if name in whole}
        if not request.messages[0][0]:
            body["input"] = body.pop("messages")[0]["content"]
        return body

    def _read(self, payload: Any) -> ChatAnswer:
        (item,) = payload["data"]
        numbers = item["probs"]
        if not numbers or not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
            raise ValueError("no finite numbers")
        return ChatAnswer(json.dumps(list(map(float, numbers))))
