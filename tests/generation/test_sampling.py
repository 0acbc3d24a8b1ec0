"""The settings of sampling: what is refused, and what a run has to keep the same."""

import pytest

from hf_factuality.generation import ChatRequest, SamplingConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": 0}, "`max_new_tokens` must be at least 1, got 0"),
        ({"temperature": -0.1}, "`temperature`.* -0.1"),
        ({"temperature": float("nan")}, "`temperature`.* nan"),
        ({"temperature": float("inf")}, "`temperature`.* inf"),
        ({"top_p": 0.0}, "`top_p` must be in"),
        ({"top_p": 1.1}, "`top_p`.* 1.1"),
        ({"top_k": -1}, "`top_k`.* -1"),
        ({"min_p": 1.5}, "`min_p`.* 1.5"),
        ({"num_samples": 0}, "`num_samples`.* 0"),
        ({"num_samples": 2, "temperature": 0.0}, "same completion again.*raise `temperature`"),
        ({"stop": "."}, "`stop` must be a tuple"),
        ({"stop": ("a", "")}, "`stop`"),
    ],
)
def test_what_is_out_of_range_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        SamplingConfig(**settings)
    if "num_samples" not in settings:
        with pytest.raises(ValueError, match=message):
            ChatRequest((("user", "?"),), **settings)


def test_a_request_is_one_sample_of_the_settings():
    how = {"max_new_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "stop": ("x",)}
    config = SamplingConfig(num_samples=4, seed=1, chat_template_kwargs={"a": 1}, **how)
    request = ChatRequest.of([{"role": "user", "content": "?"}], config, seed=9)
    assert request == ChatRequest((("user", "?"),), seed=9, chat_template_kwargs={"a": 1}, **how)
    assert request.num_samples == 1 and request.temperature == 0.5
    assert ChatRequest((("user", "?"),)).temperature == 0 and SamplingConfig().temperature == 1
    assert len({request, ChatRequest.of([{"role": "user", "content": "?"}], config, seed=9)}) == 1


def test_what_is_seldom_set_is_described_only_where_it_is():
    assert SamplingConfig().describe() == {
        "max_new_tokens": 256, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "num_samples": 1,
    }  # fmt: skip
    rare = {"min_p": 0.2, "seed": 0, "stop": ("x",), "chat_template_kwargs": {"a": 1}}
    assert rare.items() <= SamplingConfig(**rare).describe().items()
