"""Token reward models: the right characters, whatever the tokenizers; the same values in any batch; paid in full.

Most reward models here are tables: the score of a token is a known function of the token alone, so that the expected values
need neither offsets nor a model.
"""

import logging
import math
import unicodedata
from types import SimpleNamespace

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from transformers.modeling_outputs import TokenClassifierOutput

from hf_factuality import TokenRewardPPOTrainer
from hf_factuality.errors import CheckpointError, DataError
from hf_factuality.rewards import TokenRewardModel
from tests.tiny import CHAT_TEMPLATE
from tests.trainers.token_reward_ppo_oracle import GivenCompletions, make, place


TEXTS = [
    "The soup was cold, and the beer was warm.",
    "Café Müller — naïve crème brûlée, 5 €!",
    "汤是冷的。啤酒是温的，味道不好。",
    "So good 🙂👍🏽! 👨‍👩‍👧 again  ",
    "",
    " x",
    "mixed 中文 and 🙂 and é",
]
PROMPTS = ["A guest writes:", "客人写道：", "Q: ", "🙂", "Nobody reads this:", "", "Write"]
SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
AROUND = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])


def fast(backend, **options):
    options |= {"tokenizer_object": backend, "pad_token": "<pad>", "clean_up_tokenization_spaces": False}
    return tf.PreTrainedTokenizerFast(**options)


def byte_tokenizer(trim=False, extra=60, **options):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if trim:
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + len(SPECIAL) + extra, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    backend.train_from_iterator(TEXTS * 3, trainer)
    return fast(backend, **options)


def unigram_tokenizer():
    """SentencePiece's manner: spaces are part of tokens, one is put before the text, and NFKC changes characters."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=[*SPECIAL, "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(TEXTS * 3, trainer)
    backend.post_processor = AROUND
    return fast(backend, bos_token="<s>", eos_token="</s>")


def word_tokenizer(words):
    """BERT's manner: lower case, no accents, no control characters."""
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*SPECIAL, "<unk>", *words])}, unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return fast(backend, unk_token="<unk>")


class Table(tf.PreTrainedModel):
    """The score of a token is what the table says. Notes what it was asked."""

    config_class = tf.PretrainedConfig

    def __init__(self, scores, labels=1):
        super().__init__(tf.PretrainedConfig(num_labels=labels))
        self.scores = nn.Parameter(torch.tensor(scores, dtype=torch.float32).reshape(-1, labels))
        self.asked = []

    def forward(self, input_ids, attention_mask):
        assert input_ids.shape == attention_mask.shape and not self.training and not torch.is_grad_enabled()
        self.asked += [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask, strict=True)]
        return TokenClassifierOutput(logits=self.scores[input_ids])


def by_token(tokenizer, scores, other=0.0, labels=1):
    """A table from a few tokens."""
    return Table(
        [scores.get(token, other) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))], labels
    )


def bytes_of_tokens(tokenizer):
    """A table that scores a token by the bytes that it stands for; a special one by a number that would be noticed."""
    special = set(tokenizer.all_special_tokens)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    # In byte-level tokenizers one character of a token is one byte of the text.
    return Table([1e6 if token in special or token in SPECIAL else len(token) for token in tokens])


def score(reward, prompts=PROMPTS, texts=TEXTS, **columns):
    return reward(prompts=prompts, completions=None, completion_texts=texts, **columns)


def check_bytes(text, found):
    """Where no token is halfway through, what was paid so far is the number of bytes so far."""
    places = sorted({end for _, end, _ in found if not any(a < end < b for a, b, _ in found)})
    assert (places[-1] == len(text)) if text else found == []
    for end in places:
        assert sum(value for _, b, value in found if b <= end) == len(text[:end].encode())


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("prompt", [True, False])
def test_values_land_on_the_characters_of_their_tokens(trim, prompt):
    tokenizer = byte_tokenizer(trim)
    reward = TokenRewardModel(bytes_of_tokens(tokenizer), tokenizer, prompt=prompt)
    for head, text, found in zip(PROMPTS, TEXTS, score(reward), strict=True):
        first, tokens = 0, tokenizer(text)["input_ids"]
        if prompt and len(tokenizer(head + text)["input_ids"]) != len(tokenizer(head)["input_ids"]) + len(tokens):
            continue  # a token covers the end of the prompt too, see below
        assert len(found) == len(tokens)
        for a, b, _ in found:
            assert first <= a <= b <= len(text)
            first = a
        check_bytes(text, found)


