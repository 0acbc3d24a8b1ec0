"""RLFH's maps from names, files and texts."""

import json

import pytest

from hf_factuality.methods.rlfh.formula import RLFH_PRESETS, RLFHMaps
from hf_factuality.methods.rlfh.maps import load_rlfh_maps
from hf_factuality.spans import Label
from tests.tables import cases


README = """
# The README's recipe.
truth: {Correct: 0.45, Hedged correct: 0.35, Vague: -1, Hedged wrong: -1.5, Wrong: -1.7}
informativeness: {5: 1.25, 4: 1, 3: 0.75, 2: 0.1, 1: -0.2}
info_weight: 1.2
"""
OURS = {
    "truth": {
        "supported": 0.45,
        "hedged_supported": 0.35,
        "unverifiable": -1,
        "hedged_contradicted": -1.5,
        "contradicted": -1.7,
    },
    "informativeness": {"5": 1.25, "4": 1, "3": 0.75, "2": 0.1, "1": -0.2},
    "info_weight": 1.2,
}


@pytest.mark.parametrize("name", ["readme", "script", "class"])
def test_presets_by_name(name):
    assert load_rlfh_maps(name) is RLFH_PRESETS[name]
    assert load_rlfh_maps(RLFH_PRESETS[name]) is RLFH_PRESETS[name]


def test_text_and_mappings():
    expected = RLFH_PRESETS["readme"]
    assert load_rlfh_maps(README) == expected
    assert load_rlfh_maps(OURS) == expected
    assert load_rlfh_maps(json.dumps(OURS)) == expected
    # As the released scripts write their maps, here read as YAML.
    written = "{'truth': {'Correct':0.45,'Hedged correct':0.35,'Vague':-1,'Hedged wrong':-1.5,'Wrong':-1.7}, "
    assert (
        load_rlfh_maps(written + "'informativeness': {'5':1.25,'4':1,'3':0.75,'2':0.1,'1':-0.2}, info_weight: 1.2}")
        == expected
    )
    other = load_rlfh_maps(OURS | {"mu": 2, "epsilon": -1.5, "truth_weight": 0, "default_for_none": -0.5})
    assert (other.mu, other.epsilon, other.truth_weight, other.default_for_none) == (2.0, -1.5, 0.0, -0.5)
    assert other.truth[Label.HEDGED_CONTRADICTED] == -1.5


def test_files(tmp_path):
    for name, text in (("maps.yaml", README), ("maps.JSON", json.dumps(OURS)), ("maps", "\ufeff" + README)):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        assert load_rlfh_maps(path) == load_rlfh_maps(str(path)) == RLFH_PRESETS["readme"]


def test_a_path_is_never_a_preset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "script"
    path.write_text(README)
    assert load_rlfh_maps(path) == RLFH_PRESETS["readme"]
    assert load_rlfh_maps("script") is RLFH_PRESETS["script"]


def test_yaml_may_merge_mappings():
    merged = README.replace("informativeness: {", "more: &more {5: 9}\ninformativeness: {<<: *more, ")
    with pytest.raises(ValueError, match=r"unknown keys \['more'\]"):
        load_rlfh_maps(merged)
    whole = "informativeness: {<<: {5: 9, 4: 1}, 5: 1.25, 3: 0.75, 2: 0.1, 1: -0.2}\n"
    assert load_rlfh_maps(README.split("informativeness")[0] + whole + "info_weight: 1.2") == RLFH_PRESETS["readme"]


@cases("judges", "rlfh_maps", "text", "message")
def test_wrong_texts_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        load_rlfh_maps(text)


@cases("judges", "rlfh_maps_changed", "old", "new", "message")
def test_wrong_maps_are_refused_by_name(old, new, message):
    with pytest.raises(ValueError, match=message):
        load_rlfh_maps(README.replace(old, new))


@pytest.mark.parametrize(
    "attack",
    [
        "{'Correct': __import__('pathlib').Path('TARGET').touch()}",
        "truth: !!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [TARGET]]",
        "!!python/object/apply:os.system ['touch TARGET']",
    ],
)
def test_nothing_is_run(attack, tmp_path):
    target = tmp_path / "touched"
    with pytest.raises(ValueError):
        load_rlfh_maps(attack.replace("TARGET", str(target)))
    (tmp_path / "maps.json").write_text(attack.replace("TARGET", str(target)))
    with pytest.raises(ValueError, match=r"maps\.json: "):
        load_rlfh_maps(tmp_path / "maps.json")
    assert not target.exists()


def test_missing_files_and_other_types(tmp_path):
    with pytest.raises(FileNotFoundError, match="maps.yaml is no file"):
        load_rlfh_maps("maps.yaml")
    with pytest.raises(FileNotFoundError, match="presets of RLFH's maps"):
        load_rlfh_maps(tmp_path)
    with pytest.raises(TypeError, match="got int"):
        load_rlfh_maps(3)
    (tmp_path / "bad.yaml").write_text("truth: 3\n")
    with pytest.raises(ValueError, match=r"bad\.yaml: the maps have no informativeness"):
        load_rlfh_maps(str(tmp_path / "bad.yaml"))


def test_what_is_written_is_read_again(tmp_path):
    maps = load_rlfh_maps(OURS | {"mu": 1.5})
    assert isinstance(maps, RLFHMaps)
    (tmp_path / "maps.json").write_text(json.dumps(vars(maps), default=dict))
    assert load_rlfh_maps(tmp_path / "maps.json") == maps
