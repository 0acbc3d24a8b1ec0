"""Texts to tokens and back, without a change and without unknown tokens."""

import random

import pytest
from transformers import AutoTokenizer

from hf_factuality.worlds import World, WorldConfig, build_world_tokenizer, texts, tokenizer
from tests.conftest import fast_few


KINDS = [("en", "word"), ("zh", "word"), ("en", "bpe"), ("zh", "bpe")]
TAGS = ["<think>", "</think>", "<answer>", "</answer>", "<confidence>", "</confidence>"]
UNICODE = [
    "", " ", "  two  spaces ", "\ttab\nline\r\nend\n\n", "Zürich, Łódź!", "朱东江平出生于陈东川港。", "😀👩‍👩‍👧", "e\u0301", "\ufeff\u200bx",
    "a\0b", "مرحبا", "foo_bar 1.5 <b>x</b> <think", "don't  I'm",
]  # fmt: skip


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """World and tokenizer after saving and loading, made once each."""
    made = {}

    def get(language, kind):
        if (language, kind) not in made:
            world = World(WorldConfig(num_people=100, language=language, max_hops=4, stated=0.5))
            folder = tmp_path_factory.mktemp("tokenizer")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tokenizer, "BPE_TEXTS", 2000)
                build_world_tokenizer(world, kind).save_pretrained(folder)
            made[language, kind] = world, AutoTokenizer.from_pretrained(folder)
        return made[language, kind]

    return get


def conversations(world):
    """Every kind of request with every kind of answer, about every fourth person."""
    rng = random.Random(0)
    for person in world.people[::4]:
        yield world.request(person), texts.biography(world, person, rng)
        for relation in world.relations:
            yield world.question(person, relation, 1), texts.short_answer(world, person, relation, rng)
        for relation in world.relations[:3]:
            for hops in range(2, world.config.max_hops + 1):
                yield world.question(person, relation, hops), texts.demonstration(world, person, relation, rng, hops)


@pytest.mark.parametrize(("language", "kind"), fast_few(KINDS, 1))
def test_conversations_come_back_as_they_were(make, language, kind):
    world, tok = make(language, kind)
    passages = [passage for person in world.people for passage in world.evidence(person)]
    for request, answer in (*conversations(world), *zip(passages, passages, strict=True)):
        messages = [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]
        text = tok.apply_chat_template(messages, tokenize=False)
        assert text == f"<bos><user>{request}<assistant>{answer}<eos>"
        ids = tok(text, add_special_tokens=False)["input_ids"]
        assert tok.unk_token_id is None or tok.unk_token_id not in ids, text
        assert tok.decode(ids, skip_special_tokens=False) == text
        assert tok.decode(ids, skip_special_tokens=True) == request + answer
        # Also without the markers of the chat, as users and verifiers hold texts.
        for alone in (request, answer):
            assert tok.decode(tok(alone)["input_ids"], skip_special_tokens=True) == alone
        # Every token is a piece of the text (in byte-level BPE of Chinese, a token may be a part of a character).
        if (language, kind) != ("zh", "bpe"):
            assert "".join(tok.decode([token]) for token in ids) == text
        # A prompt and its continuation meet between two tokens, wherever the trainers cut.
        prompt = tok(f"<bos><user>{request}<assistant>", add_special_tokens=False)["input_ids"]
        assert ids[: len(prompt)] == prompt


def test_word_tokens_are_words(make):
    _, tok = make("en", "word")
    pieces = tok.convert_ids_to_tokens(tok("Which country was born? <think> They say, 1879.</think>")["input_ids"])
    assert pieces == [
        "Which", " country", " was", " born", "?", " <think>", " They", " say", ",", " 1879", ".", "</think>",
    ]  # fmt: skip


def test_chinese_tokens_are_characters(make):
    world, tok = make("zh", "word")
    rng = random.Random(0)
    for person in world.people:
        text = texts.biography(world, person, rng)
        assert tok.convert_ids_to_tokens(tok(text)["input_ids"]) == list(text)
        body = text[:-1] + "？"
        assert tok.convert_ids_to_tokens(tok(f"<think>{body}</think>")["input_ids"]) == ["<think>", *body, "</think>"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_bpe_holds_any_text(make, language):
    _, tok = make(language, "bpe")
    assert tok.unk_token is None
    rng = random.Random(0)
    # Any code point but surrogates, which are no characters.
    drawn = ["".join(chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])) for _ in range(30))
             for _ in range(100)]  # fmt: skip
    for text in UNICODE + drawn:
        assert tok.decode(tok(text)["input_ids"], skip_special_tokens=False) == text
    assert 500 < len(tok) <= tokenizer.BPE_SIZE + len(TAGS)


