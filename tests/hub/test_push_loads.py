"""What was pushed is loaded back by the libraries themselves, in a process that knows only this Hub."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from datasets import Dataset

from hf_factuality.data.pair_card import push_pairs
from hf_factuality.hub.push import push_folder
from hf_factuality.metrics import push_metrics
from hf_factuality.verifiers import LexicalVerifier
from tests.hub.push_inputs import REMAINS, write
from tests.tiny import save_tiny_model


ROWS = [{"prompt": "Who?", "chosen": "Ada.", "rejected": "Bob."}, {"prompt": "玛丽?", "chosen": "a", "rejected": "b"}]
GIT = "hf_factuality @ git+https://github.com/someone/hf_factuality@" + "0" * 40


@pytest.fixture
def run(hub, tmp_path):
    """Runs Python in a fresh process, with a cache of its own."""

    def python(code):
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
        environment = hub.environment(tmp_path / "home")
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=900)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()

    return python


def test_a_model_a_tokenizer_and_a_verifier(hub, run, tmp_path):
    folder = Path(save_tiny_model(tmp_path / "tiny"))
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="20kB")
    (folder / "model.safetensors").unlink()
    write(folder, REMAINS)
    push_folder(folder, "someone/tiny")
    LexicalVerifier(threshold=0.7).push_to_hub("someone/judge", private=True)
    printed = run(f"""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from hf_factuality.verifiers import VerifierInput, VerifierPipeline
        there, here = (AutoModelForCausalLM.from_pretrained(name) for name in ("someone/tiny", {str(folder)!r}))
        state = here.state_dict()
        print(len(state), all(torch.equal(tensor, state[name]) for name, tensor in there.state_dict().items()))
        tokenizer = AutoTokenizer.from_pretrained("someone/tiny")
        print(tokenizer.apply_chat_template([{{"role": "user", "content": "Who?"}}], tokenize=False))
        pipeline = VerifierPipeline.from_pretrained("someone/judge")
        (found,) = pipeline.verify([VerifierInput("Ada was born in Leeds.", evidence=("Ada was born in Leeds.",))])
        print([span.label.value for span in found.spans], pipeline.judge.threshold)
    """)
    assert printed[0].endswith(" True") and int(printed[0].split()[0]) > 10
    assert printed[1:] == ["<|user|>Who?<|end|>", "['supported'] 0.7"]
    assert hub.repos["model", "someone/tiny"].private and hub.repos["model", "someone/judge"].private
    shards = hub.count("GET", r"/someone/tiny/resolve/\w+/model-\d+-of-\d+.safetensors")
    assert shards == sum(1 for name in hub.repos["model", "someone/tiny"].files() if name.endswith("rs")) > 2


def test_pairs_and_a_metric(hub, run, tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    Dataset.from_list(ROWS).to_parquet(folder / "pairs.parquet")
    header = "---\nconfigs:\n- config_name: default\n  data_files: pairs.parquet\n---\n"
    write(folder, {"README.md": header.encode(), "responses.jsonl": b"{}"})
    push_pairs(folder, "someone/pairs", private=True)
    assert set(hub.repos["dataset", "someone/pairs"].files()) == {"pairs.parquet", "README.md"}
    push_metrics(["factscore"], namespace="someone", requirement=GIT, private=True)
    printed = run("""
        import evaluate
        from datasets import DownloadConfig, load_dataset
        from hf_factuality.hub.cards.settings import dataset_origin
        pairs = load_dataset("someone/pairs", split="train")
        print(pairs.to_list())
        print(*dataset_origin(pairs.filter(lambda row: True).map(lambda row: {"more": 1})))
        metric = evaluate.load("someone/factscore", download_config=DownloadConfig(token=True))
        print(metric.compute(predictions=[["S", "NS"], ["S", "S"]], gamma=0)["factscore"])
    """)
    commit = hub.repos["dataset", "someone/pairs"].refs["main"]
    assert printed == [str(ROWS), f"someone/pairs {commit}", "0.75"]
