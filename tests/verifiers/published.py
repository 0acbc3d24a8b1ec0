"""Tiny models of the architectures of published judges, with random weights, and ten inputs for them."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DebertaV2Tokenizer,
    ModernBertConfig,
    ModernBertForTokenClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)


TEXTS = [
    "The Eiffel Tower was finished in 1889. It stands in Paris, and is 330 metres high.",
    "Ada Hale was born in Leeds; she didn't leave it before 1,900 people had signed the x-ray petition (U.S. law).",
    "Choose your answer: based on the paragraph above can we conclude that? OPTIONS: Yes No I think the answer is",
    "Briefly answer the following question: passage 1: output: Summarize the following text: predict: Document: Claim:",
]
DOCUMENTS = [
    *TEXTS[:2],
    "The tower stands in Paris.\nIt is high.\nNobody left.",
    "Leeds.",
    " ".join(f"On day {number} the tower was {number % 7} metres high, and Ada didn't leave." for number in range(60)),
]
CLAIMS = ["The tower is in Leeds.", "Ada was born in 1889 (she didn't leave Paris)."]
PAIRS = [(document, claim) for document in DOCUMENTS for claim in CLAIMS]


def spread(model):
    """Random weights that make the outputs differ clearly between inputs."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "norm" not in name.lower():
                parameter.mul_(8.0)
    return model.eval()


def byte_tokenizer(cls, sep, **kwargs):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = [cls, "<pad>", sep, "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer, {"pad_token": "<pad>", "unk_token": "<unk>", "clean_up_tokenization_spaces": False, **kwargs}


def save_deberta(folder, seed=0):
    """A DeBERTa-v3: relative positions only, and a tokenizer that folds white space."""
    words = sorted({f"▁{word}" for text in TEXTS for word in text.split()})
    characters = sorted({character for text in TEXTS for character in text} | set('"?:-\n0123456789') | {"▁"})
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    vocabulary = [(piece, 0.0) for piece in special]
    vocabulary += [(word, -3.0 - 0.01 * number) for number, word in enumerate(words)]
    vocabulary += [(character, -6.0) for character in characters if character not in words]
    tokenizer = DebertaV2Tokenizer(vocab=vocabulary, unk_id=3)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = DebertaV2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
        pad_token_id=0,
        num_labels=2,
    )
    spread(DebertaV2ForSequenceClassification(config)).save_pretrained(folder)
    return str(folder)


def save_roberta(folder, seed=0):
    tokenizer, named = byte_tokenizer(
        "<s>", "</s>", bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>"
    )
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **named).save_pretrained(folder)
    torch.manual_seed(seed)
    config = RobertaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=514,
        type_vocab_size=1,
        num_labels=2,
    )
    spread(RobertaForSequenceClassification(config)).save_pretrained(folder)
    return str(folder)


def save_modernbert(folder, seed=0):
    tokenizer, named = byte_tokenizer("[CLS]", "[SEP]", cls_token="[CLS]", sep_token="[SEP]")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=8192, **named).save_pretrained(folder)
    torch.manual_seed(seed)
    config = ModernBertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=4096,
        pad_token_id=1,
        cls_token_id=0,
        sep_token_id=2,
        bos_token_id=0,
        eos_token_id=2,
        num_labels=2,
    )
    spread(ModernBertForTokenClassification(config)).save_pretrained(folder)
    return str(folder)