def test_bytes_of_one_character_are_all_paid_at_it():
    """Three bytes of a Chinese character, four of an emoji, each a token of its own, by hand."""
    tokenizer = byte_tokenizer(extra=0)
    reward = TokenRewardModel(bytes_of_tokens(tokenizer), tokenizer, prompt=False)
    (found,) = score(reward, [""], ["a冷🙂é"])
    assert [(a, b) for a, b, _ in found] == [(0, 1)] + [(1, 2)] * 3 + [(2, 3)] * 4 + [(3, 4)] * 2
    assert {value for *_, value in found} == {1.0}


def test_every_token_of_a_normalising_tokenizer_has_the_original_characters():
    """NFKC makes one character of several and several of one; the special tokens around the text earn nothing."""
    tokenizer = unigram_tokenizer()
    table = by_token(tokenizer, dict.fromkeys(SPECIAL, 1e6), 1.0)
    reward = TokenRewardModel(table, tokenizer, prompt=False)
    texts = [*TEXTS, "ﬁne ＡＢＣ １２ ½", "e\u0301 中"]
    for text, found in zip(texts, score(reward, texts, texts), strict=True):
        assert len(found) == len(tokenizer(text, add_special_tokens=False)["input_ids"])
        covered = {i for a, b, _ in found for i in range(a, b)}
        # An accent that is a character of its own goes into the letter before it.
        letters = {i for i, letter in enumerate(text) if not letter.isspace() and not unicodedata.combining(letter)}
        assert covered >= letters
        assert all(0 <= a <= b <= len(text) and value == 1.0 for a, b, value in found)


def test_marked_words_are_found_as_they_were_written():
    tokenizer = word_tokenizer(["cafe", "cold", "naive", ",", "汤", "冷"])
    table = by_token(tokenizer, {"cafe": 1.0, "cold": -2.0, "naive": 3.0, "冷": -4.0})
    text = "The CAFÉ\u200b was cold, Naïve 🙂 汤冷! cafe"
    (found,) = score(TokenRewardModel(table, tokenizer, prompt=False), [""], [text])
    assert [(text[a:b], value) for a, b, value in found if value] == [
        ("CAFÉ", 1.0), ("cold", -2.0), ("Naïve", 3.0), ("冷", -4.0), ("cafe", 1.0)
    ]  # fmt: skip


def test_a_token_of_prompt_and_completion_belongs_to_the_completion():
    tokenizer = word_tokenizer(["writes", "sunday", "hot"])
    table = by_token(tokenizer, {"sunday": 7.0})
    (found,) = score(TokenRewardModel(table, tokenizer), ["writes: sun"], ["day hot"])
    assert found == [(0, 3, 7.0), (4, 7, 0.0)]


def test_a_token_of_completion_and_closing_belongs_to_the_completion():
    """In a chat, whose template has all special tokens that there shall be: the tokenizer adds none."""
    tokenizer = word_tokenizer(["sunday", "hot"])
    tokenizer.backend_tokenizer.post_processor = AROUND
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}day{% endfor %}"
    table = Table([float(index) for index in range(len(tokenizer))])
    (found,) = score(TokenRewardModel(table, tokenizer), [[{"role": "user", "content": "sun"}]], [" hot sun"])
    assert table.asked == [[7, 8, 7]] and found == [(1, 4, 8.0), (5, 8, 7.0)]


def test_text_that_cannot_be_encoded_is_scored_all_the_same():
    tokenizer = byte_tokenizer()
    (found,) = score(TokenRewardModel(bytes_of_tokens(tokenizer), tokenizer), ["p"], ["a\ud83db"])
    check_bytes("a\ufffdb", found)


