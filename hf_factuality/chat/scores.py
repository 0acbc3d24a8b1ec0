"""Client of classifiers and reward models on a server."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hf_factuality.chat.base import ChatAnswer, ChatRequest
from hf_factuality.chat.client import ChatClient


# Path after the address without its "/v1", and the field that has the numbers.
ENDPOINTS = {"classify": ("/classify", "probs"), "embeddings": ("/v1/embeddings", "embedding")}


class ScoreClient(ChatClient):
    """A [`ChatClient`] whose answers are the numbers of a classifier or a reward model, one per class, as JSON.

    A message without a role is a text that is sent as it is; others are put into the chat template by the server.

    Args:
        base_url (`str`):
            Address of the API, with or without `/v1`.
        model (`str`):
            Name of the model on the server.
        endpoint (`str`, *optional*, defaults to `"classify"`):
            `"classify"` of `vllm serve MODEL --runner pooling`, or `"embeddings"` of SGLang, which takes texts only.
        activation (`bool`, *optional*, defaults to `False`):
            Whether `"classify"` gives probabilities instead of logits.
        **kwargs:
            The other arguments of [`ChatClient`].

    Raises:
        `ValueError`: an argument is out of range.

    Example:

        >>> client = ScoreClient("http://localhost:8000/v1", "Skywork/Skywork-Reward-V2-Llama-3.2-1B")
        >>> client.score([(("user", "What is 2 + 2?"), ("assistant", "4."))])
        [([24.5], None)]
    """

    _models_path = "/v1/models"
    _hello = ChatRequest((("", "Hello."),))

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        endpoint: str = "classify",
        activation: bool = False,
        extra_body: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        if endpoint not in ENDPOINTS:
            raise ValueError(f"endpoint={endpoint!r} is unknown; choose one of {list(ENDPOINTS)}")
        own = {"use_activation": activation} if endpoint == "classify" else {"encoding_format": "float"}
        address = base_url.rstrip("/").removesuffix("/v1")
        super().__init__(address, model, extra_body={**own, **(extra_body or {})}, **kwargs)
        self._settings["endpoint"] = endpoint
        self._path, self._field = ENDPOINTS[endpoint]

    def score(self, texts: Sequence[Sequence[tuple[str, str]]]) -> list[tuple[list[float], str | None]]:
        """Numbers of each list of messages, in order, and why there are none.

        Raises:
            [`ServerError`]: as of [`ChatClient.chat`].
        """
        answers = self.chat([ChatRequest(tuple(messages)) for messages in texts])
        return [([] if answer.error else json.loads(answer.text), answer.error) for answer in answers]

    def _body(self, request: ChatRequest, *_: Any) -> dict[str, Any]:
        whole = super()._body(request)
        body = {name: whole[name] for name in ("model", "messages", *self.extra_body) if name in whole}
        if not request.messages[0][0]:
            body["input"] = body.pop("messages")[0]["content"]
        return body

    def _read(self, payload: Any) -> ChatAnswer:
        (item,) = payload["data"]
        numbers = [float(number) for number in item[self._field] if not isinstance(number, str)]
        if not numbers or not all(map(math.isfinite, numbers)):
            raise ValueError("no finite numbers")
        return ChatAnswer(json.dumps(numbers))
