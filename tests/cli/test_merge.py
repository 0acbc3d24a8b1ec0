"""`hf-factuality merge` and `average`, and the functions of these names, do the same."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import hf_factuality
from hf_factuality.cli import main
from hf_factuality.errors import HubError
from hf_factuality.methods.averaging.average import Ratios
from tests.hub.loopback import hub  # noqa: F401 - a fixture
from tests.tiny import save_tiny_model


@pytest.fixture
def checkpoint(tmp_path):
    return Path(save_tiny_model(tmp_path / "checkpoint"))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_merge(hub, checkpoint, tmp_path, capsys):  # noqa: F811
    seen = []
    settings = {"dtype": "bfloat16", "max_shard_size": "20kB", "push_to_hub": "one", "private": False}
    report = hf_factuality.merge(checkpoint, tmp_path / "one", **settings, on_written=lambda *it: seen.append(it))
    (reports, repo_id), one = seen[0], hub.repos["model", "someone/one"]
    assert repo_id == "someone/one" and str(reports[0]) == str(report) and reports[0].published is None
    assert report.published.oid == one.refs["main"] and not one.private
    flags = ["--dtype", "bfloat16", "--max_shard_size", "20kB", "--push_to_hub", "two", "--public"]
    assert main(["merge", str(checkpoint), "--out", str(tmp_path / "two"), *flags]) == 0
    printed = capsys.readouterr()
    assert f"{report}\n" in printed.err
    assert printed.out.splitlines()[0] == str(tmp_path / "two") and len(report.shards) > 1
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == one.files()
    assert one.files() == hub.repos["model", "someone/two"].files()


def test_average(checkpoint, tmp_path, capsys):
    other = Path(save_tiny_model(tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    save_file({name: 1.5 * tensor for name, tensor in weights.items()}, other / "model.safetensors", {"format": "pt"})
    ratios = Ratios({"0": 0.25, "1": 0.5}, 0.375, blocks=2)
    ratios.save(tmp_path)
    paths = [checkpoint, other]
    reports = hf_factuality.average(*paths, tmp_path / "one", ratios=tmp_path / "ratios.json", merge_method="linear")
    assert main(["average", *map(str, paths), "--ratios", str(tmp_path), "--out", str(tmp_path / "two")]) == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two") and f"{reports[0]}\n" in capsys.readouterr().err
    hf_factuality.average(*paths, tmp_path / "three", alpha=[0, 0.5])
    assert main(["average", *map(str, paths), "--alpha", "0", "0.5", "--out", str(tmp_path / "four")]) == 0
    for name in ("alpha-0", "alpha-0.5"):
        assert contents(tmp_path / "three" / name) == contents(tmp_path / "four" / name)


def test_what_the_functions_refuse(hub, checkpoint, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    for given, said in (
        ({"private": False}, "`private=False` is for `push_to_hub`"),
        ({"private": True}, "`private` is for `push_to_hub`"),
        ({"branch": "v2"}, "`branch` is for `push_to_hub`"),
    ):
        with pytest.raises(ValueError, match=said):
            hf_factuality.merge(checkpoint, out, **given)
    with pytest.raises(ValueError, match="`push_to_hub` is of one model, and `alpha` makes several"):
        hf_factuality.average(checkpoint, checkpoint, out, alpha=[0, 1], push_to_hub="someone/x")
    assert not out.exists() and not hub.calls
    hub.fail("POST", "/commit/", status=403)
    with pytest.raises(HubError, match=f"; the model is in {out}$"):
        hf_factuality.average(checkpoint, checkpoint, out, alpha=0.5, push_to_hub="someone/x")
    assert (out / "config.json").exists()
