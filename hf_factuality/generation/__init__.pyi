# Public names, which load on first use.
from hf_factuality.generation.base import ChatAnswer as ChatAnswer, ChatModel as ChatModel, ChatRequest as ChatRequest
from hf_factuality.generation.cache import AnswerCache as AnswerCache
from hf_factuality.generation.client import ChatClient as ChatClient
from hf_factuality.generation.local import LocalChat as LocalChat, bind_policy as bind_policy
from hf_factuality.generation.sampling import SamplingConfig as SamplingConfig
from hf_factuality.generation.scores import ScoreClient as ScoreClient
from hf_factuality.generation.sureness import (
    SURE_WORDS as SURE_WORDS,
    SureWords as SureWords,
    answers_with_probability as answers_with_probability,
    measure_sureness as measure_sureness,
)
from hf_factuality.generation.transport import RetryPolicy as RetryPolicy, ServerError as ServerError
from hf_factuality.generation.vllm import VLLMChat as VLLMChat
