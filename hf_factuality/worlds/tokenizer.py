"""Tokenizers of a world: word-level (in Chinese, characters) or byte-level BPE, both with the same chat template."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hf_factuality.worlds import texts
from hf_factuality.worlds.world import World


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


TOKENIZERS = ("word", "bpe")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
PAD, BOS, EOS, UNK, USER, ASSISTANT = "<pad>", "<bos>", "<eos>", "<unk>", "<user>", "<assistant>"
BPE_SIZE = 4096
BPE_TEXTS = 20_000

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<user>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '<assistant>' }}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ raise_exception('this model knows the roles user and assistant only') }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def world_tags(world: World) -> tuple[str, ...]:
    """Tags that the texts of the world hold."""
    return (*TAGS, "<confidence>", "</confidence>") if world.config.stated else TAGS


def build_world_tokenizer(world: World, kind: str = "word") -> PreTrainedTokenizerFast:
    """A fast tokenizer that decodes to exactly the text that was encoded.

    The tags of the answer format are ordinary tokens, which stay when special tokens are skipped; the markers of the chat
    are special.

    Args:
        world ([`World`]):
            Whose texts it is for.
        kind (`str`, *optional*, defaults to `"word"`):
            `"word"`: a token is a word, a punctuation mark or a tag, with the space before it (words that begin a text
            are there without one as well); in Chinese a character. Text that the world does not hold is unknown.
            `"bpe"`: byte-level BPE, trained on the world's texts, for any text.

    Raises:
        `ValueError`: there is no such kind.
    """
    from transformers import PreTrainedTokenizerFast

    if kind not in TOKENIZERS:
        raise ValueError(f"tokenizer={kind!r} is unknown; choose one of {list(TOKENIZERS)}")
    return PreTrainedTokenizerFast(
        tokenizer_object=_word_level(world) if kind == "word" else _byte_level(world),
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNK if kind == "word" else None,
        additional_special_tokens=[USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=256 if kind == "word" else 512,
        chat_template=CHAT_TEMPLATE,
    )


def _word_level(world: World):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tags = world_tags(world)
    pieces = [PAD, BOS, EOS, UNK, USER, ASSISTANT, " ", "\n", *tags]
    if world.language.spaced_names:
        marks = [".", ",", "?", "!", *"%" * bool(world.config.stated)]
        pieces += [*marks, *texts.first_words(world), *(f" {unit}" for unit in (*tags, *marks, *texts.words(world)))]
        unit = rf" ?(?:{'|'.join(tags)}|\w+|[^\w\s])|\s"
    else:
        pieces += ["。", "，", "？", "！", *"%" * bool(world.config.stated), *texts.words(world)]
        unit = rf"{'|'.join(tags)}|[\s\S]"
    backend = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(unit), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def _byte_level(world: World):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_SIZE,
        special_tokens=[PAD, BOS, EOS, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(f"tokenizer {world.config.seed}")
    people = world.sample_people(rng, BPE_TEXTS)
    backend.train_from_iterator((texts.biography(world, person, rng) for person in people), trainer)
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in world_tags(world)])
    return backend
