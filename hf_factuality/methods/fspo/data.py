"""Reader of the FSPO training files: takes the hand-written chat markup off the questions and renders them anew.

The files store each prompt as one user message that holds a whole conversation, written for one model family. Here the
question is rendered with the chat template of the model that is trained, as a string that ends in an opened `<think>`:
TRL adds a generation prompt to every conversational prompt, so only a string can start the turn of the assistant.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.data.prompts import PREFILL, instructions
from hf_factuality.data.reading import Rows, read_parts
from hf_factuality.errors import DataError
from hf_factuality.verifiers._math import gsm8k_match, math_match
from hf_factuality.verifiers.base import evidence_passages
from hf_factuality.verifiers.judges.gold import RULES


if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

_STYLES = ("auto", "instruct", "base")
_EVIDENCE_COLUMNS = ("knowledge", "evidence", "context")

_BASE_OPENING = "This is a conversation between a user and an assistant."
# Each takes one question out of one kind of markup: what the markup adds around it, and not a character of the question.
# The user's header is the first in the text and the assistant's the last, whatever the question may quote. The files of
# MATH and GSM8K do not close the turn of the user.
_MARKUP = {
    "chatml": re.compile(
        r"\A(?:<\|im_start\|>system\n(?P<system>.*?)<\|im_end\|>\n)?<\|im_start\|>user\n(?P<question>.*)"
        r"\n<\|im_start\|>assistant\b",
        re.DOTALL,
    ),
    "llama3": re.compile(
        r"\A(?:<\|begin_of_text\|>)?"
        r"(?:<\|start_header_id\|>system<\|end_header_id\|>\s*(?P<system>.*?)<\|eot_id\|>\s*)?"
        r"<\|start_header_id\|>user<\|end_header_id\|>\n{0,2}(?P<question>.*)"
        r"<\|start_header_id\|>assistant<\|end_header_id\|>",
        re.DOTALL,
    ),
    "conversation": re.compile(
        r"\A(?P<system>A conversation between User and Assistant.*?)\n+User: (?P<question>.*)\nAssistant:", re.DOTALL
    ),
}
_END_OF_TURN = {
    "chatml": re.compile(r"\n?<\|im_end\|>\Z"),
    "llama3": re.compile(r"\n?<\|eot_id\|>\n*\Z|\n\Z"),
    "conversation": re.compile(r"(?!)"),
}
_TURN = re.compile(r"<\|im_start\|>|<\|start_header_id\|>")


@dataclass(frozen=True)
class ParsedPrompt:
    """What a stored prompt says.

    `question` holds the candidate answers of a HaluEval row too. `style` is `"instruct"` (chat markup or messages), `"base"`
    (a conversation in plain text), or `None` for plain text. `system` are the instructions before the question, if any.
    """

    question: str
    style: str | None = None
    system: str | None = None


def parse_prompt(prompt: str | Sequence[Mapping[str, Any]]) -> ParsedPrompt:
    """Take the question out of a stored prompt.

    Reads ChatML, Llama 3 headers and the conversation between "User" and "Assistant" of base models, each written into
    one message or string; real messages (`role`, `content`); and plain text, which is taken as the question. Raises
    `DataError` for neither text nor messages, no message of the user, or several turns.
    """
    system = None
    messages = not isinstance(prompt, str)
    if messages:
        try:
            turns = [(message["role"], message["content"]) for message in prompt]
        except (TypeError, KeyError):
            raise DataError(f"a prompt is a string or a list of messages, got {prompt!r:.200}") from None
        system = next((content for role, content in turns if role == "system"), None)
        prompt = next((content for role, content in reversed(turns) if role == "user"), None)
        if not isinstance(prompt, str):
            raise DataError(f"a prompt needs a message of the user with text, got {[role for role, _ in turns]}")
    for name, pattern in _MARKUP.items():
        match = pattern.match(prompt)
        if match:
            question = _END_OF_TURN[name].sub("", match["question"])
            if name != "conversation" and _TURN.search(question):
                raise DataError(f"the prompt holds several turns, but one question is wanted: {prompt!r:.200}")
            return ParsedPrompt(question, "base" if name == "conversation" else "instruct", match["system"])
    return ParsedPrompt(prompt, "instruct" if messages and system is not None else None, system)


def load_fspo(
    train_files: str | Path | Sequence[str | Path] | None = None,
    dataset_name: str | None = None,
    dataset_config: str | None = None,
    split: str = "train",
    tokenizer: Any = None,
    **settings: Any,
) -> Dataset:
    """Load the FSPO files, or a dataset with the same columns, as prompts for GRPO.

    Args:
        train_files (`str`, `Path` or a list of them, *optional*):
            Parquet, JSON or JSON Lines files; their columns may differ. They are read whole, whatever `split` says.
        dataset_name (`str`, *optional*):
            Name on the Hub, or folder, of a dataset; give either this or `train_files`.
        dataset_config (`str`, *optional*), split (`str`, *optional*, defaults to `"train"`):
            Configuration and split of `dataset_name`.
        tokenizer, settings:
            See [`prepare_rows`].

    Returns:
        `datasets.Dataset`: in the order of the files; see [`prepare_rows`].

    Raises:
        `DataError`: a file is missing or unreadable, or the rows cannot be trained on.

    Source: files of nusnlp/FSPO (arXiv 2505.24630).
    """
    parts = _Parts(read_parts(train_files, dataset_name, dataset_config, split))
    return prepare_rows(parts, tokenizer=tokenizer, name="", **settings)  # each part has a name of its own


class _Parts(list[tuple[str, Rows]]):
    """Rows of several files, each with the name that error messages call it."""


def prepare_rows(
    dataset: Dataset,
    *,
    tokenizer: Any = None,
    style: str = "auto",
    default_data_source: str | None = None,
    known_sources: Collection[str] | None = None,
    system_prompt: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    empty_answers: str = "error",
    name: str = "the dataset",
) -> Dataset:
    """Check the rows of a dataset and render their prompts.

    Args:
        dataset (`datasets.Dataset`):
            Rows with a column `question` or `prompt` (see [`parse_prompt`]); `answer` (text or a list of texts) or
            `reward_model` with `ground_truth`; `data_source`; and, if there is evidence, `knowledge`, `evidence` or
            `context` (text or a list of texts).
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            Tokenizer or processor of the model that is trained. Without it, prompts are messages.
        style (`str`, *optional*, defaults to `"auto"`):
            `"instruct"`: system and user message, rendered with the chat template. `"base"`: plain text. `"auto"`:
            `"base"` for a tokenizer without chat template, otherwise `"instruct"`.
        default_data_source (`str`, *optional*):
            Data source of rows that have none.
        known_sources (`Collection[str]`, *optional*):
            Data sources that the reward can score, as its `scorers`; others are refused. Of a mapping, a source that is scored
            as mathematics is asked for a number.
        system_prompt (`str`, *optional*):
            Instructions instead of the own ones, which depend on the kind of question.
        chat_template_kwargs (`Mapping[str, Any]`, *optional*):
            Passed to `apply_chat_template`.
        empty_answers (`str`, *optional*, defaults to `"error"`):
            `"error"` refuses a row with an empty gold answer, `"drop"` leaves such rows out and logs how many. Two rows of
            the published file of SimpleRL have none.
        name (`str`, *optional*, defaults to `"the dataset"`):
            What error messages call the dataset.

    Returns:
        `datasets.Dataset`: with the columns `prompt` (text that ends in `<think>`, which TRL tokenizes with special
        tokens; messages if `tokenizer` is `None` and `style` is not `"base"`), `question` (text, with the candidate
        answers of a HaluEval row), `answer` (text, or a list of texts in every row), `evidence` (list of texts, empty
        where there is none) and `data_source`.

    Raises:
        `DataError`: the rows cannot be trained on, or `style` needs what the tokenizer lacks; names value and remedy.
    """
    parts = dataset
    if not isinstance(dataset, _Parts):
        if not hasattr(dataset, "column_names") or not hasattr(dataset, "__len__") or isinstance(dataset, Mapping):
            raise DataError(
                f"{name}: needs a Dataset, got {type(dataset).__name__}; choose one split, and do not stream it"
            )
        parts = [(name, list(enumerate(dataset)))]
    if empty_answers not in ("error", "drop"):
        raise DataError(f"empty_answers must be 'error' or 'drop', got {empty_answers!r}")
    render = _Renderer(tokenizer, style, system_prompt, chat_template_kwargs)
    rows, empty = [], []
    for name, part in parts:
        if not part:
            raise DataError(f"{name}: has no rows; check the file or the split")
        before = len(rows)
        for number, row in part:
            place = f"{name}, row {number}"
            if not isinstance(row, Mapping):
                raise DataError(f"{place}: must be an object with the columns as keys, got {row!r:.100}")
            question, answer = _question(row, place), _answer(row, place)
            source = row.get("data_source") or default_data_source
            if not isinstance(source, str):
                raise DataError(
                    f"{place}: data_source must be text, got {source!r}; say it for all such rows by "
                    "`default_data_source`"
                )
            if known_sources is not None and source not in known_sources:
                raise DataError(
                    f"{place}: unknown data_source {source!r}; known are {sorted(known_sources)}: rename it, or say how it "
                    f"is scored, by `scorers` {source}=RULE or FSPOAnswerReward(scorers={{{source!r}: RULE}}); a RULE is one "
                    f"of {list(RULES)}"
                )
            if answer:
                numeric = isinstance(known_sources, Mapping) and known_sources[source] in (math_match, gsm8k_match)
                prompt = render(question, "MATH" if numeric else source)
                rows.append((prompt, question, answer, _evidence(row, place), source))
            elif empty_answers == "drop":
                empty.append(place)
            else:
                raise DataError(
                    f"{place}: the gold answer is empty (question: {question!r:.80}, columns: {sorted(row)}); correct the "
                    "row, or leave such rows out with empty_answers='drop'"
                )
        if len(rows) == before:
            raise DataError(f"{name}: every row has an empty gold answer; fill the column 'answer'")
    if empty:
        logger.warning("left out %d rows with an empty gold answer: %s", len(empty), empty[:20])
    return _to_dataset(rows)


def _to_dataset(rows: list[tuple]) -> Dataset:
    from datasets import Dataset, Features, List, Value

    text = Value("string")
    prompts, questions, answers, evidence, sources = map(list, zip(*rows, strict=True))
    lists = any(isinstance(answer, list) for answer in answers)
    if lists:
        answers = [[answer] if isinstance(answer, str) else answer for answer in answers]
    return Dataset.from_dict(
        {"prompt": prompts, "question": questions, "answer": answers, "evidence": evidence, "data_source": sources},
        features=Features(
            prompt=text if isinstance(prompts[0], str) else List({"role": text, "content": text}),
            question=text,
            answer=List(text) if lists else text,
            evidence=List(text),
            data_source=text,
        ),
    )


def _question(row: Mapping[str, Any], place: str) -> str:
    column, question = "question", row.get("question")
    if row.get("prompt") is not None:
        try:
            parsed = parse_prompt(row["prompt"])
        except DataError as error:
            raise DataError(f"{place}: {error}") from None
        # Where the markup is known, the prompt shows what the column lacks: the candidate answers of HaluEval.
        if parsed.style is not None or "question" not in row:
            column, question = "prompt", parsed.question
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"{place}: the {column} must be non-empty text, got {question!r}; columns: {sorted(row)}")
    return question


def _answer(row: Mapping[str, Any], place: str) -> str | list[str]:
    answer = row.get("answer")
    if answer is None and isinstance(row.get("reward_model"), Mapping):
        answer = row["reward_model"].get("ground_truth")
    if answer is None:
        return ""
    golds = answer if isinstance(answer, list) else [answer]
    wrong = next((gold for gold in golds if not isinstance(gold, str)), None)
    if wrong is not None:
        raise DataError(f"{place}: the gold answer must be text or a list of texts, got {wrong!r}; use str")
    golds = [gold for gold in golds if gold.strip()]
    return golds if isinstance(answer, list) else (golds or [""])[0]


def _evidence(row: Mapping[str, Any], place: str) -> list[str]:
    column = next((column for column in _EVIDENCE_COLUMNS if row.get(column)), None)
    passages = evidence_passages(row[column]) if column else ()
    if passages is None:
        raise DataError(f"{place}: {column} must be text or a list of texts, got {row[column]!r:.200}")
    return list(passages)


class _Renderer:
    """Writes questions as prompts, in one style for all rows."""

    def __init__(self, tokenizer: Any, style: str, system_prompt: str | None, chat_template_kwargs: Any):
        if style not in _STYLES:
            raise DataError(f"unknown style {style!r}; choose one of {list(_STYLES)}")
        has_template = getattr(tokenizer, "chat_template", None) is not None
        if style == "instruct" and tokenizer is not None and not has_template:
            raise DataError("style 'instruct' needs a tokenizer with a chat template; set one, or use style 'base'")
        if style == "auto":
            style = "instruct" if tokenizer is None or has_template else "base"
            if style == "base":
                logger.warning("the tokenizer has no chat template: prompts are plain text (style 'base')")
        self.tokenizer, self.style, self.system_prompt = tokenizer, style, system_prompt
        self.kwargs = dict(chat_template_kwargs or {})
        self.bos = _bos_to_strip(tokenizer)
        self.system_role = tokenizer is None or style == "base" or self._takes_system()

    def __call__(self, question: str, data_source: str) -> str | list[dict[str, str]]:
        system = self.system_prompt or instructions(question, data_source)
        if self.style == "base":
            return f"{_BASE_OPENING} {system}\n\nUser: {question}\nAssistant: {PREFILL}"
        if self.system_role:
            messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        else:
            messages = [{"role": "user", "content": f"{system}\n\n{question}"}]
        if self.tokenizer is None:
            return messages
        text = self._template(messages)
        # TRL tokenizes text with special tokens, and so would add a second one.
        if self.bos and text.startswith(self.bos):
            text = text[len(self.bos) :]
        # Templates of reasoning models open the tag themselves.
        return text if text.rstrip().endswith("<think>") else text + PREFILL

    def _template(self, messages: list[dict[str, str]]) -> str:
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **self.kwargs)

    def _takes_system(self) -> bool:
        """Whether the chat template shows a system message: some refuse it (Gemma), some leave it out."""
        from jinja2 import TemplateError

        try:
            text = self._template([{"role": "system", "content": "PROBE"}, {"role": "user", "content": "question"}])
        except TemplateError:
            return False
        return "PROBE" in text


def _bos_to_strip(tokenizer: Any) -> str | None:
    """The token that the tokenizer puts in front of every text by itself."""
    if tokenizer is None:
        return None
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    ids = list(tokenizer("")["input_ids"])
    added_bos = bool(ids) and ids[0] == tokenizer.bos_token_id
    if ids[added_bos:] and ids[-1] == tokenizer.eos_token_id:
        raise DataError(
            f"the tokenizer ends every text with {tokenizer.eos_token!r}, so no prompt could be continued; load it with "
            "add_eos_token=False"
        )
    return tokenizer.bos_token if added_bos else None
