# Public names, which load on first use.
from hf_factuality.chat.base import ChatAnswer as ChatAnswer, ChatModel as ChatModel, ChatRequest as ChatRequest
from hf_factuality.chat.cache import AnswerCache as AnswerCache
from hf_factuality.chat.client import ChatClient as ChatClient
from hf_factuality.chat.local import LocalChat as LocalChat, bind_policy as bind_policy
from hf_factuality.chat.scores import ScoreClient as ScoreClient
from hf_factuality.chat.sureness import (
    SURE_WORDS as SURE_WORDS,
    SureWords as SureWords,
    measure_sureness as measure_sureness,
)
from hf_factuality.chat.transport import RetryPolicy as RetryPolicy, ServerError as ServerError
from hf_factuality.chat.vllm import VLLMChat as VLLMChat