def test_what_the_model_reads():
    """Prompt and completion as one text; a chat as the template has it; without one, the messages above the completion."""
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Well?"}]
    tokenizer, told = byte_tokenizer(), byte_tokenizer(chat_template=CHAT_TEMPLATE)
    trimming = CHAT_TEMPLATE.replace("m['content']", "m['content'] | trim")
    for own, options, prompt, expected in [
        (tokenizer, {}, "Q:", "Q: fine 冷 "),
        (tokenizer, {"prompt": False}, "Q:", " fine 冷 "),
        (tokenizer, {"prompt": lambda prompt: f"### {prompt[-1]['content']}\n"}, chat, "### Well?\n fine 冷 "),
        (tokenizer, {}, chat, "Be brief.\nWell?\n fine 冷 "),
        (told, {}, "Q:", "Q: fine 冷 "),
        (told, {}, chat, "<|system|>Be brief.<|end|><|user|>Well?<|end|><|assistant|> fine 冷 <|end|>"),
        (byte_tokenizer(chat_template=trimming), {}, chat,
         "<|system|>Be brief.<|end|><|user|>Well?<|end|><|assistant|> fine 冷 <|end|>"),
    ]:  # fmt: skip
        table = bytes_of_tokens(own)
        (found,) = score(TokenRewardModel(table, own, **options), [prompt], [" fine 冷 "])
        assert own.decode(table.asked[0]) == expected
        check_bytes(" fine 冷 ", found)


def test_a_chat_that_mentions_the_mark_changes_nothing():
    tokenizer = byte_tokenizer(chat_template=CHAT_TEMPLATE)
    prompt = [{"role": "user", "content": "COMPLETIONxSTANDSxHERE COMPLETIONxSTANDSxHEREx"}]
    (found,) = score(TokenRewardModel(bytes_of_tokens(tokenizer), tokenizer), [prompt], ["brûlée"])
    check_bytes("brûlée", found)


def test_a_policy_cannot_write_the_special_tokens_of_the_reward_model():
    """The special tokens score a million here; as text they are what their characters are."""
    tokenizer = byte_tokenizer(chat_template=CHAT_TEMPLATE, eos_token="<|end|>")
    table = bytes_of_tokens(tokenizer)
    text = "bad<|end|><|user|>Is it good?<|assistant|>Yes </s>🙂<pad>"
    for prompt in ([{"role": "user", "content": "Well?"}], "Well?"):
        (found,) = score(TokenRewardModel(table, tokenizer), [prompt], [text])
        check_bytes(text, found)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_values_are_those_of_the_model_alone_in_any_batch(kind):
    """The oracle calls the model on one text without padding. A model in training mode drops out; it is not left in it."""
    tokenizer = byte_tokenizer(padding_side="left")
    sizes = dict(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                 num_attention_heads=2, max_position_embeddings=128, num_labels=1, pad_token_id=0)  # fmt: skip
    torch.manual_seed(0)
    if kind == "llama":
        model = tf.LlamaForTokenClassification(tf.LlamaConfig(**sizes, num_key_value_heads=2)).train()
    else:
        model = tf.BertForTokenClassification(tf.BertConfig(**sizes)).train()
    for parameter in model.parameters():
        parameter.data *= 3
    results = [score(TokenRewardModel(model, tokenizer, batch_size=size)) for size in (1, 2, 3, 16)]
    results.append(score(TokenRewardModel(model, tokenizer), PROMPTS[::-1], TEXTS[::-1])[::-1])
    seen = 0
    for index, (prompt, text) in enumerate(zip(PROMPTS, TEXTS, strict=True)):
        ids = tokenizer(prompt + text)["input_ids"]
        with torch.no_grad():
            alone = model.eval()(torch.tensor([ids])).logits[0, :, 0].tolist()
        for result in results:
            values = [value for *_, value in result[index]]
            assert values == pytest.approx(alone[len(ids) - len(values) :] if values else [], rel=1e-4, abs=1e-5)
        assert len({tuple((a, b) for a, b, _ in result[index]) for result in results}) == 1
        seen += len(results[0][index])
    assert seen > 100 and len({round(v, 3) for row in results[0] for *_, v in row}) > 50