def test_bpe_learns_the_words_of_the_texts(make):
    world, tok = make("en", "bpe")
    text = texts.biography(world, world.people[0], random.Random(0))
    # Names of popular people and common words are one or two tokens each: far fewer tokens than characters.
    assert len(tok(text)["input_ids"]) < 2 * len(text.split()) < len(text) / 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "BPE_TEXTS", 2000)
        again = build_world_tokenizer(world, "bpe")
    assert again.get_vocab() == tok.get_vocab()
    sample = "Where did Mara study? Vendwood"
    assert again(sample)["input_ids"] == tok(sample)["input_ids"]


@pytest.mark.parametrize(("language", "kind"), KINDS)
def test_tags_are_kept_and_markers_are_not(make, language, kind):
    _, tok = make(language, kind)
    mark = "？" if (language, kind) == ("zh", "word") else "?"
    text = f"<pad><bos><user>{mark}<assistant><think>{mark}</think><answer>{mark}</answer><eos>"
    ids = tok(text)["input_ids"]
    assert tok.convert_ids_to_tokens(ids) == [
        "<pad>", "<bos>", "<user>", mark, "<assistant>", "<think>", mark, "</think>", "<answer>", mark, "</answer>",
        "<eos>",
    ]  # fmt: skip
    assert tok.decode(ids, skip_special_tokens=False) == text
    assert tok.decode(ids, skip_special_tokens=True) == f"{mark}<think>{mark}</think><answer>{mark}</answer>"
    assert (tok.pad_token, tok.bos_token, tok.eos_token, tok.padding_side) == ("<pad>", "<bos>", "<eos>", "left")
    batch = tok(["?", "?!?"], padding=True)
    assert batch["attention_mask"] == [[0, 0, 1], [1, 1, 1]] and batch["input_ids"][0][:2] == [tok.pad_token_id] * 2


def test_unknown_words_do_not_crash(make):
    _, tok = make("en", "word")
    ids = tok("Which Zürich?")["input_ids"]
    assert tok.convert_ids_to_tokens(ids) == ["Which", "<unk>", "?"]
    _, tok = make("zh", "word")
    assert tok.convert_ids_to_tokens(tok("据说X")["input_ids"]) == ["据", "说", "<unk>"]


@pytest.mark.parametrize(("language", "kind"), KINDS)
def test_chat_template(make, language, kind):
    _, tok = make(language, kind)
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "!<think>"},
        {"role": "user", "content": "!"},
        {"role": "assistant", "content": "?"},
    ]
    text = tok.apply_chat_template(messages, tokenize=False)
    assert text == "<bos><user>?<assistant>!<think><eos><user>!<assistant>?<eos>"
    prompt = tok.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert prompt == "<bos><user>?<assistant>"
    encoded = tok.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    assert encoded["assistant_masks"] == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1]
    assert encoded["input_ids"] == tok(text, add_special_tokens=False)["input_ids"]
    with pytest.raises(Exception, match="roles user and assistant only"):
        tok.apply_chat_template([{"role": "system", "content": "?"}], tokenize=False)


@pytest.mark.parametrize(("language", "kind"), KINDS)
def test_the_longest_texts_fit(make, language, kind):
    """Of a world whose texts say all that they can."""
    _, tok = make(language, kind)
    world = World(WorldConfig(num_people=100, language=language, max_hops=8, filler=1, unknown=0, hop_share=1, no_claim=0,
                              hop_skipped=0, hop_sloppy=1))  # fmt: skip
    if kind == "word":
        tok = build_world_tokenizer(world)
    rng = random.Random(0)
    for person in world.people:
        asked = world.request(person)
        assert len(tok(f"<bos>{asked}{texts.biography(world, person, rng)}<eos>")["input_ids"]) <= tok.model_max_length
        for relation in world.relations[:3]:
            text = world.question(person, relation, 8) + texts.demonstration(world, person, relation, rng, 8)
            assert len(tok(f"<bos><user>{text}<eos>")["input_ids"]) <= tok.model_max_length


def test_unknown_kind():
    with pytest.raises(ValueError, match=r"tokenizer='char' is unknown; choose one of \['word', 'bpe'\]"):
        build_world_tokenizer(World(WorldConfig(num_people=2)), "char")
