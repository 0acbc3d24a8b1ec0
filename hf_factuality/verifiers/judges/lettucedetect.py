"""LettuceDetect: a token classifier that marks the exact characters of an answer that its passages do not support.

Prompts, the order of question, passages and answer, the grouping of passages and the rule for tokens are those of the released
code (arXiv 2502.17125, `KRLabsOrg/LettuceDetect`). Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hf_factuality.reading.completion import without_citations
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import JudgeInput, Judgement, VerifierInput
from hf_factuality.verifiers.extractors.sentences import SentenceExtractor
from hf_factuality.verifiers.judges.pairs import (
    ClassifierJudge,
    sentence_bounds,
    windows_of,
    with_broken_tokens,
    without_special_tokens,
)
from hf_factuality.verifiers.pipeline import VerifierPipeline


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


LETTUCEDETECT_MODEL = "KRLabsOrg/lettucedect-large-modernbert-en-v1"
# By language: what stands before a passage, the prompt of an answer to a question, and that of one without (a summary). Spaces
# and line feeds at their ends are the release's.
LETTUCEDETECT_PROMPTS: Mapping[str, tuple[str, str, str]] = MappingProxyType({
    "en": (
        "passage",
        "Briefly answer the following question:\n"
        "${question}\n"
        "Bear in mind that your response should be strictly based on the following ${num_passages} passages:\n"
        "${context}\n"
        "In case the passages do not contain the necessary information to answer the question, please reply with: \"Unable to answer based on given passages.\"\n"
        "output:",
        "Summarize the following text:\n"
        "${text}\n"
        "output:",
    ),
    "de": (
        "Passage",
        "Beantworte die folgende Frage kurz:\n"
        "${question}\n"
        "Beachte, dass deine Antwort nur auf den folgenden ${num_passages} Passagen basieren soll:\n"
        "${context}\n"
        "Falls die Passagen nicht die notwendigen Informationen zur Beantwortung der Frage enthalten, antworte bitte mit: \"Kann aufgrund der gegebenen Passagen nicht beantwortet werden.\"\n"
        "Ausgabe:",
        "Fasse den folgenden Text zusammen:\n"
        "${text}\n"
        "Ausgabe:\n",
    ),
    "fr": (
        "passage",
        "Réponds brièvement à la question suivante :\n"
        "${question}\n"
        "Note que ta réponse doit être basée uniquement sur les ${num_passages} passages suivants :\n"
        "${context}\n"
        "Si les passages ne contiennent pas les informations nécessaires pour répondre à la question, réponds s'il te plaît par : \"Impossible de répondre sur la base des passages fournis.\"\n"
        "Sortie : ",
        "Résume le texte suivant :\n"
        "${text}\n"
        "Sortie : ",
    ),
    "es": (
        "pasaje",
        "Responde a la siguiente pregunta brevemente:\n"
        "${question}\n"
        "Ten en cuenta que tu respuesta debe basarse únicamente en los siguientes ${num_passages} pasajes:\n"
        "${context}\n"
        "Si los pasajes no contienen la información necesaria para responder a la pregunta, por favor responde con: \"No se puede responder con base en los pasajes proporcionados.\"\n"
        "Salida: ",
        "Resume el siguiente texto:\n"
        "${text}\n"
        "Salida: ",
    ),
    "it": (
        "brano",
        "Rispondi alla seguente domanda in modo breve:\n"
        "${question}\n"
        "Tieni presente che la tua risposta deve basarsi solo sui seguenti ${num_passages} passaggi:\n"
        "${context}\n"
        "Se i passaggi non contengono le informazioni necessarie per rispondere alla domanda, per favore rispondi con: \"Non può essere risposto in base ai passaggi forniti.\"\n"
        "Risposta:\n",
        "Riassumi il seguente testo:\n"
        "${text}\n"
        "Risposta: ",
    ),
    "pl": (
        "fragment",
        "Zwięźle odpowiedz na następujące pytanie:\n"
        "${question}\n"
        "Pamiętaj, że Twoja odpowiedź powinna opierać się wyłącznie na następujących ${num_passages} fragmentach:\n"
        "${context}\n"
        "Jeśli fragmenty nie zawierają informacji niezbędnych do udzielenia odpowiedzi na pytanie, odpowiedz: \"Nie można odpowiedzieć na podstawie podanych fragmentów.\"\n"
        "output: ",
        "Streść następujący tekst:\n"
        "${text}\n"
        "Wynik: ",
    ),
    "zh": (
        "段落",
        "请简短回答以下问题：\n"
        "${question}\n"
        "请注意，您的回答应严格基于以下${num_passages}段落：\n"
        "${context}\n"
        "如果段落中不包含回答问题所需的信息，请回复：\"基于给定段落无法回答。\"\n"
        "输出：\n",
        "请总结以下文本：\n"
        "${text}\n"
        "输出：\n",
    ),
    "hu": (
        "szövegrészlet",
        "Röviden válaszolj az alábbi kérdésre:\n"
        "${question}\n"
        "Vedd figyelembe, hogy a válaszod kizárólag az alábbi ${num_passages} szövegrészletre támaszkodjon:\n"
        "${context}\n"
        "Ha a szövegrészletek nem tartalmazzák a kérdés megválaszolásához szükséges információt, válaszolj így: \"Nem tudok válaszolni a megadott szövegrészletek alapján.\"\n"
        "output:",
        "Foglalja össze az alábbi szöveget:\n"
        "${text}\n"
        "output:\n"
        "\n"
        "\n",
    ),
})  # fmt: skip
"""What the released models read before the answer, with the places `${question}`, `${num_passages}`, `${context}`, `${text}`."""
# Fewer tokens than this for the passages, and the answer does not fit the model.
_MIN_PASSAGE_TOKENS = 8


def lettucedetect_prompt(passages: Sequence[str], question: str | None, language: str = "en") -> str:
    """The text that stands before the answer: the passages, numbered, with the question if there is one."""
    word, with_question, without = LETTUCEDETECT_PROMPTS[language]
    numbered = "\n".join(f"{word} {number}: {text}" for number, text in enumerate(passages, 1))
    if question is None:
        head, tail = without.split("${text}")
        return head + numbered + tail
    before, rest = with_question.split("${question}")
    between, rest = rest.split("${num_passages}")
    middle, tail = rest.split("${context}")
    return before + question + between + str(len(passages)) + middle + numbered + tail


@dataclass(eq=False, repr=False)
class LettuceDetectJudge(ClassifierJudge):
    """Reads passages, question and answer in one pass, and gives each token of the answer a probability that it is supported.

    [`LettuceDetectVerifier`] gives the exact spans. As a [`~hf_factuality.verifiers.base.Judge`] the claim is the answer that is
    read; its score is that of its least supported token. From `threshold` on the label is `SUPPORTED`, below it
    `negative_label`: a model of two classes does not tell contradicted from not mentioned.

    Where passages and answer do not fit `max_length`, the passages are put into groups in their order, each in a prompt of its
    own, and a token counts as supported only if it is in every group, as in the release: prefer a model that reads all passages
    at once. What differs from it: a passage that is too long by itself is cut into windows of whole sentences, where the release
    cuts off the end of its prompt; an answer that leaves no room has no label.

    Args:
        model (`str` or `PreTrainedModel`, *optional*, defaults to `"KRLabsOrg/lettucedect-large-modernbert-en-v1"`):
            Model id or folder of a token classifier of two classes, 1 for what is not supported, or the loaded model.
        language (`str`, *optional*, defaults to `"en"`):
            Of the prompt: `"en"`, `"de"`, `"fr"`, `"es"`, `"it"`, `"pl"`, `"zh"` or `"hu"`, as the model was trained.
        batch_size (`int`, *optional*, defaults to `8`):
            Answers in a forward pass.
        max_length (`int`, *optional*, defaults to `4096`):
            Tokens of passages, question and answer together.
        tokenizer, revision, token, device, dtype, threshold, negative_label (*optional*):
            See [`~hf_factuality.verifiers.judges.nli.NLIJudge`].

    Raises:
        `ValueError`: an argument is out of range, the model has not two classes, its tokenizer cannot tell characters (it is
            none of the library `tokenizers`), or see [`~hf_factuality.verifiers.judges.nli.NLIJudge`].
    """

    model: str | PreTrainedModel = LETTUCEDETECT_MODEL
    _: KW_ONLY
    language: str = "en"
    batch_size: int = 8
    max_length: int = 4096

    architecture = "AutoModelForTokenClassification"
    bfloat16_on_gpu = True

    def __post_init__(self):
        if self.language not in LETTUCEDETECT_PROMPTS:
            raise ValueError(f"language must be one of {[*LETTUCEDETECT_PROMPTS]}, got {self.language!r}")
        super().__post_init__()
        name, classes = self.model.config.name_or_path, self.model.config.num_labels
        if classes != 2:
            raise ValueError(f"{name!r} has {classes} classes, LettuceDetect's models have 2")
        if not self.tokenizer.is_fast:
            raise ValueError(f"the tokenizer of {name!r} does not tell the characters of its tokens; take a fast one")
        self.max_length = min(self.max_length, getattr(self.model.config, "max_position_embeddings", None) or 512)

    def config(self) -> dict[str, Any]:
        """See [`~hf_factuality.verifiers.judges.pairs.ClassifierJudge.config`]."""
        return {**super().config(), "language": self.language}

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        """One [`~hf_factuality.verifiers.base.Judgement`] per input, in order."""
        return list(map(self._judgement, inputs, self.tokens([(it.claim, it.question, it.evidence) for it in inputs])))

    def _judgement(self, item: JudgeInput, tokens: list[tuple[int, int, float]] | None) -> Judgement:
        if not any(text.strip() for text in item.evidence):
            return Judgement(Label.UNVERIFIABLE)
        if tokens is None:
            return Judgement(None)
        score = min((share for _, _, share in tokens), default=1.0)
        return Judgement(Label.SUPPORTED if score >= self.threshold else self.negative_label, score)

    def tokens(
        self, answers: Sequence[tuple[str, str | None, Sequence[str]]]
    ) -> list[list[tuple[int, int, float]] | None]:
        """Of (answer, question, passages): first and end character of each token of the answer, and the probability that it is
        supported; `None` where the answer does not fit, or the output was not finite."""
        plain = [self._defused(*answer) for answer in answers]
        asked = [(number, prompt) for number, item in enumerate(plain) for prompt in self._prompts(*item) or ()]
        found: list[list[tuple[int, int, float]] | None] = [None] * len(answers)
        failed: set[int] = set()
        for row, tokens in self._read([(prompt, plain[number][0]) for number, prompt in asked]):
            number = asked[row][0]
            known = found[number]
            if tokens is None:
                failed.add(number)
            elif known is None:
                found[number] = tokens
            else:  # supported only where every group of passages supports it
                found[number] = [(a, b, min(p, q)) for (a, b, p), (_, _, q) in zip(known, tokens, strict=True)]
        return [None if number in failed else tokens for number, tokens in enumerate(found)]

    def _defused(
        self, answer: str, question: str | None, passages: Sequence[str]
    ) -> tuple[str, str | None, list[str]]:
        """Without special tokens; the answer keeps its characters."""
        question = None if question is None else without_special_tokens(question, self.tokenizer)
        texts = [without_special_tokens(text, self.tokenizer) for text in passages if text.strip()]
        return with_broken_tokens(answer, self.tokenizer), question, texts

    def _prompts(self, answer: str, question: str | None, passages: list[str]) -> list[str] | None:
        """One prompt, or one for each group of passages; `None` if the answer leaves no room."""
        if not passages:
            return None
        room = self.max_length - self._size(answer) - self.tokenizer.num_special_tokens_to_add(pair=True)
        whole = lettucedetect_prompt(passages, question, self.language)
        if self._size(whole) <= room:
            return [whole]
        room -= self._size(lettucedetect_prompt([""], question, self.language))
        word = LETTUCEDETECT_PROMPTS[self.language][0]
        longest = room - 2  # a text may gain a token or two beside others
        if longest < _MIN_PASSAGE_TOKENS:
            return None
        groups: list[list[str]] = []
        used = 0
        for number, text in enumerate(passages, 1):
            for piece in self._pieces(text, longest):
                size = self._size(f"{word} {number}: {piece}")
                if not groups or used + size + 1 > room:  # the line feed between two
                    groups.append([piece])
                    used = size
                else:
                    groups[-1].append(piece)
                    used += size + 1
        return [lettucedetect_prompt(group, question, self.language) for group in groups]

    def _pieces(self, text: str, room: int) -> list[str]:
        """A passage, or windows of it that fit."""
        if self._size(text) <= room:
            return [text]
        bounds = sentence_bounds(text)
        sizes = self._count([text[start:end] for start, end in bounds])
        sentences = [(start, end, size) for (start, end), size in zip(bounds, sizes, strict=True)]
        return windows_of(text, [piece for sentence in sentences for piece in self._cut(text, sentence, room)], room)

    def _size(self, text: str) -> int:
        return self._count([text])[0]

    def _read(self, pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[int, list[tuple[int, int, float]] | None]]:
        """Number of a pair of prompt and answer, and the tokens of the answer."""
        if not pairs:
            return
        encoded = self.tokenizer(
            [prompt for prompt, _ in pairs],
            [answer for _, answer in pairs],
            truncation="only_first",  # prompts fit, but for a token or two that texts gain beside each other
            max_length=self.max_length,
            return_offsets_mapping=True,
            return_token_type_ids=False,
        )
        offsets = encoded.pop("offset_mapping")
        left = self.tokenizer.padding_side == "left"
        for rows, logits in self._passes(encoded):
            width = logits.shape[1]
            shares = logits.softmax(-1)[..., 0].tolist()
            for row, probabilities in zip(rows, shares, strict=True):
                first = width - len(offsets[row]) if left else 0
                tokens = [
                    (*offsets[row][place], probabilities[first + place])
                    for place, part in enumerate(encoded.sequence_ids(row))
                    if part == 1 and offsets[row][place][0] < offsets[row][place][1]
                ]
                yield row, tokens if all(share == share for _, _, share in tokens) else None


def unsupported_spans(
    text: str, tokens: Sequence[tuple[int, int, float]], threshold: float = 0.5
) -> list[tuple[int, int, float]]:
    """First and end character of each run of tokens below `threshold`, without white space at its ends, and the least
    probability of support in it."""
    runs: list[tuple[int, int, float]] = []
    open_run = False
    for start, end, share in tokens:
        if share >= threshold:
            open_run = False
        elif open_run:
            first, _, least = runs[-1]
            runs[-1] = (first, end, min(least, share))
        else:
            runs.append((start, end, share))
            open_run = True
    found = []
    for start, end, share in runs:
        inside = text[start:end]
        start += len(inside) - len(inside.lstrip())
        end = start + len(inside.strip())
        if end > start:
            found.append((start, end, share))
    return found


class LettuceDetectVerifier(VerifierPipeline):
    """The exact characters of a completion that its passages do not support, by [`LettuceDetectJudge`].

    Spans: each run of unsupported tokens, with `negative_label`; and each sentence that no run touches, `SUPPORTED`, or
    `NO_FACT` where it states nothing. The score is that of the least supported token. What stands beside a run in its sentence
    has no span. A completion that does not fit the model has one span without label.

    The whole completion is read at once, so its sentences are not judged one by one, and it cannot be saved as a pipeline. Its
    `judge` can: it labels whole claims.

    Args:
        model (`str` or `PreTrainedModel`, *optional*, defaults to `"KRLabsOrg/lettucedect-large-modernbert-en-v1"`):
            See [`LettuceDetectJudge`].
        tokenizer (`PreTrainedTokenizerBase`, *optional*), **kwargs:
            See [`LettuceDetectJudge`].

    Example:

        >>> verifier = LettuceDetectVerifier()
        >>> item = VerifierInput("Ada was born in Leeds in 1880.", "Where?", ("Ada Hale was born in Leeds.",))
        >>> [span.text(item.completion) for span in verifier.verify([item])[0].spans]  # doctest: +SKIP
        ['in 1880']
    """

    judge: LettuceDetectJudge

    def __init__(
        self,
        model: str | PreTrainedModel = LETTUCEDETECT_MODEL,
        tokenizer: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ):
        judge = LettuceDetectJudge(model, tokenizer, **kwargs)
        super().__init__(SentenceExtractor(judge.language), judge)

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`~hf_factuality.spans.Verification`] per input, in order."""
        asked = [(it.completion, it.question, [without_citations(text) for text in it.evidence]) for it in inputs]
        sentences = self.extractor.extract(inputs)
        return list(map(self._verification, inputs, sentences, self.judge.tokens(asked)))

    def _verification(
        self, item: VerifierInput, sentences: list[LabeledSpan], tokens: list[tuple[int, int, float]] | None
    ) -> Verification:
        if not item.completion.strip():
            return Verification()
        if tokens is None:
            label = None if any(text.strip() for text in item.evidence) else Label.UNVERIFIABLE
            return Verification((LabeledSpan(0, len(item.completion), label),))
        runs = unsupported_spans(item.completion, tokens, self.judge.threshold)
        spans = [LabeledSpan(start, end, self.judge.negative_label, share) for start, end, share in runs]
        for sentence in sentences:
            if any(start < sentence.end and sentence.start < end for start, end, _ in runs):
                continue
            own = [share for start, end, share in tokens if start < sentence.end and sentence.start < end]
            label = sentence.label or Label.SUPPORTED
            score = min(own, default=None) if label is Label.SUPPORTED else None
            spans.append(LabeledSpan(sentence.start, sentence.end, label, score))
        return Verification(tuple(sorted(spans, key=lambda span: span.start)))