def test_what_a_score_is_worth():
    tokenizer = word_tokenizer(["a", "b", "c"])
    logits = {"a": (0.5, 2.0), "b": (-1.0, 0.0), "c": (3.0, -2.0)}
    table = by_token(tokenizer, logits, (9.0, 9.0), labels=2)
    table.config.id2label = {0: "plain", 1: "toxic"}

    def values(**options):
        (found,) = score(TokenRewardModel(table, tokenizer, prompt=False, **options), [""], ["a b c"])
        assert [(start, end) for start, end, _ in found] == [(0, 1), (2, 3), (4, 5)]
        return [value for *_, value in found]

    for label in (1, "1", "toxic"):
        assert values(label=label) == [2.0, 0.0, -2.0]
    assert values(label="plain") == [0.5, -1.0, 3.0]
    expected = [1 / (1 + math.exp(-2)), 0.5, 1 / (1 + math.exp(2))]
    assert values(label=1, process="sigmoid") == pytest.approx(expected)
    expected = [math.exp(b) / (math.exp(a) + math.exp(b)) for a, b in logits.values()]
    assert values(label=1, process="softmax") == pytest.approx(expected)
    assert values(label=1, scale=-0.5, baseline=1.0) == [-0.5, 0.5, 1.5]
    assert values(label=1, differences=True) == [2.0, -2.0, -2.0]
    assert values(label=1, differences=True, scale=3.0, baseline=1.0) == [3.0, -6.0, -6.0]
    for options, message in [
        ({}, "has 2 labels"),
        ({"label": "rude"}, "'rude' is none of"),
        ({"label": 2}, "2 is none of"),
    ]:
        with pytest.raises(ValueError, match=message):
            values(**options)


def test_differences_add_up_to_the_last_score():
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    table = Table(torch.randn(len(tokenizer)).tolist())
    plain, changes = (score(TokenRewardModel(table, tokenizer, differences=on)) for on in (False, True))
    for scores, paid in zip(plain, changes, strict=True):
        total = 0.0
        for (*place_a, expected), (*place_b, value) in zip(scores, paid, strict=True):
            total += value
            assert place_a == place_b and total == pytest.approx(expected, abs=1e-5)


class Log(dict):
    def __call__(self, name, value):
        assert isinstance(value, float)
        self[name] = value


@pytest.mark.parametrize("special", [False, True])
def test_what_does_not_fit_carries_nothing_and_is_counted(special, caplog):
    """One token per word. Six tokens are read: with <s> and </s> around the text, four words."""
    tokenizer = word_tokenizer(["p", "a", "b", "c", "d"])
    if special:
        tokenizer.backend_tokenizer.post_processor = AROUND
    table = by_token(tokenizer, {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}, 1e6)
    reward = TokenRewardModel(table, tokenizer, max_length=6 if special else 4, name="mine")
    log, texts = Log(), [" a b", " a b c d", "", " a b"]
    with caplog.at_level(logging.WARNING):
        found = score(reward, ["p p", "p p", "p p p p p p p", "p p p p"], texts, log_metric=log)
        score(reward, ["p p p"], [" a b c d"])
    both = [(1, 2, 1.0), (3, 4, 2.0)]
    assert found == [both, both, [], None]
    assert log == {"mine/score": 1.5, "mine/tokens": 1.0, "mine/unscored_tokens": 4.0, "mine/unknown_completions": 1.0}
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith("hf_factuality")]
    assert len(warnings) == 1 and "4 of 8 tokens" in warnings[0]
    assert max(map(len, table.asked)) <= reward.max_length


def test_the_length_that_tokenizer_and_model_allow():
    tokenizer = byte_tokenizer()
    sizes = dict(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                 num_attention_heads=1, num_labels=1)  # fmt: skip
    bert = tf.BertForTokenClassification(tf.BertConfig(**sizes, max_position_embeddings=20))
    assert TokenRewardModel(bert, tokenizer).max_length == 20
    assert TokenRewardModel(bert, byte_tokenizer(model_max_length=8)).max_length == 8
    # Two of RoBERTa's positions are for padding: one more than 18 tokens, and it fails.
    roberta = tf.RobertaForTokenClassification(tf.RobertaConfig(**sizes, max_position_embeddings=20, pad_token_id=1))
    reward = TokenRewardModel(roberta, tokenizer)
    assert reward.max_length == 18
    assert len(score(reward, [""], ["x " * 30])[0]) == 18
    with pytest.raises((IndexError, RuntimeError)):
        score(TokenRewardModel(roberta, tokenizer, max_length=19), [""], ["x " * 30])


def test_scores_that_are_no_numbers_make_a_completion_unknown(caplog):
    tokenizer = word_tokenizer(["a", "b"])
    table = by_token(tokenizer, {"a": 1.0, "b": math.nan})
    log = Log()
    found = score(TokenRewardModel(table, tokenizer), ["p", "p"], [" a a", " a b"], log_metric=log)
    assert found == [[(1, 2, 1.0), (3, 4, 1.0)], None]
    assert log["token_reward_model/unknown_completions"] == 1 and log["token_reward_model/score"] == 1.0
    assert "not finite numbers" in caplog.text


def save(folder, model_class, config_class, tokenizer, **options):
    sizes = dict(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                 num_attention_heads=1, max_position_embeddings=64, num_labels=1, pad_token_id=0)  # fmt: skip
    torch.manual_seed(0)
    model = model_class(config_class(**{**sizes, **options}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.eval()


def test_a_folder_is_read_with_its_own_tokenizer(tmp_path):
    tokenizer = byte_tokenizer()
    model = save(tmp_path, tf.BertForTokenClassification, tf.BertConfig, tokenizer)
    assert score(TokenRewardModel(str(tmp_path))) == score(TokenRewardModel(model, tokenizer))
    assert TokenRewardModel(tmp_path, dtype=torch.bfloat16).model.dtype == torch.bfloat16


def test_a_decoder_that_scores_texts_is_read_at_every_token(tmp_path):
    """The oracle is that model itself: its score of the text up to a token."""
    tokenizer = byte_tokenizer()
    model = save(tmp_path, tf.LlamaForSequenceClassification, tf.LlamaConfig, tokenizer, num_key_value_heads=1)
    found = score(TokenRewardModel(str(tmp_path), differences=True))
    for prompt, text, row in zip(PROMPTS, TEXTS, found, strict=True):
        total, ids = 0.0, tokenizer(prompt + text)["input_ids"]
        for position, (*_, value) in enumerate(row, start=len(ids) - len(row)):
            total += value
            with torch.no_grad():
                expected = model(torch.tensor([ids[: position + 1]])).logits.item()
            assert total == pytest.approx(expected, abs=1e-5)


def test_what_is_no_token_reward_model_is_refused(tiny_model, tmp_path):
    with pytest.raises(CheckpointError, match="scores would be random"):
        TokenRewardModel(tiny_model)
    with pytest.raises(CheckpointError, match="cannot be loaded as a token reward model"):
        TokenRewardModel(str(tmp_path / "nothing"))
    save(tmp_path / "bert", tf.BertForSequenceClassification, tf.BertConfig, byte_tokenizer())
    with pytest.raises(CheckpointError, match="has no score per token"):
        TokenRewardModel(str(tmp_path / "bert"))


def test_refused_arguments():
    tokenizer = byte_tokenizer()
    table = bytes_of_tokens(tokenizer)
    for arguments, options, message in [
        ((table,), {}, "needs its tokenizer"),
        ((table, SimpleNamespace(is_fast=False)), {}, "SimpleNamespace is a slow tokenizer"),
        ((table, tokenizer), {"process": "tanh"}, "process='tanh' is unknown"),
        ((table, tokenizer), {"process": "softmax"}, "always 1"),
        ((table, tokenizer), {"scale": math.inf}, "scale=inf"),
        ((table, tokenizer), {"baseline": math.nan}, "baseline=nan"),
        ((table, tokenizer), {"batch_size": 0}, "batch_size=0"),
        ((table, tokenizer), {"max_length": 0}, "max_length=0"),
    ]:
        with pytest.raises(ValueError, match=message):
            TokenRewardModel(*arguments, **options)
    reward = TokenRewardModel(table, tokenizer)
    with pytest.raises(DataError, match="needs completion_texts"):
        reward(prompts=["p"], completions=["c"])
    with pytest.raises(DataError, match="reads the prompts"):
        reward(completion_texts=["c"])
    with pytest.raises(DataError, match="must hold text"):
        score(reward, [[{"role": "user", "content": [{"type": "image"}]}]], ["c"])
    for template, times in [
        ("{{ messages[0]['content'] }}", 0),
        ("{% for m in messages * 2 %}{{ m['content'] }}{% endfor %}", 2),
    ]:
        silent = byte_tokenizer(chat_template=template)
        with pytest.raises(DataError, match=f"shows the assistant's last message {times} times"):
            score(TokenRewardModel(table, silent), [[{"role": "user", "content": "Well?"}]], ["c"])


def test_the_trainer_pays_each_value_at_the_policys_token(tiny_model, tmp_path):
    """Two tokenizers of different pieces. What is paid up to a policy token is what ends in its text, and nothing is lost."""
    tokenizer = byte_tokenizer(chat_template=CHAT_TEMPLATE)
    # Quarters, whose sums are exact.
    table = Table((torch.randint(-8, 9, (len(tokenizer),), generator=torch.Generator().manual_seed(0)) / 4).tolist())
    reward = TokenRewardModel(table, tokenizer)
    kept, spans = [], []

    class Keeping(GivenCompletions):
        def _place_rewards(self, mask):
            kept.append(super()._place_rewards(mask))
            return kept[-1]

    def watched(**columns):
        spans.append(reward(**columns))
        return spans[-1]

    texts = [(text, index % 2 == 0) for index, text in enumerate(TEXTS) if text][:6]
    trainer = make(tiny_model, tmp_path, watched, trainer=Keeping, texts=texts, per_device_train_batch_size=6, max_steps=1,
                   max_completion_length=128)  # fmt: skip
    trainer.train()
    policy = trainer.processing_class
    boundaries = 0
    for row, ids, own in zip(kept[0][0], trainer.given, spans[0], strict=True):
        assert row.sum().item() == sum(value for *_, value in own) and any(value for *_, value in own)
        text = policy.decode(ids, skip_special_tokens=True)
        for count in range(len(ids) + 1):
            prefix = policy.decode(ids[:count], skip_special_tokens=True)
            if text.startswith(prefix) and "\ufffd" not in prefix:
                boundaries += 1
                paid = sum(value for _, end, value in own if end <= len(prefix))
                assert row[:count].sum().item() == paid
        assert not row[len(ids) :].any()
    assert boundaries > 60
    assert [len(own) for own in spans[0]] != [len(ids) for ids in trainer.given], "the two tokenizers are one"
    logged = [log for log in trainer.state.log_history if "token_reward_model/score" in log]
    assert logged and logged[0]["token_reward_model/unscored_tokens"] == 0


def test_ascii_is_paid_as_the_oracle_places_it(tiny_model, tmp_path):
    """The other tests' oracle for placing, which decodes token by token."""
    tokenizer = byte_tokenizer()
    reward = TokenRewardModel(bytes_of_tokens(tokenizer), tokenizer)
    rewards = []

    class Keeping(GivenCompletions):
        def _place_rewards(self, mask):
            rewards.append(super()._place_rewards(mask)[0])
            return torch.zeros_like(rewards[-1]), mask.any(dim=1)

    trainer = make(tiny_model, tmp_path, reward, trainer=Keeping, max_steps=1)
    trainer.train()
    policy = trainer.processing_class
    for row, ids in zip(rewards[0].tolist(), trainer.given, strict=False):
        text = policy.decode(ids, skip_special_tokens=True)
        (own,) = score(reward, ["Where was person 0 born?\n"], [text])
        assert row[: len(ids)] == place(policy, ids, own) and sum(row) == len(text)


def test_unknown_and_two_models_at_once(tiny_model, tmp_path):
    """A completion out of the reach of both is unknown; the names keep their figures apart, and shared names are refused."""
    tokenizer = byte_tokenizer()
    near = TokenRewardModel(bytes_of_tokens(tokenizer), tokenizer, prompt=False, max_length=1, name="near")
    far = TokenRewardModel(bytes_of_tokens(tokenizer), tokenizer, max_length=1, name="far")
    trainer = make(tiny_model, tmp_path, [near, far], trainer=TokenRewardPPOTrainer, max_steps=1)
    assert trainer.reward_func_names == ["near", "far"]
    trainer.train()
    log = next(log for log in trainer.state.log_history if "near/tokens" in log)
    assert log["far/unknown_completions"] == 3 and log["far/tokens"] == 0 and log["near/tokens"] <= 1
    with pytest.raises(ValueError, match="several reward functions are named"):
        make(tiny_model, tmp_path, [near, near])
